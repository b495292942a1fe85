#include "kernels/muon.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/master_weights.h"
#include "kernels/cpu/partition.h"
#include "kernels/device/cpu/submit.h"
#include "kernels/workspaces.h"

namespace tessera::cpu {
namespace {

void update_momentum(const MuonMomentumArgs& args) {
  const Index count = args.m.count();
  auto* m = data_as<float>(args.m);
  auto* direction = data_as<float>(args.direction);
  const auto* grad = data_as<float>(args.grad);
  const float kept = args.momentum;
  const float new_share = 1.0F - args.momentum;
  const float grad_scale = args.grad_scale;
#pragma omp parallel for simd schedule(static) if (parallel : count > kParallelElements)
  for (Index i = 0; i < count; ++i) {
    const float share = new_share * (grad_scale * grad[i]);
    const float moving = kept * m[i] + share;
    m[i] = moving;
    direction[i] = kept * moving + share;
  }
}

// The pieces' sums, added in the order of the pieces: the number of threads changes nothing.
void normalize(const MuonNormalizeArgs& args) {
  const Index count = args.matrix.count();
  const auto* from = data_as<float>(args.matrix);
  auto* to = data_as<float>(args.normal);
  auto* sums = static_cast<double*>(args.workspace.data);
#pragma omp parallel for schedule(static) if (count > kParallelElements)
  for (Index part = 0; part < kMuonPartialSums; ++part) {
    const Range range = piece(count, kMuonPartialSums, part);
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (Index i = range.begin; i < range.end; ++i) {
      const double value = from[i];
      sum += value * value;
    }
    sums[part] = sum;
  }
  double squares = 0;
  for (Index part = 0; part < kMuonPartialSums; ++part) {
    squares += sums[part];
  }
  const double norm = std::sqrt(squares);
  const double factor = norm == 0 ? 0 : 1 / norm;
#pragma omp parallel for simd schedule(static) if (parallel : count > kParallelElements)
  for (Index i = 0; i < count; ++i) {
    to[i] = static_cast<float>(static_cast<double>(from[i]) * factor);
  }
}

template <typename Weights>
void update(const MuonUpdateArgs& args, const Weights& weights) {
  const Index count = args.direction.count();
  const auto* direction = data_as<float>(args.direction);
  const float kept = 1.0F - args.lr * args.decay;
  const float step = args.lr * args.scale;
#pragma omp parallel for simd schedule(static) if (parallel : count > kParallelElements)
  for (Index i = 0; i < count; ++i) {
    weights.store(i, weights.load(i) * kept - step * direction[i]);
  }
}

}  // namespace

void muon_momentum(const MuonMomentumArgs& args, Stream& stream) {
  const Index count = args.m.count();
  require_tensor(args.m, DType::f32, count, "m");
  require_tensor(args.grad, DType::f32, count, "grad");
  require_tensor(args.direction, DType::f32, count, "direction");
  submit(stream, [args] { update_momentum(args); });
}

void muon_normalize(const MuonNormalizeArgs& args, Stream& stream) {
  const Index count = args.matrix.count();
  require_tensor(args.matrix, DType::f32, count, "matrix");
  require_tensor(args.normal, DType::f32, count, "normal");
  require_room(args.workspace, DType::u8, static_cast<Index>(muon_normalize_workspace_bytes()),
               "workspace");
  submit(stream, [args] { normalize(args); });
}

void muon_update(const MuonUpdateArgs& args, Stream& stream) {
  const Index count = args.direction.count();
  require_weights(args.master, args.param, args.param_values, count);
  require_tensor(args.direction, DType::f32, count, "direction");
  submit(stream, [args] {
    with_weights(args.master, args.param, args.param_values,
                 [&args](const auto& weights) { update(args, weights); });
  });
}

}  // namespace tessera::cpu
