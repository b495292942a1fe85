// Blocks of kQueryRows x kKeyColumns scores, the GEMMs through oneDNN; blocks above the diagonal
// are not computed. Heads are copied out of the fused rows first: the distance between those is
// often a power of two, and a head read in place then fits into a few sets of the cache only.
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>

#include <omp.h>

#include "kernels/attention_rows.h"
#include "kernels/base/round_up.h"
#include "kernels/cpu/attention_workspace.h"
#include "kernels/cpu/dnnl_check.h"
#include "kernels/cpu/require.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/device/cpu/submit.h"

namespace tessera::cpu {
namespace {

// Part of what fixes the bits. Smaller blocks spend more of their time in oneDNN's packing; larger
// ones compute more above the diagonal and leave the second-level cache.
constexpr Index kQueryRows = 128;
constexpr Index kKeyColumns = 256;
constexpr Index kBlockElements = kQueryRows * kKeyColumns;
constexpr Index kLineFloats = 16;  // a cache line: threads' scratch shares none

// One thread's part of the workspace. Rows of [.., D] follow each other without gaps.
struct Scratch {
  float* scores;    // [kQueryRows, kKeyColumns]
  float* d_scores;  // [kQueryRows, kKeyColumns]
  float* q;         // [kQueryRows, D]
  float* out;       // [kQueryRows, D]: out, and d_out in the backward pass
  float* d_q;       // [kQueryRows, D]
  float* largest;   // [kQueryRows]: of a row's scores; d_out . out in the backward pass
  float* sum;       // [kQueryRows]: of a row's exponentials
  float* k;         // [T, D]
  float* v;         // [T, D]
  float* d_k;       // [T, D]
  float* d_v;       // [T, D]
};

Index scratch_elements(const AttentionShape& shape) {
  const Index block = round_up(kQueryRows * shape.head_dim, kLineFloats);
  const Index head = round_up(shape.sequence * shape.head_dim, kLineFloats);
  return 2 * kBlockElements + 3 * block + 2 * kQueryRows + 4 * head;
}

Scratch scratch_of_thread(const AttentionShape& shape, const TensorView& workspace, int thread) {
  float* next = static_cast<float*>(workspace.data) + thread * scratch_elements(shape);
  const auto take = [&next](Index count) {
    float* taken = next;
    next += round_up(count, kLineFloats);
    return taken;
  };
  const Index block = kQueryRows * shape.head_dim;
  const Index head = shape.sequence * shape.head_dim;
  // in the order of the fields
  return {take(kBlockElements), take(kBlockElements), take(block),      take(block),
          take(block),          take(kQueryRows),     take(kQueryRows), take(head),
          take(head),           take(head),           take(head)};
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

// Rows of one head, `dim` elements each, between the rows of all heads and the scratch.
void copy_rows(const float* from, Index from_stride, float* to, Index to_stride, Index rows,
               Index dim) {
  for (Index r = 0; r < rows; ++r) {
    std::copy_n(from + r * from_stride, dim, to + r * to_stride);
  }
}

// Rows [row0, row0 + rows) of the sequence against keys [key0, key0 + keys).
struct Block {
  Index row0;
  Index rows;
  Index key0;
  Index keys;
};

// Columns [begin, end) of a block that one of its rows sees.
struct Columns {
  Index begin;
  Index end;
  [[nodiscard]] Index count() const noexcept { return end - begin; }
};

Columns columns_seen(const AttentionShape& shape, const Block& block, Index row) {
  const Index t = block.row0 + row;
  const Index end = std::clamp(t - block.key0 + 1, Index{0}, block.keys);
  return {std::min(std::max(Index{0}, shape.first_key(t) - block.key0), end), end};
}

// Where the blocks begin of which rows from `row0` on see something.
Index first_block(const AttentionShape& shape, Index row0) {
  return shape.first_key(row0) / kKeyColumns * kKeyColumns;
}

// What lies outside the columns that are seen becomes 0, so that GEMMs take the whole block.
void clear_unseen(float* row, const Columns& seen, Index keys) {
  std::fill(row, row + seen.begin, 0.0F);
  std::fill(row + seen.end, row + keys, 0.0F);
}

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

// Element positions in the rows.
struct Layout {
  Index dim;
  Index qk_width;   // elements of a row that q and k are read from
  Index row_width;  // elements of a fused row
  Index out_width;  // elements of a row of out
  Index group;      // query heads of a key/value head
};

// Of either pass's arguments.
template <typename Args>
Layout layout_of(const Args& args) {
  const AttentionShape& shape = args.shape;
  return {.dim = shape.head_dim,
          .qk_width = qk_rows(args).width,
          .row_width = fused_width(shape),
          .out_width = shape.query_heads * shape.head_dim,
          .group = shape.query_heads / shape.kv_heads};
}

// What queries see of each other: a sequence, or a document of one.
struct Part {
  Index sequence;
  Index first;   // token of the sequence
  Index length;  // tokens
};

// Part `i` of the batch, in order.
Part part_of(const AttentionShape& shape, const DocumentBounds& documents, Index i) {
  if (!documents.are_given()) {
    return {.sequence = i, .first = 0, .length = shape.sequence};
  }
  const auto* begins = data_as<std::int32_t>(documents.begins);
  const Index begin = begins[i];
  return {.sequence = begin / shape.sequence,
          .first = begin % shape.sequence,
          .length = begins[i + 1] - begin};
}

// Where a head of one part begins.
struct HeadOffsets {
  Index q;
  Index k;
  Index d_q;  // in the fused rows, as the next two
  Index d_k;
  Index v;  // also d_v
  Index out;
  Index lse;
};

HeadOffsets offsets_of(const AttentionShape& shape, const Layout& layout, const Part& part,
                       Index h) {
  const Index token = part.sequence * shape.sequence + part.first;
  const Index qk_row = token * layout.qk_width;
  const Index row = token * layout.row_width;
  const Index kv_head = h / layout.group;
  const Index of_q = h * layout.dim;
  const Index of_k = (shape.query_heads + kv_head) * layout.dim;
  return {.q = qk_row + of_q,
          .k = qk_row + of_k,
          .d_q = row + of_q,
          .d_k = row + of_k,
          .v = row + (shape.query_heads + shape.kv_heads + kv_head) * layout.dim,
          .out = token * layout.out_width + h * layout.dim,
          .lse = (part.sequence * shape.query_heads + h) * shape.sequence + part.first};
}

// Softmax of a block whose scores are there, online: `out` is scaled to the new maximum. A row that
// has seen nothing yet has a sum of 0, and rows of zeros in `out`.
void forward_softmax(const AttentionShape& shape, const Block& block, const Scratch& scratch) {
  const Index dim = shape.head_dim;
  const bool is_first = block.key0 == first_block(shape, block.row0);
  for (Index r = 0; r < block.rows; ++r) {
    float* scores = scratch.scores + r * kKeyColumns;
    const Columns seen = columns_seen(shape, block, r);
    clear_unseen(scores, seen, block.keys);
    if (is_first) {
      scratch.sum[r] = 0;
    }
    if (seen.count() == 0) {
      continue;
    }
    float* row = scores + seen.begin;
    const float block_largest = largest_of(row, seen.count());
    if (scratch.sum[r] == 0) {
      scratch.largest[r] = block_largest;
      scratch.sum[r] = static_cast<float>(exponentials(row, seen.count(), block_largest));
      continue;
    }
    const float before = scratch.largest[r];
    const float largest = std::max(before, block_largest);
    const float kept = exp_f32(before - largest);
    scratch.sum[r] = static_cast<float>(static_cast<double>(scratch.sum[r]) * kept +
                                        exponentials(row, seen.count(), largest));
    scratch.largest[r] = largest;
    scale_row(scratch.out + r * dim, dim, kept);
  }
}

// One query head over `tokens` tokens; keys and values are in the scratch.
void forward_head(const AttentionForwardArgs& args, const HeadOffsets& at, Index tokens,
                  const Scratch& scratch, dnnl_status_t& worst) {
  const Layout layout = layout_of(args);
  const AttentionShape& shape = args.shape;
  const Index dim = layout.dim;
  const float* q = data_as<float>(qk_rows(args).rows) + at.q;
  float* out = data_as<float>(args.out) + at.out;
  float* lse = data_as<float>(args.lse) + at.lse;
  for (Index row0 = 0; row0 < tokens; row0 += kQueryRows) {
    const Index rows = std::min(kQueryRows, tokens - row0);
    copy_rows(q + row0 * layout.qk_width, layout.qk_width, scratch.q, dim, rows, dim);
    const Index first = first_block(shape, row0);
    for (Index key0 = first; key0 < row0 + rows; key0 += kKeyColumns) {
      const Index keys = std::min(kKeyColumns, row0 + rows - key0);
      const Matrix k = {scratch.k + key0 * dim, dim};
      const Matrix v = {scratch.v + key0 * dim, dim};
      multiply({'N', 'T', rows, keys, dim, args.scale, {scratch.q, dim}, k, 0}, scratch.scores,
               kKeyColumns, worst);
      forward_softmax(shape, {.row0 = row0, .rows = rows, .key0 = key0, .keys = keys}, scratch);
      const float kept = key0 == first ? 0.0F : 1.0F;
      multiply({'N', 'N', rows, dim, keys, 1, {scratch.scores, kKeyColumns}, v, kept}, scratch.out,
               dim, worst);
    }
    for (Index r = 0; r < rows; ++r) {
      scale_row(scratch.out + r * dim, dim, 1.0F / scratch.sum[r]);
      lse[row0 + r] = static_cast<float>(static_cast<double>(scratch.largest[r]) +
                                         std::log(static_cast<double>(scratch.sum[r])));
    }
    copy_rows(scratch.out, dim, out + row0 * layout.out_width, layout.out_width, rows, dim);
  }
}

// Copies keys and values of a head over `tokens` tokens into the scratch.
template <typename Args>
void load_keys(const Args& args, const HeadOffsets& at, const Layout& layout, Index tokens,
               const Scratch& scratch) {
  copy_rows(data_as<float>(qk_rows(args).rows) + at.k, layout.qk_width, scratch.k, layout.dim,
            tokens, layout.dim);
  copy_rows(data_as<float>(args.qkv) + at.v, layout.row_width, scratch.v, layout.dim, tokens,
            layout.dim);
}

// Calls work(part, kv_head, scratch, status) for every key/value head of every part, over threads.
// A head is one thread's, with all its query heads: so their sums have one order. Throws
// DeviceError where oneDNN failed.
template <typename Args, typename Work>
void for_each_kv_head(const Args& args, Work work) {
  const AttentionShape& shape = args.shape;
  const TensorView& workspace = args.workspace;
  const DocumentBounds& documents = args.documents;
  const Index parts = documents.are_given() ? documents.count() : shape.batch;
  const Index items = parts * shape.kv_heads;
  dnnl_status_t worst = dnnl_success;
#pragma omp parallel num_threads(thread_count(shape, workspace))
  {
    // every GEMM on one thread, also where this region has one only: bit-identical for any
    // number
    omp_set_num_threads(1);
    const Scratch scratch = scratch_of_thread(shape, workspace, omp_get_thread_num());
    dnnl_status_t status = dnnl_success;
    // parts may differ in length
#pragma omp for schedule(dynamic) nowait
    for (Index item = 0; item < items; ++item) {
      work(part_of(shape, documents, item / shape.kv_heads), item % shape.kv_heads, scratch,
           status);
    }
    if (status != dnnl_success) {
#pragma omp atomic write
      worst = status;
    }
  }
  TESSERA_CHECK_DNNL(worst);
}

void forward(const AttentionForwardArgs& args) {
  const AttentionShape& shape = args.shape;
  const Layout layout = layout_of(args);
  for_each_kv_head(
      args, [&](const Part& part, Index kv_head, const Scratch& scratch, dnnl_status_t& status) {
        const Index first = kv_head * layout.group;
        load_keys(args, offsets_of(shape, layout, part, first), layout, part.length, scratch);
        for (Index h = first; h < first + layout.group; ++h) {
          forward_head(args, offsets_of(shape, layout, part, h), part.length, scratch, status);
        }
      });
}

// p = exp(score - lse), and dscore = p (dp - d_out . out) scale, over a row of `seen` columns.
void gradients_of_row(float* p, float* d_p, Index seen, float lse, float product, float scale) {
#pragma omp simd
  for (Index i = 0; i < seen; ++i) {
    const float probability = exp_f32(p[i] - lse);
    p[i] = probability;
    d_p[i] = probability * (d_p[i] - product) * scale;
  }
}

// products[r] = d_out[r] . out[r], in f64
void row_products(const float* d_out, const float* out, Index out_stride, Index rows, Index dim,
                  float* products) {
  for (Index r = 0; r < rows; ++r) {
    const float* of_d = d_out + r * dim;
    const float* of_out = out + r * out_stride;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (Index i = 0; i < dim; ++i) {
      sum += static_cast<double>(of_out[i]) * static_cast<double>(of_d[i]);
    }
    products[r] = static_cast<float>(sum);
  }
}

// Adds a block's part to d_q, d_k and d_v in the scratch; `lse` is that of the block's first row.
void backward_block(const AttentionShape& shape, const Block& block, const float* lse, float scale,
                    const Scratch& scratch, dnnl_status_t& worst) {
  const Index dim = shape.head_dim;
  const Index rows = block.rows;
  const Index keys = block.keys;
  const Index at = block.key0 * dim;
  const Matrix q = {scratch.q, dim};
  const Matrix d_out = {scratch.out, dim};
  const Matrix k = {scratch.k + at, dim};
  const Matrix v = {scratch.v + at, dim};
  const Matrix p = {scratch.scores, kKeyColumns};
  const Matrix d_score = {scratch.d_scores, kKeyColumns};
  multiply({'N', 'T', rows, keys, dim, scale, q, k, 0}, scratch.scores, kKeyColumns, worst);
  multiply({'N', 'T', rows, keys, dim, 1, d_out, v, 0}, scratch.d_scores, kKeyColumns, worst);
  for (Index r = 0; r < rows; ++r) {
    const Columns seen = columns_seen(shape, block, r);
    float* p_row = scratch.scores + r * kKeyColumns;
    float* d_row = scratch.d_scores + r * kKeyColumns;
    gradients_of_row(p_row + seen.begin, d_row + seen.begin, seen.count(), lse[r],
                     scratch.largest[r], scale);
    clear_unseen(p_row, seen, keys);
    clear_unseen(d_row, seen, keys);
  }
  multiply({'T', 'N', keys, dim, rows, 1, p, d_out, 1}, scratch.d_v + at, dim, worst);
  multiply({'T', 'N', keys, dim, rows, 1, d_score, q, 1}, scratch.d_k + at, dim, worst);
  const float kept = block.key0 == first_block(shape, block.row0) ? 0.0F : 1.0F;
  multiply({'N', 'N', rows, dim, keys, 1, d_score, k, kept}, scratch.d_q, dim, worst);
}

// One query head over `tokens` tokens: writes its d_q, and adds to d_k and d_v in the scratch.
void backward_head(const AttentionBackwardArgs& args, const HeadOffsets& at, Index tokens,
                   const Scratch& scratch, dnnl_status_t& worst) {
  const Layout layout = layout_of(args);
  const Index dim = layout.dim;
  const float* q = data_as<float>(qk_rows(args).rows) + at.q;
  const float* out = data_as<float>(args.out) + at.out;
  const float* d_out = data_as<float>(args.d_out) + at.out;
  const float* lse = data_as<float>(args.lse) + at.lse;
  float* d_q = data_as<float>(args.d_qkv) + at.d_q;
  for (Index row0 = 0; row0 < tokens; row0 += kQueryRows) {
    const Index rows = std::min(kQueryRows, tokens - row0);
    copy_rows(q + row0 * layout.qk_width, layout.qk_width, scratch.q, dim, rows, dim);
    copy_rows(d_out + row0 * layout.out_width, layout.out_width, scratch.out, dim, rows, dim);
    row_products(scratch.out, out + row0 * layout.out_width, layout.out_width, rows, dim,
                 scratch.largest);
    for (Index key0 = first_block(args.shape, row0); key0 < row0 + rows; key0 += kKeyColumns) {
      const Block block = {.row0 = row0,
                           .rows = rows,
                           .key0 = key0,
                           .keys = std::min(kKeyColumns, row0 + rows - key0)};
      backward_block(args.shape, block, lse + row0, args.scale, scratch, worst);
    }
    copy_rows(scratch.d_q, dim, d_q + row0 * layout.row_width, layout.row_width, rows, dim);
  }
}

void backward(const AttentionBackwardArgs& args) {
  const AttentionShape& shape = args.shape;
  const Layout layout = layout_of(args);
  for_each_kv_head(args, [&](const Part& part, Index kv_head, const Scratch& scratch,
                             dnnl_status_t& status) {
    const Index tokens = part.length;
    const Index first = kv_head * layout.group;
    const HeadOffsets of_keys = offsets_of(shape, layout, part, first);
    load_keys(args, of_keys, layout, tokens, scratch);
    std::fill_n(scratch.d_k, tokens * layout.dim, 0.0F);
    std::fill_n(scratch.d_v, tokens * layout.dim, 0.0F);
    for (Index h = first; h < first + layout.group; ++h) {
      backward_head(args, offsets_of(shape, layout, part, h), tokens, scratch, status);
    }
    auto* d_qkv = data_as<float>(args.d_qkv);
    copy_rows(scratch.d_k, layout.dim, d_qkv + of_keys.d_k, layout.row_width, tokens, layout.dim);
    copy_rows(scratch.d_v, layout.dim, d_qkv + of_keys.v, layout.row_width, tokens, layout.dim);
  });
}

void require_shape(const AttentionShape& shape) {
  TESSERA_REQUIRE(shape.batch > 0 && shape.sequence > 0 && shape.kv_heads > 0 &&
                      shape.head_dim > 0 && shape.window >= 0 && shape.query_heads > 0 &&
                      shape.query_heads % shape.kv_heads == 0,
                  "attention takes positive extents, and query heads a multiple of kv heads");
}

void require_workspace(const AttentionShape& shape, const TensorView& workspace) {
  require_room(workspace, DType::u8, scratch_elements(shape) * static_cast<Index>(sizeof(float)),
               "workspace");
}

// Of the tensors that both passes take.
template <typename Args>
void require_common(const Args& args) {
  const AttentionShape& shape = args.shape;
  require_shape(shape);
  const Layout layout = layout_of(args);
  const Index tokens = shape.batch * shape.sequence;
  require_tensor(args.qkv, DType::f32, tokens * layout.row_width, "qkv");
  require_tensor(qk_rows(args).rows, DType::f32, tokens * layout.qk_width, "rotated_qk");
  require_tensor(args.out, DType::f32, tokens * layout.out_width, "out");
  require_tensor(args.lse, DType::f32, tokens * shape.query_heads, "lse");
  require_workspace(shape, args.workspace);
  require_documents(args.documents, shape.batch, shape.sequence);
}

}  // namespace

std::size_t attention_workspace_bytes(const AttentionShape& shape) {
  return static_cast<std::size_t>(omp_get_max_threads()) *
         static_cast<std::size_t>(scratch_elements(shape)) * sizeof(float);
}

void attention_forward(const AttentionForwardArgs& args, Stream& stream) {
  require_common(args);
  submit(stream, [args] { forward(args); });
}

void attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  require_common(args);
  require_tensor(args.d_out, DType::f32, args.out.count(), "d_out");
  require_tensor(args.d_qkv, DType::f32, args.qkv.count(), "d_qkv");
  submit(stream, [args] { backward(args); });
}

}  // namespace tessera::cpu
