// The model's loss in f64, by plain loops after the formulas: what finite differences are taken of.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/softmax_cross_entropy.h"
#include "model/model_config.h"
#include "model/param_layout.h"

namespace tessera::test {

/// Weights of every unit, each [unit.count], by unit.
using ReferenceWeights = std::vector<std::vector<double>>;

struct ReferenceLoss {
  double objective;      // with label smoothing and z-loss
  double cross_entropy;  // without
  Index correct;         // targets that have the largest logit
  Index targets;
};

/// A block on its own (model/transformer_block.h).
///
///   x       [N, C]  its input, N a multiple of `length`
///   result  [N, C]
[[nodiscard]] std::vector<double> reference_block(const ModelConfig& config, const ParamUnit& unit,
                                                  const std::vector<double>& weights,
                                                  std::vector<double> x, Index length);

/// Mean losses in nats over the targets that are not ignored. Differs from
/// model/transformer.h in everything but the formulas: no kernels, no fusion, no chunks.
///
///   tokens, targets  [N], N a multiple of `length`: one sequence behind the other
[[nodiscard]] ReferenceLoss reference_loss(const ModelConfig& config, const ParamLayout& layout,
                                           const ReferenceWeights& weights,
                                           std::span<const std::int32_t> tokens,
                                           std::span<const std::int32_t> targets, Index length,
                                           const CrossEntropyTerms& terms = {});

}  // namespace tessera::test
