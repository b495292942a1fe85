#include "runtime/plan/product_rate.h"

#include <algorithm>
#include <chrono>

#include "kernels/base/random.h"
#include "kernels/device/device_backend.h"
#include "kernels/device/device_buffer.h"
#include "kernels/gemm.h"
#include "kernels/kernel_table.h"

namespace tessera {
namespace {

constexpr Index kSizeOnCpu = 512;
constexpr Index kSizeOnGpu = 8192;
constexpr int kWarmUp = 3;
constexpr int kOnGpu = 30;
// On a CPU: so many, but for no longer than a start may take.
constexpr int kMostOnCpu = 20;
constexpr double kMostSecondsOnCpu = 0.5;
constexpr Index kPattern = Index{1} << 18;  // elements, over and over: zeros would flatter

DeviceBuffer random_matrix(Index size, DType dtype, Stream& stream) {
  constexpr std::uint64_t kSeed = 1;
  const Device device = stream.device();
  const Index count = std::min(size * size, kPattern);
  DeviceBuffer pattern({}, MemoryKind::host, dtype, {count}, "product rate");
  for (Index i = 0; i < count; ++i) {
    const auto value = static_cast<float>(normal(kSeed, 0, static_cast<std::uint64_t>(i)));
    if (dtype == DType::f32) {
      data_as<float>(pattern.view())[i] = value;
    } else {
      data_as<BFloat16>(pattern.view())[i] = to_bfloat16(value);
    }
  }
  DeviceBuffer matrix(device, MemoryKind::device, dtype, {size * size}, "product rate");
  for (Index at = 0; at < size * size; at += count) {
    copy_async(pattern.view(), matrix.view().slice(at, at + count), stream);
  }
  stream.synchronize();
  return matrix;
}

// Seconds of a product. What else runs on the cores can only slow one down, so the fastest counts;
// the mean on a busy machine is a rate that steps exceed. (A GPU is ours alone, and its clock sinks
// with its load as it does in steps: there the mean counts.)
template <typename SecondsOf>
double fastest_on_cpu(const SecondsOf& seconds_of) {
  double fastest = seconds_of(1);
  double all = fastest;
  for (int i = 1; i < kMostOnCpu && all < kMostSecondsOnCpu; ++i) {
    const double seconds = seconds_of(1);
    all += seconds;
    fastest = std::min(fastest, seconds);
  }
  return fastest;
}

}  // namespace

double measure_product_rate(Communicator& comm, Device device, DType dtype) {
  const bool on_cpu = device.kind == DeviceKind::cpu;
  const Index size = on_cpu ? kSizeOnCpu : kSizeOnGpu;
  Stream stream(device, StreamPriority::normal, "product rate");
  const DeviceBuffer a = random_matrix(size, dtype, stream);
  const DeviceBuffer b = random_matrix(size, dtype, stream);
  DeviceBuffer d(device, MemoryKind::device, dtype, {size, size}, "product rate");
  DeviceBuffer workspace(device, MemoryKind::device, DType::u8,
                         {static_cast<Index>(gemm_workspace_bytes(device.kind))}, "product rate");
  const auto multiply = [&](int times) {
    for (int i = 0; i < times; ++i) {
      kernel_table(device.kind)
          .gemm({.m = size,
                 .n = size,
                 .k = size,
                 .transpose_a = Transpose::no,
                 .transpose_b = Transpose::yes,
                 .a = a.view(),
                 .lda = size,
                 .b = b.view(),
                 .ldb = size,
                 .beta = 0.0F,
                 .c = {},
                 .bias = {},
                 .d = d.view(),
                 .ldd = size,
                 .workspace = workspace.view()},
                stream);
    }
    stream.synchronize();
  };
  const auto seconds_of = [&](int times) {
    const auto start = std::chrono::steady_clock::now();
    multiply(times);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  comm.barrier();
  multiply(kWarmUp);
  const double seconds = on_cpu ? fastest_on_cpu(seconds_of) : seconds_of(kOnGpu) / kOnGpu;
  const auto n = static_cast<double>(size);
  return 2 * n * n * n / seconds;
}

}  // namespace tessera
