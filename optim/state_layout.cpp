#include "optim/state_layout.h"

#include <array>

namespace tessera {
namespace {

struct NamedArray {
  StateArray array;
  std::string_view name;
};
// A further array is a row here and an enumerator, in the same order.
constexpr std::array kArrays = {
    NamedArray{StateArray::master, "master"},
    NamedArray{StateArray::exp_avg, "exp_avg"},
    NamedArray{StateArray::exp_avg_sq, "exp_avg_sq"},
};

constexpr bool is_in_order() {
  for (std::size_t i = 0; i < kArrays.size(); ++i) {
    if (static_cast<std::size_t>(kArrays[i].array) != i) {
      return false;
    }
  }
  return true;
}
static_assert(is_in_order());

}  // namespace

std::string_view array_name(StateArray array) noexcept {
  return kArrays[static_cast<std::size_t>(array)].name;
}

std::optional<StateArray> find_array(std::string_view name) noexcept {
  for (const NamedArray& row : kArrays) {
    if (row.name == name) {
      return row.array;
    }
  }
  return std::nullopt;
}

}  // namespace tessera
