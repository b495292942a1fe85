#include "kernels/base/trace.h"

#include <algorithm>
#include <array>

namespace tessera {

namespace trace {

std::atomic<TraceSink*>& sink() noexcept {
  static std::atomic<TraceSink*> the_sink{nullptr};
  return the_sink;
}

std::atomic<const ProfilerRanges*>& profiler() noexcept {
  static std::atomic<const ProfilerRanges*> the_profiler{nullptr};
  return the_profiler;
}

}  // namespace trace

namespace {

// "backward block.3", cut where it is too long.
void push(const ProfilerRanges& profiler, const TraceLabel& label) noexcept {
  constexpr std::size_t kLongest = 64;
  std::array<char, kLongest> text{};
  char* const last = text.data() + text.size() - 1;
  const auto append = [last](char* at, std::string_view part) {
    return std::copy_n(part.data(), std::min<std::ptrdiff_t>(std::ssize(part), last - at), at);
  };
  char* at = append(text.data(), label.name);
  if (!label.detail.empty()) {
    at = append(append(at, " "), label.detail);
  }
  *at = '\0';
  profiler.push(text.data());
}

}  // namespace

TraceRange::TraceRange(const TraceLabel& label, Stream& stream)
    : sink_(trace::sink().load(std::memory_order_acquire)),
      profiler_(trace::profiler().load(std::memory_order_relaxed)),
      stream_(&stream) {
  if (sink_ != nullptr) {
    number_ = sink_->begin(label, stream);
  }
  if (profiler_ != nullptr) {
    push(*profiler_, label);
  }
}

TraceRange::TraceRange(const TraceLabel& label, const char* lane)
    : sink_(trace::sink().load(std::memory_order_acquire)),
      profiler_(trace::profiler().load(std::memory_order_relaxed)) {
  if (sink_ != nullptr) {
    number_ = sink_->begin(label, lane);
  }
  if (profiler_ != nullptr) {
    push(*profiler_, label);
  }
}

TraceRange::~TraceRange() {
  if (profiler_ != nullptr) {
    profiler_->pop();
  }
  if (sink_ != nullptr) {
    sink_->end(number_, stream_);
  }
}

}  // namespace tessera
