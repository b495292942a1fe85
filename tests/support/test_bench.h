// Tensors on the device under test, filled and read from the host: what every kernel test needs.
// The same test source serves both backends (TESSERA_TEST_DEVICE, tests/AddTest.cmake).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/device/device_buffer.h"
#include "kernels/device/stream.h"
#include "kernels/kernel_table.h"

namespace tessera::test {

/// A tensor of the device under test and, in f64, exactly the values that it was filled with.
struct TestTensor {
  DeviceBuffer buffer;
  std::vector<double> values;  // empty for one made by `poisoned`

  [[nodiscard]] TensorView view() noexcept { return buffer.view(); }
  /// The view where the tensor has elements, else one with null data: an optional argument.
  [[nodiscard]] TensorView optional() noexcept {
    return buffer.empty() ? TensorView{} : buffer.view();
  }
};

/// One stream, its kernels, and tensors with random content that depends only on how many were made
/// before.
class TestBench {
 public:
  explicit TestBench(Device device);

  [[nodiscard]] Stream& stream() noexcept { return stream_; }
  [[nodiscard]] const KernelTable& kernels() const noexcept { return *kernels_; }
  /// Other kernels from now on, which must outlive the bench.
  void use_kernels(const KernelTable& kernels) noexcept { kernels_ = &kernels; }
  [[nodiscard]] Device device() const noexcept { return stream_.device(); }
  /// The float types that the kernels of this device compute in.
  [[nodiscard]] std::vector<DType> float_types() const;

  /// The numbers rounded to `dtype`.
  [[nodiscard]] TestTensor of(const std::vector<double>& numbers, DType dtype, const Shape& shape);
  /// Normal numbers of this deviation about `mean`.
  [[nodiscard]] TestTensor normal(DType dtype, const Shape& shape, double deviation = 1,
                                  double mean = 0);
  /// Integers in [0, end), i32.
  [[nodiscard]] TestTensor integers(const Shape& shape, Index end);
  /// Every byte 0xFF, NaN in float types: for what a kernel must overwrite, and for workspaces.
  [[nodiscard]] TestTensor poisoned(DType dtype, const Shape& shape);

  /// Waits for the stream, then reads. Numbers of every type fit in f64 but i64 beyond 2^53.
  [[nodiscard]] std::vector<double> read(const ConstTensorView& view);
  /// i64 only.
  [[nodiscard]] std::vector<std::int64_t> read_words(const ConstTensorView& view);

 private:
  Stream stream_;
  const KernelTable* kernels_;
  std::uint64_t tensors_made_ = 0;
};

/// `numbers` as `dtype` holds them.
[[nodiscard]] std::vector<double> rounded(std::vector<double> numbers, DType dtype);
/// Parameters of these master weights: f32 rounded to `dtype` half away from zero.
[[nodiscard]] std::vector<double> params_of(std::vector<double> masters, DType dtype);

/// Ends the program with status 77, "skipped" to CTest, where the device is missing.
void skip_without(DeviceKind kind);

}  // namespace tessera::test
