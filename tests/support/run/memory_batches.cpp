#include "tests/support/run/memory_batches.h"

#include <algorithm>
#include <numeric>

namespace tessera::test {
namespace {

constexpr std::size_t kRing = 3;

}  // namespace

MemoryBatches::MemoryBatches(MemoryBatchesOptions options) : options_(std::move(options)) {
  const Index rounds = (micro_batches() + options_.world_size - 1) / options_.world_size;
  const Index tokens = options_.micro_batch * options_.length;
  steps_.resize(kRing);
  for (Step& step : steps_) {
    step.numbers.resize(static_cast<std::size_t>(rounds * 3 * tokens));
    step.target_counts.resize(static_cast<std::size_t>(rounds));
  }
}

Index MemoryBatches::micro_batches() const {
  return options_.global_batch / options_.micro_batch;
}

void MemoryBatches::prefetch(Index position) {
  prefetched_ = (prefetched_ + 1) % kRing;
  Step& step = steps_[prefetched_];
  const Index sequences = static_cast<Index>(options_.tokens.size()) / options_.length;
  const Index tokens = options_.micro_batch * options_.length;
  std::fill(step.target_counts.begin(), step.target_counts.end(), 0);
  for (Index round = 0; round * options_.world_size + options_.rank < micro_batches(); ++round) {
    std::int32_t* inputs = step.numbers.data() + round * 3 * tokens;
    std::int32_t* targets = inputs + tokens;
    std::int32_t* order = targets + tokens;
    const Index number = round * options_.world_size + options_.rank;
    for (Index i = 0; i < options_.micro_batch; ++i) {
      const Index sequence = (position + number * options_.micro_batch + i) % sequences;
      std::copy_n(options_.tokens.begin() + sequence * options_.length, options_.length,
                  inputs + i * options_.length);
      std::copy_n(options_.targets.begin() + sequence * options_.length, options_.length,
                  targets + i * options_.length);
    }
    std::iota(order, order + tokens, 0);
    std::sort(order, order + tokens, [inputs](std::int32_t a, std::int32_t b) {
      return inputs[a] != inputs[b] ? inputs[a] < inputs[b] : a < b;
    });
    step.target_counts[static_cast<std::size_t>(round)] =
        tokens - std::count(targets, targets + tokens, kIgnoreTarget);
  }
}

Index MemoryBatches::prefetched_targets() {
  const std::vector<Index>& counts = steps_[prefetched_].target_counts;
  return std::accumulate(counts.begin(), counts.end(), Index{0});
}

void MemoryBatches::take() {
  current_ = prefetched_;
}

Batch MemoryBatches::batch(Index round) {
  Step& step = steps_[current_];
  const Index tokens = options_.micro_batch * options_.length;
  const std::int32_t* inputs = step.numbers.data() + round * 3 * tokens;
  const auto view = [&](Index array) {
    return ConstTensorView(inputs + array * tokens, DType::i32, {tokens}, Device{});
  };
  return {.inputs = view(0),
          .targets = view(1),
          .token_order = view(2),
          .target_count = step.target_counts[static_cast<std::size_t>(round)]};
}

}  // namespace tessera::test
