// Writes one rank's shard at the speed of the disk: HDF5 makes an empty file with room for the
// arrays, the numbers are then written by pwrite to the places that HDF5 names, checksums taken on
// the way.
//
// No MPI and, after `create`, no HDF5 call: `write` and `finish` belong to a writer thread.
#pragma once

#include <filesystem>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/base/file.h"
#include "runtime/checkpoint/layout.h"

namespace tessera {

struct ShardWriterOptions {
  std::filesystem::path save_folder;  // a `.tmp-` folder (make_save_folder)
  SaveIdentity identity;
  ShardSpec spec;
  StateLayout arrays;  // to save, all f32
  SaveHook hook;       // tests only
};

/// One shard of one save. Throws WriteError wherever the file cannot be written; the folder is then
/// to be removed by rank 0 (remove_folder).
class ShardWriter {
 public:
  explicit ShardWriter(ShardWriterOptions options);

  /// Makes the file and takes the room for all of it: a full disk shows here.
  void create();
  /// Writes `values` as elements offset, offset + 1, ... of the shard's `array`.
  /// Requires: `create` has been called; the pieces of one array come in order and without gaps;
  /// the arrays may alternate. Pieces of 1 MiB and more run at full speed.
  void write(StateArray array, Index offset, std::span<const float> values);
  /// Fills values with elements offset, offset + 1, ... of one of the shard's arrays.
  using Fill = std::function<void(Index offset, std::span<float> values)>;
  /// Writes block `block` (of kBlockElements) of `array` whole, in pieces that `fill` gives, front
  /// to back. Blocks may come in any order, and from several threads. Requires: `create` has been
  /// called; the array is written by this function alone, each block once.
  void write_block(StateArray array, Index block, const Fill& fill);
  /// Blocks of `array`. Requires: `create` has been called.
  [[nodiscard]] Index block_count(StateArray array) const;
  /// Writes the block checksums, and returns when the file is on the device.
  /// Requires: all elements have been written.
  [[nodiscard]] ShardSummary finish();

  [[nodiscard]] const ShardSpec& spec() const noexcept { return options_.spec; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  struct ArrayState {
    Index count = 0;  // elements to write
    Index written = 0;
    ByteRange place;                 // of the array in the file
    std::uint64_t check_offset = 0;  // of its block checksums in the file
    Xxh3 hash;                       // of the block under way
    std::vector<std::uint64_t> block_hashes;
    Index nonfinite = 0;
  };
  [[nodiscard]] ArrayState& state(StateArray array) {
    return arrays_[options_.arrays.number_of(array)];
  }
  [[nodiscard]] std::string_view name_of(std::size_t array) const;
  void make_skeleton(const File& skeleton);
  void end_block(ArrayState& array, Index block, std::uint64_t hash);
  void reached(SavePhase phase) const;

  ShardWriterOptions options_;
  std::filesystem::path path_;
  File file_;
  std::vector<ArrayState> arrays_;  // in the order of options_.arrays
  std::mutex mutex_;                // guards what write_block changes in them
};

}  // namespace tessera
