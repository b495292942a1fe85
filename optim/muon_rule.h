// Muon for hidden matrices (Jordan et al. 2024, kellerjordan.github.io/posts/muon; Liu et al. 2025,
// arXiv:2502.16982) with decoupled weight decay, and AdamW for all else: embedding, head, norm gains,
// biases (kernels/muon.h, kernels/adamw.h). 8 bytes per element of a hidden matrix, 6 with packed
// masters; 12 or 10 of the others.
//
// exp_avg is the moving average of gradients that both keep: Muon's momentum, AdamW's first moment.
#pragma once

#include "optim/update_rule.h"

namespace tessera {

/// master (or its remainder), exp_avg, exp_avg_sq.
[[nodiscard]] StateLayout muon_layout(const OptimizerOptions& options);
/// The first two of them.
[[nodiscard]] StateLayout muon_matrix_layout(const OptimizerOptions& options);

/// What an orthogonalised matrix is multiplied by, beside the learning rate.
[[nodiscard]] double muon_scale(MuonScale scale, Index rows, Index columns);

class MuonRule final : public UpdateRule {
 public:
  MuonRule(const KernelTable& kernels, const OptimizerOptions& options)
      : UpdateRule(kernels, options) {}
  void queue(const PageArgs& page, const UpdateStep& step, Stream& stream) const override;
  void queue_matrices(const PageArgs& page, const UpdateStep& step, Stream& stream) const override;
};

}  // namespace tessera
