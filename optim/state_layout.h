// The arrays that an optimizer keeps for each element of a shard, as a list: what pages,
// page_sweep, plan, estimate, statistics and checkpoint read instead of knowing an optimizer.
//
// A page of `count` elements (a multiple of 1024) stores its arrays one after the other, each as
// `count` values and then, where the array has them, its scales:
//
//   | values of arrays[0] | scales of arrays[0] | values of arrays[1] | ...
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/device/tensor_view.h"

namespace tessera {

/// All arrays that any optimizer keeps. The numbers are not part of a file format; the names are.
enum class StateArray : std::uint8_t {
  master,
  exp_avg,
  exp_avg_sq,
  momentum_buffer,
  master_remainder  // of `master`, beside the bf16 parameter (kernels/device/master_code.h)
};
/// "master", "exp_avg", ...
[[nodiscard]] std::string_view array_name(StateArray array) noexcept;

/// One array of a layout.
struct StateArraySpec {
  StateArray array;
  DType dtype = DType::f32;        // of its values in a page
  Index block_elements = 0;        // that share a scale, a divisor of 1024; 0: no scales
  DType scale_dtype = DType::f32;  // where there are scales

  [[nodiscard]] Index scales(Index count) const noexcept {
    return block_elements == 0 ? 0 : count / block_elements;
  }
  [[nodiscard]] std::size_t bytes(Index count) const noexcept {
    return static_cast<std::size_t>(count) * size_in_bytes(dtype) +
           static_cast<std::size_t>(scales(count)) * size_in_bytes(scale_dtype);
  }
  friend bool operator==(const StateArraySpec&, const StateArraySpec&) = default;
};

/// How an optimizer stores master weights: f32, or the remainders beside bf16 parameters.
[[nodiscard]] constexpr StateArraySpec master_spec(bool packed) {
  return packed ? StateArraySpec{StateArray::master_remainder, DType::u16}
                : StateArraySpec{StateArray::master};
}

/// In what an optimizer stores its moments.
enum class MomentType : std::uint8_t { f32, bf16, bits8 };
/// "f32", "bf16", "8bit".
[[nodiscard]] std::string_view moment_name(MomentType type) noexcept;
/// The type of this name, if there is one.
[[nodiscard]] std::optional<MomentType> find_moments(std::string_view name) noexcept;
/// An array of moments: f32, bf16, or u8 in blocks of 256 (kernels/device/moment_code.h).
[[nodiscard]] StateArraySpec moment_spec(StateArray array, MomentType type);

class StateLayout {
 public:
  StateLayout() = default;
  StateLayout(std::initializer_list<StateArraySpec> arrays) : arrays_(arrays) {}

  [[nodiscard]] std::span<const StateArraySpec> arrays() const noexcept { return arrays_; }
  [[nodiscard]] std::size_t size() const noexcept { return arrays_.size(); }
  [[nodiscard]] bool has(StateArray array) const noexcept { return place_of(array) < size(); }
  /// The place of `array` in the list. Throws ContractError where the layout has no such array.
  [[nodiscard]] std::size_t number_of(StateArray array) const {
    const std::size_t place = place_of(array);
    TESSERA_REQUIRE(place < size(), "an array that the optimizer keeps");
    return place;
  }
  /// Master weights are stored as parameters and remainders.
  [[nodiscard]] bool packs_masters() const noexcept { return has(StateArray::master_remainder); }
  /// The array that stores the numbers of `array`: itself, or `master_remainder` those of `master`.
  /// Throws ContractError where there is none.
  [[nodiscard]] const StateArraySpec& storage_of(StateArray array) const {
    const bool is_packed = array == StateArray::master && packs_masters();
    return arrays_[number_of(is_packed ? StateArray::master_remainder : array)];
  }
  /// What the arrays hold, as checkpoints and tools see it: f32, whole masters, no scales.
  [[nodiscard]] StateLayout numbers() const;
  /// Bytes of a page of `count` elements. Requires: a multiple of 1024.
  [[nodiscard]] std::size_t bytes(Index count) const noexcept {
    return offset(arrays_.size(), count);
  }
  /// Where the `number`th array begins in a page of `count` elements.
  [[nodiscard]] std::size_t offset(std::size_t number, Index count) const noexcept {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < number; ++i) {
      bytes += arrays_[i].bytes(count);
    }
    return bytes;
  }
  /// The values of `array` in `page`, a page of `count` elements.
  ///   page    [bytes(count)]  u8
  ///   result  [count]         of the array's dtype
  /// Throws ContractError where the layout has no such array.
  [[nodiscard]] TensorView values(const TensorView& page, Index count, StateArray array) const {
    const std::size_t number = number_of(array);
    const std::size_t begin = offset(number, count);
    auto* const data = static_cast<std::byte*>(page.data);
    return {data == nullptr ? nullptr : data + begin, arrays_[number].dtype, Shape{count},
            page.device};
  }
  /// The scales of `array`'s blocks.  [count / block_elements], without elements where it has none
  [[nodiscard]] TensorView scales(const TensorView& page, Index count, StateArray array) const {
    const StateArraySpec& spec = arrays_[number_of(array)];
    if (spec.block_elements == 0) {
      return {};
    }
    const TensorView all = values(page, count, array);
    auto* const data = static_cast<std::byte*>(all.data);
    const auto bytes = static_cast<std::size_t>(count) * size_in_bytes(spec.dtype);
    return {data == nullptr ? nullptr : data + bytes, spec.scale_dtype, Shape{spec.scales(count)},
            page.device};
  }
  friend bool operator==(const StateLayout&, const StateLayout&) = default;

 private:
  [[nodiscard]] std::size_t place_of(StateArray array) const noexcept {
    const auto found = std::find_if(arrays_.begin(), arrays_.end(),
                                    [array](const auto& spec) { return spec.array == array; });
    return static_cast<std::size_t>(found - arrays_.begin());
  }

  std::vector<StateArraySpec> arrays_;
};

}  // namespace tessera
