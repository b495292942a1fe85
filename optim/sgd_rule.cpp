#include "optim/sgd_rule.h"

namespace tessera {

StateLayout sgd_layout(const OptimizerOptions& options) {
  return {master_spec(options.packs_masters), {StateArray::momentum_buffer}};
}

void SgdRule::queue(const PageArgs& page, const UpdateStep& step, Stream& stream) const {
  const auto array = [&](StateArray of) {
    return page.layout.values(page.state, page.count, page.layout.storage_of(of).array);
  };
  const TensorView master = array(StateArray::master);
  const TensorView buffer = array(StateArray::momentum_buffer);
  for_each_decay_run(page, [&](Index begin, Index end, bool decays) {
    kernels().sgd({.master = master.slice(begin, end),
                   .buffer = buffer.slice(begin, end),
                   .grad = page.grad.slice(begin, end),
                   .param = page.params.slice(begin, end),
                   .lr = static_cast<float>(step.lr),
                   .momentum = static_cast<float>(options().sgd.momentum),
                   .decay = decays ? static_cast<float>(options().decay) : 0.0F,
                   .grad_scale = static_cast<float>(step.grad_scale),
                   .param_values = options().param_values},
                  stream);
  });
}

}  // namespace tessera
