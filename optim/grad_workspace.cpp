#include "optim/grad_workspace.h"

#include <algorithm>

#include "kernels/device/error.h"
#include "kernels/device/fixed_point.h"
#include "kernels/device/trace.h"

namespace tessera {
namespace {

Index largest_padded(const ParamLayout& layout, GradPlace place, int world_size) {
  Index largest = 0;
  for (const ParamUnit& unit : layout.units()) {
    if (unit.place == place) {
      largest = std::max(largest, padded_count(unit.count, world_size));
    }
  }
  return largest;
}

}  // namespace

bool needs_group_sums(Index sum_group, int world_size) {
  return sum_group > 1 && world_size % sum_group != 0;
}

bool exchanges_in_two_levels(Index sum_group, int world_size, int node_ranks) {
  return sum_group > 1 && world_size > node_ranks && node_ranks % sum_group == 0 &&
         world_size % sum_group == 0;
}

GradWorkspace::GradWorkspace(const KernelTable& kernels, const ParamLayout& layout,
                             const GradWorkspaceOptions& options, Communicator& comm,
                             ShardState& shard, Stream& communication, Arena& arena)
    : kernels_(kernels),
      layout_(layout),
      options_(options),
      two_levels_(
          exchanges_in_two_levels(options.sum_group, shard.world_size(), options.node_ranks)),
      comm_(comm),
      shard_(shard),
      communication_(communication),
      slot_count_(largest_padded(layout, GradPlace::block_slot, shard.world_size())),
      vocabulary_count_(largest_padded(layout, GradPlace::vocabulary, shard.world_size())),
      slots_{Slot{arena.allocate(MemoryKind::device, options.grad_dtype, {slot_count_},
                                 "gradient slots/0"),
                  Event(arena.device(), "slot.filled"), Event(arena.device(), "slot.drained")},
             Slot{arena.allocate(MemoryKind::device, options.grad_dtype, {slot_count_},
                                 "gradient slots/1"),
                  Event(arena.device(), "slot.filled"), Event(arena.device(), "slot.drained")}},
      vocabulary_{arena.allocate(MemoryKind::device, DType::f32, {vocabulary_count_},
                                 "vocabulary gradient"),
                  Event(arena.device(), "vocabulary.filled"),
                  Event(arena.device(), "vocabulary.drained")},
      norm_words_(
          arena.allocate(MemoryKind::device, DType::i64, {kFixedPointWords}, "step sums/norm")),
      waits_(arena.device()),
      unit_slot_(static_cast<std::size_t>(layout.unit_count()), -1) {
  TESSERA_REQUIRE(options.sum_group >= 1, "a group holds at least one micro-batch");
  const DType travel = options.zero == ZeroStage::one ? DType::f32 : options.grad_dtype;
  // One block's slices as they arrive; vocabulary units go through it in pieces, half for packing.
  // One rank that keeps f32 neither packs nor exchanges them.
  const bool packs = shard.world_size() > 1 || travel != DType::f32;
  const Index pieces = packs ? std::min(vocabulary_count_, 2 * options.piece_elements) : 0;
  const Index staging =
      std::max({slot_count_, pieces, Index{2} * shard.world_size() * kShardAlignment});
  staging_ =
      arena.allocate(MemoryKind::device, DType::u8,
                     {staging * static_cast<Index>(size_in_bytes(travel))}, "gradient staging");
  Index local = 0;
  for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
    local_begin_.push_back(local);
    local += shard.padded(unit);
  }
  local_ = arena.allocate(MemoryKind::device, DType::f32,
                          {options.zero == ZeroStage::one ? local : 0}, "gradient sums/local");
  if (shard.grads_on_host()) {
    allocate_windows(arena);
  }
}

void GradWorkspace::allocate_windows(Arena& arena) {
  TESSERA_REQUIRE(options_.zero == ZeroStage::two, "sums on the host go with stage 2");
  constexpr Index kWindow = Index{4} << 20;  // elements: the link's rate is reached from there on
  // A piece's last write-back is behind it in the order of write-backs when it is read again: each
  // unit is a piece at least, and there are three units or more.
  constexpr int kWindows = 3;
  Index largest = 0;
  for (UnitId unit = 0; unit < layout_.unit_count(); ++unit) {
    largest = std::max(largest, shard_.range(unit).shard_size());
  }
  const Index window = std::min(kWindow, largest);
  // in a dry run the planned device need not exist
  const Device device = arena.is_dry_run() ? Device{} : arena.device();
  sums_in_.emplace(device, StreamPriority::normal, "sums in");
  sums_out_.emplace(device, StreamPriority::normal, "sums out");
  for (int i = 0; i < kWindows; ++i) {
    windows_.push_back(
        {arena.allocate(MemoryKind::device, DType::f32, {window}, "gradient staging/sums"),
         Event(arena.device(), "sums.loaded"), Event(arena.device(), "sums.added"),
         Event(arena.device(), "sums.stored")});
  }
  const Index ranks = shard_.world_size();
  columns_ = arena.allocate(
      MemoryKind::device, DType::u8,
      {ranks == 1 ? 0 : ranks * window * static_cast<Index>(size_in_bytes(options_.grad_dtype))},
      "gradient staging/columns");
}

const void* GradWorkspace::slot_address(int slot) const {
  return slots_.at(static_cast<std::size_t>(slot)).buffer.view().data;
}

void GradWorkspace::begin_step(Index micro_batches) {
  micro_batches_ = micro_batches;
  zero_async(norm_words_.view(), communication_);
}

void GradWorkspace::begin_sub_round(Index round) {
  round_ = round;
}

bool GradWorkspace::is_last_round() const {
  return (round_ + 1) * comm_.world_size() >= micro_batches_;
}

Index GradWorkspace::ranks_in_round() const {
  return std::min<Index>(comm_.world_size(), micro_batches_ - round_ * comm_.world_size());
}

GradWorkspace::Slot& GradWorkspace::slot_of(UnitId unit) {
  const int slot = unit_slot_.at(static_cast<std::size_t>(unit));
  return slot < 0 ? vocabulary_ : slots_.at(static_cast<std::size_t>(slot));
}

TensorView GradWorkspace::acquire(UnitId unit, Stream& compute) {
  const ParamUnit& described = layout_.unit(unit);
  if (described.place == GradPlace::block_slot) {
    unit_slot_.at(static_cast<std::size_t>(unit)) = next_slot_;
    next_slot_ = 1 - next_slot_;
  }
  Slot& slot = slot_of(unit);
  {
    const TraceRange waiting({TraceCategory::exposed, "wait for slot", described.name}, compute);
    waits_.begin(compute);
    compute.wait(slot.drained);
    waits_.end(compute);
  }
  const TensorView storage = slot.buffer.view().slice(0, shard_.padded(unit));
  if (options_.on_acquire == SlotContents::poison) {
    poison_async(storage.slice(0, described.count), compute);
  }
  zero_async(storage.slice(described.count, storage.count()), compute);
  return storage;
}

void GradWorkspace::commit(UnitId unit, Stream& compute) {
  Slot& slot = slot_of(unit);
  const std::string_view name = layout_.unit(unit).name;
  // Streams that run work at once are held up by it here.
  const TraceRange inlined({TraceCategory::exposed, "reduce-scatter", name}, compute);
  slot.filled.record(compute);
  communication_.wait(slot.filled);
  waits_.begin(compute);
  {
    const TraceRange draining({TraceCategory::exchange, "reduce-scatter", name}, communication_);
    exchange(unit, slot.buffer.view().slice(0, shard_.padded(unit)));
  }
  slot.drained.record(communication_);
  if (compute.device().kind == DeviceKind::cpu) {
    waits_.end(compute);
  }
  if (is_last_round()) {
    const TraceRange norm({TraceCategory::compute, "norm", name}, communication_);
    if (windows_.empty()) {
      kernels_.sum_of_squares({.values = shard_.grad(unit), .words = norm_words_.view()},
                              communication_);
    } else {
      // Squares were taken in the windows. Who waits for the norm waits for all sums: write-backs
      // have one order.
      communication_.wait(windows_[(next_window_ + windows_.size() - 1) % windows_.size()].stored);
    }
  }
}

void GradWorkspace::exchange(UnitId unit, TensorView filled) {
  if (options_.zero == ZeroStage::one) {
    drain_local(unit, filled);
  } else if (options_.reduce == ReduceMode::native) {
    reduce_natively(unit, filled);
  } else if (two_levels_) {
    exchange_in_two_levels(unit, filled);
  } else {
    exchange_and_add(unit, filled, options_.grad_dtype, round_ * comm_.world_size(),
                     ranks_in_round(), micro_batches_, options_.sum_group);
  }
}

void GradWorkspace::idle_sub_round(Stream& compute) {
  const auto pass = [&](UnitId unit) {
    const TensorView storage = acquire(unit, compute);
    if (options_.reduce == ReduceMode::native && options_.zero == ZeroStage::two) {
      zero_async(storage, compute);  // the library adds every rank's numbers
    }
    commit(unit, compute);
  };
  for (UnitId unit = layout_.head(); unit >= 0; --unit) {
    pass(unit);
  }
}

// Stage 1: adds this rank's micro-batch to its own sums, and after the last one exchanges those.
void GradWorkspace::drain_local(UnitId unit, TensorView filled) {
  const Index begin = local_begin_.at(static_cast<std::size_t>(unit));
  const TensorView local = local_.view().slice(begin, begin + filled.count());
  const bool has_one = comm_.rank() < ranks_in_round();
  if (has_one) {
    const TraceRange adding({TraceCategory::exchange, "sum", layout_.unit(unit).name},
                            communication_);
    kernels_.accumulate({.slices = filled.reshaped({1, filled.count()}),
                         .sum = local,
                         .partial = {},
                         .first = round_,
                         .count = 1,
                         .total = round_ + 1,
                         .sum_group = 1},
                        communication_);
  }
  if (is_last_round()) {
    const Index ranks = std::min<Index>(comm_.world_size(), micro_batches_);
    exchange_and_add(unit, local, DType::f32, 0, ranks, ranks, 1);
  }
}

void GradWorkspace::add_piece(UnitId unit, Index begin, ConstTensorView slices, Index first,
                              Index count, Index total, Index group) {
  const TraceRange adding({TraceCategory::exchange, "sum", layout_.unit(unit).name},
                          communication_);
  if (!windows_.empty()) {
    add_on_host(unit, begin, slices, first, count, total, group);
    return;
  }
  const Index columns = slices.shape[1];
  const TensorView partial = shard_.grad_partial(unit);
  kernels_.accumulate(
      {.slices = slices,
       .sum = shard_.grad(unit).slice(begin, begin + columns),
       .partial = partial.data == nullptr ? partial : partial.slice(begin, begin + columns),
       .first = first,
       .count = count,
       .total = total,
       .sum_group = group},
      communication_);
}

// The same where the sums lie on the host: a window of them comes, is added to, and goes back, each
// in a stream of its own.
void GradWorkspace::add_on_host(UnitId unit, Index begin, ConstTensorView slices, Index first,
                                Index count, Index total, Index group) {
  const Index rows = slices.shape[0];
  const Index columns = slices.shape[1];
  const Index most = windows_.front().sums.view().count();
  const ConstTensorView all = slices.reshaped({rows * columns});
  for (Index at = 0; at < columns; at += most) {
    const Index width = std::min(most, columns - at);
    Window& window = windows_[next_window_];
    next_window_ = (next_window_ + 1) % windows_.size();
    const TensorView home = shard_.grad(unit).slice(begin + at, begin + at + width);
    const TensorView sums = window.sums.view().slice(0, width);
    if (first > 0) {  // the first micro-batches overwrite
      sums_in_->wait(window.stored);
      copy_async(home, sums, *sums_in_);
      window.loaded.record(*sums_in_);
      communication_.wait(window.loaded);
    } else {
      communication_.wait(window.stored);
    }
    ConstTensorView part = all.slice(at, at + width);
    if (rows > 1) {
      const TensorView packed = {columns_.view().data, slices.dtype, Shape{rows * width},
                                 columns_.view().device};
      kernels_.cast_rows({.from = all.slice(at, all.count()),
                          .to = packed,
                          .rows = rows,
                          .columns = width,
                          .from_stride = columns,
                          .to_stride = width},
                         communication_);
      part = packed;
    }
    kernels_.accumulate({.slices = part.reshaped({rows, width}),
                         .sum = sums,
                         .partial = {},
                         .first = first,
                         .count = count,
                         .total = total,
                         .sum_group = group},
                        communication_);
    if (is_last_round()) {
      kernels_.sum_of_squares({.values = sums, .words = norm_words_.view()}, communication_);
    }
    window.added.record(communication_);
    sums_out_->wait(window.added);
    copy_async(sums, home, *sums_out_);
    window.stored.record(*sums_out_);
  }
}

// Sends the slices of `source` [W * S] to their owners as `travel` and adds what arrives to the
// shard.
void GradWorkspace::exchange_and_add(UnitId unit, TensorView source, DType travel, Index first,
                                     Index count, Index total, Index group) {
  const Index ranks = comm_.world_size();
  const Index slice = source.count() / ranks;
  const Index room =
      staging_.view().count() / static_cast<Index>(size_in_bytes(travel));  // elements of staging
  const TensorView staging = {staging_.view().data, travel, Shape{room}, staging_.view().device};
  if (source.dtype == travel && (ranks == 1 || source.count() <= room)) {
    // A whole unit at once; alone there is nobody to exchange with.
    ConstTensorView slices = source;
    if (ranks > 1) {
      const TensorView arrived = staging.slice(0, source.count());
      const TraceRange exchanging({TraceCategory::exchange, "exchange", layout_.unit(unit).name},
                                  communication_);
      comm_.exchange_slices(source, arrived, communication_);
      slices = arrived;
    }
    add_piece(unit, 0, slices.reshaped({ranks, slice}), first, count, total, group);
    return;
  }
  // In pieces of each slice: packed (and rounded) into one half of the staging, received in the
  // other.
  const Index piece = room / 2 / ranks / kShardAlignment * kShardAlignment;
  for (Index begin = 0; begin < slice; begin += piece) {
    const Index columns = std::min(piece, slice - begin);
    const TensorView packed = staging.slice(0, ranks * columns);
    pack_columns(source, begin, packed);
    ConstTensorView slices = packed;
    if (ranks > 1) {
      const TensorView arrived = staging.slice(room / 2, room / 2 + ranks * columns);
      const TraceRange exchanging({TraceCategory::exchange, "exchange", layout_.unit(unit).name},
                                  communication_);
      comm_.exchange_slices(packed, arrived, communication_);
      slices = arrived;
    }
    add_piece(unit, begin, slices.reshaped({ranks, columns}), first, count, total, group);
  }
}

//   source  [W, S]  the slices of all ranks
//   packed  [W, K]  columns [begin, begin + K) of them, rounded where it is narrower
void GradWorkspace::pack_columns(TensorView source, Index begin, TensorView packed) {
  const Index ranks = comm_.world_size();
  const Index columns = packed.count() / ranks;
  kernels_.cast_rows({.from = source.slice(begin, source.count()),
                      .to = packed,
                      .rows = ranks,
                      .columns = columns,
                      .from_stride = source.count() / ranks,
                      .to_stride = columns},
                     communication_);
}

//   source   [groups, G, S]  the slices of all ranks: member l of group g owns [g, l]
//   packed   [G, groups, K]  K columns of them, by member; its memory later holds `partial`
//   arrived  [G, groups, K]  from each member of this group, for this member; later `sums`
//   partial  [groups, K]     f32: what this group's micro-batches add up to, for each owner
//   sums     [groups, K]     f32: what each group's do, for this rank
void GradWorkspace::exchange_in_two_levels(UnitId unit, TensorView source) {
  const auto G = static_cast<int>(options_.sum_group);
  const int ranks = comm_.world_size();
  const int groups = ranks / G;
  const int group = comm_.rank() / G;
  const RankGroup inside = {.first = group * G, .stride = 1, .count = G};
  const RankGroup across = {.first = comm_.rank() % G, .stride = G, .count = groups};
  const Index first = round_ * ranks;
  const Index left = micro_batches_ - first - Index{group} * G;
  const Index own = std::clamp<Index>(left, 0, G);  // micro-batches of this group
  const Index slice = source.count() / ranks;
  const TensorView staging = staging_.view();
  const DType travel = options_.grad_dtype;
  const Index half = staging.count() / 2;  // bytes
  const Index piece =
      half / static_cast<Index>(size_in_bytes(travel)) / ranks / kShardAlignment * kShardAlignment;
  const auto lower = [&](DType dtype, Index count) {
    return TensorView{staging.data, dtype, Shape{count}, staging.device};
  };
  const auto upper = [&](DType dtype, Index count) {
    return TensorView{staging.slice(half, staging.count()).data, dtype, Shape{count},
                      staging.device};
  };
  const std::string_view name = layout_.unit(unit).name;
  for (Index begin = 0; begin < slice; begin += piece) {
    const Index columns = std::min(piece, slice - begin);
    const Index width = groups * columns;
    const TensorView packed = lower(travel, G * width);
    for (Index member = 0; member < G; ++member) {
      kernels_.cast_rows({.from = source.slice(member * slice + begin, source.count()),
                          .to = packed.slice(member * width, (member + 1) * width),
                          .rows = groups,
                          .columns = columns,
                          .from_stride = G * slice,
                          .to_stride = columns},
                         communication_);
    }
    const TensorView arrived = upper(travel, G * width);
    {
      const TraceRange exchanging({TraceCategory::exchange, "exchange in node", name},
                                  communication_);
      comm_.exchange_slices(inside, packed, arrived, communication_);
    }
    const TensorView partial = lower(DType::f32, width);
    if (own > 0) {
      const TraceRange adding({TraceCategory::exchange, "sum in node", name}, communication_);
      kernels_.accumulate({.slices = arrived.reshaped({G, width}),
                           .sum = partial,
                           .partial = {},
                           .first = 0,
                           .count = own,
                           .total = own,
                           .sum_group = 1},
                          communication_);
    }
    const TensorView sums = upper(DType::f32, width);
    {
      const TraceRange exchanging({TraceCategory::exchange, "exchange", name}, communication_);
      comm_.exchange_slices(across, partial, sums, communication_);
    }
    // What follows counts groups where it counted micro-batches.
    add_piece(unit, begin, sums.reshaped({groups, columns}), first / G,
              (ranks_in_round() + G - 1) / G, (micro_batches_ + G - 1) / G, 1);
  }
}

void GradWorkspace::reduce_natively(UnitId unit, TensorView source) {
  const Index ranks = comm_.world_size();
  const Index slice = source.count() / ranks;
  const Index rounds = micro_batches_of(0, micro_batches_, ranks);
  const Index room = staging_.view().count() / static_cast<Index>(size_in_bytes(source.dtype));
  const TensorView staging = {staging_.view().data, source.dtype, Shape{room},
                              staging_.view().device};
  if (slice <= room) {
    const TensorView arrived = staging.slice(0, slice);
    comm_.reduce_scatter(source, arrived, communication_);
    add_piece(unit, 0, arrived.reshaped({1, slice}), round_, 1, rounds, 1);
    return;
  }
  const Index piece = room / (ranks + 1) / kShardAlignment * kShardAlignment;
  for (Index begin = 0; begin < slice; begin += piece) {
    const Index columns = std::min(piece, slice - begin);
    const TensorView packed = staging.slice(0, ranks * columns);
    pack_columns(source, begin, packed);
    const TensorView arrived = staging.slice(ranks * piece, ranks * piece + columns);
    comm_.reduce_scatter(packed, arrived, communication_);
    add_piece(unit, begin, arrived.reshaped({1, columns}), round_, 1, rounds, 1);
  }
}

}  // namespace tessera
