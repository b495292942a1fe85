// Control operations among ranks: small, on the host, blocking. Both communicators are built on it,
// and MpiSession has one for the time before there is a communicator.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

class MpiHandle;

/// Has an MPI communicator of its own. Every operation is collective over all ranks, runs what is
/// queued in deferred CPU streams first (kernels/device/cpu/deferred.h), shows in progress.h while
/// it lasts, and throws CommError on a failed call. What each does: collectives/communicator.h.
class MpiControl {
 public:
  /// Collective over all ranks of the process's MpiSession.
  MpiControl();
  ~MpiControl();
  MpiControl(const MpiControl&) = delete;
  MpiControl& operator=(const MpiControl&) = delete;

  void barrier();
  [[nodiscard]] bool all_agree(bool ok);
  void sum(std::span<std::int64_t> values);
  [[nodiscard]] std::vector<std::string> gather_text(std::string_view text);
  /// Seconds to add to `clock` of this rank for rank 0's: from the fastest of many round trips,
  /// whose time is twice the largest error. Exactly 0 on rank 0.
  [[nodiscard]] double clock_offset(const std::function<double()>& clock);

 private:
  std::unique_ptr<MpiHandle> comm_;
};

}  // namespace tessera
