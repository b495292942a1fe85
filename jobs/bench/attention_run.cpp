#include "jobs/bench/attention_run.h"

#include <cmath>

#include "jobs/bench/measure.h"

namespace tessera::bench {
namespace {

Shape rows_of(const AttentionShape& shape, Index heads) {
  return {shape.batch * shape.sequence, heads * shape.head_dim};
}

}  // namespace

AttentionRun::AttentionRun(const AttentionShape& shape, DType dtype, QkPlace place,
                           std::size_t workspace_bytes, Stream& stream)
    : shape_(shape),
      scale_(1 / std::sqrt(static_cast<float>(shape.head_dim))),
      stream_(stream),
      kernels_(kernel_table(stream.device().kind)),
      qkv_(random_buffer(stream, dtype, rows_of(shape, shape.query_heads + 2 * shape.kv_heads))),
      rotated_qk_(
          place == QkPlace::fused
              ? DeviceBuffer()
              : random_buffer(stream, dtype, rows_of(shape, shape.query_heads + shape.kv_heads))),
      d_out_(random_buffer(stream, dtype, rows_of(shape, shape.query_heads))),
      d_qkv_(stream.device(), MemoryKind::device, dtype, qkv_.view().shape, "bench"),
      out_(stream.device(), MemoryKind::device, dtype, d_out_.view().shape, "bench"),
      lse_(stream.device(), MemoryKind::device, DType::f32,
           {shape.batch, shape.query_heads, shape.sequence}, "bench"),
      workspace_(stream.device(), MemoryKind::device, DType::u8,
                 {static_cast<Index>(workspace_bytes)}, "bench workspace") {}

void AttentionRun::forward(const AttentionOptions& options) {
  kernels_.attention_forward({.shape = shape_,
                              .options = options,
                              .scale = scale_,
                              .qkv = qkv_.view(),
                              .rotated_qk = rotated_qk_.view(),
                              .out = out_.view(),
                              .lse = lse_.view(),
                              .workspace = workspace_.view()},
                             stream_);
}

void AttentionRun::backward(const AttentionOptions& options) {
  kernels_.attention_backward({.shape = shape_,
                               .options = options,
                               .scale = scale_,
                               .qkv = qkv_.view(),
                               .rotated_qk = rotated_qk_.view(),
                               .out = out_.view(),
                               .lse = lse_.view(),
                               .d_out = d_out_.view(),
                               .d_qkv = d_qkv_.view(),
                               .workspace = workspace_.view()},
                              stream_);
}

}  // namespace tessera::bench
