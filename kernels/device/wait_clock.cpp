#include "kernels/device/wait_clock.h"

namespace tessera {

void WaitClock::begin(Stream& stream) {
  if (used_ == marks_.size()) {
    marks_.push_back({Event(device_, "wait.from"), Event(device_, "wait.to")});
  }
  marks_[used_].from.record(stream);
}

void WaitClock::end(Stream& stream) {
  marks_.at(used_).to.record(stream);
  ++used_;
}

double WaitClock::take_seconds() {
  double seconds = 0;
  for (std::size_t i = 0; i < used_; ++i) {
    seconds += marks_[i].to.seconds_since(marks_[i].from);
  }
  used_ = 0;
  return seconds;
}

}  // namespace tessera
