// How long a stream stood still at marked places of a step: on CUDA the time between two events
// around a wait, on the CPU (where queueing runs the work) the host's time between them.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/device/stream.h"

namespace tessera {

class WaitClock {
 public:
  explicit WaitClock(Device device) noexcept : device_(device) {}

  /// What `stream` waits for between the two calls is counted; a begin without an end is forgotten.
  /// The marks are kept and used again after `take_seconds`: a step that marks no more places than
  /// an earlier one allocates nothing.
  void begin(Stream& stream);
  void end(Stream& stream);
  /// Sum of the places marked since the last call. Requires: the marked work is done.
  [[nodiscard]] double take_seconds();

 private:
  struct Mark {
    Event from;
    Event to;
  };
  Device device_;
  std::vector<Mark> marks_;
  std::size_t used_ = 0;
};

}  // namespace tessera
