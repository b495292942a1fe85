#include "kernels/swiglu.h"

#include "kernels/cpu/abs_max.h"
#include "kernels/cpu/partition.h"
#include "kernels/cpu/require.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/device/cpu/submit.h"

namespace tessera::cpu {
namespace {

// silu(gate) * up; one function for both passes, so that backward gives forward's bits.
inline float activation(float gate, float up) {
  return gate / (1.0F + exp_of_negative(gate)) * up;
}

void forward(const SwigluForwardArgs& args) {
  const Index rows = args.act.shape[0];
  const Index width = args.act.shape[1];
  const auto* gate_up = data_as<float>(args.gate_up);
  auto* act = data_as<float>(args.act);
#pragma omp parallel for schedule(static) if (rows * width > kParallelElements)
  for (Index n = 0; n < rows; ++n) {
    const float* gate = gate_up + n * 2 * width;
    const float* up = gate + width;
    float* row = act + n * width;
#pragma omp simd
    for (Index f = 0; f < width; ++f) {
      row[f] = activation(gate[f], up[f]);
    }
  }
}

// d_gate_up may be the memory of gate_up, and act that of d_act: each element is read before it is
// written, and by the same iteration.
void backward(const SwigluBackwardArgs& args) {
  const Index rows = args.act.shape[0];
  const Index width = args.act.shape[1];
  const auto* gate_up = data_as<float>(args.gate_up);
  const auto* d_act = data_as<float>(args.d_act);
  auto* d_gate_up = data_as<float>(args.d_gate_up);
  auto* act = data_as<float>(args.act);
#pragma omp parallel for schedule(static) if (rows * width > kParallelElements)
  for (Index n = 0; n < rows; ++n) {
    const float* gate = gate_up + n * 2 * width;
    const float* up = gate + width;
    const float* d_row = d_act + n * width;
    float* d_gate = d_gate_up + n * 2 * width;
    float* d_up = d_gate + width;
    float* row = act + n * width;
#pragma omp simd
    for (Index f = 0; f < width; ++f) {
      const float g = gate[f];
      const float u = up[f];
      const float d = d_row[f];
      const float e = exp_of_negative(g);
      const float sigmoid = 1.0F / (1.0F + e);
      const float silu = g / (1.0F + e);
      // d silu / d g = s + g s (1 - s), and 1 - s = e s without cancellation
      const float gradient = sigmoid + silu * (e * sigmoid);
      row[f] = activation(g, u);
      d_gate[f] = d * u * gradient;
      d_up[f] = d * silu;
    }
  }
}

}  // namespace

void swiglu_forward(const SwigluForwardArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.act.shape.rank() == 2, "swiglu_forward takes act as [N, F]");
  require_tensor(args.act, DType::f32, args.act.count(), "act");
  require_tensor(args.gate_up, DType::f32, 2 * args.act.count(), "gate_up");
  require_abs_max_in(DeviceKind::cpu, args.abs_max);
  submit(stream, [args] {
    forward(args);
    report_abs_max(args.act, args.abs_max);
  });
}

void swiglu_backward(const SwigluBackwardArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.act.shape.rank() == 2, "swiglu_backward takes act as [N, F]");
  require_tensor(args.act, DType::f32, args.act.count(), "act");
  require_tensor(args.gate_up, DType::f32, 2 * args.act.count(), "gate_up");
  require_tensor(args.d_act, DType::f32, args.act.count(), "d_act");
  require_tensor(args.d_gate_up, DType::f32, 2 * args.act.count(), "d_gate_up");
  require_abs_max_in(DeviceKind::cpu, args.abs_max);
  submit(stream, [args] {
    backward(args);
    report_abs_max(args.d_gate_up, args.abs_max);
  });
}

}  // namespace tessera::cpu
