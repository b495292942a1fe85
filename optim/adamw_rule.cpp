#include "optim/adamw_rule.h"

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

// Calls visit(begin, end, decays) for runs of whole blocks of a page, in their order, with which
// elements of each block decay: a block that a decay run cuts is a run of its own.
template <typename Visit>
void for_each_run_of_blocks(const PageArgs& page, const Visit& visit) {
  constexpr DecayMask kNone = {};
  DecayMask cut = kNone;  // of the block that is under way
  for_each_decay_run(page, [&](Index begin, Index end, bool decays) {
    const Index inside = begin % kMomentBlock;
    const Index cut_end = inside == 0 ? begin : std::min(end, begin - inside + kMomentBlock);
    const auto mark = [&](Index from, Index to) {
      for (Index i = from; decays && i < to; ++i) {
        const Index of_block = i % kMomentBlock;
        cut.words[static_cast<std::size_t>(of_block / DecayMask::kWordBits)] |=
            1U << static_cast<unsigned>(of_block % DecayMask::kWordBits);
      }
    };
    mark(begin, cut_end);
    if (inside != 0 && cut_end % kMomentBlock == 0) {
      visit(cut_end - kMomentBlock, cut_end, cut);
      cut = kNone;
    }
    const Index whole_end = std::max(cut_end, end - end % kMomentBlock);
    if (cut_end < whole_end && cut_end % kMomentBlock == 0) {
      visit(cut_end, whole_end, decays ? kAllDecay : kNone);
    }
    if (whole_end % kMomentBlock == 0) {
      mark(whole_end, end);
    }
  });
}

}  // namespace

StateLayout adamw_layout(const OptimizerOptions& options) {
  return {master_spec(options.packs_masters),
          moment_spec(StateArray::exp_avg, options.adamw.moments),
          moment_spec(StateArray::exp_avg_sq, options.adamw.moments)};
}

AdamWArgs adamw_args(const OptimizerOptions& options, const PageArgs& page,
                     const UpdateStep& step) {
  const auto t = static_cast<double>(step.updates);
  const AdamWOptions& adamw = options.adamw;
  const auto array = [&](StateArray of) {
    return page.layout.values(page.state, page.count, page.layout.storage_of(of).array);
  };
  return {.master = array(StateArray::master),
          .m = array(StateArray::exp_avg),
          .v = array(StateArray::exp_avg_sq),
          .grad = page.grad,
          .param = page.params,
          .lr = static_cast<float>(step.lr),
          .beta1 = static_cast<float>(adamw.beta1),
          .beta2 = static_cast<float>(adamw.beta2),
          .bias_correction1 = static_cast<float>(1 - std::pow(adamw.beta1, t)),
          .bias_correction2 = static_cast<float>(1 - std::pow(adamw.beta2, t)),
          .eps = static_cast<float>(adamw.eps),
          .decay = 0,
          .grad_scale = static_cast<float>(step.grad_scale),
          .param_values = options.param_values};
}

AdamWArgs adamw_run(const AdamWArgs& page, Index begin, Index end, float decay) {
  AdamWArgs run = page;
  run.master = page.master.slice(begin, end);
  run.m = page.m.slice(begin, end);
  run.v = page.v.slice(begin, end);
  run.grad = page.grad.slice(begin, end);
  run.param = page.param.slice(begin, end);
  run.decay = decay;
  return run;
}

void AdamWRule::queue(const PageArgs& page, const UpdateStep& step, Stream& stream) const {
  const AdamWArgs args = adamw_args(options(), page, step);
  const auto decay = static_cast<float>(options().decay);
  if (options().adamw.moments == MomentType::f32) {
    for_each_decay_run(page, [&](Index begin, Index end, bool decays) {
      kernels().adamw(adamw_run(args, begin, end, decays ? decay : 0.0F), stream);
    });
    return;
  }
  const TensorView m_scales = page.layout.scales(page.state, page.count, StateArray::exp_avg);
  const TensorView v_scales = page.layout.scales(page.state, page.count, StateArray::exp_avg_sq);
  const auto part = [](const TensorView& scales, Index begin, Index end) {
    return scales.count() == 0 ? scales : scales.slice(begin / kMomentBlock, end / kMomentBlock);
  };
  for_each_run_of_blocks(page, [&](Index begin, Index end, const DecayMask& decays) {
    AdamWArgs run = adamw_run(args, begin, end, decay);
    run.rounding = {.m_scales = part(m_scales, begin, end),
                    .v_scales = part(v_scales, begin, end),
                    .key = {.seed = options().rounding_seed,
                            .update = static_cast<std::uint64_t>(step.updates),
                            .unit = static_cast<std::uint64_t>(page.unit)},
                    .first = page.first + begin,
                    .decays = decays};
    kernels().adamw(run, stream);
  });
}

}  // namespace tessera
