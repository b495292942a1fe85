// What a run says of its options, its data and the step that it continues once it begins.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "runtime/run/config.h"
#include "runtime/run/resume.h"
#include "runtime/run/run_data.h"
#include "runtime/run/train_loop.h"
#include "runtime/run/training_run.h"

namespace tessera {

/// How long the parts of a start take, on this rank.
class StartTimes {
 public:
  /// The part that began with the last call, or with this object, ends.
  void end_part(const char* name);
  struct Part {
    std::string name;
    double seconds;
  };
  [[nodiscard]] std::span<const Part> parts() const noexcept { return parts_; }

 private:
  double begin_ = host_seconds();
  std::vector<Part> parts_;
};
/// Writes them to the metrics, and reports them where they are long or with `verbose`.
void announce_times(TrainLoop& loop, const StartTimes& times, bool verbose);
/// That the batch system ends the job in so many seconds.
void announce_limit(TrainLoop& loop, double seconds);

/// What differs from the run that is continued (`point`), what of the options does nothing, and
/// what the data is, where a user should know.
void announce_run(TrainLoop& loop, const RunConfig& options, TrainingRun& run, RunData& data,
                  const std::optional<ResumePoint>& point);

}  // namespace tessera
