#include "runtime/run/promotion.h"

#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/trace.h"
#include "runtime/checkpoint/run_folder.h"

namespace tessera {
namespace {

// How an answer of a rank begins (gather_answers).
constexpr char kFailed = '-';
constexpr char kGivenUp = '/';
constexpr char kLocalFault = '!';

}  // namespace

Promotion::~Promotion() {
  give_up();
  thread_.join();
}

void Promotion::begin(LocalShard shard, CommitRequest commit) {
  TESSERA_REQUIRE(phase_ == Phase::idle, "one promotion at a time");
  shard_ = std::move(shard);
  commit_ = std::move(commit);
  stop_ = false;
  failure_.clear();
  notes_ = {};
  phase_ = Phase::copying;
  thread_.start([this] { keep_failure([this] { copy(); }); });
}

template <typename Work>
void Promotion::keep_failure(const Work& work) {
  try {
    work();
  } catch (const FormatError&) {  // and DamageError, ReadError
    failure_ = kLocalFault + failure_text();
    throw;
  } catch (...) {
    failure_ = (stop_ ? kGivenUp : kFailed) + failure_text();
    throw;
  }
}

// On the thread of every rank.
void Promotion::copy() {
  const TraceRange range({TraceCategory::save, "promote shard", {}}, "save");
  const std::filesystem::path folder =
      join_save_folder(commit_.run_folder, {shard_.save_id, shard_.step});
  const auto require_wanted = [this] {
    if (stop_) {
      throw WriteError("given up", TESSERA_HERE);
    }
  };
  copy_local_shard(shard_, folder, require_wanted);
  require_wanted();
}

// On the thread of rank 0.
void Promotion::commit() {
  const TraceRange range({TraceCategory::save, "commit promotion", {}}, "save");
  CommitResult result = commit_checkpoint(commit_);
  notes_ = {.problems = std::move(result.problems), .best = std::move(result.best)};
}

WriterState Promotion::state() const noexcept {
  switch (phase_) {
    case Phase::idle:
      return WriterState::idle;
    case Phase::copying:
      break;
    case Phase::committing:
      return comm_.rank() == 0 ? thread_.state() : WriterState::done;
  }
  return thread_.state();
}

std::optional<PromotionEnd> Promotion::advance(bool all_done, bool any_failed) {
  if (phase_ == Phase::idle || (!all_done && !any_failed)) {
    return std::nullopt;
  }
  // What a thread says that is cut short here is not a cause.
  const bool is_cut = any_failed && state() == WriterState::busy;
  const bool was_given_up = stop_;
  stop_ = stop_ || any_failed;
  thread_.join();
  stop_ = was_given_up;
  const Answers answers = gather_answers(comm_, !failure_.empty() && !is_cut ? failure_
                                                : is_cut                     ? "?"
                                                                             : "+");
  if (phase_ == Phase::copying && answers.failure.empty()) {
    phase_ = Phase::committing;
    if (comm_.rank() == 0) {
      thread_.start([this] { keep_failure([this] { commit(); }); });
    }
    return std::nullopt;
  }
  return ended(answers);
}

PromotionEnd Promotion::ended(const Answers& answers) {
  PromotionEnd end = {.stands = answers.failure.empty(),
                      .given_up = answers.mark == kGivenUp,
                      .is_local_fault = answers.mark == kLocalFault,
                      .message = answers.failure,
                      .notes = std::move(notes_)};
  if (!end.stands && phase_ == Phase::copying && comm_.rank() == 0) {
    discard_save(commit_.save_folder);
  }
  phase_ = Phase::idle;
  return end;
}

}  // namespace tessera
