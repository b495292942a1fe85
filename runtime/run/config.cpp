#include "runtime/run/config.h"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "optim/sharded_params.h"

namespace tessera {
namespace {

bool is_quantized(const RunConfig& config) {
  return precision_choice(config) == Precision::fp8;
}

// Throws ConfigError for blocks that the model does not have.
PrecisionPolicy policy_of(const RunConfig& c, const ModelConfig& model) {
  if (!is_quantized(c)) {
    return precision_of(precision_choice(c));
  }
  for (const LayerRange& range : c.compute.not_quantized) {
    if (range.last >= model.num_layers) {
      throw ConfigError(fmt::format("--fp8-skip {}: the model's {} blocks are 0 to {}", range.last,
                                    model.num_layers, model.num_layers - 1),
                        TESSERA_HERE);
    }
  }
  PrecisionPolicy policy =
      quantized(precision_of(compute_dtype(c)), c.compute.recipe, c.compute.not_quantized);
  require_supported(policy);
  return policy;
}

}  // namespace

RunConfig resolved(RunConfig c) {
  constexpr std::size_t kCpuLogits = std::size_t{128} << 20U;
  constexpr std::size_t kCudaLogits = std::size_t{640} << 20U;
  constexpr std::int64_t kWarmupPart = 50;
  constexpr std::int64_t kLongestWarmup = 2000;
  constexpr std::int64_t kDecayPart = 10;
  const std::int64_t span = c.schedule.span.value_or(c.steps);
  c.schedule.span = span;
  c.schedule.warmup = c.schedule.warmup.value_or(std::min(span / kWarmupPart, kLongestWarmup));
  c.schedule.decay_steps = c.schedule.decay_steps.value_or(span / kDecayPart);
  c.compute.precision = precision_choice(c);
  c.optimizer.weight_decay = c.optimizer.weight_decay.value_or(usual_decay(c.optimizer.rule.kind));
  c.optimizer.muon_lr = c.optimizer.muon_lr.value_or(c.schedule.lr);
  if (c.compute.logits_bytes == 0) {
    c.compute.logits_bytes = c.compute.device == DeviceKind::cpu ? kCpuLogits : kCudaLogits;
  }
  return c;
}

void set_text(RunConfig& c, const std::string& name, const std::string& text) {
  std::erase_if(c.texts.effective, [&](const auto& option) { return option.first == name; });
  c.texts.effective.emplace_back(name, text);
}

std::string set_label(const std::string& name) {
  return name.empty() ? "evaluation" : name;
}

LrSchedule schedule_of(const RunConfig& config) {
  const RunConfig c = resolved(config);
  return {.kind = c.schedule.kind,
          .lr = c.schedule.lr,
          .warmup = *c.schedule.warmup,
          .total = *c.schedule.span,
          .decay = *c.schedule.decay_steps,
          .min_ratio = c.schedule.min_ratio,
          .matrix_lr = *c.optimizer.muon_lr};
}

std::string_view document_mode_name(DocumentMode mode) {
  return mode == DocumentMode::joined ? "joined" : "separate";
}

std::string_view precision_name(Precision precision) {
  switch (precision) {
    case Precision::f32:
      return "f32";
    case Precision::bf16:
      return "bf16";
    case Precision::bf16_params:
      return "bf16-params";
    case Precision::fp8:
      break;
  }
  return "fp8";
}

Precision precision_choice(const RunConfig& config) {
  return config.compute.precision.value_or(
      config.compute.device == DeviceKind::cpu ? Precision::f32 : Precision::bf16);
}

DType compute_dtype(const RunConfig& config) {
  const Precision precision = precision_choice(config);
  if (precision == Precision::fp8) {
    return config.compute.device == DeviceKind::cpu ? DType::f32 : DType::bf16;
  }
  return precision_of(precision).activations;
}

Index sample_capacity(const RunConfig& config) {
  Index longest = 0;
  for (const std::string& prompt : config.sample.prompts) {
    longest = std::max(longest, std::ssize(prompt));
  }
  return longest + 1 + config.sample.tokens;
}

bool may_offload_inputs(const RunConfig& config, const RecomputeLevels& levels) {
  return config.memory.inputs == InputPlacement::device || levels.has(Recompute::block);
}

std::optional<AdapterConfig> adapter_config(const RunConfig& c) {
  const AdapterOptions& o = c.adapters;
  if (!o.rank) {
    return std::nullopt;
  }
  return AdapterConfig{.rank = *o.rank,
                       .alpha = o.alpha.value_or(2 * static_cast<double>(*o.rank)),
                       .rank_stabilized = o.rank_stabilized,
                       .targets = o.targets,
                       .trains_embeddings = o.trains_embeddings};
}

double trained_flops_per_token(const RunConfig& c, const ModelConfig& model) {
  const std::optional<AdapterConfig> adapters = adapter_config(c);
  return adapters ? flops_per_token(model, AdapterLayout(model, *adapters), c.batch.seq)
                  : flops_per_token(model, c.batch.seq);
}

std::string adapter_json(const RunConfig& c) {
  const std::optional<AdapterConfig> adapters = adapter_config(c);
  return adapters ? to_adapter_json(*adapters) : std::string();
}

RunSettings run_settings(const RunConfig& c, const ModelConfig& model,
                         std::size_t device_bytes_free) {
  // fewer launches: those of 8 MiB fill a card badly
  constexpr std::size_t kResidentPages = std::size_t{64} << 20U;
  // dynamic rope scaling is for longer ones
  if (c.batch.seq > model.max_position && model.rope.type != RopeType::dynamic) {
    throw ConfigError(
        fmt::format("--seq {} exceeds the model's {} positions: give at most {}, or a config.json "
                    "with a larger "
                    "max_position_embeddings (and rope_scaling, as the model's authors give it)",
                    c.batch.seq, model.max_position, model.max_position),
        TESSERA_HERE);
  }
  if (c.sample.every > 0 && sample_capacity(c) > model.max_position) {
    throw ConfigError(fmt::format("--sample-prompt and --sample-tokens {} come to {} tokens, more "
                                  "than the model's {} positions",
                                  c.sample.tokens, sample_capacity(c), model.max_position),
                      TESSERA_HERE);
  }
  if (const std::string refusal = quantized_size_refusal(model, {c.batch.micro_batch, c.batch.seq});
      is_quantized(c) && c.compute.device == DeviceKind::cuda && !refusal.empty()) {
    throw ConfigError(refusal, TESSERA_HERE);
  }
  const RecomputeLevels levels = c.memory.recompute.value_or(Recompute::none);  // auto: of the plan
  levels.require_layers(model.num_layers);
  if (c.memory.recompute && !may_offload_inputs(c, levels)) {
    throw ConfigError("--offload-activations needs --recompute block, in some layers or all",
                      TESSERA_HERE);
  }
  if (c.batch.batched_backward && model.tie_embeddings) {
    throw ConfigError(
        "--batched-backward: this model's embedding and output layer share one matrix, "
        "whose gradient is under way from the first block of the backward pass to the "
        "last: leave it out",
        TESSERA_HERE);
  }
  RunSettings settings;
  settings.trainer = {.global_batch = c.batch.global_batch,
                      .micro_batch = c.batch.micro_batch,
                      .clip_norm = c.optimizer.clip,
                      .batched_forward = c.batch.batched_forward,
                      .batched_backward = c.batch.batched_backward};
  settings.scratch.batch = {c.batch.micro_batch, c.batch.seq};
  settings.scratch.precision = policy_of(c, model);
  settings.scratch.recompute = levels;
  settings.scratch.inputs = c.memory.inputs;
  settings.scratch.fp8_weights = c.compute.fp8_weights.value_or(CodeStorage::stored);
  settings.scratch.attention = {.method = settings.scratch.precision.activations == DType::bf16
                                              ? c.compute.attention
                                              : AttentionMethod::builtin,
                                .order = c.compute.attention_order,
                                .slice_bytes = c.compute.attention_slice_bytes,
                                .documents = c.data.documents == DocumentMode::separate};
  settings.scratch.logits_bytes = resolved(c).compute.logits_bytes;
  settings.scratch.decodes = c.sample.every > 0;
  settings.scratch.loss.terms = {.label_smoothing = static_cast<float>(c.loss.label_smoothing),
                                 .z_loss = static_cast<float>(c.loss.z_loss)};
  if (c.memory.page_bytes != 0) {
    settings.paging.page_bytes = c.memory.page_bytes;
  } else if (c.compute.device == DeviceKind::cuda) {
    settings.paging.resident_page_bytes = kResidentPages;
  }
  switch (c.memory.resident.kind) {
    case ResidentKind::automatic:
      settings.paging.max_device_bytes = device_bytes_free;
      break;
    case ResidentKind::all:
      settings.paging.max_device_bytes = 0;
      break;
    case ResidentKind::none:
      settings.paging.page_all = true;
      break;
    case ResidentKind::bytes:
      settings.paging.max_device_bytes = c.memory.resident.bytes;
      break;
  }
  settings.masters = c.memory.masters;
  settings.optimizer = c.optimizer.rule;
  settings.optimizer.decay = *resolved(c).optimizer.weight_decay;
  settings.schedule = schedule_of(c);
  settings.decay_all = c.optimizer.decay_all;
  settings.reduce = c.parallel.reduce;
  settings.zero = c.parallel.zero.value_or(ZeroStage::two);
  settings.params = c.memory.params.value_or(ParamPlacement::device);
  settings.param_blocks = c.memory.param_blocks.value_or(ShardedParams::kLeastBlocks);
  settings.reduce_group = c.parallel.reduce_group;
  settings.host_grad_bytes = c.memory.grad_offload.kind == OffloadKind::all
                                 ? kAllGrads
                                 : c.memory.grad_offload.bytes;  // 0 for auto: the plan decides
  settings.seed = c.seed;
  if (const std::optional<AdapterConfig> adapters = adapter_config(c)) {
    settings.adapters = AdapterSettings{.config = *adapters,
                                        .init = c.adapters.init,
                                        .base = c.adapters.base.value_or(BaseStorage::params),
                                        .random_base = c.adapters.random_base};
  }
  return settings;
}

}  // namespace tessera
