// The packed blocks of a base in nf4, kept in a run's folder so that they are quantised once:
//
//   OUT/base-nf4/block.3.nf4   a packed unit (model/packed_layout.h), whole
//   OUT/base-nf4/base.json     what it was made of, the base's hash, and a hash of all blocks. It is there
//                              first, of nothing: a folder without it, or with other files, is the user's
//
// Checkpoints do not need it: where it is removed, the next start quantises again. Blocks of the base that
// the run's newest step was trained with are not replaced by those of another base: such a start is refused.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "collectives/communicator.h"
#include "model/packed_layout.h"

namespace tessera {

/// Of all packed blocks: what the cache takes on disk.
[[nodiscard]] std::uint64_t base_cache_bytes(const PackedLayout& packed);

class BaseCache {
 public:
  /// `made_of`: equal only where the same model from the same weights would have the same packed blocks.
  /// `trained_with`: the base's hash (hash_text) of the run's newest step; empty: it has none. Keeps
  /// references. Looks at nothing yet.
  BaseCache(std::filesystem::path run_folder, std::string made_of, std::string trained_with,
            const PackedLayout& packed, Communicator& comm);

  /// The base's hash where its blocks are here; none: they are of something else, or incomplete.
  /// Collective; rank 0 looks.
  [[nodiscard]] std::optional<std::uint64_t> find();
  /// Bytes begin, begin + 1, ... of a block; beyond its end zeros. Requires: begin is a multiple of 1024.
  /// Throws ReadError, FormatError.
  void read(UnitId unit, Index begin, std::span<std::byte> bytes) const;
  /// Whether all that the ranks have read since `find` is what was written. Requires: each byte was read
  /// once. Collective.
  [[nodiscard]] bool is_undamaged() const;

  /// Makes room: removes blocks of another base, and nothing of the user's. Where the blocks that are here
  /// are of the base that the run was trained with, though made of something else, they stay, and what is
  /// written is compared with them. False: nothing can be kept, as rank 0 logs; so it is where all blocks
  /// would not leave the disk room for a checkpoint of so many bytes and the run's small files. Collective.
  [[nodiscard]] bool begin(std::uint64_t checkpoint_bytes);
  /// Keeps a block, once there is room for all of it. What goes wrong makes the cache incomplete, and no
  /// error.
  void write(UnitId unit, std::span<const std::byte> packed);
  /// Makes it whole, or says why it is not and takes no room. Collective.
  void finish(std::uint64_t base_hash);

 private:
  [[nodiscard]] std::filesystem::path file_of(UnitId unit) const;
  [[nodiscard]] std::uint64_t sum_over_ranks(std::uint64_t mine) const;
  // Rank 0: whether the blocks are of the base that the run was trained with, by another name.
  [[nodiscard]] bool belongs_to_run() const;
  void take_over(std::uint64_t base_hash, std::uint64_t blocks_hash) const;
  void clear() const;
  void remove_blocks() const;
  void require_room(std::uint64_t checkpoint_bytes) const;
  void describe(const std::string& made_of, std::uint64_t base_hash,
                std::uint64_t blocks_hash) const;

  std::filesystem::path folder_;
  std::string made_of_;
  std::string trained_with_;
  bool compares_ = false;  // writes nothing: what is here may be the same
  const PackedLayout& packed_;
  Communicator& comm_;
  std::uint64_t blocks_hash_ = 0;                // of base.json
  mutable std::atomic<std::uint64_t> hash_ = 0;  // of what this rank has read, or written
  std::string failure_;                          // why this rank could not write
};

}  // namespace tessera
