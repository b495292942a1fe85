// A block of threads per (row, query head). Decoding reads every weight for a token; this kernel's
// share of the time is small, so it is simple rather than fast.
#include <cmath>

#include "kernels/attention_cached.h"
#include "kernels/attention_slices.h"
#include "kernels/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kElements = static_cast<int>(kMaxCudaHeadDim) / kThreads;  // of out, a thread

//   qkv    [rows, width]  read
//   cache  [.., kept]     rows [position, position + rows) written
template <typename T>
__global__ void keep(const T* __restrict__ qkv, T* __restrict__ cache, Index width, Index skipped,
                     Index kept, Index position) {
  const Index row = blockIdx.x;
  for (Index i = threadIdx.x; i < kept; i += blockDim.x) {
    cache[(position + row) * kept + i] = qkv[row * width + skipped + i];
  }
}

//   qkv    [rows, (Hq + 2 Hkv) D]  read
//   cache  [.., 2 Hkv D]           read
//   out    [rows, Hq D]            written
template <typename T>
__global__ void __launch_bounds__(kThreads)
    attend(const T* __restrict__ qkv, const T* __restrict__ cache, T* __restrict__ out,
           Index query_heads, Index kv_heads, Index dim, Index position, Index window,
           float scale) {
  __shared__ float q[kMaxCudaHeadDim];
  __shared__ float p[kThreads];
  const Index row = blockIdx.x / query_heads;
  const Index head = blockIdx.x % query_heads;
  const Index kv_head = head / (query_heads / kv_heads);
  const Index stride = 2 * kv_heads * dim;
  const T* keys = cache + kv_head * dim;
  const T* values = keys + kv_heads * dim;
  for (Index i = threadIdx.x; i < dim; i += kThreads) {
    q[i] = to_f32(qkv[row * (query_heads + 2 * kv_heads) * dim + head * dim + i]);
  }
  float result[kElements] = {};
  float largest = -INFINITY;
  float sum = 0.0F;
  const Index count = position + row + 1;
  // Blocks begin where they do without a window.
  const Index seen = window == 0 || count <= window ? 0 : count - window;
  for (Index first = seen / kThreads * kThreads; first < count; first += kThreads) {
    __syncthreads();  // q is there, and p of the last block has been read
    const Index key = first + threadIdx.x;
    float score = -INFINITY;
    if (key < count) {
      score = 0.0F;
      for (Index i = 0; i < dim; ++i) {
        score = __fmaf_rn(q[i], to_f32(keys[key * stride + i]), score);
      }
      score *= scale;
    }
    p[threadIdx.x] = score;
    __syncthreads();
    const int here = static_cast<int>(count - first < kThreads ? count - first : kThreads);
    const int begin = static_cast<int>(seen > first ? seen - first : 0);
    const float before = largest;
    for (int s = begin; s < here; ++s) {
      largest = fmaxf(largest, p[s]);
    }
    const float kept = expf(before - largest);
    sum *= kept;
#pragma unroll
    for (float& each : result) {
      each *= kept;
    }
    for (int s = begin; s < here; ++s) {
      const float e = expf(p[s] - largest);
      sum += e;
#pragma unroll
      for (int j = 0; j < kElements; ++j) {
        const Index i = threadIdx.x + j * kThreads;
        if (i < dim) {
          result[j] = __fmaf_rn(e, to_f32(values[(first + s) * stride + i]), result[j]);
        }
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kElements; ++j) {
    const Index i = threadIdx.x + j * kThreads;
    if (i < dim) {
      out[(row * query_heads + head) * dim + i] = from_f32<T>(result[j] / sum);
    }
  }
}

}  // namespace

void attention_cached(const AttentionCachedArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.rows > 0 && args.kv_heads > 0 && args.head_dim > 0 && args.position >= 0 &&
                      args.window >= 0 && args.query_heads > 0 &&
                      args.query_heads % args.kv_heads == 0,
                  "attention takes positive extents, and query heads a multiple of kv heads");
  TESSERA_REQUIRE(args.head_dim <= kMaxCudaHeadDim, "heads of at most 256 elements");
  const Index width = (args.query_heads + 2 * args.kv_heads) * args.head_dim;
  const Index kept = 2 * args.kv_heads * args.head_dim;
  require_room(args.qkv, args.qkv.dtype, args.rows * width, "qkv");
  require_room(args.cache, args.qkv.dtype, (args.position + args.rows) * kept, "cache");
  require_room(args.out, args.qkv.dtype, args.rows * args.query_heads * args.head_dim, "out");
  with_element_type(args.qkv.dtype, "qkv", [&](auto type) {
    using T = decltype(type);
    keep<T><<<block_count(args.rows, 1), kThreads, 0, stream.cuda_handle()>>>(
        data_as<T>(args.qkv), data_as<T>(args.cache), width, args.query_heads * args.head_dim, kept,
        args.position);
    TESSERA_CHECK_CUDA(cudaGetLastError());
    attend<T><<<block_count(args.rows * args.query_heads, 1), kThreads, 0, stream.cuda_handle()>>>(
        data_as<T>(args.qkv), data_as<T>(args.cache), data_as<T>(args.out), args.query_heads,
        args.kv_heads, args.head_dim, args.position, args.window, args.scale);
    TESSERA_CHECK_CUDA(cudaGetLastError());
  });
}

}  // namespace tessera::cuda
