// A row is held in registers by its team: a warp or some warps. Rows of more than kMostGroups
// groups of 32 vectors are read twice. Sums of squares are taken in an order that the teams of both
// passes share, so that backward finds the reciprocal rms, and writes y, with forward's bits.
#include <algorithm>

#include "kernels/cuda/abs_max.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/partial_rows.h"
#include "kernels/reduction.h"
#include "kernels/rms_norm.h"
#include "kernels/workspaces.h"

namespace tessera::cuda {
namespace {

enum class Team : std::uint8_t { warp, block };

constexpr int kWarpRows = 4;        // rows, and warps, of a block whose teams are warps
constexpr int kLoopThreads = 1024;  // of a block that reads rows twice
constexpr int kWarpVectors = 4;     // of a lane, forward, at most
constexpr int kBlockVectors = 2;    // of a thread, forward, where a block is a team
constexpr int kMostThreads = kWarp * kWarp / kBlockVectors;  // of such a block
constexpr int kBlocksAtOnce = 4;  // of kMostThreads each, on a multiprocessor: 32 registers

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
__device__ __forceinline__ void make_opaque(RowPart<T, kVectors>& part) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    cuda::make_opaque(part.raw[i]);
  }
}

// ---- sums in the order of vectors -------------------------------------------------------------

// A vector's elements in a chain; 32 neighbouring vectors by a butterfly; these sums, 32 at most,
// by another. So every team finds bit-identical sums, whatever vectors its threads have.
constexpr Index kMostGroups = kWarp;

template <typename T>
[[nodiscard]] __device__ __forceinline__ float vector_squares(const uint4& raw) {
  float values[kVector<T>];
  unpack<T>(raw, values);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kVector<T>; ++j) {
    sum = __fmaf_rn(values[j], values[j], sum);
  }
  return sum;
}

/// The sum of squares of a row in that order. Requires: whole warps.
template <typename T, int kVectors, Team kTeam>
[[nodiscard]] __device__ __forceinline__ float grouped_squares(const RowPart<T, kVectors>& part,
                                                               float (&shared)[kWarp]) {
  float sums[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    sums[i] = warp_sum(vector_squares<T>(part.raw[i]));
  }
  if constexpr (kTeam == Team::warp) {
    static_assert(kVectors == 1 || kVectors == 2 || kVectors == 4);
    if constexpr (kVectors == 4) {
      return (sums[0] + sums[2]) + (sums[1] + sums[3]);
    } else if constexpr (kVectors == 2) {
      return sums[0] + sums[1];
    } else {
      return sums[0];
    }
  } else {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const int warps = static_cast<int>(blockDim.x / kWarp);
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        shared[static_cast<int>(threadIdx.x / kWarp) + i * warps] = sums[i];
      }
    }
    __syncthreads();
    return warp_sum(lane < kVectors * warps ? shared[lane] : 0.0F);
  }
}

// ---- forward ----------------------------------------------------------------------------------

//   x, y  [rows, width]  read, written
//   gain  [width]        read
//   abs_max  [1]         with kMaximum: the bits of max |y|; 0 before
template <typename T, int kVectors, Team kTeam, bool kAligned, bool kMaximum>
__global__ void __launch_bounds__(kTeam == Team::warp ? kWarpRows * kWarp : kMostThreads,
                                  kTeam == Team::warp ? 0 : kBlocksAtOnce)
    rms_norm_forward_rows(const T* __restrict__ x, const T* __restrict__ gain, T* __restrict__ y,
                          unsigned* abs_max, Index rows, Index width, float share, float eps) {
  __shared__ float shared[kWarp];
  const int team = kTeam == Team::warp ? kWarp : static_cast<int>(blockDim.x);
  const int lane = static_cast<int>(kTeam == Team::warp ? threadIdx.x % kWarp : threadIdx.x);
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
  const float squares = grouped_squares<T, kVectors, kTeam>(part, shared);
  make_opaque(part);
  const float r = reciprocal_rms(squares, share, eps);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float values[kVector<T>];
    float factors[kVector<T>];
    unpack_recomputed<T>(part.raw[i], values);
    unpack_recomputed<T>(gains.raw[i], factors);
#pragma unroll
    for (int j = 0; j < kVector<T>; ++j) {
      values[j] = __fmul_rn(normalised(values[j], r), factors[j]);
    }
    part.raw[i] = pack<T>(values);
  }
  store_part<T, kVectors, kAligned>(part, y + row * width, lane, team, width);
  if constexpr (kMaximum) {
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      largest = max(largest, vector_max<T>(part.raw[i]));
    }
    report_max(largest, abs_max);
  }
}

// Rows of any width, one a block, read twice.
template <typename T, bool kAligned, bool kMaximum>
__global__ void __launch_bounds__(kLoopThreads)
    rms_norm_forward_long_rows(const T* __restrict__ x, const T* __restrict__ gain,
                               T* __restrict__ y, unsigned* abs_max, Index width, float share,
                               float eps) {
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
  const float r = reciprocal_rms(sums[0], share, eps);
  [[maybe_unused]] unsigned largest = 0;
  for (Index at = threadIdx.x; at * kVector<T> < width; at += kLoopThreads) {
    float values[kVector<T>];
    float factors[kVector<T>];
    unpack<T>(load_vector<T, kAligned>(x_row, at, width), values);
    unpack<T>(load_vector<T, kAligned>(gain, at, width), factors);
#pragma unroll
    for (int j = 0; j < kVector<T>; ++j) {
      values[j] = __fmul_rn(normalised(values[j], r), factors[j]);
    }
    const uint4 raw = pack<T>(values);
    store_vector<T, kAligned>(y_row, at, width, raw);
    if constexpr (kMaximum) {
      largest = max(largest, vector_max<T>(raw));
    }
  }
  if constexpr (kMaximum) {
    report_max(largest, abs_max);
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
  unsigned* abs_max;  // [1] with kMaximum: the bits of max |d_x|; 0 before
  Index rows;
  Index width;
  float share;  // 1 / width
  float eps;
};

/// The elements of one vector: x to y, d_y to d_x. `mean` is mean_c(gain * d_y * x * r).
template <typename T>
__device__ __forceinline__ void rms_norm_backward_vector(uint4& x, uint4& d_y, const uint4& gain,
                                                         const uint4& residual, float r, float mean,
                                                         float (&d_gain)[kVector<T>]) {
  float values[kVector<T>];
  float gradients[kVector<T>];
  float gains[kVector<T>];
  float passed[kVector<T>];
  unpack_recomputed<T>(x, values);
  unpack_recomputed<T>(d_y, gradients);
  unpack_recomputed<T>(gain, gains);
  unpack_recomputed<T>(residual, passed);
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

/// sum_c gain * d_y * x over a vector.
template <typename T>
[[nodiscard]] __device__ __forceinline__ float weighted_product(const uint4& x, const uint4& d_y,
                                                                const uint4& gain) {
  float values[kVector<T>];
  float gradients[kVector<T>];
  float gains[kVector<T>];
  unpack<T>(x, values);
  unpack<T>(d_y, gradients);
  unpack<T>(gain, gains);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kVector<T>; ++j) {
    sum += gains[j] * gradients[j] * values[j];
  }
  return sum;
}

/// A barrier of `threads` threads, number `name` of the block's.
__device__ __forceinline__ void team_barrier(int name, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(name), "r"(threads) : "memory");
}

// Two sums over a warp at once, each in warp_sum's order: one in the lower half of the lanes, one
// in the upper.
constexpr int kHalf = kWarp / 2;
[[nodiscard]] __device__ __forceinline__ bool is_upper() {
  return (threadIdx.x & kHalf) != 0;
}
/// The sum of `lower` in the lower lanes, of `upper` in the upper ones.
[[nodiscard]] __device__ __forceinline__ float sum_of_half(float lower, float upper) {
  const float mine = is_upper() ? upper : lower;
  return lanes_sum<kHalf>(mine + __shfl_xor_sync(kAllLanes, is_upper() ? lower : upper, kHalf));
}

/// A thread's vector of one row.
struct VectorRow {
  uint4 x;
  uint4 d_y;
};
/// Elements [at, at + left) of the tensors, a vector at most.
template <typename T, bool kAligned>
[[nodiscard]] __device__ __forceinline__ VectorRow load_vectors(const BackwardTensors<T>& t,
                                                                Index at, Index left) {
  return {.x = load_vector<T, kAligned>(t.x + at, 0, left),
          .d_y = load_vector<T, kAligned>(t.d_y + at, 0, left)};
}

// Measured: jobs/bench/results/notes.md, "Rotary's and RMSNorm's backward pass".
constexpr int kMostTeams = 8;                            // of a block
constexpr int kTeamsThreads = 512;                       // of a block of several teams, at most
constexpr int kThreadsOfMultiprocessor = kWarp * kWarp;  // with 64 registers each

/// How rows are dealt to teams: team k, counted over all blocks, has rows k, k + n, ... of n teams.
struct Teams {
  int threads;    // of a team
  int of_block;   // teams
  int rows_each;  // of every team
  int one_more;   // the first teams have one row more
  Index stride;   // elements from a team's row to its next
};

// A fixed number of blocks goes over the rows. A thread has one vector of a row: a team is as many
// warps as the row has groups of 32 vectors, and takes a row at a time; its next row is on its way
// while one is worked on, but for the residual, which is needed only after the sums. Each thread
// keeps its sums of d_gain in registers. The teams of a block pass as many barriers each, whatever
// rows are left for them: racecheck counts them.
template <typename T, bool kAligned, bool kAdds, bool kWritesY, bool kMaximum>
__global__ void __launch_bounds__(kThreadsOfMultiprocessor, 1)
    rms_norm_backward_rows(BackwardTensors<T> t, Teams teams) {
  extern __shared__ float of_teams[];  // [teams, width], where there are several
  // of a team: in turn, of squares and of products, of its warps; 0 beyond them
  __shared__ float of_warps[kMostTeams][2][2][kWarp];
  const auto thread = static_cast<int>(threadIdx.x);
  const int which = thread / teams.threads;
  const int lane = thread - which * teams.threads;
  const Index width = t.width;
  const Index column = static_cast<Index>(lane) * kVector<T>;
  const Index left = width - column;  // of the row from there
  for (int i = thread; i < kMostTeams * 2 * 2 * kWarp; i += static_cast<int>(blockDim.x)) {
    (&of_warps[0][0][0][0])[i] = 0;
  }
  __syncthreads();
  // the first lane of a half writes its warp's sum; a lane reads those of two warps
  const int in_half = thread % kHalf;
  const int warp = in_half == 0 ? lane / kWarp : -1;
  float* slot = &of_warps[which][0][is_upper() ? 1 : 0][in_half];
  const int first = static_cast<int>(blockIdx.x) * teams.of_block;
  const int turns = teams.rows_each + (first < teams.one_more ? 1 : 0);  // of the block's teams
  const int rows =
      left > 0 ? teams.rows_each + (first + which < teams.one_more ? 1 : 0) : 0;  // of this thread
  Index at = (first + which) * width + column;
  uint4 gain = {};
  float d_gain[kVector<T>] = {};
  [[maybe_unused]] unsigned largest = 0;
  VectorRow even = {};  // stay 0 beyond the row
  VectorRow odd = {};
  if (left > 0) {
    gain = load_vector<T, kAligned>(t.gain + column, 0, left);
  }
  if (rows > 0) {
    even = load_vectors<T, kAligned>(t, at, left);
  }
  const auto take = [&](int turn, VectorRow& data, VectorRow& next, float* shared) {
    if (turn + 1 < rows) {
      next = load_vectors<T, kAligned>(t, at + teams.stride, left);
    }
    uint4 residual = {};
    if constexpr (kAdds) {
      if (turn < rows) {
        residual = load_vector<T, kAligned>(t.residual + at, 0, left);
      }
    }
    float sum = sum_of_half(vector_squares<T>(data.x), weighted_product<T>(data.x, data.d_y, gain));
    cuda::make_opaque(data.x);
    cuda::make_opaque(data.d_y);
    if (teams.threads > kWarp) {
      if (warp >= 0) {
        shared[warp] = sum;
      }
      team_barrier(1 + which, teams.threads);
      sum = lanes_sum<kHalf>(shared[0] + shared[kHalf]);
    }
    const float other = __shfl_xor_sync(kAllLanes, sum, kHalf);
    cuda::make_opaque(gain);
    if (turn < rows) {
      const float r = reciprocal_rms(is_upper() ? other : sum, t.share, t.eps);
      const float mean = (is_upper() ? sum : other) * r * t.share;
      uint4 y = data.x;
      uint4 d_x = data.d_y;
      rms_norm_backward_vector<T>(y, d_x, gain, residual, r, mean, d_gain);
      store_vector<T, kAligned>(t.d_x + at, 0, left, d_x);
      if constexpr (kMaximum) {
        largest = max(largest, vector_max<T>(d_x));
      }
      if constexpr (kWritesY) {
        store_vector<T, kAligned>(t.y + at, 0, left, y);
      }
    }
    at += teams.stride;
  };
  for (int turn = 0; turn < turns; turn += 2) {
    take(turn, even, odd, slot);
    if (turn + 1 < turns) {
      take(turn + 1, odd, even, slot + 2 * kWarp);
    }
  }
  if constexpr (kMaximum) {
    report_max(largest, t.abs_max);
  }
  trigger_next_kernel();
  float* partial = t.partial + static_cast<Index>(blockIdx.x) * width;
  if (teams.of_block == 1) {
#pragma unroll
    for (int j = 0; j < kVector<T>; j += kQuad) {
      if (column + j < width) {
        store_quad<kAligned>(partial, column + j, width,
                             make_float4(d_gain[j], d_gain[j + 1], d_gain[j + 2], d_gain[j + 3]));
      }
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kVector<T>; ++j) {
    if (column + j < width) {
      of_teams[which * width + column + j] = d_gain[j];
    }
  }
  __syncthreads();
  for (Index c = thread; c < width; c += blockDim.x) {
    float sum = of_teams[c];
    for (int w = 1; w < teams.of_block; ++w) {
      sum += of_teams[w * width + c];
    }
    partial[c] = sum;
  }
}

// Rows of any width, one a block at a time, read twice; a block's sums of d_gain are in its partial
// row, whose columns belong to one thread each.
template <typename T, bool kAligned, bool kMaximum>
__global__ void __launch_bounds__(kLoopThreads) rms_norm_backward_long_rows(BackwardTensors<T> t) {
  [[maybe_unused]] unsigned largest = 0;
  __shared__ BlockSums<2> shared[2];  // taken in turn
  const Index width = t.width;
  float* partial = t.partial + static_cast<Index>(blockIdx.x) * width;
  int turn = 0;
  for (Index row = blockIdx.x; row < t.rows; row += gridDim.x) {
    const Index begin = row * width;
    float sums[2] = {};
    for (Index at = threadIdx.x; at * kVector<T> < width; at += kLoopThreads) {
      const uint4 x = load_vector<T, kAligned>(t.x + begin, at, width);
      const uint4 d_y = load_vector<T, kAligned>(t.d_y + begin, at, width);
      const uint4 gain = load_vector<T, kAligned>(t.gain, at, width);
      float values[kVector<T>];
      unpack<T>(x, values);
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) {
        sums[0] = __fmaf_rn(values[j], values[j], sums[0]);
      }
      sums[1] += weighted_product<T>(x, d_y, gain);
    }
    block_sum(sums, shared[turn]);
    turn = 1 - turn;
    const float r = reciprocal_rms(sums[0], t.share, t.eps);
    const float mean = sums[1] * r * t.share;
    for (Index at = threadIdx.x; at * kVector<T> < width; at += kLoopThreads) {
      uint4 x = load_vector<T, kAligned>(t.x + begin, at, width);
      uint4 d_y = load_vector<T, kAligned>(t.d_y + begin, at, width);
      const uint4 gain = load_vector<T, kAligned>(t.gain, at, width);
      uint4 residual{};
      if (t.residual != nullptr) {
        residual = load_vector<T, kAligned>(t.residual + begin, at, width);
      }
      float d_gain[kVector<T>] = {};
      rms_norm_backward_vector<T>(x, d_y, gain, residual, r, mean, d_gain);
      store_vector<T, kAligned>(t.d_x + begin, at, width, d_y);
      if constexpr (kMaximum) {
        largest = max(largest, vector_max<T>(d_y));
      }
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
  if constexpr (kMaximum) {
    report_max(largest, t.abs_max);
  }
}

// ---- launches ---------------------------------------------------------------------------------

[[nodiscard]] float share_of(Index width) {
  return static_cast<float>(1.0 / static_cast<double>(width));
}

template <typename T, bool kAligned, bool kMaximum>
void launch_forward(const RmsNormForwardArgs& args, Index rows, Index width, Stream& stream) {
  const T* x = data_as<T>(args.x);
  const T* gain = data_as<T>(args.gain);
  T* y = data_as<T>(args.y);
  auto* abs_max = static_cast<unsigned*>(args.abs_max.data);
  const float share = share_of(width);
  const Index vectors = divide_up(width, kVector<T>);
  const auto by_warps = [&](auto kernel) {
    kernel<<<block_count(rows, kWarpRows), kWarpRows * kWarp, 0, stream.cuda_handle()>>>(
        x, gain, y, abs_max, rows, width, share, args.eps);
  };
  if (vectors <= kWarp) {
    by_warps(rms_norm_forward_rows<T, 1, Team::warp, kAligned, kMaximum>);
  } else if (vectors <= 2 * kWarp) {
    by_warps(rms_norm_forward_rows<T, 2, Team::warp, kAligned, kMaximum>);
  } else if (vectors <= kWarpVectors * kWarp) {
    by_warps(rms_norm_forward_rows<T, kWarpVectors, Team::warp, kAligned, kMaximum>);
  } else if (vectors <= kMostGroups * kWarp) {
    const Index threads = divide_up(divide_up(vectors, kBlockVectors), kWarp) * kWarp;
    rms_norm_forward_rows<T, kBlockVectors, Team::block, kAligned, kMaximum>
        <<<block_count(rows, 1), static_cast<unsigned>(threads), 0, stream.cuda_handle()>>>(
            x, gain, y, abs_max, rows, width, share, args.eps);
  } else {
    rms_norm_forward_long_rows<T, kAligned, kMaximum>
        <<<block_count(rows, 1), kLoopThreads, 0, stream.cuda_handle()>>>(x, gain, y, abs_max,
                                                                          width, share, args.eps);
  }
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

template <typename T, bool kAligned>
void launch_forward_as(const RmsNormForwardArgs& args, Index rows, Index width, Stream& stream) {
  if (args.abs_max.data == nullptr) {
    launch_forward<T, kAligned, false>(args, rows, width, stream);
  } else {
    launch_forward<T, kAligned, true>(args, rows, width, stream);
  }
}

// Both return the number of partial rows: no more blocks than an H100 holds at once, so that none
// waits for a place; constants, so that the order of the sums depends on the shape only.
template <typename T, bool kAligned, bool kMaximum, bool kAdds, bool kWritesY>
Index launch_backward_rows(const BackwardTensors<T>& tensors, Index groups, Stream& stream) {
  constexpr Index kMostBlocks = 4;  // of a multiprocessor
  constexpr Index kMultiprocessors = kPartialRows / kMostBlocks;
  const auto team = static_cast<int>(groups) * kWarp;
  const int of_block = std::clamp(kTeamsThreads / team, 1, kMostTeams);
  const int threads = team * of_block;
  const Index at_once = std::clamp<Index>(kThreadsOfMultiprocessor / threads, 1, kMostBlocks);
  const Index blocks = std::min(divide_up(tensors.rows, of_block), kMultiprocessors * at_once);
  const Index all = blocks * of_block;
  TESSERA_REQUIRE(tensors.rows / all < std::numeric_limits<int>::max(), "too many rows for a team");
  const Teams teams = {.threads = team,
                       .of_block = of_block,
                       .rows_each = static_cast<int>(tensors.rows / all),
                       .one_more = static_cast<int>(tensors.rows % all),
                       .stride = all * tensors.width};
  const std::size_t bytes =
      of_block == 1 ? 0 : static_cast<std::size_t>(of_block) * tensors.width * sizeof(float);
  rms_norm_backward_rows<T, kAligned, kAdds, kWritesY, kMaximum>
      <<<block_count(blocks, 1), threads, bytes, stream.cuda_handle()>>>(tensors, teams);
  TESSERA_CHECK_CUDA(cudaGetLastError());
  return blocks;
}

template <typename T, bool kAligned, bool kMaximum>
Index launch_backward(const BackwardTensors<T>& tensors, Stream& stream) {
  const Index groups = divide_up(divide_up(tensors.width, kVector<T>), kWarp);
  if (groups <= kMostGroups) {
    const bool writes_y = tensors.y != nullptr;
    if (tensors.residual != nullptr) {
      return writes_y
                 ? launch_backward_rows<T, kAligned, kMaximum, true, true>(tensors, groups, stream)
                 : launch_backward_rows<T, kAligned, kMaximum, true, false>(tensors, groups,
                                                                            stream);
    }
    return writes_y
               ? launch_backward_rows<T, kAligned, kMaximum, false, true>(tensors, groups, stream)
               : launch_backward_rows<T, kAligned, kMaximum, false, false>(tensors, groups, stream);
  }
  const Index blocks = std::min(tensors.rows, kPartialRows / 2);
  rms_norm_backward_long_rows<T, kAligned, kMaximum>
      <<<block_count(blocks, 1), kLoopThreads, 0, stream.cuda_handle()>>>(tensors);
  TESSERA_CHECK_CUDA(cudaGetLastError());
  return blocks;
}

template <typename T, bool kAligned>
Index launch_backward_as(const BackwardTensors<T>& tensors, Stream& stream) {
  return tensors.abs_max == nullptr ? launch_backward<T, kAligned, false>(tensors, stream)
                                    : launch_backward<T, kAligned, true>(tensors, stream);
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
  require_abs_max_in(DeviceKind::cuda, args.abs_max);
  begin_abs_max(args.abs_max, stream);
  if (rows * width == 0) {
    return;
  }
  with_element_type(dtype, "x", [&](auto zero) {
    using T = decltype(zero);
    if (width % kVector<T> == 0 && is_vector_aligned(args.x.data) &&
        is_vector_aligned(args.gain.data) && is_vector_aligned(args.y.data)) {
      launch_forward_as<T, true>(args, rows, width, stream);
    } else {
      launch_forward_as<T, false>(args, rows, width, stream);
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
  if (args.d_gain.data != nullptr) {
    require_tensor(args.d_gain, args.d_gain.dtype, width, "d_gain");
  }
  require_room(args.workspace, DType::f32, column_sum_workspace(rows, width), "workspace");
  if (args.residual.data != nullptr) {
    require_tensor(args.residual, dtype, rows * width, "residual");
  }
  if (args.y.data != nullptr) {
    require_tensor(args.y, dtype, rows * width, "y");
  }
  require_abs_max_in(DeviceKind::cuda, args.abs_max);
  begin_abs_max(args.abs_max, stream);
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
                                          .abs_max = static_cast<unsigned*>(args.abs_max.data),
                                          .rows = rows,
                                          .width = width,
                                          .share = share_of(width),
                                          .eps = args.eps};
      if (width % kVector<T> == 0 && is_vector_aligned(args.x.data) &&
          is_vector_aligned(args.gain.data) && is_vector_aligned(args.d_y.data) &&
          is_vector_aligned(args.residual.data) && is_vector_aligned(args.d_x.data) &&
          is_vector_aligned(args.y.data) && is_vector_aligned(partial)) {
        blocks = launch_backward_as<T, true>(tensors, stream);
      } else {
        blocks = launch_backward_as<T, false>(tensors, stream);
      }
    });
  }
  if (args.d_gain.data != nullptr) {
    add_partial_rows({.sums = partial, .rows = blocks, .stride = width}, args.d_gain, stream);
  }
}

}  // namespace tessera::cuda
