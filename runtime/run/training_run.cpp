#include "runtime/run/training_run.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/hash.h"
#include "model/initialization.h"
#include "optim/frozen_params.h"
#include "optim/replicated_params.h"
#include "optim/sharded_params.h"
#include "runtime/launch/agree.h"

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
ScratchOptions scratch_options(const RunSettings& settings, int world_size,
                               const AdapterLayout* adapters) {
  require_supported(settings.scratch.precision);
  const Index micro_batches = settings.trainer.global_batch / settings.trainer.micro_batch;
  ScratchOptions scratch = settings.scratch;
  scratch.adapters = adapters;
  scratch.together =
      std::min(settings.trainer.batched_forward, micro_batches_of(0, micro_batches, world_size));
  scratch.backward_together = settings.trainer.batched_backward ? scratch.together : 1;
  scratch.gathers_params = shards_params(settings, world_size);
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
            "--grad-offload with --reduce-group {} needs a number of ranks that is a multiple "
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

std::unique_ptr<ParamStore> make_params(const ParamLayout& layout, DType dtype,
                                        const RunSettings& settings, Communicator& comm,
                                        const ShardedParams::Streams& streams, Arena& arena) {
  if (shards_params(settings, comm.world_size())) {
    return std::make_unique<ShardedParams>(
        layout,
        ShardedParams::Options{
            .dtype = dtype, .placement = settings.params, .blocks = settings.param_blocks},
        comm, streams, arena);
  }
  return std::make_unique<ReplicatedParams>(layout, dtype, comm, streams.communication, arena);
}

bool has_packed_base(const RunSettings& settings) {
  return settings.adapters && settings.adapters->base == BaseStorage::nf4;
}

std::optional<AdapterLayout> make_adapters(const ModelConfig& config, const RunSettings& settings) {
  if (!settings.adapters) {
    return std::nullopt;
  }
  if (settings.scratch.precision.recipe != QuantizationRecipe::none) {
    throw ConfigError("--lora does not go with --precision fp8: give --precision bf16",
                      TESSERA_HERE);
  }
  if (settings.optimizer.kind == OptimizerKind::muon) {
    throw ConfigError("--lora does not go with --optimizer muon, which is for whole matrices: give "
                      "--optimizer adamw or sgd",
                      TESSERA_HERE);
  }
  return AdapterLayout(config, settings.adapters->config);
}

// The matrix of the LM head, the first tensor of the model's last unit: elements begin, begin + 1, ...
void read_head_weight(const ParamLayout& model, const UnitValues& base, Index begin,
                      std::span<float> values) {
  const ParamTensor& weight = part(model.unit(model.head()), "weight");
  const Index count =
      std::clamp<Index>(weight.count() - begin, 0, static_cast<Index>(values.size()));
  if (count > 0) {
    base(model.head(), weight.offset + begin, values.first(static_cast<std::size_t>(count)));
  }
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
      model_layout_(config_),
      adapters_(make_adapters(config_, settings)),
      layout_(adapters_ ? adapters_->params() : model_layout_),
      kernels_(kernels),
      compute_(stream_device(arena), StreamPriority::normal, "compute"),
      communication_(stream_device(arena), StreamPriority::high, "communication"),
      page_in_(stream_device(arena), StreamPriority::normal, "page in"),
      update_(stream_device(arena), StreamPriority::normal, "update"),
      page_out_(stream_device(arena), StreamPriority::normal, "page out"),
      fetch_(stream_device(arena), StreamPriority::high, "fetch"),
      scratch_(kernels_, config_, scratch_options(settings, comm.world_size(), adapters()), arena),
      packed_(has_packed_base(settings)
                  ? std::make_optional<PackedLayout>(config_, model_layout_,
                                                     settings.scratch.precision.params)
                  : std::nullopt),
      base_(make_base(arena)),
      params_(adapters_
                  ? std::make_unique<ReplicatedParams>(layout_, settings.scratch.precision.params,
                                                       comm, communication_, arena, "adapters")
                  : make_params(layout_, settings.scratch.precision.params, settings, comm,
                                {communication_, fetch_}, arena)),
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
      model_(kernels_, config_, model_layout_, settings.scratch.batch, settings.scratch.attention,
             scratch_.activations(), scratch_.loss(), scratch_.quantized(), adapters(),
             scratch_.adapter_gradients()),
      trainer_(settings.trainer, {.kernels = kernels_,
                                  .comm = comm,
                                  .model = model_,
                                  .data = data,
                                  .shard = shard_,
                                  .params = *params_,
                                  .base = base_.get(),
                                  .grads = grads_,
                                  .optimizer = optimizer_,
                                  .scratch = scratch_,
                                  .schedule = settings_.schedule,
                                  .compute = compute_,
                                  .communication = communication_}) {
  TESSERA_REQUIRE(settings.scratch.batch.sequences == settings.trainer.micro_batch,
                  "the batch's shape is the micro-batch's");
}

std::unique_ptr<ParamStore> TrainingRun::make_base(Arena& arena) {
  if (!adapters_) {
    return nullptr;
  }
  const ShardedParams::Streams streams = {communication_, fetch_};
  if (!packed_) {
    return make_params(model_layout_, settings_.scratch.precision.params, settings_, comm_, streams,
                       arena);
  }
  auto base = std::make_unique<QuantizedParams>(
      kernels_, model_layout_, *packed_,
      make_params(packed_->bytes(), DType::u8, settings_, comm_, streams, arena),
      comm_.world_size(), arena);
  quantized_ = base.get();
  return base;
}

int TrainingRun::threads_of_rank() const {
  // Each value depends on its number alone, so threads may share the work as they like.
  const unsigned cores = std::thread::hardware_concurrency();
  return std::max(1, static_cast<int>(cores) / comm_.world_size());
}

UnitValues TrainingRun::initial_model() const {
  return [this](UnitId unit, Index begin, std::span<float> values) {
    initial_values(config_, model_layout_, unit, settings_.seed, begin, values);
  };
}

void TrainingRun::initialize_weights() {
  const UnitValues model = initial_model();
  if (adapters_) {
    write_base(settings_.adapters->random_base ? random_base_source()
                                               : BaseSource{.values = model});
    gather_base();
    initialize_adapters(model);
  } else {
    shard_.initialize(model, threads_of_rank());
  }
}

BaseSource TrainingRun::random_base_source() const {
  TESSERA_REQUIRE(packed_.has_value(), "a base in nf4");
  return random_base(config_, model_layout_, *packed_, settings_.seed);
}

void TrainingRun::write_base(const BaseSource& source) {
  TESSERA_REQUIRE(adapters_.has_value(), "a frozen base");
  const DType param_values = settings_.scratch.precision.param_values;
  if (quantized_ != nullptr) {
    base_hash_ = write_quantized({.layout = model_layout_,
                                  .store = *quantized_,
                                  .comm = comm_,
                                  .stream = communication_,
                                  .param_values = param_values,
                                  .threads = threads_of_rank()},
                                 source);
    return;
  }
  TESSERA_REQUIRE(!source.slices && !source.matrices, "values of a base that is not in nf4");
  base_hash_ = agree(comm_, [&] {
    return write_frozen({.layout = model_layout_,
                         .store = *base_,
                         .device = compute_.device(),
                         .rank = comm_.rank(),
                         .world_size = comm_.world_size(),
                         .param_values = param_values,
                         .threads = threads_of_rank()},
                        source.values);
  });
}

void TrainingRun::gather_base() {
  for (UnitId unit = 0; unit < model_layout_.unit_count(); ++unit) {
    base_->all_gather(unit, compute_);
  }
  compute_.synchronize();
  communication_.synchronize();
  std::uint64_t sum = 0;
  for (const std::string& text : comm_.gather_text(std::to_string(base_hash_))) {
    sum += std::stoull(text);
  }
  base_hash_ = sum;
}

void TrainingRun::initialize_adapters(const UnitValues& base, const UnitValues& adapters) {
  TESSERA_REQUIRE(adapters_.has_value(), "a run with adapters");
  shard_.initialize(
      [&](UnitId unit, Index begin, std::span<float> values) {
        if (unit == adapters_->embedding()) {
          base(0, begin, values);
        } else if (unit == adapters_->head()) {
          read_head_weight(model_layout_, base, begin, values);
        } else if (adapters) {
          adapters(unit, begin, values);
        } else {
          initial_adapters(*adapters_, unit, settings_.adapters->init, settings_.seed, begin,
                           values);
        }
      },
      threads_of_rank());
}

std::uint64_t TrainingRun::parameter_hash(const LookAtPiece& look) {
  trainer_.synchronize();
  constexpr Index kPiece = Index{1} << 22;  // elements copied to the host at a time
  constexpr Index kPart = Index{1} << 16;   // hashed at a time: `look` finds it in the cache
  const DType dtype = settings_.scratch.precision.params;
  // While one piece is hashed, the next one is copied.
  DeviceBuffer host(compute_.device(), MemoryKind::pinned, dtype, {2 * kPiece},
                    "parameters to be hashed");
  Event copied(compute_.device(), "parameters.copied");
  Index pieces = 0;
  Xxh3 hash;
  for (UnitId unit = 0; unit < layout_.unit_count(); ++unit) {
    const Index count = layout_.unit(unit).count;
    const ParamLease lease = params_->acquire(unit, compute_);
    const auto copy = [&](Index begin) {
      const Index end = std::min(count, begin + kPiece);
      const Index at = pieces++ % 2 * kPiece;
      const TensorView values = host.view().slice(at, at + end - begin);
      copy_async(lease.params().slice(begin, end), values, compute_);
      copied.record(compute_);
      return values;
    };
    TensorView next = copy(0);
    for (Index begin = 0; begin < count; begin += kPiece) {
      const TensorView values = next;
      const Index end = begin + values.count();
      copied.synchronize();
      if (end < count) {
        next = copy(end);
      }
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
