// AdamW with decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101). Bytes per element:
//
//   moments   masters in f32   packed
//   f32       12               10
//   bf16       8                6
//   8 bits     6.03             4.03
#pragma once

#include "optim/update_rule.h"

namespace tessera {

/// master (or its remainder), exp_avg, exp_avg_sq.
[[nodiscard]] StateLayout adamw_layout(const OptimizerOptions& options);

class AdamWRule final : public UpdateRule {
 public:
  AdamWRule(const KernelTable& kernels, const OptimizerOptions& options)
      : UpdateRule(kernels, options) {}
  void queue(const PageArgs& page, const UpdateStep& step, Stream& stream) const override;
};

}  // namespace tessera
