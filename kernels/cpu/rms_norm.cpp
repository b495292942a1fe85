#include "kernels/rms_norm.h"

#include "kernels/cpu/abs_max.h"
#include "kernels/cpu/partition.h"
#include "kernels/cpu/require.h"
#include "kernels/cpu/row_statistics.h"
#include "kernels/device/cpu/submit.h"
#include "kernels/reduction.h"

namespace tessera::cpu {
namespace {

void forward(const RmsNormForwardArgs& args) {
  const Index rows = args.x.shape[0];
  const Index width = args.x.shape[1];
  const auto* x = data_as<float>(args.x);
  const auto* gain = data_as<float>(args.gain);
  auto* y = data_as<float>(args.y);
#pragma omp parallel for schedule(static) if (rows * width > kParallelElements)
  for (Index n = 0; n < rows; ++n) {
    const float* x_row = x + n * width;
    float* y_row = y + n * width;
    const float r = reciprocal_rms(x_row, width, args.eps);
#pragma omp simd
    for (Index c = 0; c < width; ++c) {
      y_row[c] = x_row[c] * r * gain[c];
    }
  }
}

struct BackwardRow {
  const float* x;         // [C]
  const float* gain;      // [C]
  const float* d_y;       // [C]
  const float* residual;  // [C] or null
  float* d_x;             // [C] may be residual or d_y
  float* y;               // [C] or null; may be d_y
  float* d_gain;          // [C] partial sum, added to
};

// One loop, so that each element is read before the same iteration writes over it.
template <bool kHasResidual, bool kWritesY>
void backward_elements(const BackwardRow& row, Index width, float r, float mean) {
  const float* x = row.x;
  const float* gain = row.gain;
  const float* d_y = row.d_y;
  const float* residual = row.residual;
  float* d_x = row.d_x;
  float* y = row.y;
  float* d_gain = row.d_gain;
#pragma omp simd
  for (Index c = 0; c < width; ++c) {
    const float d = d_y[c];
    const float normalised = x[c] * r;
    const float gradient = r * (gain[c] * d - normalised * mean);
    d_gain[c] += d * normalised;
    d_x[c] = kHasResidual ? residual[c] + gradient : gradient;
    if constexpr (kWritesY) {
      y[c] = normalised * gain[c];
    }
  }
}

void backward_row(const BackwardRow& row, Index width, float eps) {
  const float* x = row.x;
  const float* gain = row.gain;
  const float* d_y = row.d_y;
  const float r = reciprocal_rms(x, width, eps);
  double dot = 0;
#pragma omp simd reduction(+ : dot)
  for (Index c = 0; c < width; ++c) {
    dot += static_cast<double>(gain[c] * d_y[c] * x[c]);
  }
  const auto mean = static_cast<float>(dot * r / static_cast<double>(width));
  if (row.residual != nullptr) {
    row.y != nullptr ? backward_elements<true, true>(row, width, r, mean)
                     : backward_elements<true, false>(row, width, r, mean);
  } else {
    row.y != nullptr ? backward_elements<false, true>(row, width, r, mean)
                     : backward_elements<false, false>(row, width, r, mean);
  }
}

// Rows are cut into pieces that depend on N only; each has its partial gain gradient in the
// workspace.
void backward(const RmsNormBackwardArgs& args) {
  const Index rows = args.x.shape[0];
  const Index width = args.x.shape[1];
  const Index pieces = row_pieces(rows);
  const auto* x = data_as<float>(args.x);
  const auto* gain = data_as<float>(args.gain);
  const auto* d_y = data_as<float>(args.d_y);
  const auto* residual = static_cast<const float*>(args.residual.data);
  auto* d_x = data_as<float>(args.d_x);
  auto* y = static_cast<float*>(args.y.data);
  auto* partial = data_as<float>(args.workspace);
#pragma omp parallel for schedule(static) if (rows * width > kParallelElements)
  for (Index p = 0; p < pieces; ++p) {
    float* sums = partial + p * width;
#pragma omp simd
    for (Index c = 0; c < width; ++c) {
      sums[c] = 0;
    }
    const Range range = piece(rows, pieces, p);
    for (Index n = range.begin; n < range.end; ++n) {
      const Index at = n * width;
      backward_row({.x = x + at,
                    .gain = gain,
                    .d_y = d_y + at,
                    .residual = residual == nullptr ? nullptr : residual + at,
                    .d_x = d_x + at,
                    .y = y == nullptr ? nullptr : y + at,
                    .d_gain = sums},
                   width, args.eps);
    }
  }
  if (args.d_gain.data == nullptr) {
    return;
  }
  auto* d_gain = data_as<float>(args.d_gain);
#pragma omp simd
  for (Index c = 0; c < width; ++c) {
    d_gain[c] = 0;
  }
  for (Index p = 0; p < pieces; ++p) {
    const float* sums = partial + p * width;
#pragma omp simd
    for (Index c = 0; c < width; ++c) {
      d_gain[c] += sums[c];
    }
  }
}

}  // namespace

void rms_norm_forward(const RmsNormForwardArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.x.shape.rank() == 2, "rms_norm_forward takes x as [N, C]");
  require_tensor(args.x, DType::f32, args.x.count(), "x");
  require_tensor(args.gain, DType::f32, args.x.shape[1], "gain");
  require_tensor(args.y, DType::f32, args.x.count(), "y");
  require_abs_max_in(DeviceKind::cpu, args.abs_max);
  submit(stream, [args] {
    forward(args);
    report_abs_max(args.y, args.abs_max);
  });
}

void rms_norm_backward(const RmsNormBackwardArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.x.shape.rank() == 2, "rms_norm_backward takes x as [N, C]");
  const Index rows = args.x.shape[0];
  const Index width = args.x.shape[1];
  require_tensor(args.x, DType::f32, rows * width, "x");
  require_tensor(args.gain, DType::f32, width, "gain");
  require_tensor(args.d_y, DType::f32, rows * width, "d_y");
  require_tensor(args.d_x, DType::f32, rows * width, "d_x");
  if (args.d_gain.data != nullptr) {
    require_tensor(args.d_gain, DType::f32, width, "d_gain");
  }
  require_room(args.workspace, DType::f32, column_sum_workspace(rows, width), "workspace");
  if (args.residual.data != nullptr) {
    require_tensor(args.residual, DType::f32, rows * width, "residual");
  }
  if (args.y.data != nullptr) {
    require_tensor(args.y, DType::f32, rows * width, "y");
  }
  require_abs_max_in(DeviceKind::cpu, args.abs_max);
  submit(stream, [args] {
    backward(args);
    report_abs_max(args.d_x, args.abs_max);
  });
}

}  // namespace tessera::cpu
