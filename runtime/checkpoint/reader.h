// Reads a committed checkpoint, whatever the number of ranks that wrote it. Starts neither MPI nor
// CUDA: `inspect` and `convert` are made of this.
//
// Nothing is believed before it has been checked: CHECKSUMS first, then the manifest and the
// headers of the shards against it, then each block of data against its header. Numbers come out of
// memory whose checksum was compared, never through HDF5's virtual datasets, which show a missing
// shard as their fill value.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/base/read_retry.h"
#include "runtime/checkpoint/checksums_file.h"
#include "runtime/checkpoint/layout.h"
#include "runtime/checkpoint/manifest.h"

namespace tessera {

class Hdf5Document;

/// Called now and then with the bytes done and the bytes in all.
using ByteProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// One checkpoint. Holds at most kMostCachedBlocks blocks of 16 MiB and kMostOpenShards open files.
/// Not for use by two threads at once (`stream` has threads of its own). Everything throws, naming
/// the file: DamageError where the checkpoint is proven not to be what was written, FormatError
/// where its content is not acceptable, ReadError where the system cannot read it, patiently.
class CheckpointReader {
 public:
  static constexpr std::size_t kMostCachedBlocks = 6;
  static constexpr std::size_t kMostOpenShards = 64;

  /// Reads and checks CHECKSUMS and the manifest. The shards are opened, and checked, when needed.
  explicit CheckpointReader(std::filesystem::path step_folder);
  /// The same with the caller's retries, of which it keeps a reference.
  CheckpointReader(std::filesystem::path step_folder, ReadRetry& retry);

  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }
  [[nodiscard]] const ManifestInfo& info() const noexcept { return manifest_.info; }
  /// Of CHECKSUMS, and so of every byte of the step: of two copies of one save as well.
  [[nodiscard]] std::uint64_t contents_hash() const noexcept { return contents_hash_; }
  [[nodiscard]] const ParamTable& table() const noexcept { return manifest_.table; }
  [[nodiscard]] std::span<const ShardRecord> shards() const noexcept { return manifest_.shards; }
  /// The arrays that were saved.
  [[nodiscard]] const StateLayout& arrays() const { return manifest_.info.arrays(); }

  /// The file of a rank's shard, and the bytes in it of an array that was saved.
  [[nodiscard]] const std::string& shard_file(Index rank) const;
  [[nodiscard]] ByteRange array_bytes(Index rank, StateArray array) const;

  /// Elements begin, begin + 1, ... of a unit, without padding, into `values`. Reads only the
  /// blocks that hold them, and checks each. An array that was not saved reads as zeros.
  ///   values  [count]  f32, written
  void read(StateArray array, std::string_view unit, Index begin, std::span<float> values);
  /// The same for a parameter; `begin` counts in its flattened elements.
  void read_param(StateArray array, const ParamRow& param, Index begin, std::span<float> values);

  /// Elements begin, begin + 1, ... of a parameter.
  struct ParamPiece {
    std::size_t param;  // in table().params
    Index begin;
    Index run_begin;  // of this parameter's elements in the same block: they come in order
    std::span<const float> values;
  };
  /// Hands all elements of an array to `take`, each once (aliases left out), from several threads
  /// at once, in pieces that the processor's cache still holds. A block's checksum is compared
  /// after its last piece: what was taken counts only once this returns.
  void stream(StateArray array, const std::function<void(const ParamPiece&)>& take);
  /// The same for elements begin, begin + 1, ... of the unit of `wanted[index]`, for all of
  /// `wanted`, whose offsets do not matter; reads only the blocks that hold them.
  /// Requires: an array that was saved.
  using TakeUnitPiece =
      std::function<void(std::size_t index, Index begin, std::span<const float> values)>;
  void stream(StateArray array, std::span<const UnitSlice> wanted, const TakeUnitPiece& take);

  /// Compares the names and sizes of all shards with CHECKSUMS, without reading them.
  void check_files() const;
  /// Checks everything but the arrays of all shards.
  void check_headers();
  /// Checks every byte. Throws at the first damage.
  void verify(const ByteProgress& progress = {});
  /// Checks every byte of a rank's shard, whether the others are there or not.
  void verify_shard(Index rank, const std::function<void()>& moved = {});
  /// Checks every byte, and says all that is wrong: one text a damage; none if all is well.
  [[nodiscard]] std::vector<std::string> find_damage(const ByteProgress& progress = {});
  /// Bytes of the arrays in all shards.
  [[nodiscard]] std::uint64_t data_bytes() const noexcept;

 private:
  struct Shard {
    bool is_checked = false;
    File file;
    std::uint64_t last_use = 0;
    std::vector<std::vector<std::uint64_t>> block_hashes;  // in the order of arrays()
  };
  /// Part of a unit in a shard.
  struct Piece {
    std::size_t rank;
    UnitSlice slice;
  };
  /// Elements of a shard's array that are needed, and where: in the unit of wanted[index].
  struct Part {
    Index begin;
    Index end;
    std::size_t index;
    Index unit_begin;
  };
  struct CachedBlock {
    std::size_t rank;
    std::size_t array;  // number in arrays(), as in all functions below
    Index block;
    std::uint64_t last_use;
    std::unique_ptr<float[]> values;  // kBlockElements
  };

  /// A block of a shard's array.
  struct Block {
    std::size_t rank;
    Index block;
  };
  /// By shard, in the order of its array.
  [[nodiscard]] std::vector<std::vector<Part>> parts_of(std::span<const UnitSlice> wanted) const;
  using TakeShardPiece =
      std::function<void(const Block& block, Index offset, std::span<const float> values)>;
  void stream_blocks(std::size_t array, std::span<const Block> blocks, const TakeShardPiece& take);

  /// Keeps `own`, or refers to `callers` where that is given.
  CheckpointReader(std::filesystem::path step_folder, std::unique_ptr<ReadRetry> own,
                   ReadRetry* callers);
  void require_array_sizes() const;
  Shard& open_shard(std::size_t rank);
  void check_header(std::size_t rank, File& file, Shard& shard) const;
  void read_header(std::size_t rank, const Hdf5Document& document, Shard& shard) const;
  void refuse_moments_without_update(std::size_t rank, const Shard& shard) const;
  /// A shard's file, of the size that CHECKSUMS says.
  [[nodiscard]] File open_file(std::size_t rank) const;
  /// Reads from a file that is opened anew where that fails.
  void read_at(File& file, std::uint64_t offset, std::span<std::byte> target) const;
  void read_shard(std::size_t rank, std::size_t array, Index begin, std::span<float> values);
  /// Reads a whole block into `values` and compares its checksum.
  void read_block(std::size_t rank, std::size_t array, Index block, std::span<float> values);
  void require_rounded(std::size_t rank, std::size_t array, Index block,
                       std::span<const float> values) const;
  [[noreturn]] void throw_damaged(std::size_t rank, std::size_t array, Index block) const;
  const float* cached_block(std::size_t rank, std::size_t array, Index block);
  [[nodiscard]] Index block_elements(std::size_t rank, std::size_t array, Index block) const;
  template <typename OnDamage>
  void check_all(const ByteProgress& progress, OnDamage on_damage);
  template <typename OnDamage, typename OnBytes>
  void check_shard(std::size_t rank, OnDamage on_damage, OnBytes on_bytes);

  std::filesystem::path folder_;
  std::unique_ptr<ReadRetry> own_retry_;
  ReadRetry* retry_;  // own_retry_ or the caller's
  Checksums checksums_;
  std::uint64_t contents_hash_ = 0;
  Manifest manifest_;
  std::vector<std::pair<std::string, std::vector<Piece>>> pieces_;  // by unit, in layout order
  std::vector<Shard> shards_;                                       // by rank
  std::vector<CachedBlock> cache_;
  Xxh3 block_hash_;
  std::uint64_t clock_ = 0;  // counts uses, for the least recent one
};

}  // namespace tessera
