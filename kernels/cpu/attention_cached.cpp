#include "kernels/attention_cached.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/require.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/device/cpu/submit.h"

namespace tessera::cpu {
namespace {

constexpr Index kKeys = 64;  // of a block; part of what fixes the bits

float dot(const float* a, const float* b, Index dim) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Index i = 0; i < dim; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

// One row of one head over the keys that it sees, up to `count`; blocks begin where they do without
// a window.
void attend(const AttentionCachedArgs& args, Index row, Index head) {
  const Index dim = args.head_dim;
  const Index stride = 2 * args.kv_heads * dim;
  const Index kv_head = head / (args.query_heads / args.kv_heads);
  const float* q =
      data_as<float>(args.qkv) + row * (args.query_heads + 2 * args.kv_heads) * dim + head * dim;
  const float* k = data_as<float>(args.cache) + kv_head * dim;
  const float* v = k + args.kv_heads * dim;
  float* out = data_as<float>(args.out) + (row * args.query_heads + head) * dim;
  std::fill_n(out, dim, 0.0F);
  float largest = -HUGE_VALF;
  float sum = 0;
  std::array<float, kKeys> p{};
  const Index count = args.position + row + 1;
  const Index seen = args.window == 0 ? 0 : std::max(Index{0}, count - args.window);
  for (Index first = seen / kKeys * kKeys; first < count; first += kKeys) {
    const Index begin = std::max(Index{0}, seen - first);
    const Index keys = std::min(kKeys, count - first);
    const float before = largest;
    for (Index s = begin; s < keys; ++s) {
      const float score = args.scale * dot(q, k + (first + s) * stride, dim);
      p[static_cast<std::size_t>(s)] = score;
      largest = std::max(largest, score);
    }
    const float kept = exp_f32(before - largest);
    sum *= kept;
#pragma omp simd
    for (Index i = 0; i < dim; ++i) {
      out[i] *= kept;
    }
    for (Index s = begin; s < keys; ++s) {
      const float e = exp_f32(p[static_cast<std::size_t>(s)] - largest);
      sum += e;
      const float* value = v + (first + s) * stride;
#pragma omp simd
      for (Index i = 0; i < dim; ++i) {
        out[i] += e * value[i];
      }
    }
  }
  const float factor = 1 / sum;
#pragma omp simd
  for (Index i = 0; i < dim; ++i) {
    out[i] *= factor;
  }
}

void run(const AttentionCachedArgs& args) {
  const Index dim = args.head_dim;
  const Index width = (args.query_heads + 2 * args.kv_heads) * dim;
  const Index kept = 2 * args.kv_heads * dim;
  for (Index row = 0; row < args.rows; ++row) {
    std::copy_n(data_as<float>(args.qkv) + row * width + args.query_heads * dim, kept,
                data_as<float>(args.cache) + (args.position + row) * kept);
  }
  const Index items = args.rows * args.query_heads;
#pragma omp parallel for schedule(static) if (items * args.position * dim > kParallelElements)
  for (Index item = 0; item < items; ++item) {
    attend(args, item / args.query_heads, item % args.query_heads);
  }
}

}  // namespace

void attention_cached(const AttentionCachedArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.rows > 0 && args.kv_heads > 0 && args.head_dim > 0 && args.position >= 0 &&
                      args.window >= 0 && args.query_heads > 0 &&
                      args.query_heads % args.kv_heads == 0,
                  "attention takes positive extents, and query heads a multiple of kv heads");
  require_room(args.qkv, DType::f32,
               args.rows * (args.query_heads + 2 * args.kv_heads) * args.head_dim, "qkv");
  require_room(args.cache, DType::f32,
               (args.position + args.rows) * 2 * args.kv_heads * args.head_dim, "cache");
  require_room(args.out, DType::f32, args.rows * args.query_heads * args.head_dim, "out");
  submit(stream, [args] { run(args); });
}

}  // namespace tessera::cpu
