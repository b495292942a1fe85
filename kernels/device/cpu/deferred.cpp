#include "kernels/device/cpu/deferred.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <set>

#include "kernels/base/error.h"
#include "kernels/base/log.h"
#include "kernels/device/cpu/deferred_queue.h"
#include "kernels/device/cpu/submit.h"

namespace tessera::cpu {
namespace {

// One piece of work, or a wait: then `event` is set, and the piece may go once `event` has passed
// `number`.
struct Piece {
  std::function<void()> work;
  std::shared_ptr<DeferredEvent> event;
  std::uint64_t number = 0;

  [[nodiscard]] bool may_run() const { return event == nullptr || event->passed >= number; }
};

struct Queue {
  std::deque<Piece> pieces;
};

}  // namespace

struct DeferredScheduler {
  std::mt19937_64 random;
  std::vector<std::unique_ptr<Queue>> queues;
  std::set<std::string> waited;
  std::set<std::string> ignored;

  Queue* favourite = nullptr;
  int burst = 0;  // pieces that the favourite may still run before the next choice

  // Runs one piece of a queue chosen at random among those that may continue. A choice holds for a
  // burst of random length, so that one stream can also get far ahead of another. False if all are
  // empty.
  bool run_one() {
    std::vector<Queue*> ready;
    bool anything = false;
    if (burst > 0 && favourite != nullptr && !favourite->pieces.empty() &&
        favourite->pieces.front().may_run()) {
      --burst;
      run_front(*favourite);
      return true;
    }
    for (const auto& queue : queues) {
      if (!queue->pieces.empty()) {
        anything = true;
        if (queue->pieces.front().may_run()) {
          ready.push_back(queue.get());
        }
      }
    }
    if (!anything) {
      return false;
    }
    TESSERA_REQUIRE(!ready.empty(), "queued streams wait for each other");
    constexpr std::uint64_t kBurstKinds = 9;  // 1, 2, 4, ... 256 pieces
    favourite = ready[random() % ready.size()];
    burst = (1 << (random() % kBurstKinds)) - 1;
    run_front(*favourite);
    return true;
  }

  static void run_front(Queue& queue) {
    const Piece piece = std::move(queue.pieces.front());
    queue.pieces.pop_front();
    if (piece.work) {
      piece.work();
    }
  }
};

namespace {

// That of the mode which lives, or null.
struct Living {
  DeferredScheduler* scheduler = nullptr;
};
DeferredScheduler*& scheduler() {
  static Living living;
  return living.scheduler;
}

}  // namespace

DeferredMode::DeferredMode(std::uint64_t seed) : scheduler_(std::make_unique<DeferredScheduler>()) {
  TESSERA_REQUIRE(scheduler() == nullptr, "one DeferredMode at a time");
  scheduler_->random.seed(seed);
  scheduler() = scheduler_.get();
}

DeferredMode::~DeferredMode() {
  scheduler() = nullptr;
}

void DeferredMode::ignore_waits_on(std::string event_name) {
  scheduler_->ignored.insert(std::move(event_name));
}

std::vector<std::string> DeferredMode::waited_names() const {
  return {scheduler_->waited.begin(), scheduler_->waited.end()};
}

void run_all_deferred() {
  if (scheduler() != nullptr) {
    while (scheduler()->run_one()) {
    }
  }
}

void* make_deferred_stream() {
  if (scheduler() == nullptr) {
    return nullptr;
  }
  scheduler()->queues.push_back(std::make_unique<Queue>());
  return scheduler()->queues.back().get();
}

void release_deferred_stream(void* stream) noexcept {
  if (stream == nullptr || scheduler() == nullptr) {
    return;
  }
  try {
    run_until_stream_is_empty(stream);
  } catch (const std::exception& error) {
    log_line(LogLevel::error, error.what());
  }
  if (scheduler()->favourite == stream) {
    scheduler()->favourite = nullptr;
  }
  std::erase_if(scheduler()->queues, [stream](const auto& queue) { return queue.get() == stream; });
}

void defer(Stream& stream, std::function<void()> work) {
  static_cast<Queue*>(stream.handle())->pieces.push_back({std::move(work), nullptr, 0});
}

void defer_wait(void* stream, std::shared_ptr<DeferredEvent> event) {
  scheduler()->waited.insert(event->name);
  if (!scheduler()->ignored.contains(event->name)) {
    const std::uint64_t number = event->recorded;
    static_cast<Queue*>(stream)->pieces.push_back({{}, std::move(event), number});
  }
}

void run_until_stream_is_empty(void* stream) {
  const auto* queue = static_cast<Queue*>(stream);
  while (!queue->pieces.empty()) {
    scheduler()->run_one();
  }
}

void run_until_passed(const DeferredEvent& event) {
  const std::uint64_t number = event.recorded;
  while (event.passed < number) {
    TESSERA_REQUIRE(scheduler() != nullptr && scheduler()->run_one(),
                    "an event was recorded in a stream that is gone");
  }
}

}  // namespace tessera::cpu
