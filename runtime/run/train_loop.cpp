#include "runtime/run/train_loop.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/log.h"
#include "kernels/base/progress.h"
#include "kernels/base/quantity.h"
#include "kernels/device/device_backend.h"
#include "model/sampler.h"
#include "optim/grad_workspace.h"
#include "runtime/launch/agree.h"
#include "runtime/monitor/quantized_shares.h"

namespace tessera {
namespace {

// Of a step, by rank.
std::vector<Index> micro_batches_by_rank(const RunConfig& options, int ranks) {
  std::vector<Index> counts;
  counts.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    counts.push_back(
        micro_batches_of(rank, options.batch.global_batch / options.batch.micro_batch, ranks));
  }
  return counts;
}

// Of one rank, before a save was measured: what a slow file system does.
constexpr double kAssumedSaveBytesPerSecond = 200e6;
constexpr std::size_t kTrialSaves = 0;  // counter of the step's exchange: ranks that want one
// Counters of a vote while samples are written: they have ended; and of each text the ranks' tokens
// and their squares.
constexpr std::size_t kSampleEnds = 0;
constexpr std::size_t kTokens = 1;
constexpr std::size_t kSquares = kTokens + kMostSamplePrompts;
static_assert(kSquares + kMostSamplePrompts <= StepExchange::kCounters);
constexpr int kWantsRestart =
    85;  // jobs/guide/failures.md: saved; run the same command to continue

// Of the device, by the driver's count; on the CPU, of this process.
std::size_t used_memory(Device device) {
  if (device.kind == DeviceKind::cpu) {
    return resident_memory().bytes;
  }
  const DeviceInfo info = device_info(device);
  return info.total_bytes - info.free_bytes;
}

// Losses of two evaluations compare where it is equal.
std::string identity_of(const EvalSet& set, Index seq) {
  const EvalSequences& sequences = *set.sequences;
  return fmt::format("{}, {} of {} sequences of {}", sequences.file().content_hash(),
                     sequences.sequences(), sequences.file_sequences(), seq);
}

}  // namespace

TrainLoop::TrainLoop(const RunConfig& options, RunSource source, TrainingRun& run, RunData& data,
                     const LoopTools& tools)
    : options_(options),
      comm_(run.comm()),
      votes_(run.comm()),
      data_(data),
      run_(run),
      saver_(tools.saver),
      trace_(tools.trace),
      samples_(tools.samples),
      stops_(tools.stops),
      source_(std::move(source)),
      exported_step_(tools.exported_step) {
  stops_.expect_save_seconds(static_cast<double>(shard_file_bytes(run.shard())) /
                             kAssumedSaveBytesPerSecond);
  hosts_ = comm_.gather_text(host_name());
  if (comm_.rank() == 0) {
    losses_.emplace(run.config().vocab_size);
    if (hosts_.size() > 1) {
      times_.resize(hosts_.size());
      ranks_ = std::make_unique<RankWatch>(micro_batches_by_rank(options, comm_.world_size()));
    }
    metrics_ = std::make_unique<Metrics>(MetricsOptions{
        .out = options.out,
        .steps = options.steps,
        .tokens_per_step = options.batch.global_batch * options.batch.seq,
        .log_every = options.monitor.log_every,
        .clip = options.optimizer.clip,
        .has_loss_terms = !objective_text(run.settings().scratch.loss.terms).empty(),
        // where nothing is left to do, no step is done again
        .continue_after = run.trainer().position().step < options.steps
                              ? run.trainer().position().step
                              : std::numeric_limits<std::int64_t>::max(),
        .memory_bytes = [device = run.compute().device()] { return used_memory(device); }});
  }
}

void TrainLoop::announce(const std::string& event, const std::string& text,
                         const nlohmann::ordered_json& fields) {
  if (metrics_) {
    metrics_->event(run_.trainer().position().step, event, text, fields);
  }
}

void TrainLoop::warn(const std::string& event, const std::string& text,
                     const nlohmann::ordered_json& fields) {
  nlohmann::ordered_json all = {{"text", text}};
  all.update(fields);
  record(event, all);
  if (comm_.rank() == 0) {
    log_line(LogLevel::warning, text);
  }
}

void TrainLoop::note(const std::string& event, const std::string& text,
                     const nlohmann::ordered_json& fields) {
  if (options_.verbose) {
    announce(event, text, fields);
    return;
  }
  nlohmann::ordered_json all = {{"text", text}};
  all.update(fields);
  record(event, all);
}

void TrainLoop::record(const std::string& event, const nlohmann::ordered_json& fields) {
  if (metrics_) {
    metrics_->record(run_.trainer().position().step, event, fields);
  }
}

int TrainLoop::run() {
  last_traffic_ = comm_.traffic();
  saved_step_ = run_.trainer().position().step;
  const std::function<void(StepExchange&)> contribute = [this](StepExchange& exchange) {
    if (const auto reason = stops_.poll()) {
      exchange.vote_stop(*reason);
    }
    saver_.contribute(exchange);
    exchange.add_counter(kTrialSaves, stops_.wants_trial_save() && !trial_save_begun_ ? 1 : 0);
  };
  SaveOutcomes outcomes;
  bool trial_save = false;
  const std::function<void(const StepExchange&)> heard = [&](const StepExchange& exchange) {
    outcomes = saver_.heard(exchange);
    trial_save = exchange.counter(kTrialSaves) > 0;
    for (std::size_t rank = 0; rank < times_.size(); ++rank) {
      times_[rank] = exchange.times(static_cast<int>(rank));
    }
  };
  if (const std::int64_t step = run_.trainer().position().step;
      step >= options_.steps && !options_.model_export.folder.empty() && exported_step_ != step) {
    save({.checkpoint = false, .model_export = true});
  }
  while (run_.trainer().position().step < options_.steps && !stop_) {
    outcomes.clear();
    if (trace_ != nullptr) {
      trace_->begin_step(run_.trainer().position().step + 1);
    }
    const std::int64_t next = run_.trainer().position().step + 1;
    run_.trainer().count_quantized(next == options_.steps ||
                                   is_due(options_.monitor.log_every, next));
    const StepReport report = run_.trainer().step(contribute, heard);
    warn_without_targets(report);
    tell(report);
    tell(outcomes);
    comm_.check_health();
    count_skipped(report);
    stop_ = report.stop;
    look_at_model(report.step);
    const SaveParts due = parts_due(report, trial_save ? Trial::wanted : Trial::none);
    if (due.any()) {
      save(due);
    }
    if (report.next_is_unreadable) {  // the next step throws: what is done shall not be lost
      finish_save();
    }
    if (trace_ != nullptr) {
      tell(trace_->end_step(report.step));
    }
  }
  finish_save();
  if (lacks_checkpoint_) {
    save();
    finish_save();
  }
  run_.trainer().synchronize();
  if (trace_ != nullptr) {
    tell(trace_->finish());
  }
  enter_phase("end");
  tell_without_targets();
  if (losses_ && losses_->is_diverged()) {
    tell_diverged("the run ends diverged");
  }
  const std::int64_t reached = run_.trainer().position().step;
  if (stop_ && reached < options_.steps) {
    announce("stop", fmt::format("stopped at step {} by {}{}", reached, stop_reason_text(*stop_),
                                 failed(SaveKind::checkpoint).empty() ? ": saved" : ", not saved"));
    if (!failed(SaveKind::checkpoint).empty()) {
      tell_unsaved();
      return WriteError("", TESSERA_HERE).exit_status();
    }
    return kWantsRestart;
  }
  return final_status();
}

SaveParts TrainLoop::parts_due(const StepReport& report, Trial trial) {
  const bool is_urgent = stop_ || trial == Trial::wanted || lacks_checkpoint_ ||
                         (report.next_is_unreadable && saves_anything());
  SaveParts due = {.checkpoint = is_urgent || is_save_due(report.step),
                   .model_export = is_export_due(report.step)};
  is_local_due_ = is_local_due_ || is_due(options_.checkpoint.local_every, report.step);
  if (saver_.saves_locally() && due.checkpoint && !is_urgent && report.step < options_.steps) {
    is_local_due_ = true;
    due.promoted = true;
    due.checkpoint = false;
  }
  // It waits for no other save, and no run that ends waits for it.
  const bool is_free = due.any() || due.promoted || !saver_.under_way();
  if (is_local_due_ && is_free && !stop_ && report.step < options_.steps) {
    due.local = true;
    is_local_due_ = false;
  }
  return due;
}

void TrainLoop::look_at_model(std::int64_t step) {
  const std::span<const EvalSet> sets = data_.eval_sets();
  if (std::any_of(sets.begin(), sets.end(), [&](const EvalSet& set) {
        return is_evaluation_due(step) || judges(set, step);
      })) {
    if (stop_ || !evaluate(step)) {
      announce_dropped("evaluation");
    }
  }
  if (is_due(options_.sample.every, step)) {
    if (stop_ || !sample()) {
      announce_dropped("sample");
    }
  }
}

void TrainLoop::announce_dropped(std::string_view what) {
  announce("dropped", fmt::format("no {} at step {}: asked to stop by {}", what,
                                  run_.trainer().position().step, stop_reason_text(*stop_)));
}

TrainLoop::Vote TrainLoop::vote(Sample sample, std::span<const std::int32_t> tokens) {
  votes_.clear();
  if (const auto reason = stops_.poll()) {
    votes_.vote_stop(*reason);
  }
  votes_.add_counter(kSampleEnds, sample == Sample::ends ? 1 : 0);
  TESSERA_REQUIRE(tokens.size() <= kMostSamplePrompts, "counters for all tokens");
  for (std::size_t text = 0; text < tokens.size(); ++text) {
    const std::int64_t token = tokens[text];
    votes_.add_counter(kTokens + text, token);
    votes_.add_counter(kSquares + text, token * token);
  }
  votes_.run();
  stop_ = votes_.stop_reason();
  Vote vote = {
      .continues = !stop_, .sample_ends = votes_.counter(kSampleEnds) > 0, .same_tokens = true};
  for (std::size_t text = 0; text < kMostSamplePrompts; ++text) {
    const std::int64_t sum = votes_.counter(kTokens + text);
    vote.same_tokens =
        vote.same_tokens && sum * sum == comm_.world_size() * votes_.counter(kSquares + text);
  }
  return vote;
}

void TrainLoop::tell(const StepReport& report) {
  if (metrics_) {
    metrics_->step(report,
                   {.skipped_in_all = run_.trainer().position().skipped, .warning = warning()});
    tell_traffic(report.step);
    if (report.quantized) {
      metrics_->record(report.step, "fp8", quantized_shares(*report.quantized));
    }
  }
  if (losses_) {
    watch_loss(report);
  }
  if (ranks_) {
    watch_ranks(report);
  }
}

void TrainLoop::watch_loss(const StepReport& report) {
  if (report.targets > 0 && losses_->add(report.loss)) {
    tell_diverged("the run has diverged");
  }
}

void TrainLoop::tell_diverged(std::string_view when) {
  warn("diverged", losses_->text(when),
       {{"mean_loss", losses_->mean()}, {"reference_loss", losses_->reference()}});
}

std::string_view TrainLoop::warning() const {
  const auto found = std::find_if(failed_.begin(), failed_.end(),
                                  [](const std::string& text) { return !text.empty(); });
  return found == failed_.end() ? std::string_view() : *found;
}

void TrainLoop::watch_ranks(const StepReport& report) {
  const std::int64_t step = report.step;
  const auto host_of = [this](int rank) { return hosts_.at(static_cast<std::size_t>(rank)); };
  for (const SlowRank& slow : ranks_->add(times_)) {
    warn("slow rank", to_text(slow, host_of(slow.rank)),
         {{"rank", slow.rank},
          {"host", host_of(slow.rank)},
          {"excess", slow.excess},
          {"seconds", slow.seconds},
          {"median_seconds", slow.median_seconds}});
  }
  if (step == options_.steps || report.stop ||
      (is_due(options_.monitor.log_every, step) && ranks_->steps() >= RankWatch::kSlowSteps)) {
    nlohmann::ordered_json fields = ranks_->take_means();
    fields["slowest_host"] = host_of(fields["computing_seconds"]["most_rank"].get<int>());
    metrics_->record(step, "ranks", fields);
  }
}

void TrainLoop::tell_traffic(std::int64_t step) {
  const Traffic sent = comm_.traffic() - last_traffic_;
  last_traffic_ = comm_.traffic();
  if (sent != step_traffic_) {
    step_traffic_ = sent;
    metrics_->record(step, "communication",
                     {{"bytes", sent.bytes}, {"operations", sent.operations}});
  }
}

void TrainLoop::tell(const std::optional<TraceOutcome>& outcome) {
  if (!outcome) {
    return;
  }
  if (outcome->written) {
    announce("trace", outcome->message);
  } else {
    warn("trace failed", outcome->message);
  }
}

namespace {

// How a checkpoint and an export are reported.
struct SaveWords {
  const char* event;
  const char* done;
};

SaveWords words_of(SaveKind kind) {
  switch (kind) {
    case SaveKind::checkpoint:
      return {"save", "saved"};
    case SaveKind::model_export:
      return {"export", "exported"};
    case SaveKind::local:
      break;
  }
  return {"local save", "saved locally"};
}

}  // namespace

void TrainLoop::tell(const SaveOutcomes& outcomes) {
  for (const SaveOutcome& outcome : outcomes) {
    tell(outcome);
  }
}

void TrainLoop::tell(const SaveOutcome& outcome) {
  if (!outcome.saved) {
    tell_failed(outcome);
    return;
  }
  failed(outcome.kind).clear();
  if (outcome.kind == SaveKind::checkpoint) {
    saved_step_ = outcome.step;
  }
  if (outcome.kind == SaveKind::checkpoint && !outcome.was_promoted) {
    stops_.measured_save_seconds(outcome.seconds);
  }
  if (metrics_) {  // of the step that was saved: a run that continues from it keeps the line
    const SaveWords words = words_of(outcome.kind);
    const std::string text =
        fmt::format("{} step {} in {:.1f} s: {}{}", words.done, outcome.step, outcome.seconds,
                    outcome.folder.string(), outcome.was_promoted ? ", from the local save" : "");
    nlohmann::ordered_json fields = {{"seconds", outcome.seconds},
                                     {"said_after_step", run_.trainer().position().step}};
    if (outcome.was_promoted) {
      fields["promoted"] = true;
    }
    if (outcome.kind == SaveKind::local && std::exchange(has_told_local_, true)) {
      fields["text"] = text;  // there are many of them: only the first is printed
      metrics_->record(outcome.step, words.event, fields);
    } else {
      metrics_->event(outcome.step, words.event, text, fields);
    }
    tell_best(outcome);
  }
}

void TrainLoop::tell_failed(const SaveOutcome& outcome) {
  if (outcome.was_promoted && outcome.given_up) {
    announce("dropped", fmt::format("step {} stays on the nodes' disks: a newer one is saved to {}",
                                    outcome.step, options_.out));
    return;
  }
  const SaveWords words = words_of(outcome.kind);
  lacks_checkpoint_ = lacks_checkpoint_ || outcome.lacks_checkpoint;
  failed(outcome.kind) = fmt::format("the {} of step {} failed", words.event, outcome.step);
  const std::string text = fmt::format(
      "{}: {}{}", failed(outcome.kind), outcome.message,
      outcome.lacks_checkpoint ? "; --out gets a later step instead, without a local save" : "");
  if (metrics_) {
    metrics_->record(outcome.step, fmt::format("{} failed", words.event),
                     {{"text", text},
                      {"seconds", outcome.seconds},
                      {"said_after_step", run_.trainer().position().step}});
  }
  if (outcome.kind == SaveKind::local) {
    has_told_local_ = false;
  } else if (options_.checkpoint.on_failure == SaveFailure::stop) {
    throw_agreed({WriteError("", TESSERA_HERE).exit_status(), text}, TESSERA_HERE);
  }
  if (comm_.rank() == 0) {  // all ranks know the same
    log_line(LogLevel::warning, text);
  }
}

void TrainLoop::tell_best(const SaveOutcome& outcome) {
  if (!outcome.best || (best_ && best_->step == outcome.best->step)) {
    return;
  }
  best_ = outcome.best;
  metrics_->event(outcome.step, "best",
                  fmt::format("the lowest loss of {} so far is {:.4f}, at step {}: kept",
                              best_->evaluation.name, best_->evaluation.loss, best_->step),
                  {{"name", best_->evaluation.name},
                   {"best_step", best_->step},
                   {"best_loss", best_->evaluation.loss}});
}

void TrainLoop::warn_without_targets(const StepReport& report) {
  if (report.targets == 0 && !warned_without_targets_ && comm_.rank() == 0) {
    log_line(LogLevel::warning,
             fmt::format("step {} has no target, and changes no parameter: all tokens of its "
                         "sequences are masked; such steps are counted",
                         report.step));
  }
  warned_without_targets_ = warned_without_targets_ || report.targets == 0;
}

void TrainLoop::tell_without_targets() {
  const TrainingPosition& position = run_.trainer().position();
  const Index count = position.step - position.updates - position.skipped;
  if (count > 0) {
    warn("no targets", fmt::format("{} had no target, and changed no parameter",
                                   part_text(count, position.step, "step")));
  }
}

void TrainLoop::count_skipped(const StepReport& report) {
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
    throw_agreed({DivergedError("", TESSERA_HERE).exit_status(),
                  fmt::format("loss or gradient was not finite in {} in a row, up to step {} "
                              "(--max-skipped {}): {}; parameters are those of the last good step",
                              counted(skipped_in_a_row_, "step"), report.step,
                              options_.optimizer.max_skipped, skip_advice_)},
                 TESSERA_HERE);
  }
}

void TrainLoop::tell_skipped(const StepReport& report) {
  enter_phase("skipped step");
  const SkipReason reason = find_skip_reason(run_, report, source_.weights);
  skip_advice_ = reason.advice;
  const std::string text = fmt::format("step {} is skipped, not finite: {}; {}", report.step,
                                       reason.what, reason.advice);
  warn("skipped", text);
  enter_phase("between steps");
}

void TrainLoop::tell_unsaved() {
  if (comm_.rank() != 0) {
    return;
  }
  if (failed(SaveKind::checkpoint).empty() && saved_step_ == run_.trainer().position().step) {
    log_line(LogLevel::error, fmt::format("{}; the checkpoint is complete: make room, and `convert "
                                          "export` writes the model",
                                          failed(SaveKind::model_export)));
    return;
  }
  log_line(
      LogLevel::error,
      saved_step_ > 0
          ? fmt::format("{}, which was the last: step {} is the newest that is saved; make room "
                        "in {} and start again, and the run continues from there",
                        warning(), saved_step_, options_.out)
          : fmt::format("{}, which was the last: nothing of this run is saved; make room in {}, or "
                        "give another --out, and start again",
                        warning(), options_.out));
}

int TrainLoop::final_status() {
  // A finished run whose result is not there must not look like one.
  if (!failed(SaveKind::checkpoint).empty() || !failed(SaveKind::model_export).empty()) {
    tell_unsaved();
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

bool TrainLoop::evaluate(std::int64_t step) {
  const std::span<const EvalSet> sets = data_.eval_sets();
  evaluated_step_ = step;
  evaluations_.clear();
  return std::all_of(sets.begin(), sets.end(), [&](const EvalSet& set) {
    return !(is_evaluation_due(step) || judges(set, step)) || evaluate(set);
  });
}

bool TrainLoop::evaluate(const EvalSet& set) {
  EvalReport report;
  try {
    report = run_.trainer().evaluate(
        set.sequences->micro_batches(), [&](Index number) { return set.sequences->batch(number); },
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
  const EvalContext context = RunData::context_of(set, report);
  if (!report.loss && comm_.rank() == 0 && warned_of_evaluation_.insert(set.name).second) {
    log_line(LogLevel::warning,
             fmt::format("the evaluation has no target in {} of {}: it has no loss (null)",
                         part_text(context.sequences, context.file_sequences, "sequence"),
                         set.sequences->file().path().string()));
  }
  if (report.loss && std::isfinite(*report.loss)) {
    evaluations_.push_back(
        {set_label(set.name), *report.loss, identity_of(set, options_.batch.seq)});
  }
  if (metrics_) {
    metrics_->evaluation(run_.trainer().position().step, report, context);
  }
  return true;
}

bool TrainLoop::sample() {
  enter_phase("sample");
  const TraceRange range({TraceCategory::host, "sample", {}}, "host");
  run_.trainer().synchronize();
  const bool together = run_.acquires_together();
  if (comm_.rank() == 0 || together) {
    const std::vector<std::int32_t> ended(together ? samples_->prompts() : 0, kNoToken);
    Vote last = {.continues = true, .sample_ends = false, .same_tokens = true};
    std::vector<std::string> texts =
        samples_->texts(run_, [&](std::span<const std::int32_t> tokens) {
          last = vote(Sample::goes_on, together ? tokens : std::span<const std::int32_t>());
          return last.continues && last.same_tokens;
        });
    if (last.continues && last.same_tokens) {
      last = vote(Sample::ends, ended);
    }
    if (!last.same_tokens) {
      texts.clear();
      warn("sample", fmt::format("no sample at step {}: the ranks came to different tokens: their "
                                 "devices are not bit-identical",
                                 run_.trainer().position().step));
    }
    for (std::size_t i = 0; i < texts.size() && last.continues; ++i) {
      announce("sample", texts[i],
               texts.size() == samples_->prompts() ? nlohmann::ordered_json{{"prompt", i + 1}}
                                                   : nlohmann::ordered_json::object());
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

void TrainLoop::save(SaveParts parts) {
  trial_save_begun_ = trial_save_begun_ || parts.checkpoint;
  if (saver_.under_way() || (saver_.is_promoting() && (parts.checkpoint || parts.promoted))) {
    if (stop_) {  // time is short, and a copy takes what its rate gives
      saver_.give_up_local();
    }
    announce("wait", fmt::format("waiting for the save of step {}", saver_.step()));
    finish_save();
  }
  const TrainingPosition& position = run_.trainer().position();
  run_.trainer().synchronize();
  ManifestInfo info = manifest_info(options_, source_.identity, position, source_.run_id,
                                    data_.loader().epoch_of(position.sequences));
  if (evaluated_step_ == position.step) {
    info.evaluations_json = evaluations_text(evaluations_);
  }
  if (parts.checkpoint) {
    lacks_checkpoint_ = false;
  }
  tell(saver_.begin(info, parts));
}

void TrainLoop::finish_save() {
  tell(saver_.finish());
}

}  // namespace tessera
