#include "optim/sgd_rule.h"

namespace tessera {

const StateLayout& SgdRule::arrays() {
  static const StateLayout layout = {{StateArray::master}, {StateArray::momentum_buffer}};
  return layout;
}

void SgdRule::queue(const PageArgs& page, const UpdateStep& step, Stream& stream) const {
  const TensorView master = arrays().values(page.state, page.count, StateArray::master);
  const TensorView buffer = arrays().values(page.state, page.count, StateArray::momentum_buffer);
  for_each_decay_run(page, [&](Index begin, Index end, bool decays) {
    kernels().sgd({.master = master.slice(begin, end),
                   .buffer = buffer.slice(begin, end),
                   .grad = page.grad.slice(begin, end),
                   .param = page.params.slice(begin, end),
                   .lr = static_cast<float>(step.lr),
                   .momentum = static_cast<float>(options_.sgd.momentum),
                   .decay = decays ? static_cast<float>(options_.decay) : 0.0F,
                   .grad_scale = static_cast<float>(step.grad_scale)},
                  stream);
  });
}

}  // namespace tessera
