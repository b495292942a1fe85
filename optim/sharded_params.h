// The ParamStore in which each rank stores its local shard of every unit alone (ZeRO stage 3,
// Rajbhandari et al. 2020, section 5.3), on the device or in pinned host memory. A unit is put
// together on the device before it is used and given up afterwards:
//
//   shards, every unit   [S]                            device or pinned
//   slots                embedding, head                one each: gathered once after an update
//                        blocks: a ring                 gathered ahead of use, forward and backward
//
//   fetch           copy of the local shard (pinned)    waits for updated, released
//   communication   all-gather into the slot            waits for fetched (or the two above)
//   compute         reads the slot                      waits for ready; records released
//
// Which blocks come next follows from what is acquired: upwards after the embedding, downwards after
// the head, so that the last blocks of a forward pass and the first of the next one are there.
// The values are those of ReplicatedParams, bit for bit.
#pragma once

#include <span>
#include <vector>

#include "collectives/communicator.h"
#include "kernels/device/arena.h"
#include "optim/optimizer_shard.h"
#include "optim/param_store.h"

namespace tessera {

class ShardedParams final : public ParamStore {
 public:
  /// Blocks that the ring holds at least: the one that is used, and those that come while it is. More
  /// hide a pass that uses blocks faster than they come, and need not come again where a pass turns.
  static constexpr Index kLeastBlocks = 3;

  struct Streams {
    Stream& communication;
    Stream& fetch;  // from host memory to the device; used for shards in host memory alone
  };

  struct Options {
    DType dtype;
    ParamPlacement placement;
    Index blocks = kLeastBlocks;  // that the ring holds, but no more than there are
  };

  /// Keeps references to `layout`, `comm` and the streams, which must outlive it.
  ShardedParams(const ParamLayout& layout, const Options& options, Communicator& comm,
                const Streams& streams, Arena& arena);
  /// Waits for units that are on their way though nobody acquired them: their slots go. Not for
  /// peers, where an exception is under way.
  ~ShardedParams() override;
  ShardedParams(const ShardedParams&) = delete;
  ShardedParams& operator=(const ShardedParams&) = delete;

  /// In host memory it is pinned: kernels reach it over the bus.
  [[nodiscard]] TensorView local_shard(UnitId unit) override;
  /// Queues nothing: the unit is gathered when it is acquired next, or shortly before.
  void all_gather(UnitId unit, Stream& updates) override;
  [[nodiscard]] bool acquires_together() const override { return comm_.world_size() > 1; }

 private:
  struct Unit {
    DeviceBuffer shard;  // [S]
    Event updated;       // recorded in the update stream by all_gather
    OptimizerShard range;
    std::int64_t version = 0;
    std::int64_t opened = -1;  // version that was opened last
  };
  struct Slot {
    DeviceBuffer params;  // [W * S] of the largest unit that it may hold
    Event fetched;        // recorded in the fetch stream
    Event ready;          // recorded in the stream that completes the unit
    Event released;       // recorded in the compute stream by close
    UnitId unit = -1;     // that it holds
    std::int64_t version = -1;
    std::int64_t used = 0;  // when it was gathered or opened last
    int open = 0;
    bool consumed = true;  // by a compute stream, since it was gathered
  };
  enum class Direction : std::uint8_t { up, down };

  [[nodiscard]] ConstTensorView open(UnitId unit, Stream& compute) override;
  [[nodiscard]] std::int64_t version(UnitId unit) const override { return unit_of(unit).version; }
  void close(UnitId unit, Stream& compute) noexcept override;

  [[nodiscard]] const Unit& unit_of(UnitId unit) const {
    return units_[static_cast<std::size_t>(unit)];
  }
  [[nodiscard]] Unit& unit_of(UnitId unit) { return units_[static_cast<std::size_t>(unit)]; }
  [[nodiscard]] bool is_block(UnitId unit) const noexcept;
  /// The slots that may hold `unit`.
  [[nodiscard]] std::span<Slot> slots_of(UnitId unit);
  [[nodiscard]] bool is_current(const Slot& slot) const;
  [[nodiscard]] Slot& slot_for(UnitId unit);
  /// The unit in a slot, on its way if it was not there.
  Slot& fetch(UnitId unit);
  void gather(UnitId unit, Slot& slot);
  void turn_to(UnitId unit);
  [[nodiscard]] UnitId last_to_come(UnitId from, int step, UnitId end) const;
  void fetch_wanted(UnitId unit);

  const ParamLayout& layout_;
  ParamPlacement placement_;
  Communicator& comm_;
  Streams streams_;
  std::vector<Unit> units_;
  std::vector<Slot> slots_;              // the embedding's, the head's, the ring
  Direction direction_ = Direction::up;  // in which blocks are acquired
  UnitId last_block_ = 0;                // that was acquired
  UnitId first_wanted_ = 0;              // blocks that come or stay in the ring, to last_wanted_
  UnitId last_wanted_ = -1;
  bool blocks_were_used_ = false;  // since embedding or head turned the direction
  std::int64_t clock_ = 0;
};

}  // namespace tessera
