#include "kernels/cuda/abs_max.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/swiglu.h"

namespace tessera::cuda {
namespace {

// exp(-x), cut off where the sigmoid is 2e-35: finite for every finite x, so that neither the
// sigmoid nor its complement becomes 0 * infinity. As kernels/cpu/vector_math.h.
__device__ __forceinline__ float exp_of_negative(float x) {
  constexpr float kHighest = 80.0F;
  return expf(fminf(-x, kHighest));
}

// 1 / x without the branch of a division: the machine's approximation and one Newton step.
// Requires: 1 <= x <= 2^120.
__device__ __forceinline__ float reciprocal(float x) {
  const float guess = __fdividef(1.0F, x);
  return __fmaf_rn(guess, __fmaf_rn(-x, guess, 1.0F), guess);
}

struct Silu {
  float value;
  float gradient;
};

// One function for both passes, so that backward writes forward's bits. 1 - s = e s without
// cancellation.
__device__ __forceinline__ Silu silu(float x) {
  const float e = exp_of_negative(x);
  const float sigmoid = reciprocal(__fadd_rn(1.0F, e));
  const float value = __fmul_rn(x, sigmoid);
  return {.value = value, .gradient = sigmoid + value * (e * sigmoid)};
}

//   gate_up  [rows, 2 width]  read
//   act      [rows, width]    written
//   abs_max  [1]              with kMaximum: the bits of max |act|; 0 before
template <typename T, bool kAligned, bool kMaximum>
__global__ void __launch_bounds__(kRowThreads)
    swiglu(const T* __restrict__ gate_up, T* __restrict__ act, unsigned* abs_max, Index rows,
           Index width, unsigned tiles) {
  const RowItem at = row_item(tiles);
  unsigned largest = 0;
  if (at.row < rows && at.item * kVector<T> < width) {
    const T* gate_row = gate_up + at.row * 2 * width;
    const uint4 raw_gate = load_vector<T, kAligned>(gate_row, at.item, width);
    const uint4 raw_up = load_vector<T, kAligned>(gate_row + width, at.item, width);
    float gate[kVector<T>];
    float up[kVector<T>];
    unpack<T>(raw_gate, gate);
    unpack<T>(raw_up, up);
#pragma unroll
    for (int i = 0; i < kVector<T>; ++i) {
      gate[i] = __fmul_rn(silu(gate[i]).value, up[i]);
    }
    const uint4 activations = pack<T>(gate);
    store_vector<T, kAligned>(act + at.row * width, at.item, width, activations);
    largest = vector_max<T>(activations);
  }
  if constexpr (kMaximum) {
    report_max(largest, abs_max);
  }
}

// Each thread reads its elements before it writes them: d_gate_up may be gate_up, act may be d_act.
//
//   gate_up    [rows, 2 width]  read
//   d_act      [rows, width]    read
//   d_gate_up  [rows, 2 width]  written
//   act        [rows, width]    written
//   abs_max    [1]              with kMaximum: the bits of max |d_gate_up|; 0 before
template <typename T, bool kAligned, bool kMaximum>
__global__ void __launch_bounds__(kRowThreads)
    swiglu_gradient(const T* gate_up, const T* d_act, T* d_gate_up, T* act, unsigned* abs_max,
                    Index rows, Index width, unsigned tiles) {
  const RowItem at = row_item(tiles);
  unsigned largest = 0;
  if (at.row < rows && at.item * kVector<T> < width) {
    const T* gate_row = gate_up + at.row * 2 * width;
    const uint4 raw_gate = load_vector<T, kAligned>(gate_row, at.item, width);
    const uint4 raw_up = load_vector<T, kAligned>(gate_row + width, at.item, width);
    const uint4 raw_d = load_vector<T, kAligned>(d_act + at.row * width, at.item, width);
    float gate[kVector<T>];
    float up[kVector<T>];
    float d[kVector<T>];
    unpack<T>(raw_gate, gate);
    unpack<T>(raw_up, up);
    unpack<T>(raw_d, d);
#pragma unroll
    for (int i = 0; i < kVector<T>; ++i) {
      const Silu s = silu(gate[i]);
      const float activation = __fmul_rn(s.value, up[i]);
      gate[i] = d[i] * up[i] * s.gradient;
      up[i] = d[i] * s.value;
      d[i] = activation;
    }
    T* d_gate_row = d_gate_up + at.row * 2 * width;
    const uint4 d_gate = pack<T>(gate);
    const uint4 d_up = pack<T>(up);
    store_vector<T, kAligned>(d_gate_row, at.item, width, d_gate);
    store_vector<T, kAligned>(d_gate_row + width, at.item, width, d_up);
    store_vector<T, kAligned>(act + at.row * width, at.item, width, pack<T>(d));
    largest = max(vector_max<T>(d_gate), vector_max<T>(d_up));
  }
  if constexpr (kMaximum) {
    report_max(largest, abs_max);
  }
}

}  // namespace

void swiglu_forward(const SwigluForwardArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.act.shape.rank() == 2, "swiglu_forward takes act as [N, F]");
  const Index rows = args.act.shape[0];
  const Index width = args.act.shape[1];
  const DType dtype = args.act.dtype;
  require_tensor(args.act, dtype, rows * width, "act");
  require_tensor(args.gate_up, dtype, 2 * rows * width, "gate_up");
  require_abs_max_in(DeviceKind::cuda, args.abs_max);
  begin_abs_max(args.abs_max, stream);
  if (rows * width == 0) {
    return;
  }
  auto* abs_max = static_cast<unsigned*>(args.abs_max.data);
  with_element_type(dtype, "act", [&](auto zero) {
    using T = decltype(zero);
    const RowGrid grid = row_grid(rows, divide_up(width, kVector<T>));
    const auto launch = [&](auto kernel) {
      kernel<<<grid.blocks, grid.threads, 0, stream.cuda_handle()>>>(
          data_as<T>(args.gate_up), data_as<T>(args.act), abs_max, rows, width, grid.tiles);
    };
    if (width % kVector<T> == 0 && is_vector_aligned(args.gate_up.data) &&
        is_vector_aligned(args.act.data)) {
      launch(abs_max == nullptr ? swiglu<T, true, false> : swiglu<T, true, true>);
    } else {
      launch(abs_max == nullptr ? swiglu<T, false, false> : swiglu<T, false, true>);
    }
  });
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

void swiglu_backward(const SwigluBackwardArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.act.shape.rank() == 2, "swiglu_backward takes act as [N, F]");
  const Index rows = args.act.shape[0];
  const Index width = args.act.shape[1];
  const DType dtype = args.act.dtype;
  require_tensor(args.act, dtype, rows * width, "act");
  require_tensor(args.gate_up, dtype, 2 * rows * width, "gate_up");
  require_tensor(args.d_act, dtype, rows * width, "d_act");
  require_tensor(args.d_gate_up, dtype, 2 * rows * width, "d_gate_up");
  require_abs_max_in(DeviceKind::cuda, args.abs_max);
  begin_abs_max(args.abs_max, stream);
  if (rows * width == 0) {
    return;
  }
  auto* abs_max = static_cast<unsigned*>(args.abs_max.data);
  with_element_type(dtype, "act", [&](auto zero) {
    using T = decltype(zero);
    const RowGrid grid = row_grid(rows, divide_up(width, kVector<T>));
    const auto launch = [&](auto kernel) {
      kernel<<<grid.blocks, grid.threads, 0, stream.cuda_handle()>>>(
          data_as<T>(args.gate_up), data_as<T>(args.d_act), data_as<T>(args.d_gate_up),
          data_as<T>(args.act), abs_max, rows, width, grid.tiles);
    };
    if (width % kVector<T> == 0 && is_vector_aligned(args.gate_up.data) &&
        is_vector_aligned(args.d_act.data) && is_vector_aligned(args.d_gate_up.data) &&
        is_vector_aligned(args.act.data)) {
      launch(abs_max == nullptr ? swiglu_gradient<T, true, false> : swiglu_gradient<T, true, true>);
    } else {
      launch(abs_max == nullptr ? swiglu_gradient<T, false, false>
                                : swiglu_gradient<T, false, true>);
    }
  });
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

}  // namespace tessera::cuda
