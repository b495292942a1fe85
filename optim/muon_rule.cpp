#include "optim/muon_rule.h"

#include <algorithm>
#include <cmath>

#include "optim/adamw_rule.h"

namespace tessera {

StateLayout muon_layout(const OptimizerOptions& options) {
  return {master_spec(options.packs_masters), {StateArray::exp_avg}, {StateArray::exp_avg_sq}};
}

StateLayout muon_matrix_layout(const OptimizerOptions& options) {
  return {master_spec(options.packs_masters), {StateArray::exp_avg}};
}

double muon_scale(MuonScale scale, Index rows, Index columns) {
  constexpr double kRmsOfAdamW = 0.2;
  const auto down = static_cast<double>(rows);
  const auto across = static_cast<double>(columns);
  return scale == MuonScale::rms ? kRmsOfAdamW * std::sqrt(std::max(down, across))
                                 : std::sqrt(std::max(1.0, down / across));
}

void MuonRule::queue(const PageArgs& page, const UpdateStep& step, Stream& stream) const {
  const TensorView momentum = page.layout.values(page.state, page.count, StateArray::exp_avg);
  for (const MatrixRun& run : page.matrix_runs) {
    kernels().muon_momentum({.m = momentum.slice(run.begin, run.end),
                             .grad = page.grad.slice(run.begin, run.end),
                             .direction = run.direction,
                             .momentum = static_cast<float>(options().muon.momentum),
                             .grad_scale = static_cast<float>(step.grad_scale)},
                            stream);
  }
  if (!page.layout.has(StateArray::exp_avg_sq)) {
    return;
  }
  const AdamWArgs args = adamw_args(options(), page, step);
  Index begin = 0;
  for (const DecayRun& run : page.decay_runs) {
    const Index end = begin + run.count;
    if (!run.in_matrix) {
      const float decay = run.decays ? static_cast<float>(options().decay) : 0.0F;
      kernels().adamw(adamw_run(args, begin, end, decay), stream);
    }
    begin = end;
  }
}

void MuonRule::queue_matrices(const PageArgs& page, const UpdateStep& step, Stream& stream) const {
  const TensorView master =
      page.layout.values(page.state, page.count, page.layout.storage_of(StateArray::master).array);
  for (const MatrixRun& run : page.matrix_runs) {
    kernels().muon_update(
        {.master = master.slice(run.begin, run.end),
         .direction = run.direction,
         .param = page.params.slice(run.begin, run.end),
         .lr = static_cast<float>(step.matrix_lr),
         .scale = static_cast<float>(muon_scale(options().muon.scale, run.rows, run.columns)),
         .decay = static_cast<float>(options().decay),
         .param_values = options().param_values},
        stream);
  }
}

}  // namespace tessera
