// Where numbers that are not finite are: in the parameters of a run, or in what made a step be
// skipped. Looked for at the start, in memory that is read anyway, and after a skipped step; a step
// that is not skipped costs nothing.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/device/tensor_view.h"
#include "model/param_layout.h"
#include "runtime/run/trainer.h"

namespace tessera {

class TrainingRun;

/// A tensor and how many of its numbers are NaN or infinite.
struct NonFiniteTensor {
  std::string name;
  Index count = 0;
  friend bool operator==(const NonFiniteTensor&, const NonFiniteTensor&) = default;
};

/// Adds what elements begin, begin + 1, ... of a unit hold.
///   values  [count]  f32 or bf16, in host memory
void add_nonfinite(const ParamUnit& unit, Index begin, const ConstTensorView& values,
                   std::vector<NonFiniteTensor>& found);

/// "block.0.mlp.down (3 numbers), block.1.mlp.down (1 number) and 5 more tensors".
[[nodiscard]] std::string nonfinite_text(std::span<const NonFiniteTensor> tensors);

/// Of the parameters, which are whole on every rank, those that are not finite, as
/// TrainingRun::parameter_hash and this share of the work find them.
struct ParameterCheck {
  std::uint64_t hash = 0;
  std::vector<NonFiniteTensor> nonfinite;  // all ranks' findings, in layout order
};
/// Hashes the parameters on every rank, compares the hashes, and looks for numbers that are not
/// finite, of which each rank looks at its share. Collective. Throws ContractError, agreed, where
/// ranks hold other parameters than rank 0.
[[nodiscard]] ParameterCheck check_parameters(TrainingRun& run);

/// The weights that a run began with.
struct WeightsOrigin {
  std::string what;       // "the weights of --init X"
  bool is_finite = true;  // as check_parameters found them
};

/// All ranks hold the same parameters, whatever they came from: check_parameters; rank 0 warns of
/// those that are not finite, since most steps will be skipped for them. `what`: their origin. Collective.
[[nodiscard]] WeightsOrigin compare_parameters(TrainingRun& run, const std::string& what);

/// What made all ranks skip a step, and what to do about it.
struct SkipReason {
  std::string what;    // "the loss on rank 1 (node2), and so the gradient of 12 tensors"
  std::string advice;  // "lower --lr ..."
};
/// Looks at the losses, the gradient sums and the parameters that the step has left. Collective;
/// every rank gets the same. Requires: `report` is of a skipped step, and no other has begun.
[[nodiscard]] SkipReason find_skip_reason(TrainingRun& run, const StepReport& report,
                                          const WeightsOrigin& origin);

}  // namespace tessera
