#include "optim/state_layout.h"

#include <array>

#include "kernels/device/moment_code.h"

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
    case StateArray::master_remainder:
      return "master_remainder";
  }
  return "unknown";
}

namespace {
constexpr std::array<std::string_view, 3> kMomentNames = {"f32", "bf16", "8bit"};
}  // namespace

std::string_view moment_name(MomentType type) noexcept {
  return kMomentNames[static_cast<std::size_t>(type)];
}

std::optional<MomentType> find_moments(std::string_view name) noexcept {
  const auto* const found = std::find(kMomentNames.begin(), kMomentNames.end(), name);
  return found == kMomentNames.end()
             ? std::nullopt
             : std::optional(static_cast<MomentType>(found - kMomentNames.begin()));
}

StateArraySpec moment_spec(StateArray array, MomentType type) {
  switch (type) {
    case MomentType::f32:
      return {array};
    case MomentType::bf16:
      return {array, DType::bf16};
    case MomentType::bits8:
      return {array, DType::u8, kMomentBlock, DType::f32};
  }
  throw ContractError("a type of moments", TESSERA_HERE);
}

StateLayout StateLayout::numbers() const {
  StateLayout whole;
  for (const StateArraySpec& spec : arrays_) {
    whole.arrays_.push_back(
        {spec.array == StateArray::master_remainder ? StateArray::master : spec.array});
  }
  return whole;
}

}  // namespace tessera
