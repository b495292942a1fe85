// What evaluations found of a step that was saved, as its manifest keeps it, and which step of a run
// is the best by it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/types.h"

namespace tessera {

/// One evaluation set at one step.
struct SavedEvaluation {
  std::string name;  // of the set
  double loss = 0;   // nats per target; finite
  std::string over;  // names what was evaluated: losses compare where it is equal
};

/// {"chat":{"loss":1.25,"over":"..."}}; empty for none.
[[nodiscard]] std::string evaluations_text(std::span<const SavedEvaluation> evaluations);
/// What evaluations_text was given. What is not of this form is left out.
[[nodiscard]] std::vector<SavedEvaluation> parse_evaluations(const std::string& text);

/// A step and what was found of one set there.
struct EvaluatedStep {
  Index step = 0;
  SavedEvaluation evaluation;
};
/// Those that compare with the highest of them, the lowest loss first; of equal ones the lower step.
[[nodiscard]] std::vector<EvaluatedStep> by_loss(std::vector<EvaluatedStep> steps);

}  // namespace tessera
