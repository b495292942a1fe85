// The deterministic backward pass of sequences that are too long for one call of cuDNN: its
// workspace grows with queries times keys. Outputs and log-sum-exps are those of whole rows, so a
// rectangle of queries and keys has its own part of d_q, d_k and d_v, and the parts add up: in f32,
// queries in order, and for each tile of queries keys in order.
#include <algorithm>
#include <cstddef>

#include "kernels/attention_rows.h"
#include "kernels/cuda/attention_methods.h"
#include "kernels/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;

/// sums += values, [count] both, a multiple of kQuad.
__global__ void __launch_bounds__(kThreads)
    add_kernel(const BFloat16* __restrict__ values, float* __restrict__ sums, Index count) {
  const Index at = (static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x) * kQuad;
  if (at < count) {
    float4 sum = *reinterpret_cast<const float4*>(sums + at);
    const float4 value = load_quad<true>(values, at, count);
    sum = make_float4(sum.x + value.x, sum.y + value.y, sum.z + value.z, sum.w + value.w);
    *reinterpret_cast<float4*>(sums + at) = sum;
  }
}

/// out [rows, stride], columns 0 .. width - 1 of it, = sums [rows, width] rounded to bf16. `width`
/// is a multiple of kQuad.
__global__ void __launch_bounds__(kThreads)
    round_kernel(const float* __restrict__ sums, BFloat16* __restrict__ out, Index rows,
                 Index width, Index stride) {
  const Index at = (static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x) * kQuad;
  if (at < rows * width) {
    const Index row = at / width;
    store_quad<true>(out + row * stride, at - row * width, width,
                     *reinterpret_cast<const float4*>(sums + at));
  }
}

void add(const BFloat16* values, float* sums, Index count, Stream& stream) {
  add_kernel<<<block_count(count, Index{kThreads} * kQuad), kThreads, 0, stream.cuda_handle()>>>(
      values, sums, count);
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

/// Rows of sums, and columns of fused rows that they go to.
void round_into(const float* sums, BFloat16* out, Index rows, Index width, Index stride,
                Stream& stream) {
  round_kernel<<<block_count(rows * width, Index{kThreads} * kQuad), kThreads, 0,
                 stream.cuda_handle()>>>(sums, out, rows, width, stride);
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

void clear(float* sums, Index count, Stream& stream) {
  TESSERA_CHECK_CUDA(cudaMemsetAsync(sums, 0, static_cast<std::size_t>(count) * sizeof(float),
                                     stream.cuda_handle()));
}

/// One slice: the query heads of `groups` key/value heads of one sequence.
class TiledSlice {
 public:
  TiledSlice(const AttentionBackwardArgs& args, const AttentionSlices& slices, Index sequence,
             Index first_group, Stream& stream)
      : args_(args),
        shape_(args.shape),
        qk_(qk_rows(args)),
        room_(attention_tile_room(args.shape, slices)),
        stream_(stream),
        tile_(slices.tile),
        groups_(std::min(slices.groups, args.shape.kv_heads - first_group)),
        heads_(groups_ * (args.shape.query_heads / args.shape.kv_heads)),
        first_token_(sequence * args.shape.sequence),
        first_group_(first_group),
        first_head_(first_group * (args.shape.query_heads / args.shape.kv_heads)),
        lse_(part<float>(room_.lse)) {
    const auto row_bytes = static_cast<std::size_t>(shape_.sequence) * sizeof(float);
    const float* lse =
        data_as<float>(args.lse) + (sequence * shape_.query_heads + first_head_) * shape_.sequence;
    TESSERA_CHECK_CUDA(cudaMemcpy2DAsync(
        lse_, static_cast<std::size_t>(room_.lse_row) * sizeof(float), lse, row_bytes, row_bytes,
        static_cast<std::size_t>(heads_), cudaMemcpyDeviceToDevice, stream.cuda_handle()));
  }

  void run() {
    clear(key_sums(0), 2 * shape_.sequence * key_width(), stream_);
    for (Index query = 0; query < shape_.sequence; query += tile_) {
      if (shape_.window > 0) {
        run_window(query);
      } else {
        run_row(query);
      }
    }
    const Index row = fused_width(shape_);
    auto* d_qkv = data_as<BFloat16>(args_.d_qkv) + first_token_ * row;
    round_into(key_sums(0), d_qkv + (shape_.query_heads + first_group_) * shape_.head_dim,
               shape_.sequence, key_width(), row, stream_);
    round_into(key_sums(1),
               d_qkv + (shape_.query_heads + shape_.kv_heads + first_group_) * shape_.head_dim,
               shape_.sequence, key_width(), row, stream_);
  }

 private:
  template <typename T>
  [[nodiscard]] T* part(std::size_t begin) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(args_.workspace.data) + begin);
  }
  [[nodiscard]] Index query_width() const { return heads_ * shape_.head_dim; }
  [[nodiscard]] Index key_width() const { return groups_ * shape_.head_dim; }
  /// 0: of d_k, 1: of d_v; [T, key_width()]
  [[nodiscard]] float* key_sums(Index which) const {
    return part<float>(room_.key_sums) + which * shape_.sequence * key_width();
  }
  [[nodiscard]] BFloat16* d_q_of(Index query) const {
    return data_as<BFloat16>(args_.d_qkv) + (first_token_ + query) * fused_width(shape_) +
           first_head_ * shape_.head_dim;
  }

  /// A tile of queries against each tile of keys up to its own.
  void run_row(Index query) {
    const Index queries = std::min(tile_, shape_.sequence - query);
    auto* sums = part<float>(room_.query_sums);
    auto* d_q = part<BFloat16>(room_.d_q);
    clear(sums, queries * query_width(), stream_);
    for (Index key = 0; key <= query; key += tile_) {
      const Index keys = std::min(tile_, shape_.sequence - key);
      run_tile(query, queries, key, keys, key == query ? TileMask::diagonal : TileMask::none, d_q,
               query_width());
      add(d_q, sums, queries * query_width(), stream_);
    }
    round_into(sums, d_q_of(query), queries, query_width(), fused_width(shape_), stream_);
  }

  /// A tile of queries against all keys that they see: its d_q is whole.
  void run_window(Index query) {
    const Index queries = std::min(tile_, shape_.sequence - query);
    const Index key = shape_.first_key(query);
    run_tile(query, queries, key, query + queries - key, TileMask::end, d_q_of(query),
             fused_width(shape_));
  }

  void run_tile(Index query, Index queries, Index key, Index keys, TileMask mask, BFloat16* d_q,
                Index d_q_row) {
    const Index D = shape_.head_dim;
    const auto* qk = data_as<BFloat16>(qk_.rows);
    const Index out = (first_token_ + query) * shape_.query_heads * D + first_head_ * D;
    auto* d_k = part<BFloat16>(room_.d_k);
    auto* d_v = part<BFloat16>(room_.d_v);
    const AttentionTile tile = {
        .shape = shape_,
        .scale = args_.scale,
        .qk_row = qk_.width,
        .groups = groups_,
        .queries = queries,
        .keys = keys,
        .mask = mask,
        .q = qk + (first_token_ + query) * qk_.width + first_head_ * D,
        .k = qk + (first_token_ + key) * qk_.width + (shape_.query_heads + first_group_) * D,
        .v = data_as<BFloat16>(args_.qkv) + (first_token_ + key) * fused_width(shape_) +
             (shape_.query_heads + shape_.kv_heads + first_group_) * D,
        .out = data_as<BFloat16>(args_.out) + out,
        .d_out = data_as<BFloat16>(args_.d_out) + out,
        .lse = lse_ + query,
        .lse_row = room_.lse_row,
        .d_q = d_q,
        .d_q_row = d_q_row,
        .d_k = d_k,
        .d_v = d_v,
        .d_kv_row = key_width()};
    const auto from = static_cast<Index>(room_.library);
    cudnn_attention_tile_backward(tile, args_.workspace.slice(from, args_.workspace.count()),
                                  stream_);
    add(d_k, key_sums(0) + key * key_width(), keys * key_width(), stream_);
    add(d_v, key_sums(1) + key * key_width(), keys * key_width(), stream_);
  }

  const AttentionBackwardArgs& args_;
  const AttentionShape& shape_;
  QkRows qk_;
  AttentionTileRoom room_;
  Stream& stream_;
  Index tile_;
  Index groups_;
  Index heads_;
  Index first_token_;
  Index first_group_;
  Index first_head_;
  float* lse_;  // [heads, lse_row]
};

}  // namespace

void attention_backward_in_tiles(const AttentionBackwardArgs& args, const AttentionSlices& slices,
                                 Stream& stream) {
  for (Index sequence = 0; sequence < args.shape.batch; ++sequence) {
    for (Index group = 0; group < args.shape.kv_heads; group += slices.groups) {
      TiledSlice(args, slices, sequence, group, stream).run();
    }
  }
}

}  // namespace tessera::cuda
