#include "optim/adamw_rule.h"

#include <cmath>

namespace tessera {

const StateLayout& AdamWRule::arrays() {
  static const StateLayout layout = {
      {StateArray::master}, {StateArray::exp_avg}, {StateArray::exp_avg_sq}};
  return layout;
}

void AdamWRule::queue(const PageArgs& page, const UpdateStep& step, Stream& stream) const {
  const auto t = static_cast<double>(step.updates);
  const auto array = [&page](StateArray of) { return arrays().values(page.state, page.count, of); };
  const TensorView master = array(StateArray::master);
  const TensorView m = array(StateArray::exp_avg);
  const TensorView v = array(StateArray::exp_avg_sq);
  for_each_decay_run(page, [&](Index begin, Index end, bool decays) {
    kernels().adamw({.master = master.slice(begin, end),
                     .m = m.slice(begin, end),
                     .v = v.slice(begin, end),
                     .grad = page.grad.slice(begin, end),
                     .param = page.params.slice(begin, end),
                     .lr = static_cast<float>(step.lr),
                     .beta1 = static_cast<float>(options_.adamw.beta1),
                     .beta2 = static_cast<float>(options_.adamw.beta2),
                     .bias_correction1 = static_cast<float>(1 - std::pow(options_.adamw.beta1, t)),
                     .bias_correction2 = static_cast<float>(1 - std::pow(options_.adamw.beta2, t)),
                     .eps = static_cast<float>(options_.adamw.eps),
                     .decay = decays ? static_cast<float>(options_.decay) : 0.0F,
                     .grad_scale = static_cast<float>(step.grad_scale)},
                    stream);
  });
}

}  // namespace tessera
