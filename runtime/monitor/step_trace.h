// `train --trace FIRST:LAST`: where the time of a few steps goes, on all ranks, as one file that
// Chrome's tracing page and Perfetto open. Nothing is made, and nothing is recorded, outside those
// steps.
//
// OUT/trace.json (the "JSON Object Format" of Google's Trace Event Format):
//   traceEvents  an array of
//     {"name","cat","ph":"X","ts","dur","pid","tid","args":{"step","unit"}}   a range
//       cat       compute, exchange, gather, paging, save, data, host, or exposed: the compute
//                 stream waits for communication, paging or the update, and does nothing else
//       ts, dur   microseconds since the trace began, on rank 0's clock, with nanoseconds
//       pid, tid  rank, and lane: host, compute, communication, page in, update, page out, data
//                 (the loader's thread), save (the writer's)
//       args      step: the step under way when the range was queued; unit: of the parameters
//     {"ph":"M", ...}  names of ranks and lanes
//   otherData      first_step, last_step, ranks, device
// Ranges of one lane nest and do not overlap otherwise. Those of streams are timed by events of
// their device: begin and end of the work, whenever it was queued. On a CPU a stream's work runs in
// the thread that queues it, so that everything but the compute lane's own work is exposed.
#pragma once

#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "kernels/base/output_file.h"
#include "kernels/base/trace.h"
#include "kernels/device/stream.h"

namespace tessera {

struct StepTraceOptions {
  std::filesystem::path file;
  std::int64_t first = 0;  // steps, both included
  std::int64_t last = 0;
  double clock_offset = 0;  // MpiControl::clock_offset of `StepTrace::clock`
  std::string host;         // this machine's name
};

/// What became of the file; on rank 0.
struct TraceOutcome {
  bool written = false;
  std::string message;
};

/// What OUT/trace.json may take the place of: an older one.
[[nodiscard]] OutputRules trace_file_rules();

class StepTrace final : public TraceSink {
 public:
  /// Host seconds, the clock of all ranges.
  [[nodiscard]] static double clock();

  /// Keeps a reference to `comm`. Collective where FIRST:LAST begins and ends.
  StepTrace(StepTraceOptions options, Communicator& comm, Device device);
  ~StepTrace() override;
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  /// Before step `step`: listens from the first on. Collective.
  void begin_step(std::int64_t step);
  /// After `step` and what follows it: after the last, waits for the devices, gathers the ranks'
  /// ranges and writes the file whole or not at all. Collective.
  [[nodiscard]] std::optional<TraceOutcome> end_step(std::int64_t step);
  /// The run ends: writes what there is if the trace has begun. Collective.
  [[nodiscard]] std::optional<TraceOutcome> finish();

  std::int64_t begin(const TraceLabel& label, Stream& stream) override;
  std::int64_t begin(const TraceLabel& label, const char* lane) override;
  void end(std::int64_t number, Stream* stream) noexcept override;

 private:
  struct Range {
    TraceLabel label;
    std::string lane;
    std::int64_t step;
    Event* from = nullptr;  // of a stream
    Event* to = nullptr;
    double begin = 0;  // of the host, seconds
    double end = 0;    // 0: has not ended
    bool ended = false;
  };

  std::int64_t add(Range range);
  [[nodiscard]] std::string events_text();
  [[nodiscard]] TraceOutcome write(const std::vector<std::string>& parts) const;

  StepTraceOptions options_;
  Communicator& comm_;
  Device device_;
  Stream clock_stream_;  // where the device's clock is set beside the host's
  std::int64_t step_ = 0;
  std::int64_t first_ = 0;  // that was listened to
  double origin_ = 0;       // begin of the trace on rank 0's clock
  double base_host_ = 0;    // this host's clock at `base_`
  std::optional<Event> base_;
  bool listening_ = false;
  bool done_ = false;

  std::mutex mutex_;  // guards what follows: ranges come from several threads
  std::deque<Range> ranges_;
  std::deque<Event> events_;
  std::string failure_;
};

}  // namespace tessera
