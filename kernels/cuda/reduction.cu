#include <algorithm>

#include "kernels/base/fixed_point.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/partial_rows.h"
#include "kernels/reduction.h"
#include "kernels/workspaces.h"

namespace tessera::cuda {
namespace {

static_assert(sizeof(unsigned long long) == sizeof(std::int64_t));
using Word = unsigned long long;  // what atomicAdd takes; signed sums wrap bit-identically

// ---- exact sums -------------------------------------------------------------------------------

constexpr int kSquareThreads = 256;
// Blocks that share the work, each with its own words: four for each multiprocessor of an H100, few
// enough that their final additions do not queue up. The sums are of integers: the number is free.
constexpr Index kSquareBlocks = 528;
constexpr int kQuadsOfBlock = static_cast<int>(kNormBlock) / (kQuad * kWarp);  // a lane's

__device__ void add_exactly(double value, Word* words) {
  fixed_point_parts(value, [words](int word, std::int64_t amount) {
    atomicAdd(words + word, static_cast<Word>(amount));
  });
}

// A warp takes a block of kNormBlock values. Lane l adds quad l, l + 32, ... in this order, then
// the lanes are added by a butterfly.
//
//   values  [count]             read
//   words   [kFixedPointWords]  added to
template <bool kAligned>
__global__ void __launch_bounds__(kSquareThreads)
    sum_squares(const float* __restrict__ values, Index count, Word* __restrict__ words) {
  constexpr int kWarps = kSquareThreads / kWarp;
  __shared__ Word shared_words[kFixedPointWords];
  if (threadIdx.x < kFixedPointWords) {
    shared_words[threadIdx.x] = 0;
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Index warp = static_cast<Index>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const Index warps = static_cast<Index>(gridDim.x) * kWarps;
  const Index blocks = divide_up(count, kNormBlock);
  for (Index block = warp; block < blocks; block += warps) {
    const Index begin = block * kNormBlock + lane * kQuad;
    float4 quads[kQuadsOfBlock];
    if (kAligned && (block + 1) * kNormBlock <= count) {
#pragma unroll
      for (int i = 0; i < kQuadsOfBlock; ++i) {
        quads[i] = __ldcs(reinterpret_cast<const float4*>(values + begin + i * kQuad * kWarp));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kQuadsOfBlock; ++i) {
        quads[i] = load_quad<false>(values, begin + i * kQuad * kWarp, count);
      }
    }
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kQuadsOfBlock; ++i) {
      const double a = quads[i].x;
      const double b = quads[i].y;
      const double c = quads[i].z;
      const double d = quads[i].w;
      // products of two f32 are exact in f64
      sum = fma(a, a, sum);
      sum = fma(b, b, sum);
      sum = fma(c, c, sum);
      sum = fma(d, d, sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      add_exactly(sum, shared_words);
    }
  }
  __syncthreads();
  if (threadIdx.x < kFixedPointWords && shared_words[threadIdx.x] != 0) {
    atomicAdd(words + threadIdx.x, shared_words[threadIdx.x]);
  }
}

constexpr int kLossThreads = 1024;
constexpr int kLossUnroll = 8;  // quads in flight: 128 KiB over the block

// One block. Thread t adds quads t, t + 1024, ... in this order; warps and then the block follow.
//
//   losses  [count]             read
//   words   [kFixedPointWords]  added to
template <bool kAligned>
__global__ void __launch_bounds__(kLossThreads)
    sum_losses(const float* __restrict__ losses, Index count, Word* __restrict__ words) {
  __shared__ double shared_sums[kLossThreads / kWarp];
  double sum = 0;
  constexpr Index kStride = static_cast<Index>(kLossThreads) * kQuad;
  for (Index begin = static_cast<Index>(threadIdx.x) * kQuad; begin < count;
       begin += kStride * kLossUnroll) {
    float4 quads[kLossUnroll];
#pragma unroll
    for (int i = 0; i < kLossUnroll; ++i) {
      quads[i] = load_quad<kAligned>(losses, begin + i * kStride, count);
    }
#pragma unroll
    for (int i = 0; i < kLossUnroll; ++i) {
      sum += static_cast<double>(quads[i].x);
      sum += static_cast<double>(quads[i].y);
      sum += static_cast<double>(quads[i].z);
      sum += static_cast<double>(quads[i].w);
    }
  }
  sum = warp_sum(sum);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) {
    shared_sums[threadIdx.x / kWarp] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kWarp) {
    sum = warp_sum(shared_sums[lane]);
    if (lane == 0) {
      add_exactly(sum, words);
    }
  }
}

// ---- column sums ------------------------------------------------------------------------------

constexpr int kColumnUnroll = 4;  // rows in flight

// Partial row p is the sum of rows p, p + P, p + 2 P, ... in this order.
//
//   x        [rows, width]  read
//   partial  [P, width]     written
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kRowThreads)
    sum_strided_rows(const T* __restrict__ x, float* __restrict__ partial, Index rows, Index width,
                     Index partial_rows, unsigned tiles) {
  const RowItem at = row_item(tiles);
  const Index p = at.row;
  const Index vector = at.item;
  const Index column = vector * kVector<T>;
  if (p >= partial_rows || column >= width) {
    return;
  }
  float sums[kVector<T>] = {};
  for (Index first = p; first < rows; first += partial_rows * kColumnUnroll) {
    uint4 raw[kColumnUnroll];
#pragma unroll
    for (int i = 0; i < kColumnUnroll; ++i) {
      const Index row = first + i * partial_rows;
      if (row < rows) {
        raw[i] = load_vector<T, kAligned>(x + row * width, vector, width);
      }
    }
#pragma unroll
    for (int i = 0; i < kColumnUnroll; ++i) {
      if (first + i * partial_rows < rows) {
        float values[kVector<T>];
        unpack<T>(raw[i], values);
#pragma unroll
        for (int j = 0; j < kVector<T>; ++j) {
          sums[j] += values[j];
        }
      }
    }
  }
  float* to = partial + p * width + column;
#pragma unroll
  for (int j = 0; j < kVector<T>; j += kQuad) {
    store_quad<kAligned>(to + j, 0, width - column - j,
                         make_float4(sums[j], sums[j + 1], sums[j + 2], sums[j + 3]));
  }
}

constexpr int kAddUnroll = 17;  // rows of a warp in flight: all of kPartialRows

// The columns of `second`, unless null, begin at `first_width`. The kernel may come while the one
// that wrote the partial rows still runs.
//
// A block takes 32 columns; warp w adds rows w, w + 32, ... of them, lane l column l; then warp w
// adds the 32 sums of column w by a butterfly.
template <typename T>
__global__ void __launch_bounds__(kWarp* kWarp)
    add_rows(const float* __restrict__ partial, Index rows, Index stride, T* __restrict__ out,
             Index width, T* __restrict__ second, Index first_width) {
  __shared__ float sums[kWarp][kWarp + 1];
  wait_previous_kernel();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const Index first = static_cast<Index>(blockIdx.x) * kWarp;
  float sum = 0;
  if (first + lane < width) {
    const float* column = partial + first + lane;
    for (Index begin = warp; begin < rows; begin += kWarp * kAddUnroll) {
      float values[kAddUnroll];
#pragma unroll
      for (int i = 0; i < kAddUnroll; ++i) {
        const Index row = begin + i * kWarp;
        values[i] = row < rows ? column[row * stride] : 0.0F;
      }
#pragma unroll
      for (int i = 0; i < kAddUnroll; ++i) {
        sum += values[i];
      }
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  const float total = warp_sum(sums[lane][warp]);
  if (lane == 0 && first + warp < width) {
    const Index column = first + warp;
    if (second != nullptr && column >= first_width) {
      second[column - first_width] = from_f32<T>(total);
    } else {
      out[column] = from_f32<T>(total);
    }
  }
}

}  // namespace

void add_partial_rows(const PartialRows& partial, const TensorView& out, Stream& stream) {
  add_partial_rows(partial, out, {}, stream);
}

void add_partial_rows(const PartialRows& partial, const TensorView& out, const TensorView& second,
                      Stream& stream) {
  const Index first_width = out.count();
  const bool both = second.data != nullptr;
  const Index width = first_width + (both ? second.count() : 0);
  if (width == 0) {
    return;
  }
  with_element_type(out.dtype, "sum of partial rows", [&](auto zero) {
    using T = decltype(zero);
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(block_count(width, kWarp));
    config.blockDim = dim3(kWarp * kWarp);
    config.stream = stream.cuda_handle();
    config.attrs = &early;
    config.numAttrs = is_hopper_or_later() ? 1 : 0;
    TESSERA_CHECK_CUDA(cudaLaunchKernelEx(
        &config, add_rows<T>, partial.sums, partial.rows, partial.stride, data_as<T>(out), width,
        both ? data_as<T>(second) : static_cast<T*>(nullptr), first_width));
  });
}

void sum_of_squares(const SumOfSquaresArgs& args, Stream& stream) {
  const Index count = args.values.count();
  require_tensor(args.values, DType::f32, count, "values");
  require_tensor(args.words, DType::i64, kFixedPointWords, "words");
  if (count == 0) {
    return;
  }
  constexpr int kWarps = kSquareThreads / kWarp;
  const unsigned blocks =
      block_count(std::min(divide_up(count, kNormBlock), kSquareBlocks * kWarps), kWarps);
  const auto* values = data_as<float>(args.values);
  auto* words = reinterpret_cast<Word*>(data_as<std::int64_t>(args.words));
  if (is_vector_aligned(values)) {
    sum_squares<true><<<blocks, kSquareThreads, 0, stream.cuda_handle()>>>(values, count, words);
  } else {
    sum_squares<false><<<blocks, kSquareThreads, 0, stream.cuda_handle()>>>(values, count, words);
  }
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

void loss_sum(const LossSumArgs& args, Stream& stream) {
  const Index count = args.losses.count();
  require_tensor(args.losses, DType::f32, count, "losses");
  require_tensor(args.words, DType::i64, kFixedPointWords, "words");
  if (count == 0) {
    return;
  }
  const auto* losses = data_as<float>(args.losses);
  auto* words = reinterpret_cast<Word*>(data_as<std::int64_t>(args.words));
  if (is_vector_aligned(losses)) {
    sum_losses<true><<<1, kLossThreads, 0, stream.cuda_handle()>>>(losses, count, words);
  } else {
    sum_losses<false><<<1, kLossThreads, 0, stream.cuda_handle()>>>(losses, count, words);
  }
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

void column_sum(const ColumnSumArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.x.shape.rank() == 2, "column_sum takes x as [N, K]");
  const Index rows = args.x.shape[0];
  const Index width = args.x.shape[1];
  const Index partial_rows = std::min(rows, kPartialRows);
  require_tensor(args.x, args.x.dtype, rows * width, "x");
  require_tensor(args.out, args.out.dtype, width, "out");
  require_room(args.workspace, DType::f32, column_sum_workspace(rows, width), "workspace");
  if (width == 0) {
    return;
  }
  auto* partial = data_as<float>(args.workspace);
  if (rows > 0) {
    with_element_type(args.x.dtype, "x", [&](auto zero) {
      using T = decltype(zero);
      const T* x = data_as<T>(args.x);
      const RowGrid grid = row_grid(partial_rows, divide_up(width, kVector<T>));
      const auto launch = [&](auto kernel) {
        kernel<<<grid.blocks, grid.threads, 0, stream.cuda_handle()>>>(x, partial, rows, width,
                                                                       partial_rows, grid.tiles);
      };
      if (is_vector_aligned(x) && is_vector_aligned(partial) && width % kVector<T> == 0) {
        launch(sum_strided_rows<T, true>);
      } else {
        launch(sum_strided_rows<T, false>);
      }
    });
    TESSERA_CHECK_CUDA(cudaGetLastError());
  }
  add_partial_rows({.sums = partial, .rows = partial_rows, .stride = width}, args.out, stream);
}

}  // namespace tessera::cuda
