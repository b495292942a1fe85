// Cross entropy of a block of logits, and its gradient in place, in one pass over the row (Milakov
// & Gimelshein 2018, arXiv:1805.02867). All statistics are f32; the maximum is subtracted first, so
// rows of large logits are safe.
//
//   z'      = cap * tanh(z / cap)                                    soft cap (0: z' = z)
//   lse     = log(sum_v exp(z'[v]))
//   nll     = lse - z'[target]
//   smooth  = lse - mean_v z'[v]
//   loss    = weight * ((1 - s) * nll + s * smooth + z_loss * lse^2)      0 where ignored
//   dloss/dz'[v] = weight * ((1 + 2 z_loss lse) p[v] - (1 - s) [v == target] - s / V)
//   z[v]    = scale * dloss/dz'[v] * (1 - (z'[v] / cap)^2)            overwrites the logits
//
// A logit of -infinity is a column that takes no part: probability 0, gradient 0. (With label
// smoothing its term in the mean is infinite: refused by the model, not here.)
#pragma once

#include <cstdint>

#include "kernels/device/tensor_view.h"

namespace tessera {

/// Optional terms; all off by default.
struct CrossEntropyTerms {
  float label_smoothing = 0;  // s in [0, 1)
  float z_loss = 0;           // factor of lse^2 (PaLM, arXiv:2204.02311, section 5)
  float soft_cap = 0;         // 0: none (Gemma 2, arXiv:2408.00118)
};

enum class LogitsGradient : std::uint8_t { write, leave };

struct SoftmaxCrossEntropyArgs {
  TensorView logits;        // [N, ld] bf16 or f32; columns [0, V) are read, then overwritten with
                            // the gradient; columns [V, ld) are set to 0 (with `leave`: nothing)
  Index vocab;              // V <= ld
  Index ld;                 // elements from row to row
  ConstTensorView targets;  // [N] i32, each in [0, V) or ignore_target
  std::int32_t ignore_target;  // takes no part: loss 0, gradient row 0; may be inside [0, V)
  ConstTensorView weights;     // [N] f32; data null: all 1
  CrossEntropyTerms terms;
  LogitsGradient gradient;  // `leave`: loss only, logits untouched
  TensorView loss;          // [N] f32, in nats, not scaled, written
  TensorView correct;       // [N] u8, written: 1 where the target is the first largest logit;
                            // data null: not needed
  ConstTensorView scale;    // [1] f32 on the device: 1 / targets of the global batch
};

/// One signature; a definition in kernels/cpu and one in kernels/cuda.
using SoftmaxCrossEntropyFn = void(const SoftmaxCrossEntropyArgs& args, Stream& stream);

namespace cpu {
SoftmaxCrossEntropyFn softmax_cross_entropy;
}  // namespace cpu
namespace cuda {
SoftmaxCrossEntropyFn softmax_cross_entropy;
}  // namespace cuda

}  // namespace tessera
