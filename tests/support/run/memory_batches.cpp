#include "tests/support/run/memory_batches.h"

#include <algorithm>
#include <numeric>

namespace tessera::test {
namespace {

constexpr std::size_t kRing = 3;
constexpr Index kArrays = 4;  // of a round

}  // namespace

MemoryBatches::MemoryBatches(MemoryBatchesOptions options) : options_(std::move(options)) {
  const Index rounds = (micro_batches() + options_.world_size - 1) / options_.world_size;
  const Index tokens = options_.micro_batch * options_.length;
  steps_.resize(kRing);
  for (Step& step : steps_) {
    step.numbers.resize(static_cast<std::size_t>(rounds * kArrays * tokens));
    step.target_counts.resize(static_cast<std::size_t>(rounds));
    step.document_begins.resize(static_cast<std::size_t>(rounds));
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
    std::int32_t* inputs = step.numbers.data() + round * kArrays * tokens;
    std::int32_t* targets = inputs + tokens;
    std::int32_t* order = targets + tokens;
    std::int32_t* positions = order + tokens;
    std::vector<std::int32_t>& begins = step.document_begins[static_cast<std::size_t>(round)];
    begins.assign(1, 0);
    const Index number = round * options_.world_size + options_.rank;
    for (Index i = 0; i < options_.micro_batch; ++i) {
      const Index sequence = (position + number * options_.micro_batch + i) % sequences;
      std::copy_n(options_.tokens.begin() + sequence * options_.length, options_.length,
                  inputs + i * options_.length);
      std::copy_n(options_.targets.begin() + sequence * options_.length, options_.length,
                  targets + i * options_.length);
      if (!options_.documents.empty()) {
        for (const Index length : options_.documents[static_cast<std::size_t>(sequence)]) {
          std::iota(positions + begins.back(), positions + begins.back() + length, 0);
          begins.push_back(begins.back() + static_cast<std::int32_t>(length));
        }
      }
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
  const std::int32_t* inputs = step.numbers.data() + round * kArrays * tokens;
  const auto view = [&](Index array) {
    return ConstTensorView(inputs + array * tokens, DType::i32, {tokens}, Device{});
  };
  Batch batch = {.inputs = view(0),
                 .targets = view(1),
                 .token_order = view(2),
                 .target_count = step.target_counts[static_cast<std::size_t>(round)]};
  if (!options_.documents.empty()) {
    const std::vector<std::int32_t>& begins = step.document_begins[static_cast<std::size_t>(round)];
    batch.document_begins = {begins.data(), DType::i32, {std::ssize(begins)}, Device{}};
    batch.positions = view(3);
  }
  return batch;
}

}  // namespace tessera::test
