// Ranges of work with a name, for people: in the timeline of `train --trace`, and in Nsight. Where
// neither listens, a range costs two loads. What becomes of the ranges is the sink's business
// (runtime/monitor/step_trace.h); which profiler listens is the device backend's.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace tessera {

class Stream;

/// `exposed` is the time in which the compute stream waits for communication or paging.
enum class TraceCategory : std::uint8_t {
  compute,
  exchange,
  gather,
  paging,
  save,
  data,
  host,
  exposed,
};

struct TraceLabel {
  TraceCategory category;
  const char* name;         // a literal: "backward"
  std::string_view detail;  // "block.3", or empty; outlives the sink
};

/// Takes ranges from any thread.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  /// A range begins in a lane: a stream's, at the end of the work queued there so far; or one of
  /// this name, a literal, now. Returns its number.
  virtual std::int64_t begin(const TraceLabel& label, Stream& stream) = 0;
  virtual std::int64_t begin(const TraceLabel& label, const char* lane) = 0;
  /// Its end. What fails here is kept until the ranges are asked for.
  virtual void end(std::int64_t number, Stream* stream) noexcept = 0;
};

/// A profiler's ranges, nested in each thread. `name` need not outlive the call.
struct ProfilerRanges {
  void (*push)(const char* name) noexcept;
  void (*pop)() noexcept;
};

namespace trace {
/// Whoever listens at present; null: nobody. Ranges that have begun still end in the sink they
/// began in, which therefore outlives them.
[[nodiscard]] std::atomic<TraceSink*>& sink() noexcept;
[[nodiscard]] std::atomic<const ProfilerRanges*>& profiler() noexcept;
}  // namespace trace

/// A range from construction to destruction.
class TraceRange {
 public:
  /// In stream order, timed by the stream's device.
  TraceRange(const TraceLabel& label, Stream& stream);
  /// On the host. `lane` is a literal: "host", "data", "save".
  TraceRange(const TraceLabel& label, const char* lane);
  ~TraceRange();
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  TraceSink* sink_;
  const ProfilerRanges* profiler_;
  Stream* stream_ = nullptr;
  std::int64_t number_ = -1;
};

}  // namespace tessera
