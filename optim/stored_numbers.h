// The numbers of an optimizer's array as f32, from and to what a page stores for them: for saving,
// loading and looking at state, in host memory. Updates do the same on the device.
#pragma once

#include <span>

#include "optim/state_layout.h"

namespace tessera {

/// A run of elements of one array, in host memory.
struct StoredNumbers {
  StateArraySpec spec;
  TensorView values;  // [count] of spec.dtype
  TensorView params;  // [count] bf16, or f32 that holds values of bf16: the elements' parameters,
                      // where spec is master_remainder; else without data
  TensorView scales;  // [count / 256] f32, where spec has blocks; else without data
};

/// Elements [begin, begin + count) of what a page stores for `array`, a number of the optimizer
/// (StateLayout::numbers).
///   state   [layout.bytes(elements)]  u8, of a page of `elements` elements
///   params  [elements]                the page's parameters, where the layout packs masters
/// Requires: multiples of least_elements.
[[nodiscard]] StoredNumbers stored_numbers(const StateLayout& layout, StateArray array,
                                           const TensorView& state, const TensorView& params,
                                           Index elements, Index begin, Index count);

/// The least number of elements of an array that are read or written: those of a block.
[[nodiscard]] Index least_elements(const StateArraySpec& spec) noexcept;

/// Reads them: exact in every type. Requires: as many numbers as `from` has elements.
void decode(const StoredNumbers& from, std::span<float> numbers);
/// Writes them, moments in fewer bits rounded to the nearest; with master_remainder their parameters
/// as well.
void encode(std::span<const float> numbers, const StoredNumbers& to);

}  // namespace tessera
