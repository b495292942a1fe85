// Stochastic gradient descent with momentum and weight decay as torch.optim.SGD has them
// (kernels/sgd.h): 8 bytes per element, 6 with packed masters.
#pragma once

#include "optim/update_rule.h"

namespace tessera {

/// master (or its remainder), momentum_buffer.
[[nodiscard]] StateLayout sgd_layout(const OptimizerOptions& options);

class SgdRule final : public UpdateRule {
 public:
  SgdRule(const KernelTable& kernels, const OptimizerOptions& options)
      : UpdateRule(kernels, options) {}
  void queue(const PageArgs& page, const UpdateStep& step, Stream& stream) const override;
};

}  // namespace tessera
