// The options of `train`: names, defaults, checks, and the effective configuration as text.
//
// One table names every option once (options.cpp): its group, default, help and the place it is
// stored. The command line wins over the file of --config; what neither gives has its default.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
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

/// What --attention-slice-bytes is where it is not given.
inline constexpr const char* kAttentionSlices = "2400MiB";

/// Steps FIRST to LAST, both included.
struct StepRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
  friend bool operator==(const StepRange&, const StepRange&) = default;
};

/// Whose measured rates an estimate uses.
enum class Card : std::uint8_t { h100, h200 };

enum class ResumeKind : std::uint8_t { automatic, none, path };
enum class SaveFailure : std::uint8_t { go_on, stop };

/// Options as given, checked one by one; see options.cpp for what each means.
struct TrainOptions {
  std::string model;
  std::vector<std::string> data;
  std::string out;
  Index seq = 0;
  Index micro_batch = 0;
  Index global_batch = 0;
  std::int64_t steps = 0;
  std::uint64_t seed = 0;
  double lr = 0;
  ScheduleKind schedule = ScheduleKind::cosine;
  std::optional<std::int64_t> warmup;          // none: auto
  std::optional<std::int64_t> decay_steps;     // none: auto
  std::optional<std::int64_t> schedule_steps;  // none: --steps
  double min_lr_ratio = 0;
  OptimizerOptions optimizer;          // its decay is weight_decay
  std::optional<double> weight_decay;  // none: auto, the optimizer's
  bool decay_all = false;
  double clip = 0;
  double label_smoothing = 0;
  double z_loss = 0;
  DeviceKind device = DeviceKind::cpu;
  std::optional<DType> precision;  // none: the device's own
  int threads = 1;
  ZeroStage zero = ZeroStage::two;
  Index sum_group = 1;
  bool peer_copies = true;
  ReduceMode reduce = ReduceMode::ordered;
  Recompute recompute = Recompute::none;
  AttentionMethod attention = AttentionMethod::library;
  AttentionOrder attention_order = AttentionOrder::deterministic;
  std::string tune_gemm;  // empty: the library's first proposals
  std::size_t attention_slice_bytes = 0;
  std::size_t logits_bytes = 0;
  ResidentBytes resident;
  std::size_t page_bytes = 0;
  Index breadth_first = 1;
  GradPlacement grads = GradPlacement::device;
  std::string eval_data;
  Index eval_every = 0;
  Index eval_windows = 0;
  Index log_every = 1;
  std::optional<StepRange> trace;
  Index sample_every = 0;  // 0: never
  std::string sample_prompt;
  Index sample_tokens = 0;
  double sample_temperature = 0;
  Index max_skipped = 0;
  double timeout_seconds = 0;
  double max_seconds = 0;
  std::string stop_file;
  ResumeKind resume = ResumeKind::automatic;
  std::string resume_path;
  std::string init;
  bool allow_data_change = false;
  bool allow_tokenizer_mismatch = false;
  Index save_every = 0;
  bool save_at_end = true;
  Index keep = 0;
  Index keep_every = 0;
  std::optional<std::size_t> save_staging;  // none: auto
  SaveFailure on_save_failure = SaveFailure::go_on;
  bool verbose = false;

  bool plan = false;
  bool json = false;
  Card card = Card::h100;
  Index ranks = 0;
  Index ranks_per_node = 0;
  std::optional<std::size_t> device_memory;  // none: the card's
  std::size_t host_memory = 0;
  std::size_t network_bandwidth = 1;  // bytes a second, one rank, each way
  double network_latency = 0;         // seconds of one message

  /// Name and value of every option that shapes the run, as text that parses back; in the order of
  /// the help. Paths of output and options of the plan are not among them.
  std::vector<std::pair<std::string, std::string>> effective;
  /// Name and value of every option that must be the same on all ranks.
  std::vector<std::pair<std::string, std::string>> agreed;
  /// The same as lines of a --config file.
  std::string effective_lines;
};

enum class OptionsAction : std::uint8_t { run, help, version };

struct ParsedOptions {
  OptionsAction action = OptionsAction::run;
  TrainOptions options;
};

/// Throws ConfigError: unknown option, missing or malformed value, unknown key in the --config
/// file, options that exclude each other.
[[nodiscard]] ParsedOptions parse_options(int argc, const char* const* argv);
/// An option, without its dashes, and whether a run is refused where ranks are given different
/// ones.
struct OptionAgreement {
  std::string name;
  bool must_agree = true;
};
/// One for each option of the table, in its order.
[[nodiscard]] std::vector<OptionAgreement> option_agreements();
/// For StartGuard: --timeout-seconds as these arguments give it, its default where they make no
/// run, and at least 10, because a busy machine may start MPI slowly.
[[nodiscard]] double start_seconds(int argc, const char* const* argv);
/// What --help prints.
[[nodiscard]] std::string options_help();
/// Tokens that a sample may take with its prompt: its bytes, since no tokenizer makes more of them,
/// and one that some put before.
[[nodiscard]] Index sample_capacity(const TrainOptions& options);
/// What was asked for and does nothing, or less than it says, in a run of `ranks` ranks: a sentence
/// each.
[[nodiscard]] std::vector<std::string> idle_options(const TrainOptions& options, int ranks);
/// Throws ConfigError with the system's reason where the file or folder that was given to `option`
/// is not there or may not be read. `wanted` says what is: "a token file (tokenize makes them)".
void require_readable(std::string_view option, const std::filesystem::path& path,
                      std::string_view wanted);
/// One row of the table of options, for tests and for those who walk it.
struct OptionRow {
  std::string name;
  std::string argument;  // as help shows it: "BYTES|auto"
  std::string standard;  // the default, as text
  std::string range;     // of a number: "1 to 1024"; else empty
  bool is_switch = false;
};
[[nodiscard]] std::vector<OptionRow> option_rows();

/// Names and texts of options, as a checkpoint stores them: what `effective` was.
using StoredOptions = std::map<std::string, std::string, std::less<>>;
/// The options of a run that stored these; what is not there, or cannot be read, has its default.
[[nodiscard]] TrainOptions stored_options(const StoredOptions& stored);
/// The same options with a value in the place of every `auto` that has one without a model:
/// precision, logits and schedule.
[[nodiscard]] TrainOptions resolved(TrainOptions options);
[[nodiscard]] LrSchedule schedule_of(const TrainOptions& options);

/// An option of the effective configuration that has another value than a stored one.
struct OptionChange {
  std::string name;
  std::string before;  // as text; "auto (20)" says what auto came to
  std::string now;
  bool is_stored = true;  // if not, `before` is the default
};
/// Compared by value, not by text: 128MiB is 134217728, and auto what it comes to.
[[nodiscard]] std::vector<OptionChange> changed_options(const StoredOptions& stored,
                                                        const TrainOptions& now);

/// "name = value" lines, as --config reads them.
[[nodiscard]] std::string effective_text(const TrainOptions& options);

/// The numbers of a run. `device_bytes_free` is what `--resident-bytes auto` may use for optimizer
/// state; 0 means unlimited. Throws ConfigError for values that do not fit together.
[[nodiscard]] RunSettings run_settings(const TrainOptions& options, const ModelConfig& config,
                                       std::size_t device_bytes_free);
/// The type of parameters and activations: --precision, or the device's own.
[[nodiscard]] DType compute_dtype(const TrainOptions& options);

}  // namespace tessera
