// Both gradients that a low-rank adapter y = s h B^T (model/linear_adapter.h) takes from d_y:
//
//   d_h = s d_y B        d_B = s d_y^T h
//
// Of two GEMMs each reads all of d_y, and with a rank of 16 that is the time they take. On CUDA
// d_y is read once for both where all is bf16 (d_B also f32), the rank is a multiple of 8 up to 64,
// and data and distances between rows are multiples of 16 bytes; elsewhere these are the two GEMMs.
// Each gradient is bit-identical with the other one and without.
#pragma once

#include <cstdint>

#include "kernels/gemm.h"

namespace tessera {

enum class AdapterGradients : std::uint8_t { both, hidden, b };

[[nodiscard]] constexpr bool has_hidden(AdapterGradients needed) noexcept {
  return needed != AdapterGradients::b;
}
[[nodiscard]] constexpr bool has_b(AdapterGradients needed) noexcept {
  return needed != AdapterGradients::hidden;
}

/// All views are given, whatever is needed. Without d_h, `b` is not read; without d_B, `hidden` is
/// not.
struct AdapterGradientsArgs {
  Index tokens;         // N
  Index out;            // of the adapter's part of the layer
  Index rank;           // r
  ConstTensorView d_y;  // [N, out], rows ld_y apart: f32, or on CUDA bf16
  Index ld_y;
  ConstTensorView b;       // [out, r] of that type
  ConstTensorView hidden;  // h [N, r] of that type, rows ld_hidden apart
  TensorView d_hidden;     // d_h, as `hidden`; written if needed
  Index ld_hidden;
  TensorView d_b;        // [out, r] of that type, or on CUDA f32; written if needed
  TensorView workspace;  // u8, gemm_workspace_bytes(kind); data may be null where that is 0
  float scale;           // s
  AdapterGradients needed = AdapterGradients::both;
};

/// The same as two GEMMs, each reading d_y.
void adapter_gradients_by_gemms(const AdapterGradientsArgs& args, GemmFn& gemm, Stream& stream);

/// One signature; a definition in kernels/cpu and one in kernels/cuda.
using AdapterGradientsFn = void(const AdapterGradientsArgs& args, Stream& stream);

namespace cpu {
AdapterGradientsFn adapter_gradients;
}
namespace cuda {
AdapterGradientsFn adapter_gradients;
}

}  // namespace tessera
