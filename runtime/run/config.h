// What a run is: everything that the command line, a --config file, a checkpoint's stored options
// or a benchmark say of it, by subject. The plan, the estimate, a resumed run and training take it.
// option_table.cpp has a row, with the default, for each field; nothing else makes one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/run/training_run.h"

namespace tessera {

enum class ResidentKind : std::uint8_t { automatic, all, none, bytes };

/// `auto`: what the memory plan leaves free; `all`; `none`; or a number of bytes.
struct ResidentBytes {
  ResidentKind kind = ResidentKind::automatic;
  std::size_t bytes = 0;
  friend bool operator==(const ResidentBytes&, const ResidentBytes&) = default;
};

enum class OffloadKind : std::uint8_t { none, all, automatic, bytes };

/// How much of the shard's gradient sums is in pinned host memory; `automatic`: as little as lets the
/// run fit its device.
struct GradOffload {
  OffloadKind kind = OffloadKind::none;
  std::size_t bytes = 0;
  friend bool operator==(const GradOffload&, const GradOffload&) = default;
};

/// Steps FIRST to LAST, both included.
struct StepRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
  friend bool operator==(const StepRange&, const StepRange&) = default;
};

/// Whose memory a plan has, and whose rates its estimate.
enum class Card : std::uint8_t { a100, h100, h200, b200 };

enum class ResumeKind : std::uint8_t { automatic, none, path };
enum class SaveFailure : std::uint8_t { go_on, stop };

/// Where the model comes from.
struct ModelChoice {
  std::string name;  // a preset, a config.json, or auto: that of `init`, else tiny
  std::string init;  // folder of the weights to start from; empty: fresh ones
};

struct DataConfig {
  std::vector<std::string> files;  // FILE[:WEIGHT]
  bool allow_change = false;
  bool allow_tokenizer_mismatch = false;
  std::optional<DocumentMode>
      documents;  // none: auto, as agreed_documents (document_choice.h) says
};

/// How long a run is where `steps` of RunConfig does not say it; with_steps (run_length.h) makes
/// steps of it.
struct LengthConfig {
  std::optional<double> epochs;        // passes over the data
  std::optional<std::int64_t> tokens;  // --global-batch times --seq a step
};

struct BatchConfig {
  Index seq = 0;
  Index micro_batch = 0;
  Index global_batch = 0;
  Index batched_forward = 1;
  bool batched_backward = false;
};

struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::cosine;
  double lr = 0;
  std::optional<std::int64_t> warmup;       // none: auto
  std::optional<std::int64_t> decay_steps;  // none: auto
  std::optional<std::int64_t> span;         // none: the run's steps
  double min_ratio = 0;
};

struct OptimizerConfig {
  OptimizerOptions rule;               // its decay is weight_decay
  std::optional<double> weight_decay;  // none: auto, the optimizer's
  std::optional<double> muon_lr;       // none: auto, the schedule's
  bool decay_all = false;
  double clip = 0;
  Index max_skipped = 0;
};

/// --lora and what belongs to it.
struct AdapterOptions {
  std::optional<Index> rank;    // none: the model itself is trained
  std::optional<double> alpha;  // none: auto, twice the rank
  std::vector<Projection> targets;
  AdapterInit init = AdapterInit::kaiming;
  bool rank_stabilized = false;
  bool trains_embeddings = false;
  std::string init_folder;          // PEFT's, to start from; empty: none
  std::optional<BaseStorage> base;  // none: nf4 where --init is, else as parameters are
  bool random_base = false;
};

struct LossConfig {
  double label_smoothing = 0;
  double z_loss = 0;
};

/// As --documents has it: "joined", "separate".
[[nodiscard]] std::string_view document_mode_name(DocumentMode mode);

/// As --precision has it: "f32", "bf16", "bf16-params", "fp8".
[[nodiscard]] std::string_view precision_name(Precision precision);

/// Where and how a rank computes.
struct ComputeConfig {
  DeviceKind device = DeviceKind::cpu;
  std::optional<Precision> precision;                      // none: the device's own
  QuantizationRecipe recipe = QuantizationRecipe::tensor;  // of fp8
  std::vector<LayerRange> not_quantized;                   // blocks that fp8 leaves out
  std::optional<CodeStorage> fp8_weights;                  // none: stored where they fit
  int threads = 1;
  AttentionMethod attention = AttentionMethod::library;
  AttentionOrder attention_order = AttentionOrder::deterministic;
  std::size_t attention_slice_bytes = 0;
  std::size_t logits_bytes = 0;  // 0: auto
  std::string tune_gemm;         // empty: the library's first proposals
};

struct MemoryConfig {
  std::optional<RecomputeLevels> recompute = RecomputeLevels();  // none: auto, as the plan chooses
  InputPlacement inputs = InputPlacement::device;                // of blocks
  ResidentBytes resident;
  MasterStorage masters = MasterStorage::automatic;
  std::size_t page_bytes = 0;  // 0: auto
  GradOffload grad_offload;
  std::optional<ParamPlacement> params;  // none: host where nothing else fits
  std::optional<Index> param_blocks;     // of shards, on the device at a time; none: auto
  std::size_t host_bytes = 0;            // of a node; 0: this machine's
};

/// What the ranks do together.
struct ParallelConfig {
  std::optional<ZeroStage> zero;  // none: 2 where it fits, else 3
  Index reduce_group = 1;
  ReduceMode reduce = ReduceMode::ordered;
  bool peer_copies = true;
  Index ranks_per_node = 0;  // 0: those of a host; of a plan: all
};

/// A token file of --eval-data.
struct EvalFile {
  std::string name;  // empty: it is the only one, and has none
  std::string path;
  friend bool operator==(const EvalFile&, const EvalFile&) = default;
};

/// What --keep-best calls it: its name, or "evaluation" where it has none.
[[nodiscard]] std::string set_label(const std::string& name);

struct EvalConfig {
  std::vector<EvalFile> files;  // names are distinct
  Index every = 0;
  Index sequences = 0;
};

/// So many --sample-prompt a run takes.
inline constexpr std::size_t kMostSamplePrompts = 16;

struct SampleConfig {
  Index every = 0;  // 0: never
  std::vector<std::string> prompts;
  Index tokens = 0;
  double temperature = 0;
};

struct MonitorConfig {
  Index log_every = 1;
  std::optional<StepRange> trace;
};

struct CheckpointConfig {
  Index save_every = 0;
  bool save_at_end = true;
  Index keep = 0;
  Index keep_every = 0;
  std::string keep_best;               // name of an evaluation set (set_label); empty: none
  std::optional<std::size_t> staging;  // none: auto
  SaveFailure on_failure = SaveFailure::go_on;
  std::string local_folder;  // of --save-local, on each node; empty: no local saves
  Index local_every = 0;     // 0: no local saves
  ResumeKind resume = ResumeKind::automatic;
  std::string resume_path;
};

/// The model as a Hugging Face folder.
struct ExportConfig {
  std::string folder;  // empty: none
  Index every = 0;     // 0: after the last step alone
};

/// When a run ends before its last step.
struct LaunchConfig {
  double timeout_seconds = 0;
  double max_seconds = 0;  // 0: no limit
  std::string stop_file;
  bool require_fast_network = false;
};

/// What --plan plans for.
struct PlanConfig {
  bool print = false;  // --plan itself
  bool json = false;
  bool fit = false;    // look for the fastest settings that fit
  bool scale = false;  // over numbers of ranks
  Card card = Card::h100;
  Index ranks = 0;
  std::optional<std::size_t> device_bytes;  // none: the card's
  std::size_t network_bandwidth = 1;        // bytes a second, one rank, each way
  double network_latency = 0;               // seconds of one message
};

/// Options as they were given, name and text, in the order of the help.
struct OptionTexts {
  /// Those that shape the run; they parse back. Paths of output and options of the plan are not
  /// among them.
  std::vector<std::pair<std::string, std::string>> effective;
  /// Those that must be the same on all ranks; numbers are written in one way.
  std::vector<std::pair<std::string, std::string>> agreed;
  /// Those that shape the run, and all others that are not the default: they parse back.
  std::vector<std::pair<std::string, std::string>> printed;
  /// A sentence for each old name of an option that was given.
  std::vector<std::string> notes;
  /// Names of the options that were given, with their default or not.
  std::vector<std::string> given;
  /// The command line of this start (launch_command); empty where none is known.
  std::string command;
  /// What a user runs to continue this run (continue_command); empty where it is not known.
  std::string continue_command;
};

struct RunConfig {
  std::string out;
  std::int64_t steps = 0;  // 0: of --epochs, not known before the data is
  std::uint64_t seed = 0;
  bool verbose = false;
  ModelChoice model;
  DataConfig data;
  LengthConfig length;
  BatchConfig batch;
  ScheduleConfig schedule;
  OptimizerConfig optimizer;
  AdapterOptions adapters;
  LossConfig loss;
  ComputeConfig compute;
  MemoryConfig memory;
  ParallelConfig parallel;
  EvalConfig eval;
  SampleConfig sample;
  MonitorConfig monitor;
  CheckpointConfig checkpoint;
  ExportConfig model_export;
  LaunchConfig launch;
  PlanConfig plan;
  OptionTexts texts;
};

/// Makes `text` what is stored of the option `name` with the run.
void set_text(RunConfig& config, const std::string& name, const std::string& text);

/// The same with a value in the place of every `auto` that has one without a model:
/// precision, logits and schedule.
[[nodiscard]] RunConfig resolved(RunConfig config);
[[nodiscard]] LrSchedule schedule_of(const RunConfig& config);
/// What --lora asks for; none: the model itself is trained.
[[nodiscard]] std::optional<AdapterConfig> adapter_config(const RunConfig& config);
/// The same as a checkpoint has it (to_adapter_json); empty for none.
[[nodiscard]] std::string adapter_json(const RunConfig& config);
/// flops_per_token of what is trained, for sequences of --seq.
[[nodiscard]] double trained_flops_per_token(const RunConfig& config, const ModelConfig& model);
/// --precision, or the device's own.
[[nodiscard]] Precision precision_choice(const RunConfig& config);
/// The type of parameters and activations.
[[nodiscard]] DType compute_dtype(const RunConfig& config);
/// Tokens that a sample may take with its prompt: the bytes of the longest, since no tokenizer makes
/// more of them, and one that some put before.
[[nodiscard]] Index sample_capacity(const RunConfig& config);
/// Texts that are written side by side: one for each prompt.
[[nodiscard]] inline Index sample_texts(const RunConfig& config) {
  return std::ssize(config.sample.prompts);
}
/// Whether the inputs of blocks may be where the options have them with these levels.
[[nodiscard]] bool may_offload_inputs(const RunConfig& config, const RecomputeLevels& levels);
/// The numbers of a run. `device_bytes_free` is what `--resident-bytes auto` may use for optimizer
/// state; 0 means unlimited. Throws ConfigError for values that do not fit together.
[[nodiscard]] RunSettings run_settings(const RunConfig& config, const ModelConfig& model,
                                       std::size_t device_bytes_free);

}  // namespace tessera
