// A piece of memory that the ranks of one host share, in which each says what it is doing. So a
// rank's watchdog can report for a neighbour that is stopped or stuck and can say nothing itself.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/monitor/progress_report.h"

namespace tessera {

class MpiSession;

/// One rank's place. Written by its watchdog's thread alone. Times are of the steady clock, which
/// the processes of a host share.
struct BoardSlot {
  std::atomic<std::int64_t> heartbeat_ns{0};  // last sign of life; 0 before the first
  std::atomic<std::int64_t> progress_ns{0};   // last progress
  std::atomic<bool> left{false};              // its watchdog ended in good order
  std::atomic<bool> loss_claimed{false};      // some neighbour reports that it is gone
  std::atomic<std::int32_t> pid{0};
  std::atomic<std::uint32_t> current{0};  // which of the two copies is valid
  std::array<ProgressSnapshot, 2> copies;
};

class HostBoard {
 public:
  /// Collective. Where a host's ranks cannot share memory (separate containers, no /dev/shm) each
  /// has a board of its own, with a warning.
  explicit HostBoard(MpiSession& session);
  ~HostBoard();
  HostBoard(const HostBoard&) = delete;
  HostBoard& operator=(const HostBoard&) = delete;

  /// Writes this rank's slot. `progress_ns` is the time of its last progress.
  void write(const ProgressSnapshot& snapshot, std::int64_t now_ns,
             std::int64_t progress_ns) noexcept;
  /// This rank needs no watching any more.
  void leave() noexcept;
  /// True for the first rank of the host that asks: it reports for all.
  [[nodiscard]] bool claim_report() noexcept;
  /// Index of a neighbour whose process is there no more though it did not leave; -1 if there is
  /// none.
  [[nodiscard]] std::ptrdiff_t lost_neighbour() const noexcept;
  /// True for the first rank of the host that asks about this slot, unless the host's report was
  /// made already: it says everything, and after it processes end.
  [[nodiscard]] bool claim_loss(std::size_t index) noexcept;

  /// Ranks that share the board, ascending; slots are in the same order.
  [[nodiscard]] std::span<const int> ranks() const noexcept { return ranks_; }
  [[nodiscard]] const BoardSlot& slot(std::size_t index) const noexcept;
  [[nodiscard]] static ProgressSnapshot last_snapshot(const BoardSlot& slot) noexcept;

 private:
  struct Header;

  [[nodiscard]] BoardSlot* slots() const noexcept;

  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<int> ranks_;
  std::size_t own_ = 0;            // index of this rank's slot
  std::vector<char> pid_is_seen_;  // by slot: this process can look for that one
};

}  // namespace tessera
