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

/// The update of all of a page's elements without decay; the arrays' scales are left out.
[[nodiscard]] AdamWArgs adamw_args(const OptimizerOptions& options, const PageArgs& page,
                                   const UpdateStep& step);
/// The same of elements [begin, end), which all decay by `decay`.
[[nodiscard]] AdamWArgs adamw_run(const AdamWArgs& page, Index begin, Index end, float decay);

class AdamWRule final : public UpdateRule {
 public:
  AdamWRule(const KernelTable& kernels, const OptimizerOptions& options)
      : UpdateRule(kernels, options) {}
  void queue(const PageArgs& page, const UpdateStep& step, Stream& stream) const override;
};

}  // namespace tessera
