#include "kernels/device/tensor_view.h"

#include <string>

#include "kernels/base/error.h"

namespace tessera {

std::size_t size_in_bytes(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::u16:
      return 2;
    case DType::u8:
    case DType::e4m3:
    case DType::e5m2:
      return 1;
    case DType::i64:
    case DType::f64:
      return 8;
  }
  throw ContractError("dtype number " + std::to_string(static_cast<int>(dtype)) + " is unknown",
                      TESSERA_HERE);
}

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::i32:
      return "i32";
    case DType::u8:
      return "u8";
    case DType::i64:
      return "i64";
    case DType::f64:
      return "f64";
    case DType::e4m3:
      return "e4m3";
    case DType::e5m2:
      return "e5m2";
    case DType::u16:
      return "u16";
  }
  return "unknown";
}

Shape::Shape(std::initializer_list<Index> extents) : rank_(static_cast<int>(extents.size())) {
  TESSERA_REQUIRE(extents.size() >= 1 && extents.size() <= 4, "a shape has 1 to 4 extents");
  std::size_t axis = 0;
  for (const Index extent : extents) {
    TESSERA_REQUIRE(extent >= 0, "an extent is not negative");
    extents_[axis++] = extent;
  }
}

Index Shape::operator[](int axis) const {
  TESSERA_REQUIRE(axis >= 0 && axis < rank_,
                  "axis " + std::to_string(axis) + " of a shape of rank " + std::to_string(rank_));
  return extents_[static_cast<std::size_t>(axis)];
}

Index Shape::count() const noexcept {
  if (rank_ == 0) {
    return 0;
  }
  Index product = 1;
  for (int axis = 0; axis < rank_; ++axis) {
    product *= extents_[static_cast<std::size_t>(axis)];
  }
  return product;
}

namespace {

void require_range(Index begin, Index end, Index count) {
  TESSERA_REQUIRE(0 <= begin && begin <= end && end <= count,
                  "slice [" + std::to_string(begin) + ", " + std::to_string(end) + ") of " +
                      std::to_string(count) + " elements");
}

std::size_t byte_offset(Index elements, DType dtype) {
  return static_cast<std::size_t>(elements) * size_in_bytes(dtype);
}

}  // namespace

TensorView TensorView::slice(Index begin, Index end) const {
  require_range(begin, end, count());
  void* first = data == nullptr ? nullptr : static_cast<char*>(data) + byte_offset(begin, dtype);
  return {first, dtype, Shape{end - begin}, device};
}

TensorView TensorView::reshaped(const Shape& other) const {
  TESSERA_REQUIRE(other.count() == count(), "reshaping keeps the number of elements");
  return {data, dtype, other, device};
}

ConstTensorView::ConstTensorView(const void* the_data, DType the_dtype, const Shape& the_shape,
                                 Device the_device)
    : data(the_data), dtype(the_dtype), shape(the_shape), device(the_device) {}

ConstTensorView::ConstTensorView(const TensorView& view)
    : data(view.data), dtype(view.dtype), shape(view.shape), device(view.device) {}

ConstTensorView ConstTensorView::slice(Index begin, Index end) const {
  require_range(begin, end, count());
  const void* first =
      data == nullptr ? nullptr : static_cast<const char*>(data) + byte_offset(begin, dtype);
  return {first, dtype, Shape{end - begin}, device};
}

ConstTensorView ConstTensorView::reshaped(const Shape& other) const {
  TESSERA_REQUIRE(other.count() == count(), "reshaping keeps the number of elements");
  return {data, dtype, other, device};
}

void detail::throw_wrong_dtype(DType has, DType asked) {
  throw ContractError("a tensor of " + std::string(dtype_name(has)) + " was read as " +
                          std::string(dtype_name(asked)),
                      TESSERA_HERE);
}

}  // namespace tessera
