// Where a rank's micro-batches come from. The trainer asks for them by the global position of a
// step, so that which sequences a step uses depends neither on the ranks nor on what happened
// before.
//
// A step takes `global_batch` sequences: M = global_batch / micro_batch micro-batches of B
// sequences. Micro-batch number i holds sequences position + i*B .. position + (i+1)*B - 1 of the
// data order. Rank r computes number s*W + r in micro-step s; in the last micro-step it may have
// none.
#pragma once

#include "kernels/device/tensor_view.h"

namespace tessera {

/// Targets of this value take no part in loss and gradient.
inline constexpr std::int32_t kIgnoreTarget = -100;

/// Whether documents of a sequence see each other.
enum class DocumentMode : std::uint8_t { joined, separate };

/// One micro-batch in host memory (pinned on CUDA), N = B * T. Valid until the step after the next
/// is prefetched, so that a queued copy of it may still be under way while the next is prepared.
struct Batch {
  ConstTensorView inputs;       // [N] i32, each in [0, V)
  ConstTensorView targets;      // [N] i32: inputs moved by one; kIgnoreTarget where there is none
  ConstTensorView token_order;  // [N] i32: 0 .. N-1 sorted by (input, position), for embedding.h
  Index target_count = 0;       // targets that are not ignored
  /// Where documents that do not see each other begin, and N behind them; what is left of a sequence
  /// behind its last document is one of its own, without targets. Data null: documents are joined.
  ConstTensorView document_begins = {};  // [documents + 1] i32
  ConstTensorView positions = {};        // [N] i32: of a token in its document
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Begins to prepare, on another thread, this rank's micro-batches of the step whose first
  /// sequence is `position` (sequences taken by all ranks before it). Returns at once.
  virtual void prefetch(Index position) = 0;
  /// Waits for the last prefetch; targets in this rank's micro-batches of it. Throws what went
  /// wrong: FormatError naming file and position on a token that is not in [0, vocab).
  [[nodiscard]] virtual Index prefetched_targets() = 0;
  /// Places of the same micro-batches that no document takes, where documents are separate.
  /// Requires: prefetched_targets() has returned.
  [[nodiscard]] virtual Index prefetched_padding() const { return 0; }
  /// Makes the prefetched step the current one. Requires: prefetched_targets() has returned.
  virtual void take() = 0;
  /// This rank's micro-batch of micro-step `round` of the current step.
  /// Requires: round * W + rank < M.
  [[nodiscard]] virtual Batch batch(Index round) = 0;
};

}  // namespace tessera
