// A thread widens kWords words of 8 codes, a block's width apart: neighbours read 4 bytes each and
// write 16 each, so that loads and stores are contiguous over a warp. (16 bytes of codes a thread
// would spread a warp's stores over four times as many sectors; codes are a fifth of the traffic.)
// The 16 values are in 16 banks of shared memory, where any 32 codes are read at once.
#include "kernels/cuda/launch.cuh"
#include "kernels/nf4.h"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWords = 4;
constexpr int kWordCodes = 8;
constexpr int kWordsOfBlock = static_cast<int>(kNf4Block) / kWordCodes;
constexpr unsigned kCodeMask = 15U;

__device__ const std::array<float, kNf4Values.size()> values_of_codes = kNf4Values;
__device__ const std::array<float, kNf4ScaleMap.size()> scale_map = kNf4ScaleMap;
static_assert(kNf4ScaleMap.size() == kThreads);

/// Writes what of elements [at, at + 8) is within the array, rounded to T.
template <typename T, bool kAligned>
__device__ __forceinline__ void store_octet(T* out, Index at, Index count,
                                            const float (&values)[kWordCodes]) {
  if (kAligned && at + kWordCodes <= count) {
#pragma unroll
    for (int first = 0; first < kWordCodes; first += kVector<T>) {
      float part[kVector<T>];
#pragma unroll
      for (int i = 0; i < kVector<T>; ++i) {
        part[i] = values[first + i];
      }
      store_whole(out + at + first, pack<T>(part));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kWordCodes; ++i) {
    if (at + i < count) {
      out[at + i] = from_f32<T>(values[i]);
    }
  }
}

//   codes        [ceil(count / 8)]         read, 8 a word
//   scale_codes  [ceil(count / 64)]        read
//   scales       [ceil(count / 64 / 256)]  read
//   mean         [1]                       read
//   out          [count]                   written
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    widen(const unsigned* __restrict__ codes, const std::uint8_t* __restrict__ scale_codes,
          const float* __restrict__ scales, const float* __restrict__ mean, T* __restrict__ out,
          Index count) {
  __shared__ float values[kNf4Values.size()];
  __shared__ float map[kNf4ScaleMap.size()];
  const Index first = static_cast<Index>(blockIdx.x) * (kThreads * kWords) + threadIdx.x;
  unsigned words[kWords] = {};
  unsigned map_codes[kWords] = {};
  float factors[kWords] = {};
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const Index word = first + w * kThreads;
    if (word * kWordCodes < count) {
      const Index block = word / kWordsOfBlock;
      words[w] = codes[word];
      map_codes[w] = scale_codes[block];
      factors[w] = scales[block / kNf4ScaleBlock];
    }
  }
  const float centre = *mean;
  map[threadIdx.x] = scale_map[threadIdx.x];
  if (threadIdx.x < kNf4Values.size()) {
    values[threadIdx.x] = values_of_codes[threadIdx.x];
  }
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const Index at = (first + w * kThreads) * kWordCodes;
    if (at < count) {
      const float absmax = __fadd_rn(__fmul_rn(map[map_codes[w]], factors[w]), centre);
      float widened[kWordCodes];
#pragma unroll
      for (int i = 0; i < kWordCodes; ++i) {
        const int shift = i / 2 * 8 + (i % 2 == 0 ? 4 : 0);
        widened[i] = __fmul_rn(values[words[w] >> shift & kCodeMask], absmax);
      }
      store_octet<T, kAligned>(out, at, count, widened);
    }
  }
}

}  // namespace

void widen_nf4(const WidenNf4Args& args, Stream& stream) {
  require_widen_nf4(DeviceKind::cuda, args);
  const Index count = args.out.count();
  if (count == 0) {
    return;
  }
  const Nf4Parts parts = nf4_parts(count);
  const auto* bytes = data_as<std::uint8_t>(args.packed);
  const unsigned blocks = block_count(count, kThreads * kWords * kWordCodes);
  with_element_type(args.out.dtype, "out", [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto kernel) {
      kernel<<<blocks, kThreads, 0, stream.cuda_handle()>>>(
          reinterpret_cast<const unsigned*>(bytes + parts.codes), bytes + parts.scale_codes,
          reinterpret_cast<const float*>(bytes + parts.scale_scales),
          reinterpret_cast<const float*>(bytes + parts.mean), data_as<T>(args.out), count);
    };
    is_vector_aligned(args.out.data) ? launch(widen<T, true>) : launch(widen<T, false>);
  });
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

}  // namespace tessera::cuda
