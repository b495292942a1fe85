#include "runtime/run/checkpoint_saver.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/log.h"
#include "kernels/base/progress.h"
#include "kernels/base/trace.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/checkpoint/shard_writer.h"
#include "runtime/launch/agree.h"

namespace tessera {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(2);
constexpr auto kAskInterval = std::chrono::milliseconds(100);

// Training goes first where cores are few: a step's copies into the staging memory would else share
// them with the writer. While training waits for the writer, nothing competes. A hint.
void yield_to_training() {
  constexpr int kNice = 10;
  static_cast<void>(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice));
}

}  // namespace

CheckpointSaver::CheckpointSaver(const SaverOptions& options, Communicator& comm, ShardState& shard,
                                 PageSweep& optimizer, Arena& arena)
    : options_(options),
      comm_(comm),
      shard_(shard),
      snapshot_(shard, optimizer, options.staging_bytes, arena),
      table_(param_table(shard.layout())) {}

CheckpointSaver::~CheckpointSaver() {
  snapshot_.abandon();
  join();
}

void CheckpointSaver::join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

void CheckpointSaver::start_thread(void (CheckpointSaver::*work)()) {
  join();
  thread_state_ = WriterState::busy;
  thread_ = std::thread([this, work] {
    yield_to_training();
    try {
      (this->*work)();
      thread_state_ = WriterState::done;
    } catch (...) {
      failure_ = failure_of(std::current_exception()).message;
      thread_state_ = WriterState::failed;
    }
  });
}

std::optional<SaveOutcome> CheckpointSaver::begin(ManifestInfo info) {
  TESSERA_REQUIRE(phase_ == Phase::idle, "one save at a time");
  enter_phase("save");
  const TraceRange range({TraceCategory::save, "begin save", {}}, "host");
  began_ = host_seconds();
  info_ = std::move(info);
  info_.world_size = comm_.world_size();
  info_.parent_save_id = parent_save_id_;
  failure_.clear();
  // Rank 0's answer to all: the identity and the folder, or why there is none.
  std::string answer;
  if (comm_.rank() == 0) {
    const std::string save_id = new_uuid();
    try {
      answer = "+" + save_id +
               make_save_folder(options_.run_folder, {save_id, info_.step}).filename().string();
    } catch (const std::exception&) {
      answer = "-" + failure_of(std::current_exception()).message;
    }
  }
  answer = comm_.gather_text(answer).front();
  if (answer.front() == '-') {
    save_folder_.clear();
    failure_ = answer.substr(1);
    return failed();
  }
  constexpr std::size_t kUuidLength = 36;
  info_.save_id = answer.substr(1, kUuidLength);
  save_folder_ = options_.run_folder / answer.substr(1 + kUuidLength);
  snapshot_.begin();
  phase_ = Phase::writing;
  start_thread(&CheckpointSaver::write_shard);
  return std::nullopt;
}

// On the writer thread.
void CheckpointSaver::write_shard() {
  const TraceRange range({TraceCategory::save, "write shard", {}}, "save");
  try {
    ShardWriter writer({.save_folder = save_folder_,
                        .identity = {info_.save_id, info_.step},
                        .spec = shard_spec(table_.units, comm_.rank(), comm_.world_size()),
                        .arrays = shard_.numbers(),
                        .hook = {}});
    writer.create();
    std::vector<float> decoded;
    snapshot_.take_all([&](const StatePage& page, const PageContents& contents) {
      const Index real =
          std::clamp<Index>(shard_.real_count(page.unit) - page.begin, 0, page.count);
      if (real == 0) {
        return;
      }
      const Index offset =
          writer.spec().slices.at(static_cast<std::size_t>(page.unit)).offset + page.begin;
      for (const StateArraySpec& spec : shard_.numbers().arrays()) {
        const StoredNumbers stored =
            stored_numbers(shard_.state_layout(), spec.array, contents.state, contents.params,
                           page.count, 0, page.count);
        std::span<const float> numbers = decoded;
        if (stored.spec == spec) {
          numbers = {data_as<float>(stored.values), static_cast<std::size_t>(page.count)};
        } else {
          decoded.resize(static_cast<std::size_t>(page.count));
          decode(stored, decoded);
          numbers = decoded;
        }
        writer.write(spec.array, offset, numbers.first(static_cast<std::size_t>(real)));
      }
    });
    summary_ = writer.finish();
  } catch (...) {
    snapshot_.abandon();
    throw;
  }
}

// On rank 0's writer thread.
void CheckpointSaver::commit() {
  const TraceRange range({TraceCategory::save, "commit", {}}, "save");
  const CommitResult result = commit_checkpoint({.run_folder = options_.run_folder,
                                                 .save_folder = save_folder_,
                                                 .info = info_,
                                                 .table = table_,
                                                 .shards = summaries_,
                                                 .retention = options_.retention,
                                                 .verified = &verified_});
  committed_ = result.folder;
  problems_ = result.problems;
  best_ = result.best;
}

// A rank that has nothing to do in this phase says done.
WriterState CheckpointSaver::thread_state() {
  if (phase_ == Phase::idle) {
    return WriterState::idle;
  }
  if (phase_ == Phase::committing && comm_.rank() != 0) {
    return WriterState::done;
  }
  return thread_state_;
}

void CheckpointSaver::contribute(StepExchange& exchange) {
  exchange.set_writer(thread_state());
}

std::optional<SaveOutcome> CheckpointSaver::heard(const StepExchange& exchange) {
  return advance(exchange.writers(WriterState::done) == comm_.world_size(),
                 exchange.writers(WriterState::failed) > 0);
}

// The ranks agree on how far the save is; every rank comes here with the same arguments.
std::optional<SaveOutcome> CheckpointSaver::advance(bool all_done, bool any_failed) {
  if (phase_ == Phase::idle) {
    return std::nullopt;
  }
  if (any_failed) {
    return failed();
  }
  if (!all_done) {
    return std::nullopt;
  }
  if (phase_ == Phase::writing) {
    join();
    const std::vector<std::string> texts = comm_.gather_text(summary_.to_text());
    summaries_.clear();
    for (const std::string& text : texts) {
      summaries_.push_back(ShardSummary::from_text(text));
    }
    phase_ = Phase::committing;
    if (comm_.rank() == 0) {
      start_thread(&CheckpointSaver::commit);
    }
    return std::nullopt;
  }
  join();
  phase_ = Phase::idle;
  parent_save_id_ = info_.save_id;
  for (const std::string& problem : problems_) {
    log_line(LogLevel::warning, problem);
  }
  problems_.clear();
  return SaveOutcome{.step = info_.step,
                     .saved = true,
                     .folder = options_.run_folder / step_folder_name(info_.step),
                     .message = {},
                     .seconds = host_seconds() - began_,
                     .snapshot = snapshot_.report(),
                     .best = best_};
}

// Every rank's thread ends, rank 0 removes the folder, and all say the same.
SaveOutcome CheckpointSaver::failed() {
  // The message of a thread that is cut short here is not a cause: its shard cannot be whole.
  const std::string cause = thread_state_ == WriterState::busy ? std::string() : failure_;
  snapshot_.abandon();
  join();
  phase_ = Phase::idle;
  const std::vector<std::string> causes = comm_.gather_text(cause);
  std::string message;
  for (std::size_t rank = 0; rank < causes.size(); ++rank) {
    if (!causes[rank].empty() && message.empty()) {
      message = fmt::format("rank {}: {}", rank, causes[rank]);
    }
  }
  if (comm_.rank() == 0 && !save_folder_.empty()) {
    std::error_code error;
    std::filesystem::remove_all(save_folder_, error);
    if (error) {
      log_line(LogLevel::warning,
               fmt::format("cannot remove {}: {}", save_folder_.string(), error.message()));
    }
  }
  return {.step = info_.step,
          .saved = false,
          .folder = {},
          .message = message,
          .seconds = host_seconds() - began_,
          .snapshot = snapshot_.report(),
          .best = {}};
}

std::optional<SaveOutcome> CheckpointSaver::finish() {
  enter_phase("save");
  const TraceRange range({TraceCategory::save, "finish save", {}}, "host");
  while (phase_ != Phase::idle) {
    // The ranks ask each other again and again, and none waits in a collective for another's disk:
    // that would look like a hang.
    const auto end = std::chrono::steady_clock::now() + kAskInterval;
    while (thread_state() == WriterState::busy && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(kPollInterval);
    }
    std::array<std::int64_t, 2> states = {thread_state() == WriterState::done ? 1 : 0,
                                          thread_state() == WriterState::failed ? 1 : 0};
    comm_.sum(states);
    std::optional<SaveOutcome> outcome = advance(states[0] == comm_.world_size(), states[1] > 0);
    if (outcome) {
      return outcome;
    }
  }
  return std::nullopt;
}

}  // namespace tessera
