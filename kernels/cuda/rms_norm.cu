// A row is held in registers by its team: a warp for narrow rows, a block for wide ones; rows
// beyond kWidestRow are read twice. The same team takes a row in both passes, so that backward
// finds the reciprocal rms, and writes y, with forward's bits.
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/partial_rows.h"
#include "kernels/reduction.h"
#include "kernels/rms_norm.h"
#include "kernels/workspaces.h"

namespace tessera::cuda {
namespace {

enum class Team : std::uint8_t { warp, block };

constexpr int kWarpRows = 4;         // rows, and warps, of a block whose teams are warps
constexpr int kMediumThreads = 256;  // of a block that is one team, at most
constexpr int kWideThreads = 512;    // the same for rows of up to kWidestRow
constexpr int kLoopThreads = 1024;   // for rows beyond it
constexpr Index kWidestRow = 8192;   // elements that fit the registers of a block
constexpr int kWarpVectors = 4;      // vectors of a lane, at most
constexpr int kMediumVectors = 2;    // vectors of a thread
/// Vectors of a thread where rows reach kWidestRow: f32 has half the elements in each.
template <typename T>
constexpr int kWideVectors = kWidestRow / (kVector<T> * kWideThreads);

__device__ __forceinline__ float reciprocal_rms(float sum_of_squares, Index width, float eps) {
  return __frsqrt_rn(__fadd_rn(__fdiv_rn(sum_of_squares, static_cast<float>(width)), eps));
}

// x * r and x * r * gain with their own roundings: both passes write the same y.
__device__ __forceinline__ float normalised(float x, float r) {
  return __fmul_rn(x, r);
}

/// A thread's vectors of one row: vector i is number lane + i * team of the row.
template <typename T, int kVectors>
struct RowPart {
  uint4 raw[kVectors];
};

template <typename T, int kVectors, bool kAligned>
__device__ __forceinline__ void load_part(RowPart<T, kVectors>& part, const T* row, int lane,
                                          int team, Index width) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const Index at = lane + i * team;
    part.raw[i] = at * kVector<T> < width ? load_vector<T, kAligned>(row, at, width) : uint4{};
  }
}

template <typename T, int kVectors, bool kAligned>
__device__ __forceinline__ void store_part(const RowPart<T, kVectors>& part, T* row, int lane,
                                           int team, Index width) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const Index at = lane + i * team;
    if (at * kVector<T> < width) {
      store_vector<T, kAligned>(row, at, width, part.raw[i]);
    }
  }
}

template <typename T, int kVectors>
__device__ __forceinline__ void keep_packed(RowPart<T, kVectors>& part) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    cuda::keep_packed(part.raw[i]);
  }
}

template <typename T, int kVectors>
[[nodiscard]] __device__ __forceinline__ float sum_of_squares(const RowPart<T, kVectors>& part) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float values[kVector<T>];
    unpack<T>(part.raw[i], values);
#pragma unroll
    for (int j = 0; j < kVector<T>; ++j) {
      sum = __fmaf_rn(values[j], values[j], sum);
    }
  }
  return sum;
}

// ---- forward ----------------------------------------------------------------------------------

//   x, y  [rows, width]  read, written
//   gain  [width]        read
template <typename T, int kVectors, Team kTeam, bool kAligned>
__global__ void __launch_bounds__(kTeam == Team::warp ? kWarpRows * kWarp : kWideThreads)
    normalise(const T* __restrict__ x, const T* __restrict__ gain, T* __restrict__ y, Index rows,
              Index width, float eps) {
  __shared__ BlockSums<1> shared;
  const int team = kTeam == Team::warp ? kWarp : static_cast<int>(blockDim.x);
  const int lane = static_cast<int>(threadIdx.x) % team;
  const Index row = kTeam == Team::warp
                        ? static_cast<Index>(blockIdx.x) * kWarpRows + threadIdx.x / kWarp
                        : static_cast<Index>(blockIdx.x);
  if (row >= rows) {
    return;  // a whole team
  }
  RowPart<T, kVectors> part;
  RowPart<T, kVectors> gains;
  load_part<T, kVectors, kAligned>(part, x + row * width, lane, team, width);
  load_part<T, kVectors, kAligned>(gains, gain, lane, team, width);
  float sums[1] = {sum_of_squares<T, kVectors>(part)};
  keep_packed(part);
  if constexpr (kTeam == Team::warp) {
    sums[0] = warp_sum(sums[0]);
  } else {
    block_sum(sums, shared);
  }
  const float r = reciprocal_rms(sums[0], width, eps);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float values[kVector<T>];
    float factors[kVector<T>];
    unpack<T>(part.raw[i], values);
    unpack<T>(gains.raw[i], factors);
#pragma unroll
    for (int j = 0; j < kVector<T>; ++j) {
      values[j] = __fmul_rn(normalised(values[j], r), factors[j]);
    }
    part.raw[i] = pack<T>(values);
  }
  store_part<T, kVectors, kAligned>(part, y + row * width, lane, team, width);
}

// Rows of any width, one a block, read twice.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kLoopThreads)
    normalise_long(const T* __restrict__ x, const T* __restrict__ gain, T* __restrict__ y,
                   Index width, float eps) {
  __shared__ BlockSums<1> shared;
  const T* x_row = x + static_cast<Index>(blockIdx.x) * width;
  T* y_row = y + static_cast<Index>(blockIdx.x) * width;
  float sums[1] = {};
  for (Index at = threadIdx.x; at * kVector<T> < width; at += kLoopThreads) {
    float values[kVector<T>];
    unpack<T>(load_vector<T, kAligned>(x_row, at, width), values);
#pragma unroll
    for (int j = 0; j < kVector<T>; ++j) {
      sums[0] = __fmaf_rn(values[j], values[j], sums[0]);
    }
  }
  block_sum(sums, shared);
  const float r = reciprocal_rms(sums[0], width, eps);
  for (Index at = threadIdx.x; at * kVector<T> < width; at += kLoopThreads) {
    float values[kVector<T>];
    float factors[kVector<T>];
    unpack<T>(load_vector<T, kAligned>(x_row, at, width), values);
    unpack<T>(load_vector<T, kAligned>(gain, at, width), factors);
#pragma unroll
    for (int j = 0; j < kVector<T>; ++j) {
      values[j] = __fmul_rn(normalised(values[j], r), factors[j]);
    }
    store_vector<T, kAligned>(y_row, at, width, pack<T>(values));
  }
}

// ---- backward ---------------------------------------------------------------------------------

// d_x may be residual, y may be d_y: a team reads its row of all of them before it writes it.
template <typename T>
struct BackwardTensors {
  const T* x;         // [rows, width]
  const T* gain;      // [width]
  const T* d_y;       // [rows, width]
  const T* residual;  // [rows, width] or null
  T* d_x;             // [rows, width] written
  T* y;               // [rows, width] written, or null
  float* partial;     // [gridDim.x, width] written: gain gradients of each block's rows
  Index rows;
  Index width;
  float eps;
};

// The elements of one vector: x to y, d_y to d_x. `mean` is mean_c(gain * d_y * x * r).
template <typename T>
__device__ __forceinline__ void differentiate(uint4& x, uint4& d_y, const uint4& gain,
                                              const uint4& residual, float r, float mean,
                                              float (&d_gain)[kVector<T>]) {
  float values[kVector<T>];
  float gradients[kVector<T>];
  float gains[kVector<T>];
  float passed[kVector<T>];
  unpack<T>(x, values);
  unpack<T>(d_y, gradients);
  unpack<T>(gain, gains);
  unpack<T>(residual, passed);
#pragma unroll
  for (int j = 0; j < kVector<T>; ++j) {
    const float scaled = normalised(values[j], r);
    d_gain[j] += gradients[j] * scaled;
    values[j] = __fmul_rn(scaled, gains[j]);
    gradients[j] = passed[j] + r * (gains[j] * gradients[j] - scaled * mean);
  }
  x = pack<T>(values);
  d_y = pack<T>(gradients);
}

/// sum_c gain * d_y * x over a thread's part of a row.
template <typename T, int kVectors>
[[nodiscard]] __device__ __forceinline__ float weighted_product(const RowPart<T, kVectors>& x,
                                                                const RowPart<T, kVectors>& d_y,
                                                                const RowPart<T, kVectors>& gain) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float values[kVector<T>];
    float gradients[kVector<T>];
    float gains[kVector<T>];
    unpack<T>(x.raw[i], values);
    unpack<T>(d_y.raw[i], gradients);
    unpack<T>(gain.raw[i], gains);
#pragma unroll
    for (int j = 0; j < kVector<T>; ++j) {
      sum += gains[j] * gradients[j] * values[j];
    }
  }
  return sum;
}

template <typename T, int kVectors>
struct BackwardRow {
  RowPart<T, kVectors> x;
  RowPart<T, kVectors> d_y;
  RowPart<T, kVectors> residual;
};

// A fixed number of blocks goes over the rows; each keeps its sums of d_gain in registers. A block
// of teams that are warps takes kWarpRows rows at a time; one that is a single team, kRows rows.
template <typename T, int kVectors, int kRows, Team kTeam, int kThreads, int kMinBlocks,
          bool kAligned>
__global__ void __launch_bounds__(kThreads, kMinBlocks) differentiate_rows(BackwardTensors<T> t) {
  static_assert(kTeam == Team::block || kRows == 1);
  __shared__ BlockSums<2 * kRows> shared[2];  // taken in turn
  const int team = kTeam == Team::warp ? kWarp : static_cast<int>(blockDim.x);
  const int lane = static_cast<int>(threadIdx.x) % team;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const Index width = t.width;
  const Index rows_at_once = kTeam == Team::warp ? kWarpRows : kRows;
  float d_gain[kVectors][kVector<T>] = {};
  int turn = 0;
  for (Index group = blockIdx.x; group * rows_at_once < t.rows; group += gridDim.x) {
    const Index first = group * rows_at_once + (kTeam == Team::warp ? warp : 0);
    if (kTeam == Team::warp && first >= t.rows) {
      break;  // a whole warp; no barrier follows within the loop
    }
    BackwardRow<T, kVectors> data[kRows];
    // read where they are needed, twice a row: they come from the cache, and registers are scarce
    RowPart<T, kVectors> gains;
    float sums[2 * kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      // an absent last row is one of zeros, and is not written
      const Index present = first + k < t.rows ? width : 0;
      const Index at = (first + k) * width;
      load_part<T, kVectors, kAligned>(data[k].x, t.x + at, lane, team, present);
      load_part<T, kVectors, kAligned>(data[k].d_y, t.d_y + at, lane, team, present);
      load_part<T, kVectors, kAligned>(data[k].residual, t.residual + at, lane, team,
                                       t.residual == nullptr ? 0 : present);
    }
    load_part<T, kVectors, kAligned>(gains, t.gain, lane, team, width);
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      sums[2 * k] = sum_of_squares<T, kVectors>(data[k].x);
      sums[2 * k + 1] = weighted_product<T, kVectors>(data[k].x, data[k].d_y, gains);
      keep_packed(data[k].x);
      keep_packed(data[k].d_y);
    }
    if constexpr (kTeam == Team::warp) {
      sums[0] = warp_sum(sums[0]);
      sums[1] = warp_sum(sums[1]);
    } else {
      block_sum(sums, shared[turn]);
      turn = 1 - turn;
    }
    load_part<T, kVectors, kAligned>(gains, t.gain, lane, team, width);
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const Index present = first + k < t.rows ? width : 0;
      const Index at = (first + k) * width;
      const float r = reciprocal_rms(sums[2 * k], width, t.eps);
      const float mean = sums[2 * k + 1] * r / static_cast<float>(width);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const Index vector = lane + i * team;
        differentiate<T>(data[k].x.raw[i], data[k].d_y.raw[i], gains.raw[i],
                         data[k].residual.raw[i], r, mean, d_gain[i]);
        if (vector * kVector<T> < present) {
          store_vector<T, kAligned>(t.d_x + at, vector, width, data[k].d_y.raw[i]);
          if (t.y != nullptr) {
            store_vector<T, kAligned>(t.y + at, vector, width, data[k].x.raw[i]);
          }
        }
      }
    }
  }
  float* partial = t.partial + static_cast<Index>(blockIdx.x) * width;
  if constexpr (kTeam == Team::warp) {
    constexpr int kWidth = kVectors * kVector<T> * kWarp;
    __shared__ float of_warps[kWarpRows][kWidth];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) {
        of_warps[warp][(lane + i * kWarp) * kVector<T> + j] = d_gain[i][j];
      }
    }
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < width; c += kThreads) {
      float sum = of_warps[0][c];
#pragma unroll
      for (int w = 1; w < kWarpRows; ++w) {
        sum += of_warps[w][c];
      }
      partial[c] = sum;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Index column = static_cast<Index>(lane + i * team) * kVector<T>;
#pragma unroll
      for (int j = 0; j < kVector<T>; j += kQuad) {
        if (column + j < width) {
          store_quad<kAligned>(
              partial, column + j, width,
              make_float4(d_gain[i][j], d_gain[i][j + 1], d_gain[i][j + 2], d_gain[i][j + 3]));
        }
      }
    }
  }
}

// Rows of any width, one a block at a time, read twice; a block's sums of d_gain lie in its partial
// row, whose columns belong to one thread each.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kLoopThreads) differentiate_long_rows(BackwardTensors<T> t) {
  __shared__ BlockSums<2> shared[2];  // taken in turn
  const Index width = t.width;
  float* partial = t.partial + static_cast<Index>(blockIdx.x) * width;
  int turn = 0;
  for (Index row = blockIdx.x; row < t.rows; row += gridDim.x) {
    const Index begin = row * width;
    float sums[2] = {};
    for (Index at = threadIdx.x; at * kVector<T> < width; at += kLoopThreads) {
      RowPart<T, 1> x{{load_vector<T, kAligned>(t.x + begin, at, width)}};
      RowPart<T, 1> d_y{{load_vector<T, kAligned>(t.d_y + begin, at, width)}};
      RowPart<T, 1> gain{{load_vector<T, kAligned>(t.gain, at, width)}};
      float values[kVector<T>];
      unpack<T>(x.raw[0], values);
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) {
        sums[0] = __fmaf_rn(values[j], values[j], sums[0]);
      }
      sums[1] += weighted_product<T, 1>(x, d_y, gain);
    }
    block_sum(sums, shared[turn]);
    turn = 1 - turn;
    const float r = reciprocal_rms(sums[0], width, t.eps);
    const float mean = sums[1] * r / static_cast<float>(width);
    for (Index at = threadIdx.x; at * kVector<T> < width; at += kLoopThreads) {
      uint4 x = load_vector<T, kAligned>(t.x + begin, at, width);
      uint4 d_y = load_vector<T, kAligned>(t.d_y + begin, at, width);
      const uint4 gain = load_vector<T, kAligned>(t.gain, at, width);
      uint4 residual{};
      if (t.residual != nullptr) {
        residual = load_vector<T, kAligned>(t.residual + begin, at, width);
      }
      float d_gain[kVector<T>] = {};
      differentiate<T>(x, d_y, gain, residual, r, mean, d_gain);
      store_vector<T, kAligned>(t.d_x + begin, at, width, d_y);
      if (t.y != nullptr) {
        store_vector<T, kAligned>(t.y + begin, at, width, x);
      }
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) {
        const Index column = at * kVector<T> + j;
        if (column < width) {
          partial[column] = row == blockIdx.x ? d_gain[j] : partial[column] + d_gain[j];
        }
      }
    }
  }
}

// ---- launches ---------------------------------------------------------------------------------

unsigned team_threads(Index vectors, int vectors_of_thread) {
  return static_cast<unsigned>(divide_up(divide_up(vectors, vectors_of_thread), kWarp) * kWarp);
}

template <typename T, bool kAligned>
void launch_forward(const RmsNormForwardArgs& args, Index rows, Index width, Stream& stream) {
  const T* x = data_as<T>(args.x);
  const T* gain = data_as<T>(args.gain);
  T* y = data_as<T>(args.y);
  const Index vectors = divide_up(width, kVector<T>);
  const auto by_warps = [&](auto kernel) {
    kernel<<<block_count(rows, kWarpRows), kWarpRows * kWarp, 0, stream.cuda_handle()>>>(
        x, gain, y, rows, width, args.eps);
  };
  const auto by_blocks = [&](auto kernel, unsigned threads) {
    kernel<<<block_count(rows, 1), threads, 0, stream.cuda_handle()>>>(x, gain, y, rows, width,
                                                                       args.eps);
  };
  if (vectors <= kWarp) {
    by_warps(normalise<T, 1, Team::warp, kAligned>);
  } else if (vectors <= 2 * kWarp) {
    by_warps(normalise<T, 2, Team::warp, kAligned>);
  } else if (vectors <= kWarpVectors * kWarp) {
    by_warps(normalise<T, kWarpVectors, Team::warp, kAligned>);
  } else if (vectors <= kMediumVectors * kMediumThreads) {
    by_blocks(normalise<T, kMediumVectors, Team::block, kAligned>,
              team_threads(vectors, kMediumVectors));
  } else if (width <= kWidestRow) {
    by_blocks(normalise<T, kWideVectors<T>, Team::block, kAligned>,
              team_threads(vectors, kWideVectors<T>));
  } else {
    normalise_long<T, kAligned><<<block_count(rows, 1), kLoopThreads, 0, stream.cuda_handle()>>>(
        x, gain, y, width, args.eps);
  }
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

// Returns the number of partial rows: no more blocks than an H100 holds at once, so that none waits
// for a place; constants, so that the order of the sums depends on the shape only, and on whether
// there is a residual: three tensors in flight want fewer rows at once than two, about 48 KB a
// multiprocessor (more cost 3 to 6% of the copy rate).
template <typename T, bool kAligned>
Index launch_backward(const BackwardTensors<T>& tensors, Stream& stream) {
  constexpr int kWarpThreads = kWarpRows * kWarp;
  constexpr int kWarpBlocks = 4;  // of a multiprocessor
  constexpr int kMediumBlocks = 2;
  constexpr Index kMediumThreadsAtOnce = 512;
  constexpr int kWideBlocks = sizeof(T) == sizeof(float) ? 1 : 2;
  constexpr int kMediumRows = 2;
  constexpr Index kHalf = kPartialRows / 2;
  constexpr Index kMultiprocessors = kPartialRows / kWarpBlocks;
  const bool adds = tensors.residual != nullptr;
  const Index vectors = divide_up(tensors.width, kVector<T>);
  const auto launch = [&](auto kernel, Index most_blocks, Index rows_at_once, unsigned threads) {
    const Index blocks = std::min(divide_up(tensors.rows, rows_at_once), most_blocks);
    kernel<<<block_count(blocks, 1), threads, 0, stream.cuda_handle()>>>(tensors);
    TESSERA_CHECK_CUDA(cudaGetLastError());
    return blocks;
  };
  const auto by_warps = [&](auto kernel, Index most_blocks = kPartialRows) {
    return launch(kernel, most_blocks, kWarpRows, kWarpThreads);
  };
  if (vectors <= kWarp) {
    return by_warps(differentiate_rows<T, 1, 1, Team::warp, kWarpThreads, kWarpBlocks, kAligned>);
  }
  if (vectors <= 2 * kWarp) {
    return by_warps(differentiate_rows<T, 2, 1, Team::warp, kWarpThreads, kWarpBlocks, kAligned>);
  }
  if (vectors <= kWarpVectors * kWarp) {
    return by_warps(
        differentiate_rows<T, kWarpVectors, 1, Team::warp, kWarpThreads, kWarpBlocks, kAligned>,
        adds ? kHalf : kPartialRows);
  }
  if (vectors <= kMediumVectors * kMediumThreads) {
    const unsigned threads = team_threads(vectors, kMediumVectors);
    const auto by_blocks = [&](auto kernel, Index rows_at_once) {
      const Index at_once = std::min<Index>(kMediumThreadsAtOnce / threads, kWarpBlocks);
      return launch(kernel, kMultiprocessors * at_once, rows_at_once, threads);
    };
    if (adds) {
      return by_blocks(differentiate_rows<T, kMediumVectors, 1, Team::block, kMediumThreads,
                                          kMediumBlocks, kAligned>,
                       1);
    }
    return by_blocks(differentiate_rows<T, kMediumVectors, kMediumRows, Team::block, kMediumThreads,
                                        kMediumBlocks, kAligned>,
                     kMediumRows);
  }
  if (tensors.width <= kWidestRow) {
    return launch(
        differentiate_rows<T, kWideVectors<T>, 1, Team::block, kWideThreads, kWideBlocks, kAligned>,
        kWideBlocks == 1 || adds ? kHalf / 2 : kHalf, 1, team_threads(vectors, kWideVectors<T>));
  }
  return launch(differentiate_long_rows<T, kAligned>, kHalf, 1, kLoopThreads);
}

}  // namespace

void rms_norm_forward(const RmsNormForwardArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.x.shape.rank() == 2, "rms_norm_forward takes x as [N, C]");
  const Index rows = args.x.shape[0];
  const Index width = args.x.shape[1];
  const DType dtype = args.x.dtype;
  require_tensor(args.x, dtype, rows * width, "x");
  require_tensor(args.gain, dtype, width, "gain");
  require_tensor(args.y, dtype, rows * width, "y");
  if (rows * width == 0) {
    return;
  }
  with_element_type(dtype, "x", [&](auto zero) {
    using T = decltype(zero);
    if (width % kVector<T> == 0 && is_vector_aligned(args.x.data) &&
        is_vector_aligned(args.gain.data) && is_vector_aligned(args.y.data)) {
      launch_forward<T, true>(args, rows, width, stream);
    } else {
      launch_forward<T, false>(args, rows, width, stream);
    }
  });
}

void rms_norm_backward(const RmsNormBackwardArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.x.shape.rank() == 2, "rms_norm_backward takes x as [N, C]");
  const Index rows = args.x.shape[0];
  const Index width = args.x.shape[1];
  const DType dtype = args.x.dtype;
  require_tensor(args.x, dtype, rows * width, "x");
  require_tensor(args.gain, dtype, width, "gain");
  require_tensor(args.d_y, dtype, rows * width, "d_y");
  require_tensor(args.d_x, dtype, rows * width, "d_x");
  require_tensor(args.d_gain, args.d_gain.dtype, width, "d_gain");
  require_room(args.workspace, DType::f32, column_sum_workspace(rows, width), "workspace");
  if (args.residual.data != nullptr) {
    require_tensor(args.residual, dtype, rows * width, "residual");
  }
  if (args.y.data != nullptr) {
    require_tensor(args.y, dtype, rows * width, "y");
  }
  auto* partial = data_as<float>(args.workspace);
  Index blocks = 0;
  if (rows * width > 0) {
    with_element_type(dtype, "x", [&](auto zero) {
      using T = decltype(zero);
      const BackwardTensors<T> tensors = {.x = data_as<T>(args.x),
                                          .gain = data_as<T>(args.gain),
                                          .d_y = data_as<T>(args.d_y),
                                          .residual = static_cast<const T*>(args.residual.data),
                                          .d_x = data_as<T>(args.d_x),
                                          .y = static_cast<T*>(args.y.data),
                                          .partial = partial,
                                          .rows = rows,
                                          .width = width,
                                          .eps = args.eps};
      if (width % kVector<T> == 0 && is_vector_aligned(args.x.data) &&
          is_vector_aligned(args.gain.data) && is_vector_aligned(args.d_y.data) &&
          is_vector_aligned(args.residual.data) && is_vector_aligned(args.d_x.data) &&
          is_vector_aligned(args.y.data) && is_vector_aligned(partial)) {
        blocks = launch_backward<T, true>(tensors, stream);
      } else {
        blocks = launch_backward<T, false>(tensors, stream);
      }
    });
  }
  add_partial_rows({.sums = partial, .rows = blocks, .stride = width}, args.d_gain, stream);
}

}  // namespace tessera::cuda
