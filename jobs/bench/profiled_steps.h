// What a step costs more when it is written down as `train` does: a line of metrics.jsonl, and the
// timeline of `--trace`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "collectives/mpi_session.h"
#include "runtime/monitor/metrics.h"
#include "runtime/monitor/step_trace.h"

namespace tessera::bench {

struct Profiling {
  bool metrics = false;
  bool trace = false;
};

/// Takes steps with and without. Its files are stored in a temporary folder of rank 0 and go with
/// it.
class ProfiledSteps {
 public:
  /// Collective. Keeps references. Throws WriteError.
  ProfiledSteps(const Profiling& profiling, MpiSession& session, Communicator& comm,
                Trainer& trainer, Device device, Index tokens_per_step);
  ~ProfiledSteps();
  ProfiledSteps(const ProfiledSteps&) = delete;
  ProfiledSteps& operator=(const ProfiledSteps&) = delete;

  StepReport profiled_step();
  /// Writes the timeline, as `train` does after its last step. Collective.
  void finish();
  /// How long the host took to write each step's line; on rank 0.
  [[nodiscard]] const std::vector<double>& metrics_seconds() const noexcept {
    return metrics_seconds_;
  }

 private:
  Trainer& trainer_;
  std::filesystem::path folder_;
  std::unique_ptr<Metrics> metrics_;  // rank 0 alone
  std::unique_ptr<StepTrace> trace_;
  std::vector<double> metrics_seconds_;
  TraceSink* listener_ = nullptr;  // while a step is not profiled
};

}  // namespace tessera::bench
