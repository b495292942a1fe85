// Batches from memory: the sequences of a small data set, one behind the other, over and over.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/data/batch_source.h"

namespace tessera::test {

struct MemoryBatchesOptions {
  std::vector<std::int32_t> tokens;   // [sequences, T]
  std::vector<std::int32_t> targets;  // [sequences, T]
  /// Lengths of the documents of each sequence, which they fill; empty: they are joined.
  std::vector<std::vector<Index>> documents = {};
  Index length = 1;       // T
  Index micro_batch = 1;  // sequences
  Index global_batch = 1;
  int rank = 0;
  int world_size = 1;
};

class MemoryBatches final : public BatchSource {
 public:
  explicit MemoryBatches(MemoryBatchesOptions options);
  void prefetch(Index position) override;
  [[nodiscard]] Index prefetched_targets() override;
  void take() override;
  [[nodiscard]] Batch batch(Index round) override;

 private:
  struct Step {
    std::vector<std::int32_t> numbers;  // rounds of inputs, targets, order, positions
    std::vector<Index> target_counts;
    std::vector<std::vector<std::int32_t>> document_begins;  // of each round
  };
  [[nodiscard]] Index micro_batches() const;

  MemoryBatchesOptions options_;
  std::vector<Step> steps_;  // a ring of three, as BatchSource promises
  std::size_t prefetched_ = 0;
  std::size_t current_ = 0;
};

}  // namespace tessera::test
