#include "runtime/plan/memory_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/quantity.h"
#include "kernels/device/device_backend.h"
#include "model/decoder.h"
#include "optim/sharded_params.h"
#include "runtime/data/data_loader.h"
#include "runtime/plan/memory_advice.h"
#include "runtime/plan/recompute_choice.h"
#include "runtime/plan/start_command.h"
#include "runtime/run/checkpoint_output.h"
#include "runtime/run/page_snapshot.h"
#include "runtime/run/partner_copy.h"

namespace tessera {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30U;
// What a process takes of a device beside our arena: the CUDA context, cuBLAS and cuDNN kernels.
constexpr std::size_t kContextBytes = 600 * (std::size_t{1} << 20U);
// NCCL's own buffers for one communicator of several ranks: as it is made, and once it has moved
// gradients and parameters (measured on two cards: 302 and 958 MB).
constexpr std::size_t kNcclBytes = 400 * (std::size_t{1} << 20U);
constexpr std::size_t kBusyNcclBytes = 914 * (std::size_t{1} << 20U);
// What a process on CPUs takes beside our arena: code, MPI's buffers, oneDNN's, stacks.
constexpr std::size_t kProcessBytes = 68 * (std::size_t{1} << 20U);

// The same beside CUDA, and what driver and kernel keep to find pinned memory: a byte for so many of it
// (measured on an H200's node: 2.08 GB beside 116.23 GB of pinned memory).
constexpr std::size_t kCudaProcessBytes = std::size_t{500} << 20U;
constexpr std::size_t kPinnedPerTable = 75;

// How long all ranks may write a sample between two steps.
constexpr double kMostSampleSeconds = 300;

// Ranks that are only counted: no operation is ever asked of it.
class PlannedRanks final : public Communicator {
 public:
  PlannedRanks(int rank, int world_size) : Communicator(rank, world_size) {}
  void barrier() override { refuse(); }
  bool all_agree(bool) override { refuse(); }
  void sum(std::span<std::int64_t>) override { refuse(); }
  std::vector<std::string> gather_text(std::string_view) override { refuse(); }
  void check_health() override {}
  void abort() noexcept override {}

 private:
  [[noreturn]] static void refuse() {
    throw ContractError("a planned run does not communicate", TESSERA_HERE);
  }
  void do_all_to_all(const RankGroup&, ConstTensorView, TensorView, Stream&) override { refuse(); }
  void do_reduce_scatter(ConstTensorView, TensorView, Stream&) override { refuse(); }
  void do_all_gather(ConstTensorView, TensorView, Stream&) override { refuse(); }
};

class NoBatches final : public BatchSource {
 public:
  void prefetch(Index) override {}
  Index prefetched_targets() override { return 0; }
  void take() override {}
  Batch batch(Index) override { return {}; }
};

// `look` is given the run whose memory is counted.
Arena dry_arena(const RunConfig& options, const ModelConfig& config, const RunSettings& settings,
                int world_size, const MemoryLimits& limits,
                const std::function<void(TrainingRun&)>& look = {}) {
  Arena arena({options.compute.device, 0}, ArenaMode::dry_run);
  PlannedRanks ranks(0, world_size);
  NoBatches batches;
  TrainingRun run(config, settings, ranks, batches, arena);
  if (options.sample.every > 0) {
    // In a dry run no kernel is called, and the planned device need not exist.
    const Decoder decoder(kernel_table(DeviceKind::cpu), run.config(), run.model_layout(),
                          sample_capacity(options), settings.scratch.precision.activations,
                          run.scratch().decoder_work(), arena, run.adapters(),
                          sample_texts(options));
  }
  if (look) {
    look(run);
  }
  if (const std::size_t staging = save_staging_bytes(options, run.shard().snapshot_bytes());
      staging > 0) {
    const PageSnapshot snapshot(run.shard(), run.optimizer(), staging, arena);
  }
  if (options.checkpoint.local_every > 0 && world_size > limits.ranks_per_node) {
    // A rank sends one shard, and receives one where nodes have as many ranks each.
    arena.note(MemoryKind::host, 2 * kPartnerPieceBytes, "local saves/copies on their way");
  }
  // The loader's: three steps' micro-batches of this rank.
  const Index micro_batches = options.batch.global_batch / options.batch.micro_batch;
  const Index rounds = micro_batches_of(0, micro_batches, world_size);
  constexpr Index kSteps = 3;
  arena.note(MemoryKind::pinned,
             static_cast<std::size_t>(
                 kSteps * rounds *
                 batch_elements(options.batch.micro_batch * options.batch.seq,
                                options.data.documents.value_or(DocumentMode::joined))) *
                 sizeof(std::int32_t),
             "batches/prefetched");
  if (options.compute.device == DeviceKind::cuda) {
    arena.note(MemoryKind::device, kContextBytes, "context and library kernels");
    arena.note(MemoryKind::host,
               kCudaProcessBytes + arena.total_bytes(MemoryKind::pinned) / kPinnedPerTable,
               "program and libraries");
    if (world_size > 1) {
      const bool peer_copies = options.parallel.peer_copies && world_size <= limits.ranks_per_node;
      arena.note(MemoryKind::device, peer_copies ? kNcclBytes : kBusyNcclBytes, "nccl buffers");
    }
  } else {
    arena.note(MemoryKind::host, kProcessBytes, "program and libraries");
  }
  return arena;
}

// Throws where sizes are so large that the sums of a plan would not fit: nothing has such memory.
void require_countable(const RunConfig& o, const ModelConfig& c, int world_size) {
  constexpr double kMostPlanned = 0x1p58;
  constexpr double kRowsOfWidth = 16;  // that a token has in a block, and more
  const auto of = [](Index number) { return static_cast<double>(number); };
  const Index micro_batches =
      micro_batches_of(0, o.batch.global_batch / o.batch.micro_batch, world_size);
  const double sets = of(std::min(o.batch.batched_forward, std::max<Index>(micro_batches, 1)));
  const double elements = of(c.hidden_size + c.qkv_width() + c.intermediate_size) * kRowsOfWidth *
                          of(c.num_layers + 1) * sets;
  if (of(o.batch.micro_batch) * of(o.batch.seq) * elements * sizeof(float) > kMostPlanned) {
    throw ConfigError(fmt::format("--micro-batch {} of --seq {}: activations of more than {} for "
                                  "this model; give smaller ones",
                                  o.batch.micro_batch, o.batch.seq,
                                  format_bytes(static_cast<std::size_t>(kMostPlanned))),
                      TESSERA_HERE);
  }
}

// How parameters may be stored, where that is left to the plan: from what costs least time.
std::vector<ParamChoice> param_choices(const RunConfig& o, int world_size) {
  const CodeStorage codes = o.compute.fp8_weights.value_or(CodeStorage::stored);
  std::vector<ParamChoice> places = {{o.parallel.zero.value_or(ZeroStage::two),
                                      o.memory.params.value_or(ParamPlacement::device), codes}};
  if (!o.parallel.zero && o.memory.params != ParamPlacement::host && world_size > 1) {
    places.push_back({ZeroStage::three, places.front().placement, codes});
  }
  if (!o.memory.params && o.compute.device == DeviceKind::cuda) {
    places.push_back({places.back().zero, ParamPlacement::host, codes});
  }
  if (precision_choice(o) != Precision::fp8 || o.compute.fp8_weights) {
    return places;
  }
  std::vector<ParamChoice> choices;
  for (const ParamChoice& place : places) {
    choices.push_back(place);
    // Parameters that come from elsewhere then come once after an update, and not at each pass.
    if (place.zero == ZeroStage::three || place.placement == ParamPlacement::host) {
      choices.push_back({place.zero, place.placement, CodeStorage::one_layout});
    }
    choices.push_back({place.zero, place.placement, CodeStorage::at_use});
  }
  return choices;
}

// Stops at the largest size.
std::size_t product_of(std::size_t a, std::size_t b) {
  std::size_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::size_t>::max() : product;
}

// What a rank takes of its node's memory, of `bytes_of` each kind; a CPU's device is its host.
template <typename BytesOf>
std::size_t host_bytes(DeviceKind device, const BytesOf& bytes_of) {
  return bytes_of(MemoryKind::pinned) + bytes_of(MemoryKind::host) +
         (device == DeviceKind::cpu ? bytes_of(MemoryKind::device) : 0);
}

}  // namespace

const char* memory_kind_name(MemoryKind kind) noexcept {
  switch (kind) {
    case MemoryKind::device:
      return "device";
    case MemoryKind::pinned:
      return "pinned host";
    case MemoryKind::host:
      return "host";
  }
  return "unknown";
}

std::vector<PlanLine> plan_lines(std::span<const ArenaEntry> entries) {
  std::vector<PlanLine> lines;
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::host}) {
    for (const ArenaEntry& entry : entries) {
      if (entry.kind != kind) {
        continue;
      }
      // activations are listed one by one; all else is summed up by its first word
      const std::size_t slash = entry.name.find('/');
      const std::string name =
          entry.name.starts_with("activations/") ? entry.name : entry.name.substr(0, slash);
      const auto found = std::find_if(lines.begin(), lines.end(), [&](const PlanLine& line) {
        return line.name == name && line.kind == kind;
      });
      if (found == lines.end()) {
        lines.push_back({name, kind, entry.bytes});
      } else {
        found->bytes += entry.bytes;
      }
    }
  }
  std::erase_if(lines, [](const PlanLine& line) { return line.bytes == 0; });
  return lines;
}

std::size_t usable_device_bytes(std::size_t device_bytes) {
  constexpr double kReserve = 0.02;  // fragmentation
  return static_cast<std::size_t>(static_cast<double>(device_bytes) * (1 - kReserve));
}

std::size_t save_staging_bytes(const RunConfig& options, std::size_t state_bytes) {
  if (options.checkpoint.staging) {
    return *options.checkpoint.staging;
  }
  if (options.checkpoint.save_every == 0 && options.checkpoint.local_every == 0) {
    return 1;  // the save at the end holds nothing back: one page
  }
  return std::min(state_bytes, std::max(2 * kGiB, state_bytes / 8));
}

MemoryPlan::MemoryPlan(const RunConfig& given, const ModelConfig& config, int world_size,
                       const MemoryLimits& limits)
    : options_(with_recompute(given, config, world_size, limits)),
      config_(config),
      world_size_(world_size),
      limits_(limits) {
  require_countable(options_, config, world_size);
  const std::vector<ParamChoice> choices = param_choices(options_, world_size);
  const ParamChoice* best = nullptr;
  std::size_t least = 0;
  for (const ParamChoice& choice : choices) {
    lay_out(choice);
    if (fits()) {
      return;
    }
    if (best == nullptr || missing_bytes() < least) {
      best = &choice;
      least = missing_bytes();
    }
  }
  if (best != &choices.back()) {
    lay_out(*best);
  }
}

void MemoryPlan::lay_out(const ParamChoice& choice) {
  settings_ = run_settings(options_, config_, 0);
  settings_.node_ranks = limits_.node_ranks;
  settings_.zero = choice.zero;
  settings_.params = choice.placement;
  settings_.scratch.fp8_weights = choice.codes;
  if (!options_.memory.param_blocks) {
    settings_.param_blocks = ShardedParams::kLeastBlocks;
  }
  fit_to_device();
  const Arena arena =
      dry_arena(options_, config_, settings_, world_size_, limits_, [this](TrainingRun& run) {
        Index elements = 0;
        for (UnitId unit = 0; unit < run.layout().unit_count(); ++unit) {
          elements += run.shard().padded(unit);
        }
        shard_ = OptimizerShard::for_rank(0, world_size_, elements);
        set_state(run);
        resident_ = resident_params(run.shard());
        lent_bytes_ = run.scratch().decoder_lent_bytes();
        checkpoint_bytes_ = static_cast<std::size_t>(world_size_) * shard_file_bytes(run.shard());
      });
  lines_ = plan_lines(arena.entries());
}

// How much state stays on the device, and which sums leave it, where that is left to the plan.
void MemoryPlan::fit_to_device() {
  const bool has_limit = options_.compute.device == DeviceKind::cuda && limits_.device_bytes > 0;
  const bool fits_state = options_.memory.resident.kind == ResidentKind::automatic;
  const bool fits_sums = options_.memory.grad_offload.kind == OffloadKind::automatic;
  const bool fits_blocks = shards_params(settings_, world_size_) && !options_.memory.param_blocks;
  if (!has_limit || !(fits_state || fits_sums || fits_blocks)) {
    return;
  }
  // First without any resident page, to see what is left; then with what fits there.
  StateLayout arrays;
  const auto taken_of = [&](std::size_t host_grad_bytes) {
    RunSettings paged = settings_;
    paged.paging.page_all = paged.paging.page_all || fits_state;
    paged.host_grad_bytes = host_grad_bytes;
    const Arena arena =
        dry_arena(options_, config_, paged, world_size_, limits_,
                  [&arrays](TrainingRun& run) { arrays = run.shard().state_layout(); });
    return arena.total_bytes(MemoryKind::device);
  };
  const std::size_t usable = usable_device_bytes(limits_.device_bytes);
  std::size_t taken = taken_of(settings_.host_grad_bytes);
  // A byte of sums saves two copies of it a micro-batch, a byte of state two a step: no sums leave
  // the device before all state has.
  constexpr int kTries = 4;  // what leaves needs buffers to pass through
  for (int i = 0; i < kTries && fits_sums && taken > usable; ++i) {
    settings_.host_grad_bytes += taken - usable;
    taken = taken_of(settings_.host_grad_bytes);
  }
  if (fits_blocks) {
    taken += add_param_blocks(arrays, usable > taken ? usable - taken : 0, fits_state);
  }
  const std::size_t buffers = arrays.bytes(page_elements(arrays, settings_.paging.page_bytes)) *
                              static_cast<std::size_t>(settings_.paging.buffers);
  if (fits_state && taken >= usable) {
    settings_.paging.page_all = true;
  } else if (fits_state) {
    settings_.paging.max_device_bytes = usable - taken + buffers;
  }
}

// More blocks of gathered parameters in what is left of the device, as many as make the step shortest:
// what they take, resident state does not have. Returns what they take.
std::size_t MemoryPlan::add_param_blocks(const StateLayout& arrays, std::size_t room,
                                         bool fits_state) {
  const ParamLayout layout(config_);
  const DType type = settings_.scratch.precision.params;
  const std::size_t bytes =
      has_nf4_base() ? static_cast<std::size_t>(padded_count(
                           PackedLayout(config_, layout, type).bytes().unit(1).count, world_size_))
                     : static_cast<std::size_t>(padded_count(layout.unit(1).count, world_size_)) *
                           size_in_bytes(type);
  const Index most = std::min<Index>(config_.num_layers,
                                     settings_.param_blocks + static_cast<Index>(room / bytes));
  const Index trained = trained_count();
  const std::size_t state_bytes = arrays.bytes(trained / world_size_);
  const Index least = settings_.param_blocks;
  const auto taken_by = [&](Index blocks) {
    return static_cast<std::size_t>(blocks - least) * bytes;
  };
  Index best = least;
  double shortest = 0;
  for (Index blocks = least; blocks <= most; ++blocks) {
    PlannedState kept;
    kept.element_bytes =
        static_cast<double>(state_bytes) * world_size_ / static_cast<double>(trained);
    kept.packs_masters = arrays.packs_masters();
    const PagingOptions& paging = settings_.paging;
    const std::size_t resident = fits_state                     ? room - taken_by(blocks)
                                 : paging.page_all              ? 0
                                 : paging.max_device_bytes == 0 ? state_bytes
                                                                : paging.max_device_bytes;
    kept.paged_bytes = state_bytes - std::min(state_bytes, resident);
    kept.host_grad_bytes = settings_.host_grad_bytes;
    settings_.param_blocks = blocks;
    if (const double seconds = estimate_of(kept).step_seconds;
        blocks == least || seconds < shortest) {
      best = blocks;
      shortest = seconds;
    }
  }
  settings_.param_blocks = best;
  return taken_by(best);
}

// Of this state, with parameters as the settings store them.
StepEstimate MemoryPlan::estimate_of(PlannedState kept) const {
  kept.params_in_shards = shards_params(settings_, world_size_);
  kept.params_on_host = settings_.params == ParamPlacement::host;
  kept.param_blocks = settings_.param_blocks;
  kept.fp8_weights = settings_.scratch.fp8_weights;
  return estimate_step(options_, config_,
                       {.world_size = world_size_,
                        .per_node = std::min(limits_.ranks_per_node, world_size_),
                        .node_ranks = limits_.node_ranks,
                        .network = network_},
                       kept);
}

// What the run keeps of its optimizer.
void MemoryPlan::set_state(TrainingRun& run) {
  const StateLayout& arrays = run.shard().state_layout();
  const StateLayout matrix_arrays = matrix_state_layout(run.settings().optimizer);
  state_bytes_ = shard_.shard_memory_bytes(arrays);
  all_state_bytes_ = shard_.full_memory_bytes(arrays);
  if (matrix_arrays.size() > 0) {  // ranks have different shares of both kinds
    state_bytes_ = largest_state_bytes(run.layout(), arrays, matrix_arrays, world_size_);
    all_state_bytes_ = 0;
    for (int rank = 0; rank < world_size_; ++rank) {
      all_state_bytes_ += shard_state_bytes(run.layout(), arrays, matrix_arrays, rank, world_size_);
    }
  }
  planned_.element_bytes =
      static_cast<double>(all_state_bytes_) / static_cast<double>(shard_.total_params);
  planned_.packs_masters = arrays.packs_masters();
  if (run.orthogonalizer() != nullptr) {
    planned_.orthogonalizing_flops = run.orthogonalizer()->slowest_flops();
    planned_.orthogonalizing_bytes = run.orthogonalizer()->exchanged_bytes();
  }
}

bool MemoryPlan::has_nf4_base() const noexcept {
  return settings_.adapters && settings_.adapters->base == BaseStorage::nf4;
}

double MemoryPlan::sample_seconds() const {
  return options_.compute.device == DeviceKind::cuda ? estimate().sample_seconds : 0;
}

std::string MemoryPlan::sample_refusal() const {
  const double seconds = sample_seconds();
  if (seconds <= kMostSampleSeconds) {
    return {};
  }
  // the prompt's share is that of so many tokens
  const double of_token = estimate().sample_token_seconds;
  const double prompt = seconds / of_token - static_cast<double>(options_.sample.tokens);
  const double fewer = std::floor(kMostSampleSeconds / of_token - prompt);
  return fmt::format(
      "--sample-tokens {}: with parameters in shards each token gathers all blocks, and {} "
      "would take about {:.0f} s, more than the {:.0f} s that are allowed: {}, or let generate "
      "write from a checkpoint",
      options_.sample.tokens,
      sample_texts(options_) == 1
          ? std::string("a sample")
          : fmt::format("the {} samples side by side", sample_texts(options_)),
      seconds, kMostSampleSeconds,
      fewer >= 1 ? fmt::format("give {:.0f} or fewer", fewer)
                 : std::string("give fewer and a shorter --sample-prompt"));
}

std::size_t MemoryPlan::total(MemoryKind kind) const noexcept {
  std::size_t bytes = 0;
  for (const PlanLine& line : lines_) {
    bytes += line.kind == kind ? line.bytes : 0;
  }
  return bytes;
}

std::size_t MemoryPlan::device_bytes() const noexcept {
  return options_.compute.device == DeviceKind::cuda ? total(MemoryKind::device) : 0;
}

std::size_t MemoryPlan::node_bytes() const noexcept {
  return product_of(
      host_bytes(options_.compute.device, [this](MemoryKind kind) { return total(kind); }),
      static_cast<std::size_t>(std::min(limits_.ranks_per_node, world_size_)));
}

std::size_t MemoryPlan::missing_bytes() const noexcept {
  std::size_t missing = 0;
  const auto add = [&missing](std::size_t needed, std::size_t limit) {
    missing += limit != 0 && needed > limit ? needed - limit : 0;
  };
  add(device_bytes(), limits_.device_bytes);
  add(node_bytes(), limits_.host_bytes);
  add(node_bytes(), limits_.host_room_bytes);
  return missing;
}

std::string MemoryPlan::refusal() const {
  return shortage().text;
}

MemoryAdvice MemoryPlan::shortage() const {
  std::vector<std::string> shortages;
  const bool lacks_device = limits_.device_bytes != 0 && device_bytes() > limits_.device_bytes;
  if (lacks_device) {
    shortages.push_back(fmt::format("{} of device memory on each rank, and a device has {}",
                                    format_bytes(device_bytes()),
                                    format_bytes(limits_.device_bytes)));
  }
  if (limits_.host_bytes != 0 && node_bytes() > limits_.host_bytes) {
    shortages.push_back(fmt::format("{} of host memory on each node, and a node has {}",
                                    format_bytes(node_bytes()), format_bytes(limits_.host_bytes)));
  } else if (limits_.host_room_bytes != 0 && node_bytes() > limits_.host_room_bytes) {
    shortages.push_back(fmt::format("{} of host memory on each node, and only {} are free now ({})",
                                    format_bytes(node_bytes()),
                                    format_bytes(limits_.host_room_bytes), host_memory().text()));
  }
  if (shortages.empty()) {
    return {.text = {}, .command = start_command(options_, world_size_), .ranks = world_size_};
  }
  const DType type = settings_.scratch.precision.params;
  const ParamLayout layout(config_);
  const std::size_t parameters =
      has_nf4_base()
          ? static_cast<std::size_t>(PackedLayout(config_, layout, type).bytes().total_count())
          : static_cast<std::size_t>(layout.total_count()) * size_in_bytes(type);
  const bool holds_all = options_.parallel.zero.value_or(ZeroStage::three) != ZeroStage::three &&
                         options_.memory.params == ParamPlacement::device;
  const MemoryAdvice advice =
      lacks_device && holds_all && parameters > limits_.device_bytes
          ? MemoryAdvice{.text = fmt::format(
                             "the parameters alone take {} in {}, and every device holds all of "
                             "them: give --zero auto and --params auto, take a smaller model, or "
                             "devices with more memory",
                             format_bytes(parameters), has_nf4_base() ? "nf4" : dtype_name(type)),
                         .command = {},
                         .ranks = 0}
          : memory_advice(options_, config_, world_size_, limits_);
  return {.text = fmt::format("the run needs {}: {}", fmt::join(shortages, "; and "), advice.text),
          .command = advice.command,
          .ranks = advice.ranks};
}

StepEstimate MemoryPlan::estimate() const {
  std::size_t paged = 0;
  std::size_t host_grads = 0;
  for (const PlanLine& line : lines_) {
    const bool is_pinned = line.kind == MemoryKind::pinned;
    paged += line.name == "optimizer state" && is_pinned ? line.bytes : 0;
    host_grads += line.name == "gradient sums" && is_pinned ? line.bytes : 0;
  }
  PlannedState kept = planned_;
  kept.paged_bytes = paged;
  kept.host_grad_bytes = host_grads;
  return estimate_of(kept);
}

}  // namespace tessera
