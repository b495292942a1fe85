#include "tests/support/test_bench.h"

#include <cstdio>
#include <cstdlib>

#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "kernels/device/device_backend.h"
#include "kernels/device/float8.h"
#include "kernels/device/master_code.h"
#include "tests/support/compare.h"

namespace tessera::test {
namespace {

// Status that CTest takes for "skipped" (SKIP_RETURN_CODE).
constexpr int kSkipped = 77;

void put(double number, Index at, const TensorView& host) {
  switch (host.dtype) {
    case DType::f32:
      data_as<float>(host)[at] = static_cast<float>(number);
      return;
    case DType::bf16:
      data_as<BFloat16>(host)[at] = to_bfloat16(static_cast<float>(number));
      return;
    case DType::i32:
      data_as<std::int32_t>(host)[at] = static_cast<std::int32_t>(number);
      return;
    case DType::u8:
      data_as<std::uint8_t>(host)[at] = static_cast<std::uint8_t>(number);
      return;
    case DType::u16:
      data_as<std::uint16_t>(host)[at] = static_cast<std::uint16_t>(number);
      return;
    case DType::i64:
      data_as<std::int64_t>(host)[at] = static_cast<std::int64_t>(number);
      return;
    case DType::f64:
      data_as<double>(host)[at] = number;
      return;
    case DType::e4m3:
      data_as<Float8E4M3>(host)[at] = to_e4m3(static_cast<float>(number));
      return;
    case DType::e5m2:
      data_as<Float8E5M2>(host)[at] = to_e5m2(static_cast<float>(number));
      return;
  }
}

double get(Index at, const ConstTensorView& host) {
  switch (host.dtype) {
    case DType::f32:
      return data_as<float>(host)[at];
    case DType::bf16:
      return to_float(data_as<BFloat16>(host)[at]);
    case DType::i32:
      return data_as<std::int32_t>(host)[at];
    case DType::u8:
      return data_as<std::uint8_t>(host)[at];
    case DType::u16:
      return data_as<std::uint16_t>(host)[at];
    case DType::i64:
      return static_cast<double>(data_as<std::int64_t>(host)[at]);
    case DType::f64:
      return data_as<double>(host)[at];
    case DType::e4m3:
      return to_float(data_as<Float8E4M3>(host)[at]);
    case DType::e5m2:
      return to_float(data_as<Float8E5M2>(host)[at]);
  }
  return 0;
}

DeviceBuffer host_buffer(DType dtype, const Shape& shape) {
  return {Device{}, MemoryKind::host, dtype, shape, "test.host"};
}

}  // namespace

TestBench::TestBench(Device device)
    : stream_(device, StreamPriority::normal, "test"), kernels_(&kernel_table(device.kind)) {}

std::vector<DType> TestBench::float_types() const {
  return device().kind == DeviceKind::cpu ? std::vector<DType>{DType::f32}
                                          : std::vector<DType>{DType::f32, DType::bf16};
}

TestTensor TestBench::of(const std::vector<double>& numbers, DType dtype, const Shape& shape) {
  TESSERA_REQUIRE(static_cast<Index>(numbers.size()) == shape.count(), "one number an element");
  DeviceBuffer host = host_buffer(dtype, shape);
  TestTensor tensor{DeviceBuffer(device(), MemoryKind::device, dtype, shape, "test"), {}};
  tensor.values.resize(numbers.size());
  for (Index i = 0; i < shape.count(); ++i) {
    put(numbers[static_cast<std::size_t>(i)], i, host.view());
    tensor.values[static_cast<std::size_t>(i)] = get(i, host.view());
  }
  copy_async(host.view(), tensor.view(), stream_);
  stream_.synchronize();
  return tensor;
}

TestTensor TestBench::normal(DType dtype, const Shape& shape, double deviation, double mean) {
  const std::uint64_t number = tensors_made_++;
  std::vector<double> numbers(static_cast<std::size_t>(shape.count()));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = mean + deviation * tessera::normal(kSeed, number, i);
  }
  return of(numbers, dtype, shape);
}

TestTensor TestBench::integers(const Shape& shape, Index end) {
  const std::uint64_t number = tensors_made_++;
  std::vector<double> numbers(static_cast<std::size_t>(shape.count()));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<double>(static_cast<Index>(philox(kSeed, number, i)[0]) % end);
  }
  return of(numbers, DType::i32, shape);
}

TestTensor TestBench::poisoned(DType dtype, const Shape& shape) {
  TestTensor tensor{DeviceBuffer(device(), MemoryKind::device, dtype, shape, "test"), {}};
  poison_async(tensor.view(), stream_);
  stream_.synchronize();
  return tensor;
}

std::vector<double> TestBench::read(const ConstTensorView& view) {
  DeviceBuffer host = host_buffer(view.dtype, view.shape);
  copy_async(view, host.view(), stream_);
  stream_.synchronize();
  std::vector<double> numbers(static_cast<std::size_t>(view.count()));
  for (Index i = 0; i < view.count(); ++i) {
    numbers[static_cast<std::size_t>(i)] = get(i, host.view());
  }
  return numbers;
}

std::vector<std::int64_t> TestBench::read_words(const ConstTensorView& view) {
  DeviceBuffer host = host_buffer(DType::i64, view.shape);
  copy_async(view, host.view(), stream_);
  stream_.synchronize();
  const auto* words = data_as<std::int64_t>(host.view());
  return {words, words + view.count()};
}

std::vector<double> rounded(std::vector<double> numbers, DType dtype) {
  for (double& number : numbers) {
    const auto single = static_cast<float>(number);
    number = dtype == DType::bf16 ? to_float(to_bfloat16(single)) : single;
  }
  return numbers;
}

std::vector<double> params_of(std::vector<double> masters, DType dtype) {
  for (double& number : masters) {
    const auto single = static_cast<float>(number);
    number = dtype == DType::bf16 ? to_float(param_of(single)) : single;
  }
  return masters;
}

void skip_without(DeviceKind kind) {
  if (device_count(kind) == 0) {
    (void)std::fputs("skipped: no device of this kind here\n", stderr);
    std::exit(kSkipped);
  }
}

}  // namespace tessera::test
