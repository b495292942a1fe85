// Non-owning views of tensors. They are values: pass them by value, keep them only while the
// DeviceBuffer they look into lives.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "kernels/device/stream.h"

namespace tessera {

/// Element types. The numbers are part of the checkpoint format: never renumber.
enum class DType : std::uint8_t {
  f32 = 0,
  bf16 = 1,
  i32 = 2,
  u8 = 3,
  i64 = 4,
  f64 = 5,
  e4m3 = 6,  // kernels/device/float8.h
  e5m2 = 7,
  u16 = 8
};

[[nodiscard]] std::size_t size_in_bytes(DType dtype);

/// Row-major extents, outermost first. Rank 1 to 4.
class Shape {
 public:
  Shape() noexcept = default;  // rank 0, no elements
  Shape(std::initializer_list<Index> extents);
  [[nodiscard]] int rank() const noexcept { return rank_; }
  /// Requires: 0 <= axis < rank().
  [[nodiscard]] Index operator[](int axis) const;
  [[nodiscard]] Index count() const noexcept;  // elements
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<Index, 4> extents_{};
  int rank_ = 0;
};

/// A contiguous tensor that may be written. `device` is the CPU for host and pinned memory. Data is
/// null where there is none: an optional argument that is not given, or a planned buffer.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  Device device;

  /// Elements [begin, end) of the flattened tensor, as rank 1.
  /// Requires: 0 <= begin <= end <= shape.count().
  [[nodiscard]] TensorView slice(Index begin, Index end) const;
  /// The same elements in another shape. Requires: same count.
  [[nodiscard]] TensorView reshaped(const Shape& other) const;
  [[nodiscard]] Index count() const noexcept { return shape.count(); }
};

/// A contiguous tensor that is only read.
struct ConstTensorView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  Device device;

  ConstTensorView() noexcept = default;
  ConstTensorView(const void* the_data, DType the_dtype, const Shape& the_shape, Device the_device);
  // NOLINTNEXTLINE(google-explicit-constructor): reading what may be written is always safe
  ConstTensorView(const TensorView& view);
  [[nodiscard]] ConstTensorView slice(Index begin, Index end) const;
  [[nodiscard]] ConstTensorView reshaped(const Shape& other) const;
  [[nodiscard]] Index count() const noexcept { return shape.count(); }
};

/// A bfloat16 number on the host: the upper half of a float.
struct BFloat16 {
  std::uint16_t bits;
};
// Both stand here so that loops over them are vectorised.
[[nodiscard]] inline float to_float(BFloat16 value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16U);
}
/// Rounds to nearest even; NaN stays NaN.
[[nodiscard]] inline BFloat16 to_bfloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16U) & 1U);
  const std::uint32_t quiet = bits | 0x400000U;  // a NaN's sign and upper bits kept
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return {static_cast<std::uint16_t>((is_nan ? quiet : rounded) >> 16U)};
}

[[nodiscard]] std::string_view dtype_name(DType dtype);

namespace detail {
template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType kValue = DType::f32;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType kValue = DType::bf16;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType kValue = DType::i32;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType kValue = DType::u8;
};
template <>
struct DTypeOf<std::uint16_t> {
  static constexpr DType kValue = DType::u16;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType kValue = DType::i64;
};
template <>
struct DTypeOf<double> {
  static constexpr DType kValue = DType::f64;
};
[[noreturn]] void throw_wrong_dtype(DType has, DType asked);
}  // namespace detail

/// Typed pointer to the first element. Throws ContractError if the dtype is not that of T.
template <typename T>
[[nodiscard]] T* data_as(const TensorView& view) {
  if (view.dtype != detail::DTypeOf<T>::kValue) {
    detail::throw_wrong_dtype(view.dtype, detail::DTypeOf<T>::kValue);
  }
  return static_cast<T*>(view.data);
}
template <typename T>
[[nodiscard]] const T* data_as(const ConstTensorView& view) {
  if (view.dtype != detail::DTypeOf<T>::kValue) {
    detail::throw_wrong_dtype(view.dtype, detail::DTypeOf<T>::kValue);
  }
  return static_cast<const T*>(view.data);
}

}  // namespace tessera
