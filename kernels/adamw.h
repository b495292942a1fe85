// One AdamW step over a run of elements (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2).
//
//   m      = beta1 * m + (1 - beta1) * g              g = grad_scale * grad
//   v      = beta2 * v + (1 - beta2) * g * g
//   master = master - lr * (m / c1 / (sqrt(v / c2) + eps) + decay * master)
//   param  = master as param_values                   round half away from zero
//
// The decay is applied first, to the old weight, as PyTorch does:
//
//   master = master * (1 - lr * decay), then master = master - lr * (m / c1 / (sqrt(v / c2) + eps))
//
// Where master is u16, the master weight is what param and its remainder hold together
// (kernels/device/master_code.h).
//
// Both backends use this order and no fused multiply-add across it.
//
// Moments may be stored in bf16 or in 8 bits (kernels/device/moment_code.h): m and v above are then
// what is stored, widened, and the new ones are rounded stochastically after the update of master.
#pragma once

#include <array>
#include <cmath>

#include "kernels/device/moment_code.h"
#include "kernels/device/tensor_view.h"

namespace tessera {

/// Which elements of each 256 decay.
struct DecayMask {
  static constexpr Index kWordBits = 32;
  std::array<std::uint32_t, kMomentBlock / kWordBits> words;
  [[nodiscard]] constexpr bool operator[](Index i) const {
    return (words[static_cast<std::size_t>(i / kWordBits)] >> (i % kWordBits) & 1U) != 0;
  }
};
inline constexpr DecayMask kAllDecay = {{~0U, ~0U, ~0U, ~0U, ~0U, ~0U, ~0U, ~0U}};

/// What moments in fewer bits need beside the others.
struct MomentRounding {
  TensorView m_scales;  // [S / 256] f32, read and written, where m and v are u8
  TensorView v_scales;  // [S / 256] f32, likewise
  RoundingKey key;
  Index first = 0;               // element of the unit that is the first here: a multiple of 256
  DecayMask decays = kAllDecay;  // those that have `decay`; the others have none
};

struct AdamWArgs {
  TensorView master;     // [S] f32, or u16: the remainders beside param; read and written
  TensorView m;          // [S] f32, bf16 or u8, read and written
  TensorView v;          // [S] of the same type, read and written
  ConstTensorView grad;  // [S] f32, summed over ranks and micro-steps
  TensorView param;      // [S] bf16 or f32, written; with remainders also read
  float lr;
  float beta1;
  float beta2;
  float bias_correction1;  // c1 = 1 - beta1^t, computed in double by the caller
  float bias_correction2;  // c2 = 1 - beta2^t
  float eps;
  float decay;
  float grad_scale;  // clip factor; 1 when the norm is within bounds
  /// f32, or bf16: what a param of f32 is rounded to. A param of bf16 always is.
  DType param_values = DType::f32;
  /// Where m and v are bf16 or u8: S is then a multiple of 256, and all begin at multiples of 16
  /// bytes.
  MomentRounding rounding = {};
};

/// Throws ContractError unless moments and their scales are in the memory of `where`, of one of the
/// types and sizes that AdamWArgs names.
void require_moments(const AdamWArgs& args, DeviceKind where);

using AdamWFn = void(const AdamWArgs& args, Stream& stream);

namespace cpu {
AdamWFn adamw;
}
namespace cuda {
AdamWFn adamw;
}

/// What is the same for every element of a step, computed on the host for either backend.
struct AdamWFactors {
  explicit AdamWFactors(const AdamWArgs& args)
      : grad_scale(args.grad_scale),
        beta1(args.beta1),
        beta2(args.beta2),
        new_share1(1.0F - args.beta1),
        new_share2(1.0F - args.beta2),
        kept(1.0F - args.lr * args.decay),
        step(args.lr / args.bias_correction1),
        root_correction2(std::sqrt(args.bias_correction2)),
        eps(args.eps) {}
  float grad_scale;
  float beta1;
  float beta2;
  float new_share1;
  float new_share2;
  float kept;  // of the weight, by the decay
  float step;
  float root_correction2;
  float eps;
};

}  // namespace tessera
