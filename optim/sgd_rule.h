// Stochastic gradient descent with momentum and weight decay as torch.optim.SGD has them
// (kernels/sgd.h): 8 bytes per element.
#pragma once

#include "optim/update_rule.h"

namespace tessera {

class SgdRule final : public UpdateRule {
 public:
  SgdRule(const KernelTable& kernels, const OptimizerOptions& options)
      : UpdateRule(kernels), options_(options) {}
  /// master, momentum_buffer, both f32.
  [[nodiscard]] static const StateLayout& arrays();
  [[nodiscard]] const StateLayout& layout() const noexcept override { return arrays(); }
  void queue(const PageArgs& page, const UpdateStep& step, Stream& stream) const override;

 private:
  OptimizerOptions options_;
};

}  // namespace tessera
