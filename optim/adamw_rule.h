// AdamW with f32 moments (Loshchilov & Hutter 2019, arXiv:1711.05101): 12 bytes per element.
#pragma once

#include "optim/update_rule.h"

namespace tessera {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double decay = 0.1;
};

class AdamWRule final : public UpdateRule {
 public:
  AdamWRule(const KernelTable& kernels, const AdamWOptions& options)
      : UpdateRule(kernels), options_(options) {}
  /// master, exp_avg, exp_avg_sq, all f32.
  [[nodiscard]] static const StateLayout& arrays();
  [[nodiscard]] const StateLayout& layout() const noexcept override { return arrays(); }
  void queue(const PageArgs& page, const UpdateStep& step, Stream& stream) const override;

 private:
  AdamWOptions options_;
};

}  // namespace tessera
