// Blocks of kQueryRows x kKeyColumns scores; the products go through oneDNN, reading and writing
// the heads where they lie in the fused rows. Blocks above the diagonal are not computed.
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>

#include <omp.h>

#include "kernels/cpu/attention_workspace.h"
#include "kernels/cpu/dnnl_check.h"
#include "kernels/cpu/require.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/device/cpu/submit.h"

namespace tessera::cpu {
namespace {

// One block of scores in f32 is 128 KiB, two lie in the second-level cache of any x86-64-v3
// machine; smaller blocks spend more of their time in oneDNN's packing. Part of what fixes the
// bits.
constexpr Index kQueryRows = 128;
constexpr Index kKeyColumns = 256;
constexpr Index kBlockElements = kQueryRows * kKeyColumns;
constexpr Index kLineFloats = 16;  // a cache line: threads' scratch shares none

Index round_up(Index count) {
  return (count + kLineFloats - 1) / kLineFloats * kLineFloats;
}

// f32 elements of one thread's scratch: two blocks of scores, and one number for each token
// (backward) or two for each row of a block (forward).
Index scratch_elements(const AttentionShape& shape) {
  return 2 * kBlockElements + round_up(std::max(shape.sequence, 2 * kQueryRows));
}

// Threads that the workspace has scratch for; one at least, by the check of the public function.
int thread_count(const AttentionShape& shape, const TensorView& workspace) {
  const auto each = static_cast<std::size_t>(scratch_elements(shape)) * sizeof(float);
  const auto fitting = static_cast<std::size_t>(workspace.count()) / each;
  return static_cast<int>(std::min(fitting, static_cast<std::size_t>(omp_get_max_threads())));
}

struct Matrix {
  const float* data;
  Index stride;  // elements from row to row
};

// d = alpha op(a) op(b) + beta d, in this order of fields as dnnl_sgemm's arguments
struct Product {
  char transpose_a;
  char transpose_b;
  Index m;
  Index n;
  Index k;
  float alpha;
  Matrix a;
  Matrix b;
  float beta;
};

// The status goes into `worst`, because nothing may be thrown out of a parallel region.
void multiply(const Product& p, float* d, Index d_stride, dnnl_status_t& worst) {
  const dnnl_status_t status =
      dnnl_sgemm(p.transpose_a, p.transpose_b, p.m, p.n, p.k, p.alpha, p.a.data, p.a.stride,
                 p.b.data, p.b.stride, p.beta, d, d_stride);
  if (status != dnnl_success) {
    worst = status;
  }
}

// One query head of one sequence, where it lies in the fused rows.
struct Head {
  Matrix q;
  Matrix k;
  Matrix v;
};

struct ForwardHead {
  Head in;
  float* out;  // [T, D], rows out_stride apart
  Index out_stride;
  float* lse;  // [T]
};

float largest_of(const float* values, Index count) {
  float largest = -HUGE_VALF;
#pragma omp simd reduction(max : largest)
  for (Index i = 0; i < count; ++i) {
    largest = values[i] > largest ? values[i] : largest;
  }
  return largest;
}

double exponentials(float* scores, Index count, float largest) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Index i = 0; i < count; ++i) {
    const float e = exp_f32(scores[i] - largest);
    scores[i] = e;
    sum += static_cast<double>(e);
  }
  return sum;
}

void scale_row(float* row, Index count, float factor) {
#pragma omp simd
  for (Index i = 0; i < count; ++i) {
    row[i] *= factor;
  }
}

void forward_head(const AttentionForwardArgs& args, const ForwardHead& head, float* scratch,
                  dnnl_status_t& worst) {
  const Index tokens = args.shape.sequence;
  const Index dim = args.shape.head_dim;
  float* scores = scratch;
  float* largest = scratch + 2 * kBlockElements;  // [kQueryRows]
  float* sum = largest + kQueryRows;              // [kQueryRows]
  for (Index row0 = 0; row0 < tokens; row0 += kQueryRows) {
    const Index rows = std::min(kQueryRows, tokens - row0);
    float* out = head.out + row0 * head.out_stride;
    const Index key_end = row0 + rows;
    const Matrix q = {head.in.q.data + row0 * head.in.q.stride, head.in.q.stride};
    for (Index key0 = 0; key0 < key_end; key0 += kKeyColumns) {
      const Index keys = std::min(kKeyColumns, key_end - key0);
      const Matrix k = {head.in.k.data + key0 * head.in.k.stride, head.in.k.stride};
      const Matrix v = {head.in.v.data + key0 * head.in.v.stride, head.in.v.stride};
      multiply({'N', 'T', rows, keys, dim, args.scale, q, k, 0}, scores, kKeyColumns, worst);
      for (Index r = 0; r < rows; ++r) {
        float* row = scores + r * kKeyColumns;
        const Index seen = std::clamp(row0 + r - key0 + 1, Index{0}, keys);
        std::fill(row + seen, row + keys, 0.0F);
        if (seen == 0) {
          continue;
        }
        const float block_largest = largest_of(row, seen);
        if (key0 == 0) {
          largest[r] = block_largest;
          sum[r] = static_cast<float>(exponentials(row, seen, block_largest));
          continue;
        }
        const float new_largest = std::max(largest[r], block_largest);
        const float kept = exp_f32(largest[r] - new_largest);
        sum[r] = static_cast<float>(static_cast<double>(sum[r]) * kept +
                                    exponentials(row, seen, new_largest));
        largest[r] = new_largest;
        scale_row(out + r * head.out_stride, dim, kept);
      }
      multiply({'N', 'N', rows, dim, keys, 1, {scores, kKeyColumns}, v, key0 == 0 ? 0.0F : 1.0F},
               out, head.out_stride, worst);
    }
    for (Index r = 0; r < rows; ++r) {
      scale_row(out + r * head.out_stride, dim, 1.0F / sum[r]);
      head.lse[row0 + r] = static_cast<float>(static_cast<double>(largest[r]) +
                                              std::log(static_cast<double>(sum[r])));
    }
  }
}

// Element positions of the heads in the fused rows.
struct Layout {
  Index row_width;  // elements of a fused row
  Index out_width;  // elements of a row of out
  Index group;      // query heads of a key/value head
};

Layout layout_of(const AttentionShape& shape) {
  return {.row_width = (shape.query_heads + 2 * shape.kv_heads) * shape.head_dim,
          .out_width = shape.query_heads * shape.head_dim,
          .group = shape.query_heads / shape.kv_heads};
}

// Where head h of sequence b begins in the fused rows, for q, k and v.
struct HeadOffsets {
  Index q;
  Index k;
  Index v;
};

HeadOffsets offsets_of(const AttentionShape& shape, const Layout& layout, Index b, Index h) {
  const Index row = b * shape.sequence * layout.row_width;
  const Index kv_head = h / layout.group;
  return {.q = row + h * shape.head_dim,
          .k = row + (shape.query_heads + kv_head) * shape.head_dim,
          .v = row + (shape.query_heads + shape.kv_heads + kv_head) * shape.head_dim};
}

Head head_at(const float* qkv, const HeadOffsets& at, Index row_width) {
  return {.q = {qkv + at.q, row_width}, .k = {qkv + at.k, row_width}, .v = {qkv + at.v, row_width}};
}

void forward(const AttentionForwardArgs& args) {
  const AttentionShape& shape = args.shape;
  const Layout layout = layout_of(shape);
  const auto* qkv = data_as<float>(args.qkv);
  auto* out = data_as<float>(args.out);
  auto* lse = data_as<float>(args.lse);
  auto* scratch = static_cast<float*>(args.workspace.data);
  const Index items = shape.batch * shape.query_heads;
  dnnl_status_t worst = dnnl_success;
#pragma omp parallel num_threads(thread_count(shape, args.workspace))
  {
    // every product on one thread, also where this region has one only: the same bits for any
    // number
    omp_set_num_threads(1);
    float* mine = scratch + omp_get_thread_num() * scratch_elements(shape);
    dnnl_status_t status = dnnl_success;
#pragma omp for schedule(static) nowait
    for (Index item = 0; item < items; ++item) {
      const Index b = item / shape.query_heads;
      const Index h = item % shape.query_heads;
      forward_head(args,
                   {.in = head_at(qkv, offsets_of(shape, layout, b, h), layout.row_width),
                    .out = out + b * shape.sequence * layout.out_width + h * shape.head_dim,
                    .out_stride = layout.out_width,
                    .lse = lse + item * shape.sequence},
                   mine, status);
    }
    if (status != dnnl_success) {
#pragma omp atomic write
      worst = status;
    }
  }
  TESSERA_CHECK_DNNL(worst);
}

struct BackwardHead {
  Head in;
  Matrix out;        // [T, D]
  Matrix d_out;      // [T, D]
  const float* lse;  // [T]
  float* d_q;        // [T, D], rows as far apart as those of q
  float* d_k;
  float* d_v;
  bool first_of_group;  // writes d_k and d_v; the others add
};

// p = exp(score - lse), and dscore = p (dp - d_out . out) scale, over a row of `seen` columns.
void gradients_of_row(float* p, float* d_p, Index seen, float lse, float product, float scale) {
#pragma omp simd
  for (Index i = 0; i < seen; ++i) {
    const float probability = exp_f32(p[i] - lse);
    p[i] = probability;
    d_p[i] = probability * (d_p[i] - product) * scale;
  }
}

// products[t] = d_out[t] . out[t], in f64
void row_products(const BackwardHead& head, Index tokens, Index dim, float* products) {
  for (Index t = 0; t < tokens; ++t) {
    const float* out = head.out.data + t * head.out.stride;
    const float* d_out = head.d_out.data + t * head.d_out.stride;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (Index i = 0; i < dim; ++i) {
      sum += static_cast<double>(out[i]) * static_cast<double>(d_out[i]);
    }
    products[t] = static_cast<float>(sum);
  }
}

// A block of scores: rows [row0, row0 + rows), keys [key0, key0 + keys).
struct Block {
  Index row0;
  Index rows;
  Index key0;
  Index keys;
  bool writes_keys;  // d_k and d_v are written, else added to
};

void backward_block(const AttentionBackwardArgs& args, const BackwardHead& head, const Block& block,
                    float* scratch, dnnl_status_t& worst) {
  const Index dim = args.shape.head_dim;
  const Index stride = head.in.q.stride;
  const Index row0 = block.row0;
  const Index key0 = block.key0;
  const Index rows = block.rows;
  const Index keys = block.keys;
  float* p = scratch;
  float* d_p = scratch + kBlockElements;
  const float* products = scratch + 2 * kBlockElements;
  const Matrix q = {head.in.q.data + row0 * stride, stride};
  const Matrix k = {head.in.k.data + key0 * stride, stride};
  const Matrix v = {head.in.v.data + key0 * stride, stride};
  const Matrix d_out = {head.d_out.data + row0 * head.d_out.stride, head.d_out.stride};
  const Matrix p_block = {p, kKeyColumns};
  const Matrix d_score = {d_p, kKeyColumns};
  const float beta_keys = block.writes_keys ? 0.0F : 1.0F;
  multiply({'N', 'T', rows, keys, dim, args.scale, q, k, 0}, p, kKeyColumns, worst);
  multiply({'N', 'T', rows, keys, dim, 1, d_out, v, 0}, d_p, kKeyColumns, worst);
  for (Index r = 0; r < rows; ++r) {
    const Index seen = std::clamp(row0 + r - key0 + 1, Index{0}, keys);
    float* p_row = p + r * kKeyColumns;
    float* d_row = d_p + r * kKeyColumns;
    gradients_of_row(p_row, d_row, seen, head.lse[row0 + r], products[row0 + r], args.scale);
    std::fill(p_row + seen, p_row + keys, 0.0F);
    std::fill(d_row + seen, d_row + keys, 0.0F);
  }
  multiply({'T', 'N', keys, dim, rows, 1, p_block, d_out, beta_keys}, head.d_v + key0 * stride,
           stride, worst);
  multiply({'T', 'N', keys, dim, rows, 1, d_score, q, beta_keys}, head.d_k + key0 * stride, stride,
           worst);
  multiply({'N', 'N', rows, dim, keys, 1, d_score, k, key0 == 0 ? 0.0F : 1.0F},
           head.d_q + row0 * stride, stride, worst);
}

void backward_head(const AttentionBackwardArgs& args, const BackwardHead& head, float* scratch,
                   dnnl_status_t& worst) {
  const Index tokens = args.shape.sequence;
  const Index dim = args.shape.head_dim;
  const Index stride = head.in.q.stride;
  row_products(head, tokens, dim, scratch + 2 * kBlockElements);
  for (Index key0 = 0; key0 < tokens; key0 += kKeyColumns) {
    const Index key_end = std::min(key0 + kKeyColumns, tokens);
    const Index first_row0 = key0 / kQueryRows * kQueryRows;
    for (Index row0 = first_row0; row0 < tokens; row0 += kQueryRows) {
      const Index row_end = std::min(row0 + kQueryRows, tokens);
      const Block block = {.row0 = row0,
                           .rows = row_end - row0,
                           .key0 = key0,
                           .keys = std::min(key_end, row_end) - key0,
                           .writes_keys = head.first_of_group && row0 == first_row0};
      backward_block(args, head, block, scratch, worst);
      if (block.writes_keys) {
        // the keys that this block of rows does not see: later blocks add to them
        for (Index key = key0 + block.keys; key < key_end; ++key) {
          std::fill_n(head.d_k + key * stride, dim, 0.0F);
          std::fill_n(head.d_v + key * stride, dim, 0.0F);
        }
      }
    }
  }
}

// A thread takes a key/value head with all its query heads, so that d_k and d_v are added up in
// order.
void backward(const AttentionBackwardArgs& args) {
  const AttentionShape& shape = args.shape;
  const Layout layout = layout_of(shape);
  const auto* qkv = data_as<float>(args.qkv);
  const auto* out = data_as<float>(args.out);
  const auto* lse = data_as<float>(args.lse);
  const auto* d_out = data_as<float>(args.d_out);
  auto* d_qkv = data_as<float>(args.d_qkv);
  auto* scratch = static_cast<float*>(args.workspace.data);
  const Index items = shape.batch * shape.kv_heads;
  dnnl_status_t worst = dnnl_success;
#pragma omp parallel num_threads(thread_count(shape, args.workspace))
  {
    // as in forward
    omp_set_num_threads(1);
    float* mine = scratch + omp_get_thread_num() * scratch_elements(shape);
    dnnl_status_t status = dnnl_success;
#pragma omp for schedule(static) nowait
    for (Index item = 0; item < items; ++item) {
      const Index b = item / shape.kv_heads;
      for (Index g = 0; g < layout.group; ++g) {
        const Index h = item % shape.kv_heads * layout.group + g;
        const HeadOffsets at = offsets_of(shape, layout, b, h);
        const Index out_at = b * shape.sequence * layout.out_width + h * shape.head_dim;
        backward_head(args,
                      {.in = head_at(qkv, at, layout.row_width),
                       .out = {out + out_at, layout.out_width},
                       .d_out = {d_out + out_at, layout.out_width},
                       .lse = lse + (b * shape.query_heads + h) * shape.sequence,
                       .d_q = d_qkv + at.q,
                       .d_k = d_qkv + at.k,
                       .d_v = d_qkv + at.v,
                       .first_of_group = g == 0},
                      mine, status);
      }
    }
    if (status != dnnl_success) {
#pragma omp atomic write
      worst = status;
    }
  }
  TESSERA_CHECK_DNNL(worst);
}

void require_shape(const AttentionShape& shape) {
  TESSERA_REQUIRE(shape.batch > 0 && shape.sequence > 0 && shape.kv_heads > 0 &&
                      shape.head_dim > 0 && shape.query_heads > 0 &&
                      shape.query_heads % shape.kv_heads == 0,
                  "attention takes positive extents, and query heads a multiple of kv heads");
}

void require_workspace(const AttentionShape& shape, const TensorView& workspace) {
  require_room(workspace, DType::u8, scratch_elements(shape) * static_cast<Index>(sizeof(float)),
               "workspace");
}

}  // namespace

std::size_t attention_workspace_bytes(const AttentionShape& shape) {
  return static_cast<std::size_t>(omp_get_max_threads()) *
         static_cast<std::size_t>(scratch_elements(shape)) * sizeof(float);
}

void attention_forward(const AttentionForwardArgs& args, Stream& stream) {
  const AttentionShape& shape = args.shape;
  require_shape(shape);
  const Layout layout = layout_of(shape);
  const Index tokens = shape.batch * shape.sequence;
  require_tensor(args.qkv, DType::f32, tokens * layout.row_width, "qkv");
  require_tensor(args.out, DType::f32, tokens * layout.out_width, "out");
  require_tensor(args.lse, DType::f32, tokens * shape.query_heads, "lse");
  require_workspace(shape, args.workspace);
  submit(stream, [args] { forward(args); });
}

void attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  const AttentionShape& shape = args.shape;
  require_shape(shape);
  const Layout layout = layout_of(shape);
  const Index tokens = shape.batch * shape.sequence;
  require_tensor(args.qkv, DType::f32, tokens * layout.row_width, "qkv");
  require_tensor(args.out, DType::f32, tokens * layout.out_width, "out");
  require_tensor(args.lse, DType::f32, tokens * shape.query_heads, "lse");
  require_tensor(args.d_out, DType::f32, tokens * layout.out_width, "d_out");
  require_tensor(args.d_qkv, DType::f32, tokens * layout.row_width, "d_qkv");
  require_workspace(shape, args.workspace);
  submit(stream, [args] { backward(args); });
}

}  // namespace tessera::cpu
