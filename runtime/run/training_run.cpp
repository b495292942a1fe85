#include "runtime/run/training_run.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/hash.h"
#include "model/initialization.h"
#include "optim/replicated_params.h"
#include "optim/sharded_params.h"

namespace tessera {
namespace {

// In a dry run nothing is queued, and the planned device need not exist.
Device stream_device(const Arena& arena) {
  return arena.is_dry_run() ? Device{} : arena.device();
}

const KernelTable& table_for(const Arena& arena) {
  return kernel_table(stream_device(arena).kind);
}

// No more sets of block inputs than a rank has micro-batches.
ScratchOptions scratch_options(const RunSettings& settings, int world_size) {
  require_supported(settings.scratch.precision);
  const Index micro_batches = settings.trainer.global_batch / settings.trainer.micro_batch;
  ScratchOptions scratch = settings.scratch;
  scratch.together =
      std::min(settings.trainer.batched_forward, micro_batches_of(0, micro_batches, world_size));
  return scratch;
}

// The optimizer's options with how parameters are rounded and masters stored.
OptimizerOptions optimizer_options(const RunSettings& settings, const ParamLayout& layout,
                                   int world_size) {
  OptimizerOptions options = settings.optimizer;
  options.param_values = settings.scratch.precision.param_values;
  options.rounding_seed = settings.seed;
  const bool can_pack = options.param_values == DType::bf16;
  if (settings.masters == MasterStorage::packed && !can_pack) {
    throw ConfigError("--master-weights packed needs parameters of bf16: --precision bf16 on cuda, "
                      "or bf16-params on cpu",
                      TESSERA_HERE);
  }
  const std::size_t bytes =
      largest_state_bytes(layout, state_layout(options), matrix_state_layout(options), world_size);
  options.packs_masters = settings.masters == MasterStorage::packed ||
                          (settings.masters == MasterStorage::automatic && can_pack &&
                           !is_all_resident(settings.paging, bytes));
  return options;
}

std::size_t checked_host_grads(const RunSettings& settings, int world_size) {
  if (settings.host_grad_bytes > 0 && needs_group_sums(settings.reduce_group, world_size)) {
    throw ConfigError(
        fmt::format(
            "--grad-offload with --reduce-group {} wants a number of ranks that is a multiple "
            "of it, not {}: groups that are cut need their sums on the device",
            settings.reduce_group, world_size),
        TESSERA_HERE);
  }
  return settings.host_grad_bytes;
}

std::unique_ptr<Orthogonalizer> make_orthogonalizer(const UpdateRule& rule,
                                                    const KernelTable& kernels,
                                                    const ParamLayout& layout,
                                                    const RunSettings& settings, Communicator& comm,
                                                    Stream& communication, Arena& arena) {
  if (rule.matrix_layout().size() == 0) {
    return nullptr;
  }
  return std::make_unique<Orthogonalizer>(
      kernels, layout,
      OrthogonalizerOptions{.dtype = settings.scratch.precision.gemm_inputs,
                            .steps = settings.optimizer.muon.steps},
      comm, communication, arena);
}

std::unique_ptr<ParamStore> make_params(const ParamLayout& layout, const RunSettings& settings,
                                        Communicator& comm, const ShardedParams::Streams& streams,
                                        Arena& arena) {
  const DType dtype = settings.scratch.precision.params;
  if (shards_params(settings, comm.world_size())) {
    return std::make_unique<ShardedParams>(layout, dtype, settings.params, comm, streams, arena);
  }
  return std::make_unique<ReplicatedParams>(layout, dtype, comm, streams.communication, arena);
}

GradWorkspaceOptions workspace_options(const RunSettings& settings) {
  return {.precision = settings.scratch.precision,
          .reduce = settings.reduce,
          .zero = settings.zero,
          .reduce_group = settings.reduce_group,
          .node_ranks = settings.node_ranks,
          .piece_elements = settings.piece_elements,
          .on_acquire = settings.on_acquire};
}

}  // namespace

bool shards_params(const RunSettings& settings, int world_size) noexcept {
  return settings.params == ParamPlacement::host ||
         (settings.zero == ZeroStage::three && world_size > 1);
}

TrainingRun::TrainingRun(const ModelConfig& config, const RunSettings& settings, Communicator& comm,
                         BatchSource& data, Arena& arena)
    : TrainingRun(config, settings, comm, data, arena, table_for(arena)) {}

TrainingRun::TrainingRun(ModelConfig config, const RunSettings& settings, Communicator& comm,
                         BatchSource& data, Arena& arena, const KernelTable& kernels)
    : config_(std::move(config)),
      settings_(settings),
      comm_(comm),
      layout_(config_),
      kernels_(kernels),
      compute_(stream_device(arena), StreamPriority::normal, "compute"),
      communication_(stream_device(arena), StreamPriority::high, "communication"),
      page_in_(stream_device(arena), StreamPriority::normal, "page in"),
      update_(stream_device(arena), StreamPriority::normal, "update"),
      page_out_(stream_device(arena), StreamPriority::normal, "page out"),
      fetch_(stream_device(arena), StreamPriority::high, "fetch"),
      scratch_(kernels_, config_, scratch_options(settings, comm.world_size()), arena),
      params_(make_params(layout_, settings, comm, {communication_, fetch_}, arena)),
      rule_(make_update_rule(
          kernels_, settings_.optimizer = optimizer_options(settings, layout_, comm.world_size()))),
      shard_(layout_,
             {.rank = comm.rank(),
              .world_size = comm.world_size(),
              .layout = rule_->layout(),
              .matrix_layout = rule_->matrix_layout(),
              .params = [this](UnitId unit) { return params_->local_shard(unit); },
              .paging = settings.paging,
              .decay_all = settings.decay_all,
              .group_sums = needs_group_sums(settings.reduce_group, comm.world_size()),
              .host_grad_bytes = checked_host_grads(settings, comm.world_size())},
             arena),
      grads_(kernels_, layout_, workspace_options(settings), comm, shard_, communication_, arena),
      orthogonalizer_(
          make_orthogonalizer(*rule_, kernels_, layout_, settings_, comm, communication_, arena)),
      optimizer_(*rule_, shard_, {page_in_, update_, page_out_}, arena, orthogonalizer_.get()),
      model_(kernels_, config_, layout_, settings.scratch.batch, settings.scratch.attention,
             scratch_.activations(), scratch_.loss(), scratch_.quantized()),
      trainer_(settings.trainer, {.kernels = kernels_,
                                  .comm = comm,
                                  .model = model_,
                                  .data = data,
                                  .shard = shard_,
                                  .params = *params_,
                                  .grads = grads_,
                                  .optimizer = optimizer_,
                                  .scratch = scratch_,
                                  .schedule = settings_.schedule,
                                  .compute = compute_,
                                  .communication = communication_}) {
  TESSERA_REQUIRE(settings.scratch.batch.sequences == settings.trainer.micro_batch,
                  "the batch's shape is the micro-batch's");
}

void TrainingRun::initialize_weights() {
  // Each value depends on its number alone, so threads may share the work as they like.
  const unsigned cores = std::thread::hardware_concurrency();
  const int threads = std::max(1, static_cast<int>(cores) / comm_.world_size());
  shard_.initialize(
      [this](UnitId unit, Index begin, std::span<float> values) {
        initial_values(config_, layout_, unit, settings_.seed, begin, values);
      },
      threads);
}

std::uint64_t TrainingRun::parameter_hash(const LookAtPiece& look) {
  trainer_.synchronize();
  constexpr Index kPiece = Index{1} << 22;  // elements copied to the host at a time
  constexpr Index kPart = Index{1} << 16;   // hashed at a time: `look` finds it in the cache
  const DType dtype = settings_.scratch.precision.params;
  std::vector<char> host(static_cast<std::size_t>(kPiece) * size_in_bytes(dtype));
  Xxh3 hash;
  for (UnitId unit = 0; unit < layout_.unit_count(); ++unit) {
    const Index count = layout_.unit(unit).count;
    const ParamLease lease = params_->acquire(unit, compute_);
    for (Index begin = 0; begin < count; begin += kPiece) {
      const Index end = std::min(count, begin + kPiece);
      const TensorView values = {host.data(), dtype, Shape{end - begin}, Device{}};
      copy_async(lease.params().slice(begin, end), values, compute_);
      compute_.synchronize();
      for (Index part = begin; part < end; part += kPart) {
        const Index last = std::min(end, part + kPart);
        const TensorView piece = values.slice(part - begin, last - begin);
        hash.add(std::span(static_cast<const std::byte*>(piece.data),
                           static_cast<std::size_t>(last - part) * size_in_bytes(dtype)));
        if (look) {
          look(unit, part, piece);
        }
      }
    }
  }
  return hash.digest64();
}

}  // namespace tessera
