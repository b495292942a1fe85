#include "runtime/run/checkpoint_saver.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/log.h"
#include "kernels/base/progress.h"
#include "kernels/base/trace.h"
#include "runtime/launch/agree.h"
#include "runtime/plan/memory_plan.h"

namespace tessera {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(2);
constexpr auto kAskInterval = std::chrono::milliseconds(100);

void append(SaveOutcomes& all, SaveOutcomes more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

bool is_wanted(SaveKind kind, const SaveParts& wanted) {
  switch (kind) {
    case SaveKind::checkpoint:
      return wanted.checkpoint;
    case SaveKind::model_export:
      return wanted.model_export;
    case SaveKind::local:
      break;
  }
  return wanted.local;
}

}  // namespace

SaverOptions saver_options(const RunConfig& options, const ModelConfig& config,
                           const ShardState& shard) {
  SaverOptions made = {.run_folder = options.out,
                       .retention = {.keep = options.checkpoint.keep,
                                     .keep_every = options.checkpoint.keep_every,
                                     .keep_best = options.checkpoint.keep_best},
                       .staging_bytes = save_staging_bytes(options, shard.snapshot_bytes()),
                       .local_folder = options.checkpoint.local_folder,
                       .promotes = options.checkpoint.save_every > 0};
  if (!options.model_export.folder.empty()) {
    made.model_export = {options.model_export.folder, config, adapter_config(options)};
  }
  return made;
}

CheckpointSaver::CheckpointSaver(const SaverOptions& options, Communicator& comm, ShardState& shard,
                                 PageSweep& optimizer, Arena& arena)
    : comm_(comm),
      shard_(shard),
      snapshot_(shard, optimizer, options.staging_bytes, arena),
      promotion_(comm) {
  auto checkpoint = std::make_unique<CheckpointOutput>(
      CheckpointOutputOptions{options.run_folder, options.retention, comm.rank(),
                              comm.world_size()},
      shard);
  checkpoint_ = checkpoint.get();
  parts_.push_back({.kind = SaveKind::checkpoint, .output = std::move(checkpoint)});
  if (options.model_export) {
    parts_.push_back(
        {.kind = SaveKind::model_export,
         .output = std::make_unique<ExportOutput>(
             ExportOutputOptions{*options.model_export, options.run_folder, comm.rank()}, shard)});
  }
  if (!options.local_folder.empty()) {
    auto local = std::make_unique<LocalOutput>(
        LocalOutputOptions{options.local_folder, options.run_folder, options.promotes}, comm,
        shard);
    local_ = local.get();
    parts_.push_back({.kind = SaveKind::local, .output = std::move(local)});
  }
}

void CheckpointSaver::set_local_folder(const std::string& folder,
                                       const std::string& parent_save_id) {
  TESSERA_REQUIRE(local_ != nullptr, "a run without local saves");
  local_->set_folder(folder);
  local_->set_parent(parent_save_id);
}

CheckpointSaver::~CheckpointSaver() {
  snapshot_.abandon();
  cancel();
  thread_.join();
}

void CheckpointSaver::give_up_local() noexcept {
  if (local_ != nullptr) {
    local_->cancel();
  }
  promotion_.give_up();
}

void CheckpointSaver::cancel() noexcept {
  for (const Part& part : parts_) {
    part.output->cancel();
  }
}

void CheckpointSaver::start_thread(void (CheckpointSaver::*work)()) {
  thread_.start([this, work] {
    try {
      (this->*work)();
    } catch (...) {
      for_each_sound([text = failure_text()](Part& part) { part.failure = text; });
      throw;
    }
  });
}

bool CheckpointSaver::for_each_sound(const std::function<void(Part&)>& work) {
  bool is_any_left = false;
  for (Part& part : parts_) {
    if (part.is_active && part.failure.empty()) {
      try {
        work(part);
      } catch (...) {
        part.failure = failure_text();
      }
      is_any_left = is_any_left || part.failure.empty();
    }
  }
  return is_any_left;
}

bool CheckpointSaver::is_any_active() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.is_active; });
}

SaveOutcome CheckpointSaver::outcome_of(const Part& part) const {
  return {.kind = part.kind,
          .step = step_,
          .saved = true,
          .folder = part.output->folder(),
          .message = {},
          .seconds = host_seconds() - began_,
          .snapshot = snapshot_.report(),
          .best = part.notes.best};
}

bool CheckpointSaver::all_agree(Part& part, const std::string& mine, SaveOutcomes& outcomes) {
  Answers answers = gather_answers(comm_, mine);
  if (answers.failure.empty()) {
    part.closed_by_rank = std::move(answers.by_rank);
    return true;
  }
  part.is_active = false;
  part.output->discard();
  SaveOutcome outcome = outcome_of(part);
  outcome.saved = false;
  outcome.folder.clear();
  outcome.message = answers.failure;
  outcome.lacks_checkpoint = part.kind == SaveKind::local && is_to_promote_;
  outcomes.push_back(std::move(outcome));
  return false;
}

SaveOutcomes CheckpointSaver::begin(const ManifestInfo& info, SaveParts wanted) {
  TESSERA_REQUIRE(phase_ == Phase::idle, "one save at a time");
  TESSERA_REQUIRE(!promotion_.under_way() || !(wanted.checkpoint || wanted.promoted),
                  "one at a time into the run's folder");
  TESSERA_REQUIRE(wanted.local || !wanted.promoted, "no local save to promote");
  enter_phase("save");
  const TraceRange range({TraceCategory::save, "begin save", {}}, "host");
  began_ = host_seconds();
  step_ = info.step;
  is_to_promote_ = wanted.promoted;
  SaveOutcomes outcomes;
  for (Part& part : parts_) {
    part.is_active = is_wanted(part.kind, wanted);
    part.stands = false;
    if (!part.is_active) {
      continue;
    }
    part.closed.clear();
    part.failure.clear();
    part.notes = {};
    std::string answer = "+";
    if (comm_.rank() == 0) {
      try {
        answer += part.output->make_place(info);
      } catch (const std::exception&) {
        answer = "-" + failure_text();
      }
    }
    if (all_agree(part, answer, outcomes)) {
      part.output->set_place(info, part.closed_by_rank.front());
    }
  }
  if (is_any_active()) {
    snapshot_.begin();
    phase_ = Phase::writing;
    start_thread(&CheckpointSaver::write_parts);
  }
  return outcomes;
}

// On the writer thread.
void CheckpointSaver::write_parts() {
  const TraceRange range({TraceCategory::save, "write shard", {}}, "save");
  const auto require = [](bool is_any_left) {
    if (!is_any_left) {
      throw WriteError("nothing is left to write", TESSERA_HERE);  // the parts know why
    }
  };
  try {
    require(for_each_sound([](Part& part) { part.output->open(); }));
    std::vector<float> decoded;
    snapshot_.take_all([&](const StatePage& page, const PageContents& contents) {
      SnapshotPage numbers(shard_, page, contents, decoded);
      if (numbers.count() > 0) {
        require(for_each_sound([&](Part& part) { part.output->write(numbers); }));
      }
    });
    require(for_each_sound([](Part& part) { part.closed = part.output->close(); }));
  } catch (...) {
    snapshot_.abandon();
    throw;
  }
}

// On the writer thread of a rank that commits.
void CheckpointSaver::commit() {
  const TraceRange range({TraceCategory::save, "commit", {}}, "save");
  for_each_sound([this](Part& part) {
    if (part.output->commits(comm_.rank())) {
      part.notes = part.output->commit(part.closed_by_rank);
    }
  });
}

// The same, once all have committed. The save stands whatever happens here.
void CheckpointSaver::tidy() {
  for (const Part& part : parts_) {
    if (part.stands && part.output->commits(comm_.rank())) {
      try {
        part.output->tidy();
      } catch (...) {
        log_line(LogLevel::warning, failure_text());
      }
    }
  }
}

bool CheckpointSaver::is_needed() const {
  return phase_ == Phase::writing ||
         std::any_of(parts_.begin(), parts_.end(), [this](const Part& part) {
           const bool has_work = phase_ == Phase::committing ? part.is_active : part.stands;
           return has_work && part.output->commits(comm_.rank());
         });
}

// A rank that has nothing to do in this phase says done.
WriterState CheckpointSaver::thread_state() {
  if (phase_ == Phase::idle) {
    return WriterState::idle;
  }
  if (!is_needed()) {
    return WriterState::done;
  }
  return thread_.state();
}

void CheckpointSaver::contribute(StepExchange& exchange) {
  exchange.set_writer(Writer::save, thread_state());
  exchange.set_writer(Writer::promotion, promotion_.state());
}

SaveOutcomes CheckpointSaver::heard(const StepExchange& exchange) {
  SaveOutcomes outcomes;
  advance_promotion(exchange.writers(Writer::promotion, WriterState::done) == comm_.world_size(),
                    exchange.writers(Writer::promotion, WriterState::failed) > 0, outcomes);
  append(outcomes, advance(exchange.writers(Writer::save, WriterState::done) == comm_.world_size(),
                           exchange.writers(Writer::save, WriterState::failed) > 0));
  return outcomes;
}

// The ranks agree on how far the save is; every rank comes here with the same arguments.
SaveOutcomes CheckpointSaver::advance(bool all_done, bool any_failed) {
  SaveOutcomes outcomes;
  if (phase_ == Phase::idle || (!all_done && !any_failed)) {
    return outcomes;
  }
  if (phase_ == Phase::writing) {
    end_writing(any_failed, outcomes);
  } else if (phase_ == Phase::committing) {
    end_commit(outcomes);
  } else {
    thread_.join();
    phase_ = Phase::idle;
  }
  return outcomes;
}

// Where a rank has failed in all of its parts, nothing can be whole: every rank's thread ends.
void CheckpointSaver::end_writing(bool any_failed, SaveOutcomes& outcomes) {
  // What a thread says that is cut short here is not a cause: its part cannot be whole.
  const bool is_cut = any_failed && thread_.state() == WriterState::busy;
  if (any_failed) {
    snapshot_.abandon();
    cancel();
  }
  thread_.join();
  for (Part& part : parts_) {
    if (part.is_active) {
      const std::string mine = is_cut                 ? std::string("?")
                               : part.failure.empty() ? "+" + part.closed
                                                      : "-" + part.failure;
      all_agree(part, mine, outcomes);
    }
  }
  phase_ = is_any_active() ? Phase::committing : Phase::idle;
  if (phase_ == Phase::committing && is_needed()) {
    start_thread(&CheckpointSaver::commit);
  }
}

void CheckpointSaver::end_commit(SaveOutcomes& outcomes) {
  thread_.join();
  bool tidies = false;
  for (Part& part : parts_) {
    if (!part.is_active ||
        !all_agree(part, part.failure.empty() ? "+" : "-" + part.failure, outcomes)) {
      continue;
    }
    part.is_active = false;
    part.stands = true;
    tidies = tidies || part.kind == SaveKind::local;
    if (part.kind == SaveKind::checkpoint) {
      checkpoint_->accept();
    }
    if (part.kind == SaveKind::local && is_to_promote_) {
      begin_promotion();
    }
    for (const std::string& problem : part.notes.problems) {
      log_line(LogLevel::warning, problem);
    }
    outcomes.push_back(outcome_of(part));
  }
  phase_ = tidies ? Phase::tidying : Phase::idle;
  if (tidies && is_needed()) {
    start_thread(&CheckpointSaver::tidy);
  }
}

void CheckpointSaver::begin_promotion() {
  const LocalShard shard = local_->own_shard();
  promoted_began_ = began_;
  local_->keep_also(shard.step);
  CommitRequest local = {};
  if (comm_.rank() == 0) {
    local = local_->committed();
  }
  promotion_.begin(shard, checkpoint_->promoted(std::move(local), {shard.save_id, shard.step}));
}

void CheckpointSaver::advance_promotion(bool all_done, bool any_failed, SaveOutcomes& outcomes) {
  std::optional<PromotionEnd> end = promotion_.advance(all_done, any_failed);
  if (!end) {
    return;
  }
  local_->keep_also(0);
  for (const std::string& problem : end->notes.problems) {
    log_line(LogLevel::warning, problem);
  }
  SaveOutcome outcome = {.kind = end->is_local_fault ? SaveKind::local : SaveKind::checkpoint,
                         .step = promotion_.step(),
                         .saved = end->stands,
                         .folder = {},
                         .message = std::move(end->message),
                         .was_promoted = true,
                         .given_up = end->given_up,
                         .lacks_checkpoint = end->is_local_fault,
                         .seconds = host_seconds() - promoted_began_,
                         .snapshot = {},
                         .best = end->notes.best};
  if (end->stands) {
    checkpoint_->set_parent(promotion_.save_id());
    outcome.folder = checkpoint_->folder_of(outcome.step);
  }
  outcomes.push_back(std::move(outcome));
}

SaveOutcomes CheckpointSaver::finish() {
  enter_phase("save");
  const TraceRange range({TraceCategory::save, "finish save", {}}, "host");
  SaveOutcomes all;
  while (phase_ != Phase::idle || promotion_.under_way()) {
    // The ranks ask each other again and again, and none waits in a collective for another's disk:
    // that would look like a hang.
    const auto end = std::chrono::steady_clock::now() + kAskInterval;
    while ((thread_state() == WriterState::busy || promotion_.state() == WriterState::busy) &&
           std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(kPollInterval);
    }
    const auto is_in = [](WriterState state, WriterState wanted) {
      return std::int64_t{state == wanted ? 1 : 0};
    };
    std::array<std::int64_t, 4> states = {is_in(promotion_.state(), WriterState::done),
                                          is_in(promotion_.state(), WriterState::failed),
                                          is_in(thread_state(), WriterState::done),
                                          is_in(thread_state(), WriterState::failed)};
    comm_.sum(states);
    advance_promotion(states[0] == comm_.world_size(), states[1] > 0, all);
    append(all, advance(states[2] == comm_.world_size(), states[3] > 0));
  }
  return all;
}

}  // namespace tessera
