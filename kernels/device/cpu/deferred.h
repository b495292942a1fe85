// CPU streams that queue: the order of a GPU, without one.
//
// While a DeferredMode lives, CPU streams made in this process queue their work; it runs when the
// host waits for an event or a stream, one piece at a time, the stream chosen at random among those
// whose next piece is not held back by an event. So every order that the events allow turns up
// sooner or later, and a missing event becomes a wrong result in a test.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::cpu {

struct DeferredScheduler;

class DeferredMode {
 public:
  /// Streams made from now on are deferred. `seed` fixes the order. Only one may live at a time.
  explicit DeferredMode(std::uint64_t seed);
  ~DeferredMode();
  DeferredMode(const DeferredMode&) = delete;
  DeferredMode& operator=(const DeferredMode&) = delete;

  /// Waits on events of this name do nothing from now on, as if the line had been forgotten.
  void ignore_waits_on(std::string event_name);
  /// Names of all events that a stream has waited on so far, sorted, each once.
  [[nodiscard]] std::vector<std::string> waited_names() const;

 private:
  std::unique_ptr<DeferredScheduler> scheduler_;
};

/// Runs all queued work of all deferred streams. Control operations of the communicator call it
/// first, because a rank that blocks there could no longer take part in its queued collectives.
/// Nothing where no DeferredMode lives.
void run_all_deferred();

}  // namespace tessera::cpu
