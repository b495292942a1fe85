#include "optim/sharded_params.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/log.h"
#include "kernels/base/trace.h"

namespace tessera {
namespace {

constexpr UnitId kEmbedding = 0;
constexpr UnitId kFirstBlock = 1;
constexpr std::size_t kOwnSlots = 2;  // of embedding and head

}  // namespace

ShardedParams::ShardedParams(const ParamLayout& layout, const Options& options, Communicator& comm,
                             const Streams& streams, Arena& arena)
    : ParamStore(arena.device()),
      layout_(layout),
      placement_(options.placement),
      comm_(comm),
      streams_(streams) {
  TESSERA_REQUIRE(options.blocks >= kLeastBlocks, "the ring holds three blocks or more");
  const Device device = arena.device();
  const MemoryKind kind =
      placement_ == ParamPlacement::host ? MemoryKind::pinned : MemoryKind::device;
  Index block = 0;
  for (UnitId id = 0; id < layout.unit_count(); ++id) {
    const ParamUnit& unit = layout.unit(id);
    const Index padded = padded_count(unit.count, comm.world_size());
    const auto range = OptimizerShard::for_rank(comm.rank(), comm.world_size(), padded);
    units_.push_back(
        {arena.allocate(kind, options.dtype, {range.shard_size()}, "parameter shards/" + unit.name),
         Event(device, "params.updated"), range});
    if (id != kEmbedding && id != layout.head()) {
      block = std::max(block, padded);
    }
  }
  const auto add_slot = [&](Index elements, const std::string& name) {
    slots_.push_back(
        {arena.allocate(MemoryKind::device, options.dtype, {elements}, "parameters/" + name),
         Event(device, "params.fetched"), Event(device, "params.ready"),
         Event(device, "params.released")});
  };
  for (const UnitId id : {kEmbedding, layout.head()}) {
    add_slot(unit_of(id).range.total_params, layout.unit(id).name);
  }
  for (Index i = 0; i < std::min<Index>(options.blocks, layout.head() - kFirstBlock); ++i) {
    add_slot(block, "blocks in use");
  }
}

ShardedParams::~ShardedParams() {
  try {
    streams_.fetch.synchronize();
    if (std::uncaught_exceptions() == 0) {
      streams_.communication.synchronize();
    }
  } catch (...) {  // the device or a peer is lost, and whoever used it says so
    return;
  }
}

TensorView ShardedParams::local_shard(UnitId unit) {
  TensorView shard = units_.at(static_cast<std::size_t>(unit)).shard.view();
  shard.device = slots_.front().params.view().device;
  return shard;
}

void ShardedParams::all_gather(UnitId unit, Stream& updates) {
  Unit& written = units_.at(static_cast<std::size_t>(unit));
  ++written.version;
  written.updated.record(updates);
}

bool ShardedParams::is_block(UnitId unit) const noexcept {
  return unit != kEmbedding && unit != layout_.head();
}

std::span<ShardedParams::Slot> ShardedParams::slots_of(UnitId unit) {
  const std::span<Slot> all = slots_;
  return is_block(unit) ? all.subspan(kOwnSlots) : all.subspan(unit == kEmbedding ? 0 : 1, 1);
}

bool ShardedParams::is_current(const Slot& slot) const {
  return slot.unit >= 0 && slot.version == unit_of(slot.unit).version;
}

// Of the slots that hold nothing wanted, the one that was used longest ago.
ShardedParams::Slot& ShardedParams::slot_for(UnitId unit) {
  Slot* best = nullptr;
  for (Slot& slot : slots_of(unit)) {
    const bool is_wanted = is_block(unit) && is_current(slot) && slot.unit >= first_wanted_ &&
                           slot.unit <= last_wanted_;
    if (slot.open == 0 && !is_wanted && (best == nullptr || slot.used < best->used)) {
      best = &slot;
    }
  }
  TESSERA_REQUIRE(best != nullptr, "a place for a unit that is acquired");
  return *best;
}

void ShardedParams::gather(UnitId unit, Slot& slot) {
  const Unit& wanted = unit_of(unit);
  const TraceRange gathering({TraceCategory::gather, "all-gather", layout_.unit(unit).name},
                             streams_.communication);
  const TensorView whole = slot.params.view().slice(0, wanted.range.total_params);
  ConstTensorView own = wanted.shard.view();
  Stream* completes = &streams_.communication;
  const bool is_alone = comm_.world_size() == 1;
  if (placement_ == ParamPlacement::host) {
    const TensorView here = whole.slice(wanted.range.param_start, wanted.range.param_end);
    streams_.fetch.wait(slot.released);
    streams_.fetch.wait(slot.ready);  // of a unit that nobody opened
    streams_.fetch.wait(wanted.updated);
    copy_async(own, here, streams_.fetch);
    own = here;
    if (is_alone) {
      completes = &streams_.fetch;
    } else {
      slot.fetched.record(streams_.fetch);
      streams_.communication.wait(slot.fetched);
    }
  } else {
    streams_.communication.wait(slot.released);
    streams_.communication.wait(wanted.updated);
    if (is_alone) {
      copy_async(own, whole, streams_.communication);
    }
  }
  if (!is_alone) {
    comm_.all_gather(own, whole, streams_.communication);
  }
  slot.ready.record(*completes);
  slot.unit = unit;
  slot.version = wanted.version;
  slot.consumed = false;
}

ShardedParams::Slot& ShardedParams::fetch(UnitId unit) {
  if (!updates_are_queued(unit)) {
    run_before_acquire(unit);
  }
  const std::span<Slot> slots = slots_of(unit);
  const auto found = std::find_if(slots.begin(), slots.end(), [&](const Slot& slot) {
    return slot.unit == unit && is_current(slot);
  });
  Slot& slot = found != slots.end() ? *found : slot_for(unit);
  if (found == slots.end()) {
    gather(unit, slot);
  }
  slot.used = ++clock_;
  return slot;
}

// Which blocks must be there next. An embedding that is acquired beside the head, tied to it,
// says nothing.
void ShardedParams::turn_to(UnitId unit) {
  const UnitId last = layout_.head() - 1;
  UnitId from = unit;
  if (unit == layout_.head()) {
    direction_ = Direction::down;
    from = last;
  } else if (unit == kEmbedding) {
    direction_ = slots_of(layout_.head()).front().open > 0 ? direction_ : Direction::up;
    from = direction_ == Direction::up ? kFirstBlock : last;
  } else {
    if (unit != last_block_) {
      direction_ = unit > last_block_ ? Direction::up : Direction::down;
    }
    last_block_ = unit;
  }
  const auto ahead = static_cast<UnitId>(slots_of(kFirstBlock).size()) - 1;
  const bool up = direction_ == Direction::up;
  first_wanted_ = up ? from : std::max(kFirstBlock, from - ahead);
  last_wanted_ = up ? std::min(last, from + ahead) : from;
}

// The last of the blocks from, from + step, ... before `end` that may come now. While updates are being
// queued these are no more than the least: fetching a block queues the updates of the next ones, and the
// work that hides them would be queued behind all of them.
UnitId ShardedParams::last_to_come(UnitId from, int step, UnitId end) const {
  UnitId last = from;
  while (last + step != end &&
         (std::abs(last + step - from) < kLeastBlocks || updates_are_queued(last + step))) {
    last += step;
  }
  return last;
}

// A pass that begins with embedding or head will open blocks as far as can be known if the last one
// did, or if there are new ones. Where codes of 8 bits take their place, passes open none.
// Nothing is gathered with the head: the last blocks are there, and what follows in an evaluation is
// the embedding.
void ShardedParams::fetch_wanted(UnitId unit) {
  const bool were_used = blocks_were_used_;
  const bool is_beside_head = unit == kEmbedding && direction_ == Direction::down;  // tied to it
  blocks_were_used_ = is_block(unit) || (is_beside_head && were_used);
  const Unit& first = unit_of(kFirstBlock);
  if (is_beside_head || (!is_block(unit) && !were_used && first.opened == first.version)) {
    return;
  }
  if (direction_ == Direction::up) {
    const UnitId last = last_to_come(first_wanted_, 1, last_wanted_ + 1);
    const bool with_head =
        last == layout_.head() - 1 &&
        (layout_.head() - first_wanted_ <= kLeastBlocks || updates_are_queued(layout_.head()));
    for (UnitId block = first_wanted_; block <= last; ++block) {
      (void)fetch(block);
    }
    if (with_head) {
      (void)fetch(layout_.head());
    }
  } else if (is_block(unit)) {
    const UnitId last = last_to_come(last_wanted_, -1, first_wanted_ - 1);
    for (UnitId block = last_wanted_; block >= last; --block) {
      (void)fetch(block);
    }
  }
}

ConstTensorView ShardedParams::open(UnitId unit, Stream& compute) {
  const TraceRange waiting({TraceCategory::exposed, "wait for parameters", layout_.unit(unit).name},
                           compute);
  begin_wait(unit, compute);
  turn_to(unit);
  Slot& slot = fetch(unit);
  fetch_wanted(unit);
  compute.wait(slot.ready);
  if (!std::exchange(slot.consumed, true)) {
    end_wait(compute);
  }
  ++slot.open;
  unit_of(unit).opened = slot.version;
  return std::as_const(slot.params).view().slice(0, unit_of(unit).range.total_params);
}

void ShardedParams::close(UnitId unit, Stream& compute) noexcept {
  for (Slot& slot : slots_of(unit)) {
    if (slot.unit == unit && slot.open > 0) {
      --slot.open;
      try {
        slot.released.record(compute);
      } catch (const std::exception& error) {  // the device is lost: its next use throws
        log_line(LogLevel::warning, error.what());
      }
    }
  }
}

}  // namespace tessera
