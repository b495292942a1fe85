#include "optim/state_layout.h"

namespace tessera {

std::string_view array_name(StateArray array) noexcept {
  switch (array) {
    case StateArray::master:
      return "master";
    case StateArray::exp_avg:
      return "exp_avg";
    case StateArray::exp_avg_sq:
      return "exp_avg_sq";
    case StateArray::momentum_buffer:
      return "momentum_buffer";
  }
  return "unknown";
}

}  // namespace tessera
