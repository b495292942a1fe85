// AdamW with f32 moments and decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101):
// 12 bytes per element.
#pragma once

#include "optim/update_rule.h"

namespace tessera {

class AdamWRule final : public UpdateRule {
 public:
  AdamWRule(const KernelTable& kernels, const OptimizerOptions& options)
      : UpdateRule(kernels), options_(options) {}
  /// master, exp_avg, exp_avg_sq, all f32.
  [[nodiscard]] static const StateLayout& arrays();
  [[nodiscard]] const StateLayout& layout() const noexcept override { return arrays(); }
  void queue(const PageArgs& page, const UpdateStep& step, Stream& stream) const override;

 private:
  OptimizerOptions options_;
};

}  // namespace tessera
