// The progress of a run as one line of text, for a terminal of any width or for a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/run/trainer.h"

namespace tessera {

/// What is shown beside a step's report.
struct ProgressFacts {
  std::int64_t steps = 0;                // of the run
  double tokens_per_second = 0;          // all ranks
  double seconds_left = 0;               // of the run
  double clip = 0;                       // largest norm of the gradient; 0: no clipping
  bool has_loss_terms = false;           // the loss is more than the cross entropy, and called so
  std::optional<double> eval_loss = {};  // of the last evaluation; none: there was none so far
  std::size_t memory_bytes = 0;          // in use where rank 0 computes; 0: not known
  std::int64_t skipped_in_all = 0;
  std::string_view warning;  // stays until it is over; empty: none
};

enum class Colours : std::uint8_t { off, on };

/// "step 5/100  loss 3.1234  eval 3.2100  norm 0.512  lr 1.00e-03  20480 tok/s  71.20 GB  3m10s
/// left". At most `width`
/// characters: what matters least is left out first, and a line that is too long even so is cut.
/// Colour codes do not count. `width` 0: as long as it is.
[[nodiscard]] std::string progress_text(const StepReport& report, const ProgressFacts& facts,
                                        std::size_t width, Colours colours);

}  // namespace tessera
