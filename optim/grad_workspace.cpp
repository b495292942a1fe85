#include "optim/grad_workspace.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/fixed_point.h"
#include "kernels/base/trace.h"

namespace tessera {
namespace {

// What gradients travel in.
DType travel_type(const GradWorkspaceOptions& options) {
  return options.zero == ZeroStage::one ? DType::f32 : options.precision.grad_travel;
}

// Room for one block's shards as they arrive; the gradients of embedding and LM head go through it
// in pieces, half for packing. One rank that keeps f32 neither packs nor sends them. The library's
// reduce-scatter takes these in f32, whatever the blocks travel in.
Index staging_elements(const GradSlots& slots, const GradWorkspaceOptions& options,
                       int world_size) {
  const DType travel = travel_type(options);
  const bool packs = world_size > 1 || travel != DType::f32;
  const Index pieces = packs ? std::min(slots.embedding_count(), 2 * options.piece_elements) : 0;
  const Index least = options.reduce == ReduceMode::native ? least_staging(world_size, travel)
                                                           : least_staging(world_size, DType::f32);
  return std::max({slots.slot_count(), pieces, least});
}

}  // namespace

bool needs_group_sums(Index reduce_group, int world_size) {
  return reduce_group > 1 && world_size % reduce_group != 0;
}

bool reduces_hierarchically(Index reduce_group, int world_size, int node_ranks) {
  return reduce_group > 1 && world_size > node_ranks && node_ranks % reduce_group == 0 &&
         world_size % reduce_group == 0;
}

GradWorkspace::GradWorkspace(const KernelTable& kernels, const ParamLayout& layout,
                             const GradWorkspaceOptions& options, Communicator& comm,
                             ShardState& shard, Stream& communication, Arena& arena)
    : layout_(layout),
      options_(options),
      world_size_(shard.world_size()),
      communication_(communication),
      slots_(layout,
             {.grad_dtype = options.precision.grads,
              .world_size = shard.world_size(),
              .on_acquire = options.on_acquire},
             arena),
      norm_words_(
          arena.allocate(MemoryKind::device, DType::i64, {kFixedPointWords}, "step sums/norm")),
      staging_(staging_elements(slots_, options, shard.world_size()), travel_type(options), arena) {
  TESSERA_REQUIRE(options.reduce_group >= 1, "a group holds at least one micro-batch");
  const int on_host = shard.units_with_host_grads();
  TESSERA_REQUIRE(options.zero != ZeroStage::one || on_host == 0,
                  "sums on the host go with stages 2 and 3");
  const ReduceContext context = {kernels, comm, shard, communication};
  sums_ = on_host < layout.unit_count() ? make_device_sums(context, norm_words_.view()) : nullptr;
  if (on_host > 0) {
    auto host = make_host_sums(context, norm_words_.view(), options.precision.grads,
                               options.tile_elements, arena);
    sums_ = sums_ == nullptr ? std::move(host)
                             : make_split_sums(shard, std::move(sums_), std::move(host));
  }
  travel_ = make_travel(context);
  if (options.zero == ZeroStage::one) {
    local_ = make_local_sums(context, arena, *travel_);
  }
}

std::unique_ptr<GradReducer> GradWorkspace::make_travel(const ReduceContext& context) {
  const int ranks = context.shard.world_size();
  if (options_.zero != ZeroStage::one && options_.reduce == ReduceMode::native) {
    return make_native_reducer(context, staging_, *sums_);
  }
  if (options_.zero != ZeroStage::one &&
      reduces_hierarchically(options_.reduce_group, ranks, options_.node_ranks)) {
    return make_hierarchical_reducer(context, staging_, options_.precision.grad_travel, *sums_);
  }
  return make_ordered_reducer(context, staging_, travel_type(options_), *sums_);
}

void GradWorkspace::begin_step(Index micro_batches) {
  micro_step_ = {.first = 0,
                 .count = std::min(world_size_, micro_batches),
                 .total = micro_batches,
                 .reduce_group = options_.reduce_group};
  zero_async(norm_words_.view(), communication_);
}

void GradWorkspace::begin_micro_step(Index number) {
  micro_step_.first = number * world_size_;
  micro_step_.count = std::min(world_size_, micro_step_.total - micro_step_.first);
}

void GradWorkspace::commit(UnitId unit, Stream& compute) {
  const std::string_view name = layout_.unit(unit).name;
  // Streams that run work at once are held up by it here.
  const TraceRange inlined({TraceCategory::exposed, "reduce-scatter", name}, compute);
  const TensorView filled = slots_.commit(unit, compute, communication_);
  {
    const TraceRange draining({TraceCategory::exchange, "reduce-scatter", name}, communication_);
    GradReducer& route = local_ ? *local_ : *travel_;
    route.reduce(
        {unit, filled.reshaped({world_size_, filled.count() / world_size_}), 0, micro_step_});
  }
  slots_.release(unit, compute, communication_);
  if (micro_step_.is_last()) {
    const TraceRange norm({TraceCategory::compute, "norm", name}, communication_);
    sums_->add_squares(unit);
  }
}

}  // namespace tessera
