#include "jobs/bench/profiled_steps.h"

#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

#include "collectives/mpi_control.h"
#include "kernels/base/error.h"
#include "runtime/launch/agree.h"

namespace tessera::bench {
namespace {

std::filesystem::path make_folder() {
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  if (error) {
    throw WriteError(fmt::format("no folder for temporary files (TMPDIR): {}", error.message()),
                     TESSERA_HERE);
  }
  std::string name = (temporary / "tessera-bench-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw WriteError(fmt::format("cannot make a folder {}: {}", name, std::strerror(errno)),
                     TESSERA_HERE);
  }
  return name;
}

}  // namespace

ProfiledSteps::ProfiledSteps(const Profiling& profiling, MpiSession& session, Communicator& comm,
                             Trainer& trainer, Device device, Index tokens_per_step)
    : trainer_(trainer) {
  constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
  folder_ = agree(session, [&]() -> std::filesystem::path {
    if (comm.rank() != 0) {
      return {};
    }
    std::filesystem::path folder = make_folder();
    if (profiling.metrics) {
      metrics_ =
          std::make_unique<Metrics>(MetricsOptions{.out = folder,
                                                   .steps = kForever,
                                                   .tokens_per_step = tokens_per_step,
                                                   .log_every = kForever,
                                                   .continue_after = trainer.position().step});
    }
    return folder;
  });
  if (profiling.trace) {
    trace_ = std::make_unique<StepTrace>(
        StepTraceOptions{.file = folder_ / "trace.json",
                         .first = 1,
                         .last = kForever,
                         .clock_offset = session.control().clock_offset(&StepTrace::clock),
                         .host = session.host()},
        comm, device);
  }
}

ProfiledSteps::~ProfiledSteps() {
  metrics_.reset();
  trace_.reset();
  if (!folder_.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
}

StepReport ProfiledSteps::profiled_step() {
  if (trace_) {
    trace_->begin_step(trainer_.position().step + 1);
    if (listener_ != nullptr) {
      trace::sink().store(listener_, std::memory_order_release);
    }
  }
  StepReport report = trainer_.step();
  if (metrics_) {
    const double start = StepTrace::clock();
    metrics_->step(report, {.skipped_in_all = 0, .warning = {}});
    metrics_seconds_.push_back(StepTrace::clock() - start);
  }
  if (trace_) {
    (void)trace_->end_step(report.step);
    listener_ = trace::sink().exchange(nullptr, std::memory_order_acq_rel);
  }
  return report;
}

void ProfiledSteps::finish() {
  if (!trace_) {
    return;
  }
  const auto outcome = trace_->finish();
  if (outcome && !outcome->written) {
    throw WriteError(outcome->message, TESSERA_HERE);
  }
}

}  // namespace tessera::bench
