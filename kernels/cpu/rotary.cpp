#include "kernels/rotary.h"

#include <algorithm>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/require.h"
#include "kernels/cpu/row_statistics.h"
#include "kernels/device/cpu/submit.h"

namespace tessera::cpu {
namespace {

// One head: norm where `gain` is given, then the rotation. `out` may be `x`.
void forward_head(const float* x, float* out, const float* gain, const float* cosine,
                  const float* sine, Index dim, float eps) {
  const Index half = dim / 2;
  const float* low = x;
  const float* high = x + half;
  float* out_low = out;
  float* out_high = out + half;
  if (gain != nullptr) {
    const float r = reciprocal_rms(x, dim, eps);
    const float* gain_high = gain + half;
#pragma omp simd
    for (Index i = 0; i < half; ++i) {
      const float a = low[i] * r * gain[i];
      const float b = high[i] * r * gain_high[i];
      out_low[i] = a * cosine[i] - b * sine[i];
      out_high[i] = b * cosine[i] + a * sine[i];
    }
  } else {
#pragma omp simd
    for (Index i = 0; i < half; ++i) {
      const float a = low[i];
      const float b = high[i];
      out_low[i] = a * cosine[i] - b * sine[i];
      out_high[i] = b * cosine[i] + a * sine[i];
    }
  }
}

// The rotation's transpose, in place.
void rotary_backward_head(float* d, const float* cosine, const float* sine, Index dim) {
  const Index half = dim / 2;
  float* low = d;
  float* high = d + half;
#pragma omp simd
  for (Index i = 0; i < half; ++i) {
    const float a = low[i];
    const float b = high[i];
    low[i] = a * cosine[i] + b * sine[i];
    high[i] = b * cosine[i] - a * sine[i];
  }
}

// The norm's backward pass over one head, in place; `x` is the head as it came into forward.
void norm_back(float* d, const float* x, const float* gain, float* d_gain, Index dim, float eps) {
  const float r = reciprocal_rms(x, dim, eps);
  double dot = 0;
#pragma omp simd reduction(+ : dot)
  for (Index i = 0; i < dim; ++i) {
    dot += static_cast<double>(gain[i] * d[i] * x[i]);
  }
  const auto mean = static_cast<float>(dot * r / static_cast<double>(dim));
#pragma omp simd
  for (Index i = 0; i < dim; ++i) {
    const float normalised = x[i] * r;
    d_gain[i] += d[i] * normalised;
    d[i] = r * (gain[i] * d[i] - normalised * mean);
  }
}

// Of token `n`, in either pass.
template <typename Args>
Index position_of(const Args& args, Index n) {
  return args.positions.data == nullptr ? n % args.shape.sequence
                                        : data_as<std::int32_t>(args.positions)[n];
}

void forward(const RotaryForwardArgs& args) {
  const RotaryShape& shape = args.shape;
  const Index dim = shape.head_dim;
  const Index rotated_heads = shape.query_heads + shape.kv_heads;
  const Index row_width = (rotated_heads + shape.kv_heads) * dim;
  auto* qkv = data_as<float>(args.qkv);
  const auto* cosine = data_as<float>(args.cos);
  const auto* sine = data_as<float>(args.sin);
  const auto* q_gain = static_cast<const float*>(args.q_gain.data);
  const auto* k_gain = static_cast<const float*>(args.k_gain.data);
  const bool apart = args.rotated_qk.data != nullptr;
  auto* out = apart ? data_as<float>(args.rotated_qk) : qkv;
  const Index out_width = apart ? rotated_heads * dim : row_width;
#pragma omp parallel for schedule(static) if (shape.tokens * row_width > kParallelElements)
  for (Index n = 0; n < shape.tokens; ++n) {
    const float* row = qkv + n * row_width;
    float* out_row = out + n * out_width;
    const Index t = position_of(args, n);
    for (Index h = 0; h < rotated_heads; ++h) {
      forward_head(row + h * dim, out_row + h * dim, h < shape.query_heads ? q_gain : k_gain,
                   cosine + t * (dim / 2), sine + t * (dim / 2), dim, args.eps);
    }
  }
}

// One row of gradients in place; `partial` [2 D] takes the gain gradients of q, then of k.
void backward_row(const RotaryBackwardArgs& args, Index n, float* partial) {
  const RotaryShape& shape = args.shape;
  const Index dim = shape.head_dim;
  const Index rotated_heads = shape.query_heads + shape.kv_heads;
  const Index row_width = (rotated_heads + shape.kv_heads) * dim;
  const Index at_angles = position_of(args, n) * (dim / 2);
  const auto* cosine = data_as<float>(args.cos) + at_angles;
  const auto* sine = data_as<float>(args.sin) + at_angles;
  const bool normed = args.q_gain.data != nullptr;
  for (Index h = 0; h < rotated_heads; ++h) {
    const Index at = n * row_width + h * dim;
    float* d = data_as<float>(args.d_qkv) + at;
    rotary_backward_head(d, cosine, sine, dim);
    if (normed) {
      const bool is_query = h < shape.query_heads;
      norm_back(d, data_as<float>(args.qkv) + at,
                data_as<float>(is_query ? args.q_gain : args.k_gain),
                is_query ? partial : partial + dim, dim, args.eps);
    }
  }
}

// Adds up the partial gain gradients of all pieces in their order.
void sum_gain_gradients(const RotaryBackwardArgs& args, Index pieces) {
  const Index dim = args.shape.head_dim;
  const auto* partial = data_as<float>(args.workspace);
  auto* d_q_gain = data_as<float>(args.d_q_gain);
  auto* d_k_gain = data_as<float>(args.d_k_gain);
  std::fill_n(d_q_gain, dim, 0.0F);
  std::fill_n(d_k_gain, dim, 0.0F);
  for (Index p = 0; p < pieces; ++p) {
    const float* of_q = partial + p * 2 * dim;
    const float* of_k = of_q + dim;
    for (Index i = 0; i < dim; ++i) {
      d_q_gain[i] += of_q[i];
      d_k_gain[i] += of_k[i];
    }
  }
}

// Rows are cut into pieces that depend on N only; each has its partial gain gradients in the
// workspace.
void backward(const RotaryBackwardArgs& args) {
  const RotaryShape& shape = args.shape;
  const Index width = (shape.query_heads + shape.kv_heads) * shape.head_dim;
  const Index pieces = row_pieces(shape.tokens);
  const bool normed = args.q_gain.data != nullptr;
  auto* workspace = static_cast<float*>(args.workspace.data);
#pragma omp parallel for schedule(static) if (shape.tokens * width > kParallelElements)
  for (Index p = 0; p < pieces; ++p) {
    float* partial = normed ? workspace + p * 2 * shape.head_dim : nullptr;
    if (normed) {
      std::fill_n(partial, 2 * shape.head_dim, 0.0F);
    }
    const Range range = piece(shape.tokens, pieces, p);
    for (Index n = range.begin; n < range.end; ++n) {
      backward_row(args, n, partial);
    }
  }
  if (normed && args.d_q_gain.data != nullptr) {
    sum_gain_gradients(args, pieces);
  }
}

// Of the shape, the angles, the rows and the gains, which both passes take.
template <typename Args>
void require_common(const Args& args, const TensorView& rows, const char* name) {
  const RotaryShape& shape = args.shape;
  TESSERA_REQUIRE(shape.tokens >= 0 && shape.sequence > 0 && shape.query_heads > 0 &&
                      shape.kv_heads > 0 && shape.head_dim > 0 && shape.head_dim % 2 == 0,
                  "rotary takes positive extents and an even head_dim");
  require_tensor(rows, DType::f32,
                 shape.tokens * (shape.query_heads + 2 * shape.kv_heads) * shape.head_dim, name);
  require_room(args.cos, DType::f32, shape.sequence * (shape.head_dim / 2), "cos");
  require_room(args.sin, DType::f32, shape.sequence * (shape.head_dim / 2), "sin");
  if (args.positions.data != nullptr) {
    require_tensor(args.positions, DType::i32, shape.tokens, "positions");
  }
  TESSERA_REQUIRE((args.q_gain.data == nullptr) == (args.k_gain.data == nullptr),
                  "QK-norm takes both gains or none");
  if (args.q_gain.data != nullptr) {
    require_tensor(args.q_gain, DType::f32, shape.head_dim, "q_gain");
    require_tensor(args.k_gain, DType::f32, shape.head_dim, "k_gain");
  }
}

}  // namespace

void rotary_forward(const RotaryForwardArgs& args, Stream& stream) {
  const RotaryShape& shape = args.shape;
  require_common(args, args.qkv, "qkv");
  if (args.rotated_qk.data != nullptr) {
    require_tensor(args.rotated_qk, DType::f32,
                   shape.tokens * (shape.query_heads + shape.kv_heads) * shape.head_dim,
                   "rotated_qk");
  }
  submit(stream, [args] { forward(args); });
}

void rotary_backward(const RotaryBackwardArgs& args, Stream& stream) {
  const RotaryShape& shape = args.shape;
  require_common(args, args.d_qkv, "d_qkv");
  if (args.q_gain.data != nullptr) {
    require_tensor(args.qkv, DType::f32, args.d_qkv.count(), "qkv");
    TESSERA_REQUIRE((args.d_q_gain.data == nullptr) == (args.d_k_gain.data == nullptr),
                    "gradients of both gains or none");
    if (args.d_q_gain.data != nullptr) {
      require_tensor(args.d_q_gain, DType::f32, shape.head_dim, "d_q_gain");
      require_tensor(args.d_k_gain, DType::f32, shape.head_dim, "d_k_gain");
    }
    require_room(args.workspace, DType::f32, rotary_workspace(shape), "workspace");
  }
  submit(stream, [args] { backward(args); });
}

}  // namespace tessera::cpu
