#include "runtime/run/writer_thread.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/vector_registers.h"
#include "runtime/launch/agree.h"

namespace tessera {
namespace {

// Training goes first where cores are few: a step's copies into the staging memory would else share
// them with the writer. While training waits for the writer, nothing competes. A hint.
void yield_to_training() {
  constexpr int kNice = 10;
  static_cast<void>(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice));
}

}  // namespace

void WriterThread::start(std::function<void()> task) {
  join();
  state_ = WriterState::busy;
  thread_ = std::thread([this, task = std::move(task)] {
    yield_to_training();
    clear_upper_vector_registers();
    try {
      task();
      state_ = WriterState::done;
    } catch (...) {
      state_ = WriterState::failed;  // the task has kept why
    }
  });
}

void WriterThread::join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

std::string failure_text() {
  return failure_of(std::current_exception()).message;
}

Answers gather_answers(Communicator& comm, const std::string& mine) {
  const std::vector<std::string> answers = comm.gather_text(mine);
  Answers made;
  if (std::all_of(answers.begin(), answers.end(),
                  [](const std::string& text) { return text.front() == '+'; })) {
    for (const std::string& text : answers) {
      made.by_rank.push_back(text.substr(1));
    }
    return made;
  }
  const auto cause = std::find_if(answers.begin(), answers.end(), [](const std::string& text) {
    return text.front() != '+' && text.front() != '?';
  });
  TESSERA_REQUIRE(cause != answers.end(), "a rank that failed says why");
  made.failure = fmt::format("rank {}: {}", cause - answers.begin(), cause->substr(1));
  made.mark = cause->front();
  return made;
}

}  // namespace tessera
