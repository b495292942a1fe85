// mpirun -np N train: trains a language model on all ranks together.
//
// The order of a run: options agreed by all ranks; device, communicator, watchdog; the output
// folder; the model and the data; the memory plan; state, fresh or loaded; steps, evaluations and
// saves; the last save. What is learnt on the way is on stdout and in OUT/metrics.jsonl.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <iostream>
#include <iterator>
#include <memory>
#include <numbers>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "collectives/communicator.h"
#include "collectives/mpi_control.h"
#include "collectives/mpi_session.h"
#include "jobs/tokenizer.h"
#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/log.h"
#include "kernels/base/output_file.h"
#include "kernels/base/progress.h"
#include "kernels/base/quantity.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/device/cpu/threads.h"
#include "kernels/device/device_backend.h"
#include "model/sampler.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/checkpoint/run_lock.h"
#include "runtime/checkpoint/run_tokenizer.h"
#include "runtime/checkpoint/shard_writer.h"
#include "runtime/data/data_loader.h"
#include "runtime/data/tokenizer_match.h"
#include "runtime/launch/idle_ranks.h"
#include "runtime/launch/rank_table.h"
#include "runtime/launch/run_job.h"
#include "runtime/launch/signals.h"
#include "runtime/launch/start_agreement.h"
#include "runtime/launch/startup_check.h"
#include "runtime/launch/watchdog.h"
#include "runtime/monitor/metrics.h"
#include "runtime/monitor/nonfinite.h"
#include "runtime/monitor/step_trace.h"
#include "runtime/monitor/warning_file.h"
#include "runtime/plan/memory_plan.h"
#include "runtime/plan/product_rate.h"
#include "runtime/run/checkpoint_saver.h"
#include "runtime/run/gemm_choice.h"
#include "runtime/run/option_checks.h"
#include "runtime/run/options.h"
#include "runtime/run/resume.h"
#include "runtime/run/resume_search.h"
#include "runtime/run/training_run.h"

namespace tessera {
namespace {

// Of one rank, before a save was measured: what a slow file system does.
constexpr double kAssumedSaveBytesPerSecond = 200e6;
// How long a run that is just ending may hold its folder.
constexpr std::chrono::seconds kLockPatience{5};
constexpr std::size_t kTrialSaves = 0;  // counter of the step's exchange: ranks that want one
constexpr std::size_t kSampleEnds = 0;  // counter of a vote while rank 0 writes: it has ended
constexpr std::string_view kTokenFile = "a token file (tokenize makes them)";
constexpr int kWantsRestart = 85;  // design's table: saved, and wants to be started again

ParsedOptions parse_on_all_ranks(MpiSession& session, int argc, char** argv) {
  return agree(session, [&] { return parse_options(argc, argv); });
}

// The model as --model, or in its place the folder of --init, names it; the vocabulary may still be
// the data's.
ModelConfig named_model(const RunConfig& options, const std::string& init) {
  if (options.model.name != "auto") {
    if (is_model_file(options.model.name)) {
      require_readable("--model", options.model.name, "a preset's name or a config.json");
    }
    return find_model(options.model.name);
  }
  return init.empty() ? preset("tiny") : init_model(init);
}

std::filesystem::path folder_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

// Whether --model names the config.json of a folder that has weights too.
bool has_weights_beside(const std::string& model) {
  if (!is_model_file(model)) {
    return false;
  }
  std::error_code ignored;
  const std::filesystem::path folder = folder_of(model);
  return std::filesystem::exists(folder / "model.safetensors", ignored) ||
         std::filesystem::exists(folder / "model.safetensors.index.json", ignored);
}

// The folder of --init as all ranks name it; empty: the model is not taken from there.
std::string agreed_model_init(MpiSession& session, const RunConfig& options) {
  return options.model.name == "auto" && !options.model.init.empty()
             ? agreed_init(session, options.model.init)
             : std::string();
}

// Compared before anything that is as large as the model.
ModelConfig agreed_model(MpiSession& session, const RunConfig& options) {
  const std::string init = agreed_model_init(session, options);
  ModelConfig config = agree(session, [&] { return named_model(options, init); });
  require_same_start(session, model_values(config));
  return config;
}

// The same with the vocabulary of the data where the model has none of its own.
ModelConfig with_vocabulary(ModelConfig config, const RunConfig& options) {
  if (config.vocab_size == 0) {
    for (const std::string& text : options.data.files) {
      const std::filesystem::path file = parse_token_source(text).path;
      require_readable("--data", file, kTokenFile);
      config.vocab_size = std::max(config.vocab_size, TokenFile(file).info().vocab_size);
    }
  }
  return config;
}

ModelConfig plan_model(ModelConfig config) {
  if (config.vocab_size == 0) {
    constexpr Index kByteVocabulary = 256;
    config.vocab_size = kByteVocabulary;
  }
  return config;
}

int print_plan(MpiSession& session, const RunConfig& options) {
  const ModelConfig config = plan_model(agreed_model(session, options));
  const MemoryPlan plan = agree(session, [&] {
    const auto ranks = static_cast<int>(options.plan.ranks);
    const int of_node = options.parallel.ranks_per_node == 0
                            ? ranks
                            : static_cast<int>(options.parallel.ranks_per_node);
    return MemoryPlan(options, config, ranks,
                      {.device_bytes = planned_device_bytes(options),
                       .host_bytes = options.memory.host_bytes == 0 ? host_memory().limit_bytes()
                                                                    : options.memory.host_bytes,
                       .ranks_per_node = of_node,
                       .node_ranks = of_node});
  });
  if (session.rank() == 0) {
    if (options.plan.json) {
      std::cout << plan.json() << "\n";
    } else {
      std::cout << plan.text();
      const std::string idle_ranks = idle_ranks_text(options, static_cast<int>(options.plan.ranks));
      if (!idle_ranks.empty()) {
        std::cout << "Warning: " << idle_ranks << "\n";
      }
      for (const std::string& idle : idle_options(options, static_cast<int>(options.plan.ranks))) {
        std::cout << idle << "\n";
      }
    }
  }
  return plan.fits() ? 0 : 2;
}

Device choose_device(MpiSession& session, const RunConfig& options) {
  if (options.compute.device == DeviceKind::cpu) {
    agree(session, [&] { cpu::set_threads(options.compute.threads); });
    return {};
  }
  return agree(session, [&] {
    const int devices = device_count(DeviceKind::cuda);
    if (devices == 0) {
      throw DeviceError("--device cuda: this machine has no GPU that CUDA can use", TESSERA_HERE);
    }
    const Device device = {DeviceKind::cuda, session.local_rank() % devices};
    use_device(device);
    return device;
  });
}

// Every rank's part of the start-up table of --verbose.
void print_ranks(MpiSession& session, Device device) {
  const std::vector<std::string> lines =
      session.control().gather_text(describe_rank(session, device));
  if (session.rank() == 0) {
    for (const std::string& line : lines) {
      log_line(LogLevel::verbose, line);
    }
  }
}

// The training and evaluation data of one rank, over memory of its own arena.
class RunData {
 public:
  /// `own_vocab`: the model's; 0: it takes the data's, which `config` has by now.
  RunData(const RunConfig& options, const ModelConfig& config, Index own_vocab, Communicator& comm,
          Arena& arena)
      : arena_(arena),
        tokenizers_(options.data.allow_tokenizer_mismatch ? OnTokenizerMismatch::report
                                                          : OnTokenizerMismatch::refuse) {
    const BatchAllocator allocate = [this](Index elements, std::string_view name) {
      buffers_.push_back(arena_.allocate(MemoryKind::pinned, DType::i32, {elements}, name));
      return buffers_.back().view();
    };
    DataLoaderOptions loader;
    for (const std::string& text : options.data.files) {
      loader.files.push_back(parse_token_source(text));
      require_readable("--data", loader.files.back().path, kTokenFile);
    }
    loader.sequence_length = options.batch.seq;
    loader.micro_batch = options.batch.micro_batch;
    loader.global_batch = options.batch.global_batch;
    loader.seed = options.seed;
    loader.rank = comm.rank();
    loader.world_size = comm.world_size();
    loader.vocab = config.vocab_size;
    loader_ = std::make_unique<DataLoader>(std::move(loader), allocate);
    if (!options.eval.file.empty()) {
      require_readable("--eval-data", options.eval.file, kTokenFile);
      eval_ =
          std::make_unique<EvalWindows>(EvalWindowsOptions{.file = options.eval.file,
                                                           .sequence_length = options.batch.seq,
                                                           .micro_batch = options.batch.micro_batch,
                                                           .max_windows = options.eval.windows,
                                                           .vocab = config.vocab_size},
                                        allocate);
    }
    compare_tokenizers(own_vocab);
  }

  [[nodiscard]] DataLoader& loader() noexcept { return *loader_; }
  [[nodiscard]] EvalWindows* eval() noexcept { return eval_.get(); }
  [[nodiscard]] TokenizerCheck& tokenizers() noexcept { return tokenizers_; }
  /// Of the first file, for which the others stand.
  [[nodiscard]] TokenizerFacts tokenizer() const {
    return tokenizer_of(loader_->files().front(), "--data");
  }

  /// What all ranks must have been given alike.
  [[nodiscard]] std::vector<NamedValue> values() const {
    std::vector<NamedValue> all;
    for (const TokenFile& file : loader_->files()) {
      all.push_back(data_value("--data", file));
    }
    all.push_back({"order of the data (hash)", loader_->data_hash()});
    if (eval_ != nullptr) {
      all.push_back(data_value("--eval-data", eval_->file()));
    }
    return all;
  }

  /// What an evaluation was made over. Bits per byte are known where the text's bytes are.
  [[nodiscard]] EvalContext context_of(const EvalReport& report) const {
    const TokenFile& file = eval_->file();
    EvalContext context = {.sequences = eval_->windows(), .file_sequences = eval_->file_windows()};
    if (report.loss && file.info().source_bytes != 0) {
      context.bits_per_byte = *report.loss / std::numbers::ln2 *
                              static_cast<double>(file.token_count()) /
                              static_cast<double>(file.info().source_bytes);
    }
    return context;
  }

 private:
  // `model_vocab` 0: the model takes the data's.
  void compare_tokenizers(Index model_vocab) {
    const TokenizerFacts first = tokenizer();
    TokenizerFacts widest = first;
    for (const TokenFile& file : std::span(loader_->files()).subspan(1)) {
      const TokenizerFacts other = tokenizer_of(file, "--data");
      tokenizers_.compare(other, first);
      widest = other.vocab_size > widest.vocab_size ? other : widest;
    }
    if (eval_ != nullptr) {
      tokenizers_.compare(tokenizer_of(eval_->file(), "--eval-data"), first);
    }
    tokenizers_.compare_vocabulary(widest, model_vocab);
  }

  Arena& arena_;
  TokenizerCheck tokenizers_;
  std::vector<DeviceBuffer> buffers_;
  std::unique_ptr<DataLoader> loader_;
  std::unique_ptr<EvalWindows> eval_;
};

// What a checkpoint's folder must say of the data's tokens: the tokenizer of the files that tell
// theirs, if it is one.
RunTokenizer run_tokenizer(std::span<const TokenFile> data) {
  std::optional<RunTokenizer> all;
  for (const TokenFile& file : data) {
    const RunTokenizer mine = {.kind = file.info().tokenizer,
                               .vocab_size = file.info().vocab_size,
                               .end_token = file.info().end_token,
                               .model = std::string(file.tokenizer_model())};
    if (all && mine.kind == kIdsKind) {
      continue;  // made by one that the file does not tell: of those that are told it is
    }
    if (all && all->kind != kIdsKind && (all->kind != mine.kind || all->model != mine.model)) {
      return {.kind = std::string(kIdsKind), .vocab_size = 0, .end_token = -1, .model = {}};
    }
    all = mine;
  }
  return *all;
}

// --sample-every: the text that the model writes. All of its memory is made at set-up.
class Sampler {
 public:
  Sampler(const RunConfig& options, const RunTokenizer& tokenizer, TrainingRun& run, Arena& arena)
      : options_(options),
        decoder_(kernel_table(arena.device().kind), run.config(), run.layout(),
                 sample_capacity(options), run.settings().scratch.precision.activations,
                 run.scratch().decoder_work(), arena),
        tokenizer_(make_tokenizer(tokenizer)),
        vocab_(std::min(tokenizer_->vocab_size(), run.config().vocab_size)),
        end_token_(static_cast<std::int32_t>(tokenizer.end_token)) {
    std::vector<std::uint32_t> ids;
    tokenizer_->encode(options.sample.prompt, ids);
    prompt_.assign(ids.begin(), ids.end());
    const Index room = decoder_.capacity() - options.sample.tokens;
    if (prompt_.empty() || std::ssize(prompt_) > room ||
        std::any_of(ids.begin(), ids.end(), [this](std::uint32_t id) { return id >= vocab_; })) {
      throw ConfigError(
          fmt::format("--sample-prompt makes {} tokens: at least 1, at most {}, each below {}",
                      prompt_.size(), room, vocab_),
          TESSERA_HERE);
    }
  }

  /// `continues` is asked after each token; at the first false the text ends. Requires: the trainer
  /// has been synchronised.
  [[nodiscard]] std::string text(TrainingRun& run, const std::function<bool()>& continues) {
    const std::int64_t step = run.trainer().position().step;
    std::vector<std::int32_t> ids = prompt_;
    try {
      generate(decoder_, run.params(), run.compute(), prompt_,
               {.sampling = {.temperature = options_.sample.temperature,
                             .top_p = SamplingOptions{}.top_p,
                             .seed = options_.seed + static_cast<std::uint64_t>(step)},
                .max_tokens = options_.sample.tokens,
                .vocab = vocab_,
                .end_token = end_token_,
                .cache = KeyCache::keep},
               [&](std::int32_t id) {
                 ids.push_back(id);
                 enter_phase("sample");
                 return continues();
               });
    } catch (const DivergedError& error) {
      return fmt::format("no sample at step {}: {}", step, error.message());
    }
    return fmt::format("sample at step {}: {}", step, terminal_text(tokenizer_->decode(ids)));
  }

 private:
  static std::unique_ptr<Tokenizer> make_tokenizer(const RunTokenizer& tokenizer) {
    if (tokenizer.kind == "bytes") {
      return make_byte_tokenizer();
    }
    if (tokenizer.kind != "sentencepiece") {
      throw ConfigError(
          "--sample-every: the ids of --data were made elsewhere, by a tokenizer that is not known "
          "here; leave it out and look at checkpoints with generate --prompt-ids",
          TESSERA_HERE);
    }
    return make_sentencepiece_tokenizer(tokenizer.model, "the tokenizer of --data");
  }

  const RunConfig& options_;
  Decoder decoder_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Index vocab_;
  std::int32_t end_token_;
  std::vector<std::int32_t> prompt_;
};

std::string objective_of(const TrainingRun& run) {
  return objective_text(run.settings().scratch.loss.terms);
}

// Steps, evaluations and saves of a run whose state is there.
class TrainLoop {
 public:
  TrainLoop(const RunConfig& options, const RunIdentity& identity, Communicator& comm,
            RunData& data, TrainingRun& run, CheckpointSaver& saver, StepTrace* trace,
            Sampler* sampler, StopRequests& stops, std::string run_id, WeightsOrigin origin)
      : options_(options),
        identity_(identity),
        comm_(comm),
        votes_(comm),
        data_(data),
        run_(run),
        saver_(saver),
        trace_(trace),
        sampler_(sampler),
        stops_(stops),
        run_id_(std::move(run_id)),
        origin_(std::move(origin)) {
    stops_.expect_save_seconds(static_cast<double>(run.shard().state_bytes()) /
                               kAssumedSaveBytesPerSecond);
    if (comm.rank() == 0) {
      metrics_ = std::make_unique<Metrics>(
          MetricsOptions{.out = options.out,
                         .steps = options.steps,
                         .tokens_per_step = options.batch.global_batch * options.batch.seq,
                         .log_every = options.monitor.log_every,
                         .clip = options.optimizer.clip,
                         .has_loss_terms = !objective_of(run).empty(),
                         .continue_after = run.trainer().position().step,
                         .supersede_later = run.trainer().position().step < options.steps});
    }
  }

  void announce(const std::string& event, const std::string& text) {
    if (metrics_) {
      metrics_->event(run_.trainer().position().step, event, text);
    }
  }

  /// For programs alone.
  void record(const std::string& event, const nlohmann::ordered_json& fields) {
    if (metrics_) {
      metrics_->record(run_.trainer().position().step, event, fields);
    }
  }

  int run() {
    told_traffic_ = comm_.traffic();
    const std::function<void(StepExchange&)> contribute = [this](StepExchange& exchange) {
      if (const auto reason = stops_.poll()) {
        exchange.vote_stop(*reason);
      }
      saver_.contribute(exchange);
      exchange.add_counter(kTrialSaves, stops_.wants_trial_save() && !trial_save_begun_ ? 1 : 0);
    };
    std::optional<SaveOutcome> outcome;
    bool trial_save = false;
    const std::function<void(const StepExchange&)> heard = [&](const StepExchange& exchange) {
      outcome = saver_.heard(exchange);
      trial_save = exchange.counter(kTrialSaves) > 0;
    };
    while (run_.trainer().position().step < options_.steps && !stop_) {
      outcome.reset();
      if (trace_ != nullptr) {
        trace_->begin_step(run_.trainer().position().step + 1);
      }
      const StepReport report = run_.trainer().step(contribute, heard);
      warn_without_targets(report);
      tell(report);
      if (outcome) {
        tell(*outcome);
      }
      comm_.check_health();
      count_skipped(report);
      stop_ = report.stop;
      look_at_model(report.step);
      if (stop_ || trial_save || is_save_due(report.step) ||
          (report.next_is_unreadable && saves_anything())) {
        save();
      }
      if (report.next_is_unreadable) {  // the next step throws: what is done shall not be lost
        finish_save();
      }
      if (trace_ != nullptr) {
        tell(trace_->end_step(report.step));
      }
    }
    finish_save();
    run_.trainer().synchronize();
    if (trace_ != nullptr) {
      tell(trace_->finish());
    }
    enter_phase("end");
    tell_without_targets();
    const std::int64_t reached = run_.trainer().position().step;
    if (stop_ && reached < options_.steps) {
      announce("stop", fmt::format("stopped at step {} by {}{}", reached, stop_reason_text(*stop_),
                                   last_save_failed_ ? ", not saved" : ": saved"));
      return last_save_failed_ ? WriteError("", TESSERA_HERE).exit_status() : kWantsRestart;
    }
    return final_status();
  }

 private:
  [[nodiscard]] static bool is_due(Index every, std::int64_t step) {
    return every > 0 && step % every == 0;
  }
  [[nodiscard]] bool saves_anything() const {
    return options_.checkpoint.save_at_end || options_.checkpoint.save_every > 0;
  }
  [[nodiscard]] bool is_save_due(std::int64_t step) const {
    return is_due(options_.checkpoint.save_every, step) ||
           (step == options_.steps && options_.checkpoint.save_at_end);
  }

  // What is due after a step; whoever wants to stop does not wait for it.
  void look_at_model(std::int64_t step) {
    if (data_.eval() != nullptr && (step == options_.steps || is_due(options_.eval.every, step))) {
      if (stop_ || !evaluate()) {
        announce_dropped("evaluation");
      }
    }
    if (is_due(options_.sample.every, step)) {
      if (stop_ || !sample()) {
        announce_dropped("sample");
      }
    }
  }

  void announce_dropped(std::string_view what) {
    announce("dropped", fmt::format("no {} at step {}: asked to stop by {}", what,
                                    run_.trainer().position().step, stop_reason_text(*stop_)));
  }

  enum class Sample : std::uint8_t { goes_on, ends };
  struct Vote {
    bool continues;  // no rank was asked to stop
    bool sample_ends;
  };
  // Between steps; the same answer on every rank. `sample`: whether this rank writes one that ends.
  // Collective.
  Vote vote(Sample sample = Sample::goes_on) {
    votes_.clear();
    if (const auto reason = stops_.poll()) {
      votes_.vote_stop(*reason);
    }
    votes_.add_counter(kSampleEnds, sample == Sample::ends ? 1 : 0);
    votes_.run();
    stop_ = votes_.stop_reason();
    return {.continues = !stop_, .sample_ends = votes_.counter(kSampleEnds) > 0};
  }

  void tell(const StepReport& report) {
    if (metrics_) {
      metrics_->step(report,
                     {.skipped_in_all = run_.trainer().position().skipped, .warning = warning_});
      tell_traffic(report.step);
    }
  }

  // What a step sends is the same for most steps, and said when it changes.
  void tell_traffic(std::int64_t step) {
    const Traffic sent = comm_.traffic() - told_traffic_;
    told_traffic_ = comm_.traffic();
    if (sent != step_traffic_) {
      step_traffic_ = sent;
      metrics_->record(step, "communication",
                       {{"bytes", sent.bytes}, {"operations", sent.operations}});
    }
  }

  void tell(const std::optional<TraceOutcome>& outcome) {
    if (!outcome) {
      return;
    }
    announce(outcome->written ? "trace" : "trace failed", outcome->message);
    if (!outcome->written) {
      log_line(LogLevel::warning, outcome->message);
    }
  }

  void tell(const SaveOutcome& outcome) {
    last_save_failed_ = !outcome.saved;
    const std::int64_t said_after = run_.trainer().position().step;
    if (outcome.saved) {
      warning_.clear();
      stops_.measured_save_seconds(outcome.seconds);
      if (metrics_) {  // of the step that was saved: a run that goes on from it keeps the line
        metrics_->event(outcome.step, "save",
                        fmt::format("saved step {} in {:.1f} s: {}", outcome.step, outcome.seconds,
                                    outcome.folder.string()),
                        {{"seconds", outcome.seconds}, {"said_after_step", said_after}});
      }
      return;
    }
    warning_ = fmt::format("the save of step {} failed", outcome.step);
    const std::string text = fmt::format("{}: {}", warning_, outcome.message);
    if (metrics_) {
      metrics_->record(
          outcome.step, "save failed",
          {{"text", text}, {"seconds", outcome.seconds}, {"said_after_step", said_after}});
    }
    if (options_.checkpoint.on_failure == SaveFailure::stop) {
      throw_agreed({WriteError("", TESSERA_HERE).exit_status(), text}, TESSERA_HERE);
    }
    if (comm_.rank() == 0) {  // all ranks know the same
      log_line(LogLevel::warning, text);
    }
  }

  // Neither skipped nor an update: with masks this may be so now and then, and says something about
  // the data if it is often.
  void warn_without_targets(const StepReport& report) {
    if (report.targets == 0 && !warned_without_targets_ && comm_.rank() == 0) {
      log_line(LogLevel::warning,
               fmt::format("step {} has no target, and changes no parameter: all tokens of its "
                           "sequences are masked; such steps are counted",
                           report.step));
    }
    warned_without_targets_ = warned_without_targets_ || report.targets == 0;
  }

  void tell_without_targets() {
    const TrainingPosition& position = run_.trainer().position();
    const Index count = position.step - position.updates - position.skipped;
    if (count > 0) {
      announce("no targets", fmt::format("{} had no target, and changed no parameter",
                                         part_text(count, position.step, "step")));
    }
  }

  void count_skipped(const StepReport& report) {
    ++steps_;
    if (!report.skipped) {
      skipped_in_a_row_ = 0;
      return;
    }
    ++skipped_;
    if (++skipped_in_a_row_ == 1) {  // the others have the same reason, mostly
      tell_skipped(report);
    }
    if (skipped_in_a_row_ > options_.optimizer.max_skipped) {
      throw_agreed(
          {DivergedError("", TESSERA_HERE).exit_status(),
           fmt::format("loss or gradient was not finite in {} in a row, up to step {} "
                       "(--max-skipped {}): {}; parameters are those of the last good step",
                       counted(skipped_in_a_row_, "step"), report.step,
                       options_.optimizer.max_skipped, skip_advice_)},
          TESSERA_HERE);
    }
  }

  // Collective.
  void tell_skipped(const StepReport& report) {
    enter_phase("skipped step");
    const SkipReason reason = find_skip_reason(run_, report, origin_);
    skip_advice_ = reason.advice;
    const std::string text = fmt::format("step {} is skipped, not finite: {}; {}", report.step,
                                         reason.what, reason.advice);
    record("skipped", {{"text", text}});
    if (comm_.rank() == 0) {
      log_line(LogLevel::warning, text);
    }
    enter_phase("between steps");
  }

  // How a run ends that has reached its last step.
  [[nodiscard]] int final_status() const {
    // A finished run whose result is not there must not look like one.
    if (last_save_failed_) {
      return WriteError("", TESSERA_HERE).exit_status();
    }
    if (steps_ == 0 || skipped_ < steps_) {
      return 0;
    }
    if (comm_.rank() == 0) {
      log_line(LogLevel::error,
               fmt::format("every step of this run was skipped, and no parameter has changed: {}",
                           skip_advice_));
    }
    return DivergedError("", TESSERA_HERE).exit_status();
  }

  // False: dropped, because some rank was asked to stop.
  bool evaluate() {
    EvalReport report;
    try {
      report = run_.trainer().evaluate(
          data_.eval()->micro_batches(),
          [this](Index number) { return data_.eval()->batch(number); },
          [this] { return vote().continues; });
    } catch (const FormatError&) {  // on all ranks: the file cannot be read, the model is sound
      if (saves_anything()) {
        save();
        finish_save();
      }
      throw;
    }
    if (report.dropped) {
      return false;
    }
    const EvalContext context = data_.context_of(report);
    if (!report.loss && !warned_of_evaluation_ && comm_.rank() == 0) {
      warned_of_evaluation_ = true;
      log_line(LogLevel::warning,
               fmt::format("the evaluation has no target in {} of {}: it tells nothing (loss null)",
                           part_text(context.sequences, context.file_sequences, "sequence"),
                           data_.eval()->file().path().string()));
    }
    if (metrics_) {
      metrics_->evaluation(run_.trainer().position().step, report, context);
    }
    return true;
  }

  // Rank 0 writes; what its parameters wait for, the gathers of the last update, is every rank's.
  // The others vote with it after each token. False: dropped, because some rank was asked to stop.
  bool sample() {
    enter_phase("sample");
    const TraceRange range({TraceCategory::host, "sample", {}}, "host");
    run_.trainer().synchronize();
    if (comm_.rank() == 0) {
      const std::string text = sampler_->text(run_, [this] { return vote().continues; });
      if (!stop_ && vote(Sample::ends).continues) {
        announce("sample", text);
      }
    } else {
      for (Vote last = vote(); last.continues && !last.sample_ends;) {
        enter_phase("sample");
        last = vote();
      }
    }
    enter_phase("between steps");
    return !stop_;
  }

  void save() {
    trial_save_begun_ = true;
    if (saver_.under_way()) {
      announce("wait", fmt::format("waiting for the save of step {}", saver_.step()));
      finish_save();
    }
    const TrainingPosition& position = run_.trainer().position();
    run_.trainer().synchronize();
    if (const auto outcome = saver_.begin(manifest_info(
            options_, identity_, position, run_id_, data_.loader().epoch_of(position.windows)))) {
      tell(*outcome);
    }
  }

  void finish_save() {
    if (const auto outcome = saver_.finish()) {
      tell(*outcome);
    }
  }

  const RunConfig& options_;
  const RunIdentity& identity_;
  Communicator& comm_;
  StepExchange votes_;  // outside steps
  RunData& data_;
  TrainingRun& run_;
  CheckpointSaver& saver_;
  StepTrace* trace_;  // null: none
  Sampler* sampler_;  // null: none
  StopRequests& stops_;
  std::string run_id_;
  WeightsOrigin origin_;
  bool trial_save_begun_ = false;     // any save will do
  std::unique_ptr<Metrics> metrics_;  // rank 0 alone
  Index steps_ = 0;                   // that this process has made
  Index skipped_ = 0;                 // of them
  Index skipped_in_a_row_ = 0;
  std::string skip_advice_;  // of the last row of skipped steps
  bool warned_without_targets_ = false;
  bool warned_of_evaluation_ = false;
  bool last_save_failed_ = false;
  std::optional<StopReason> stop_;  // the same on every rank
  std::string warning_;
  Traffic told_traffic_;                 // of all steps told so far
  std::optional<Traffic> step_traffic_;  // of a step, as last recorded
};

// What `report` shows beside the curves; its fields are described in runtime/monitor/metrics.md.
nlohmann::ordered_json configuration(const RunConfig& options, const TrainingRun& run,
                                     const std::string& run_id, Device device, int ranks,
                                     double product_rate) {
  nlohmann::ordered_json given = nlohmann::ordered_json::object();
  for (const auto& [name, value] : options.texts.effective) {
    given[name] = value;
  }
  given["steps"] = std::to_string(options.steps);
  return {{"run_id", run_id},
          {"build", build_id()},
          {"ranks", ranks},
          {"device", options.compute.device == DeviceKind::cpu ? "cpu" : "cuda"},
          {"device_name", device_info(device).name},
          {"precision", dtype_name(run.settings().scratch.precision.params)},
          {"parameters", run.layout().total_count()},
          {"flops_per_token", flops_per_token(run.config(), options.batch.seq)},
          {"gemm_flops_per_second", product_rate},
          {"clip", options.optimizer.clip},
          {"objective", objective_of(run)},
          {"options", given}};
}

// By kind of memory, what was planned and what the run has taken; and whose state is resident.
nlohmann::ordered_json memory_lines(const MemoryPlan& plan, const Arena& arena,
                                    const ShardState& shard) {
  nlohmann::ordered_json lines = nlohmann::ordered_json::array();
  const auto add = [&lines](const PlanLine& line, const char* column) {
    const char* where = memory_kind_name(line.kind);
    for (nlohmann::ordered_json& known : lines) {
      if (known["name"] == line.name && known["where"] == where) {
        known[column] = line.bytes;
        return;
      }
    }
    lines.push_back({{"name", line.name}, {"where", where}, {"planned", 0}, {"allocated", 0}});
    lines.back()[column] = line.bytes;
  };
  for (const PlanLine& line : plan.lines()) {
    add(line, "planned");
  }
  for (const PlanLine& line : plan_lines(arena.entries())) {
    add(line, "allocated");
  }
  const ResidentParams resident = resident_params(shard);
  return {{"lines", lines},
          {"resident_parameters",
           {{"count", resident.count}, {"of", resident.stored}, {"names", resident.names}}}};
}

// What --sum-group does where there are several nodes.
std::string exchange_text(const RunConfig& options, int ranks, int node_ranks) {
  if (options.parallel.sum_group == 1 || ranks <= node_ranks) {
    return {};
  }
  if (reduces_hierarchically(options.parallel.sum_group, ranks, node_ranks)) {
    return fmt::format("groups of {} ranks add their gradients in their node; sums go to others\n",
                       options.parallel.sum_group);
  }
  return fmt::format(
      "gradients go to other nodes one by one: --sum-group {} does not divide {} ranks and the {} "
      "that follow one another on a node\n",
      options.parallel.sum_group, ranks, node_ranks);
}

// All ranks hold the same parameters, whatever they came from; those that are not finite are named,
// since most steps will be skipped for them.
WeightsOrigin compare_parameters(TrainingRun& run, const std::string& what) {
  const ParameterCheck check = check_parameters(run);
  if (!check.nonfinite.empty() && run.comm().rank() == 0) {
    log_line(LogLevel::warning,
             fmt::format("{} are not finite: {}; every step that meets them will be skipped", what,
                         nonfinite_text(check.nonfinite)));
  }
  return {what, check.nonfinite.empty()};
}

// What a rank may take, and what this run will: throws, on every rank, what does not fit.
MemoryPlan make_plan(MpiSession& session, const RunConfig& options, const ModelConfig& config,
                     Device device, int ranks_here, int node_ranks) {
  return agree(session, [&] {
    check(config);
    MemoryLimits limits;
    const HostMemory host = host_memory();
    limits.host_bytes = options.memory.host_bytes == 0
                            ? host.limit_bytes()
                            : std::min(options.memory.host_bytes, host.limit_bytes());
    limits.host_room_bytes = host.room_bytes();
    limits.device_bytes = device.kind == DeviceKind::cuda ? device_info(device).total_bytes : 0;
    limits.ranks_per_node = ranks_here;
    limits.node_ranks = node_ranks;
    MemoryPlan made(options, config, session.world_size(), limits);
    if (!made.fits()) {
      throw ConfigError(made.refusal(), TESSERA_HERE);
    }
    return made;
  });
}

// What is known of the ranks, and no reason to refuse them. Collective.
void warn_of_ranks(MpiSession& session, const RunConfig& options, Device device) {
  const std::vector<std::string> devices = session.control().gather_text(
      device.kind == DeviceKind::cpu ? fmt::format("cpu with {}", cpu::instruction_set())
                                     : device_info(device).name);
  const std::string different = different_devices_text(devices);
  if (session.rank() == 0 && !different.empty()) {
    log_line(LogLevel::warning, different);
  }
  const std::string idle = idle_ranks_text(options, session.world_size());
  if (session.rank() == 0 && !idle.empty()) {
    log_line(LogLevel::warning, idle);
  }
}

// --zero 1 adds in an order that only one micro-step of each rank makes the same everywhere.
std::string zero_text(const RunConfig& options, int ranks) {
  if (options.parallel.zero != ZeroStage::one) {
    return {};
  }
  return rank_shares(options.batch.global_batch, options.batch.micro_batch, ranks).micro_steps == 1
             ? "--zero 1: each rank has at most one micro-batch a step, so the results are those "
               "of "
               "--zero 2\n"
             : fmt::format("--zero 1: each rank adds its own micro-batches first, so the results "
                           "depend on the number of ranks ({}); those of --zero 2 do not\n",
                           ranks);
}

// Rank 0 puts away what an earlier run that saved nothing left in the folder: none of it is of this
// one. Before any rank appends to it.
void put_earlier_records_away(MpiSession& session, const RunConfig& options) {
  agree(session, [&] {
    if (session.rank() != 0) {
      return;
    }
    for (const auto& [old_name, new_name] : leave_earlier_records(options.out)) {
      log_line(LogLevel::info,
               fmt::format("{} is of an earlier run that saved no step: renamed to {}", old_name,
                           new_name));
    }
  });
}

// Once the state is there, and not before: rank 0 takes away what runs before this one left
// unfinished, and says in the folder what its tokens are.
void take_over_folder(MpiSession& session, const RunConfig& options,
                      const std::optional<ResumePoint>& point, const RunTokenizer& tokenizer) {
  agree(session, [&] {
    if (session.rank() != 0) {
      return;
    }
    if (point && point->info.step < options.steps) {  // else nothing is done again
      leave_abandoned_branch(options.out, point->info.step);
      begin_branch(options);
    }
    const Leftovers leftovers = remove_leftovers(options.out);
    for (const std::string& name : leftovers.removed) {
      log_line(LogLevel::info,
               fmt::format("removed {}, left by a save or a deletion that died", name));
    }
    for (const std::string& problem : leftovers.problems) {
      log_line(LogLevel::warning, problem + "; it stays, and is in nobody's way");
    }
    for (const std::string& name : write_run_tokenizer(options.out, tokenizer)) {
      log_line(LogLevel::warning,
               fmt::format("the tokenizer of this folder was another one: it is now {}", name));
    }
  });
}

// What differs from the run that is continued, and what of the options therefore says nothing.
void announce_resume(TrainLoop& loop, const RunConfig& options, const ResumePoint& point) {
  if (!options.model.init.empty()) {
    loop.announce("resume",
                  fmt::format("--init {} was for step 1 and is not read", options.model.init));
  }
  if (point.info.step >= options.steps) {
    loop.announce("resume", fmt::format("{} is at step {} already, and --steps is {}: nothing is "
                                        "left to do; give more steps to go on",
                                        options.out, point.info.step, options.steps));
    return;
  }
  for (const std::string& remark : point.remarks) {
    loop.announce("resume", remark);
  }
}

// The data's tokenizer and that of the weights, of a run that goes on or of --init. Rank 0 looks.
void compare_tokenizer_of_weights(MpiSession& session, const RunIdentity& identity,
                                  const std::optional<ResumePoint>& point,
                                  const std::optional<InitWeights>& weights, RunData& data) {
  agree(session, [&] {
    std::optional<TokenizerFacts> theirs;
    if (session.rank() != 0) {
      return;
    }
    if (point) {
      if (point->info.data_hash != identity.data_hash) {  // else they are the same data
        theirs = tokenizer_of_folder(run_folder_of(point->folder), point->folder.string());
      }
    } else if (weights) {
      theirs = init_tokenizer(*weights);
    }
    if (theirs) {
      data.tokenizers().compare(data.tokenizer(), *theirs);
    }
  });
}

// What the data is, where a user should know.
void announce_data(TrainLoop& loop, const std::string& event, RunData& data) {
  for (const std::string& remark : data.tokenizers().remarks()) {
    loop.announce(event, remark);
  }
  if (const EvalWindows* eval = data.eval()) {
    loop.announce("evaluation",
                  fmt::format("evaluations take {} of {}, spread evenly over it",
                              part_text(eval->windows(), eval->file_windows(), "sequence"),
                              eval->file().path().string()));
    if (!eval->file().has_targets()) {
      loop.announce("evaluation", fmt::format("{} has no target: evaluations will tell nothing",
                                              eval->file().path().string()));
    }
  }
}

int train(MpiSession& session, StartGuard& start_guard, const RunConfig& options) {
  set_log_identity(session.rank(), session.world_size(), session.host(),
                   options.verbose ? LogLevel::verbose : LogLevel::info);
  enter_phase("start");
  const double job_seconds = seconds_to_job_end();
  StopRequests stops({.stop_file = options.launch.stop_file,
                      .max_seconds = options.launch.max_seconds,
                      .job_seconds = job_seconds},
                     session.rank());
  Watchdog watchdog(session, options.launch.timeout_seconds);
  start_guard.end();
  const Device device = choose_device(session, options);
  const std::unique_ptr<Communicator> comm =
      make_communicator(session, device, {.peer_copies = options.parallel.peer_copies});
  const Watchdog::Attachment watching = watchdog.watch(
      {.check_health = [&comm] { comm->check_health(); }, .abort = [&comm] { comm->abort(); }});
  if (options.verbose) {
    print_ranks(session, device);
    if (session.rank() == 0 && session.world_size() > 1) {
      log_line(LogLevel::verbose,
               fmt::format("gradients and parameters go by {}", comm->data_path()));
    }
  }
  const double product_rate = measure_product_rate(*comm, device, compute_dtype(options));
  agree(session, [&] { require_no_step_name("--out", options.out); });
  prepare_out_folder(session, options.out, {.contents = OutContents::may_be_there});
  const RunLock lock = agree(session, [&] {
    return session.rank() == 0
               ? RunLock(options.out, fmt::format("process {} on {}", getpid(), session.host()),
                         kLockPatience)
               : RunLock();
  });
  put_earlier_records_away(session, options);
  keep_warnings(options.out, session.rank(), session.host());

  enter_phase("memory");
  const ModelConfig named = agreed_model(session, options);
  const ModelConfig config = agree(session, [&] { return with_vocabulary(named, options); });
  const std::vector<std::string> hosts = session.control().gather_text(session.host());
  const auto ranks_here = static_cast<int>(std::count(hosts.begin(), hosts.end(), session.host()));
  const int node_ranks = options.parallel.ranks_per_node == 0
                             ? consecutive_ranks(hosts)
                             : static_cast<int>(options.parallel.ranks_per_node);
  // Nobody allocates, not even batches, before all have looked at what is free.
  const MemoryPlan plan = make_plan(session, options, config, device, ranks_here, node_ranks);

  enter_phase("data");
  Arena arena(device, ArenaMode::allocate);
  const std::unique_ptr<RunData> held = agree(session, [&] {
    return std::make_unique<RunData>(options, config, named.vocab_size, *comm, arena);
  });
  RunData& data = *held;
  require_same_start(session, data.values());
  if (session.rank() == 0) {
    say_text(fmt::format("{}, {}\n{}\n{}\n{}{}", counted(session.world_size(), "rank"), build_id(),
                         effective_text(options), plan.text(),
                         exchange_text(options, session.world_size(), node_ranks),
                         zero_text(options, session.world_size())));
  }

  enter_phase("tune");
  const std::string gemm_table_hash = options.compute.tune_gemm.empty()
                                          ? std::string()
                                          : choose_gemm(session, options.compute.tune_gemm, config,
                                                        plan.settings().scratch, device);

  const RunIdentity identity = {
      .config_json = to_config_json(config),
      .data_hash = data.loader().data_hash(),
      .chunk_rows = chunk_rows_for(options.batch.micro_batch * options.batch.seq, config.vocab_size,
                                   plan.settings().scratch.precision.activations,
                                   plan.settings().scratch.logits_bytes),
      .gemm_table_hash = gemm_table_hash};
  enter_phase("resume");
  std::optional<ResumePoint> point = choose_resume_point(session, options, identity);

  std::optional<InitWeights> weights;
  if (!point && !options.model.init.empty()) {
    const std::string folder = agreed_init(session, options.model.init);
    weights.emplace(agree(session, [&] { return open_weights(folder); }));
    const std::array same = {agree(session, [&] { return weights_value(*weights); })};
    require_same_start(session, same);
  }
  compare_tokenizer_of_weights(session, identity, point, weights, data);

  // Outlives everything that may have a range in it.
  std::optional<StepTrace> trace;
  if (options.monitor.trace) {
    agree(session, [&] {
      if (session.rank() == 0) {
        static_cast<void>(find_output_place(std::filesystem::path(options.out) / "trace.json",
                                            trace_file_rules()));
      }
    });
    trace.emplace(
        StepTraceOptions{.file = std::filesystem::path(options.out) / "trace.json",
                         .first = options.monitor.trace->first,
                         .last = options.monitor.trace->last,
                         .clock_offset = session.control().clock_offset(&StepTrace::clock),
                         .host = session.host()},
        *comm, device);
  }

  enter_phase("memory");
  TrainingRun run(config, plan.settings(), *comm, data.loader(), arena);
  CheckpointSaver saver(
      {.run_folder = options.out,
       .retention = {.keep = options.checkpoint.keep, .keep_every = options.checkpoint.keep_every},
       .staging_bytes = save_staging_bytes(options, run.shard().state_bytes())},
      *comm, run.shard(), run.optimizer(), arena);
  const RunTokenizer tokenizer =
      agree(session, [&] { return run_tokenizer(data.loader().files()); });
  std::unique_ptr<Sampler> sampler;
  if (options.sample.every > 0) {
    sampler =
        agree(session, [&] { return std::make_unique<Sampler>(options, tokenizer, run, arena); });
  }
  std::string run_id = comm->gather_text(session.rank() == 0 ? new_uuid() : "").front();
  std::string start =
      fmt::format("starting at step 1: {} parameters in {}", run.layout().total_count(),
                  counted(session.world_size(), "rank"));
  std::string weights_text = "the initial weights";
  enter_phase("load");
  if (point) {
    load_state(session, options, identity, *point, run);
    run_id = point->info.run_id;
    saver.set_parent(point->info.save_id);
    saver.set_loaded(point->folder, point->fingerprint);
    start = fmt::format("continuing after step {} from {}, written by {}", point->info.step,
                        point->folder.string(), counted(point->info.world_size, "rank"));
    weights_text = fmt::format("the weights of {}", point->folder.string());
  } else if (weights) {
    const std::string folder = load_weights(session, options, *weights, run).string();
    start = fmt::format("starting at step 1 with the weights of {}", folder);
    weights_text = fmt::format("the weights of --init {}", folder);
    weights.reset();
  } else {
    run.initialize_weights();
  }
  take_over_folder(session, options, point, tokenizer);
  run.trainer().publish_parameters();
  const WeightsOrigin origin = compare_parameters(run, weights_text);
  arena.freeze();

  TrainLoop loop(options, identity, *comm, data, run, saver, trace ? &*trace : nullptr,
                 sampler.get(), stops, run_id, origin);
  loop.announce(point ? "resume" : "start", start);
  if (point) {
    announce_resume(loop, options, *point);
  }
  warn_of_ranks(session, options, device);
  if (!point && options.model.init.empty() && has_weights_beside(options.model.name)) {
    loop.announce("start", fmt::format("the weights are random (--seed {}), in the shape of {}; to "
                                       "start from the weights beside it: --init {}",
                                       options.seed, options.model.name,
                                       folder_of(options.model.name).string()));
  }
  for (const std::string& idle : idle_options(options, session.world_size())) {
    loop.announce(point ? "resume" : "start", idle);
  }
  if (const std::string objective = objective_of(run); !objective.empty()) {
    loop.announce(point ? "resume" : "start",
                  fmt::format("the loss of a step is the training objective: {}; evaluations give "
                              "the cross entropy alone",
                              objective));
  }
  announce_data(loop, point ? "resume" : "start", data);
  if (job_seconds > 0) {
    loop.announce("limit", fmt::format("the batch system ends this job in {:.0f} s; the run saves "
                                       "and stops before",
                                       job_seconds - stops.seconds()));
  }
  loop.record("configuration",
              configuration(options, run, run_id, device, session.world_size(), product_rate));
  loop.record("memory", memory_lines(plan, arena, run.shard()));
  const int status = loop.run();
  const std::string hash = fmt::format("{:016x}", run.parameter_hash());
  loop.announce("end",
                fmt::format("parameters {} after step {}", hash, run.trainer().position().step));
  comm->barrier();
  return status;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const tessera::StopSignals signals;  // before MPI makes threads
  const double start_seconds = tessera::start_seconds(argc, argv);
  const auto body = [&](tessera::MpiSession& session, tessera::StartGuard& start) {
    const tessera::ParsedOptions parsed = tessera::parse_on_all_ranks(session, argc, argv);
    tessera::require_same_start(session, tessera::start_values(parsed));
    switch (parsed.action) {
      case tessera::OptionsAction::help:
        if (session.rank() == 0) {
          std::cout << tessera::options_help();
        }
        return 0;
      case tessera::OptionsAction::version:
        if (session.rank() == 0) {
          std::cout << fmt::format("tessera {} ({})\n", TESSERA_VERSION, tessera::build_id());
        }
        return 0;
      case tessera::OptionsAction::run:
        break;
    }
    return parsed.config.plan.print ? tessera::print_plan(session, parsed.config)
                                    : tessera::train(session, start, parsed.config);
  };
  return tessera::run_job(argc, argv, start_seconds, body);
}
