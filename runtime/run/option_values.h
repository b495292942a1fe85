// How the texts of single options become their values, where numbers and words alone do not do. For
// option_table.cpp.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/base/quantity.h"
#include "runtime/run/config.h"

namespace tessera {

inline constexpr CountRange kSteps = {1, kMostSteps};
inline constexpr CountRange kRunTokens = {1, Index{1} << 62};
inline constexpr SizeRange kSomeBytes = {1, kMostBytes};

// All take the text that was given to the option `name`, and throw ConfigError that says it.

/// "20000", "10B", "1.5T": K, M, B and T are thousands, millions, billions and trillions.
[[nodiscard]] Index parse_tokens(const std::string& text, const std::string& name);
[[nodiscard]] ResidentBytes parse_resident(const std::string& text, const std::string& name);
/// "true", "false", "auto", or bytes.
[[nodiscard]] GradOffload parse_offload(const std::string& text, const std::string& name);
[[nodiscard]] OptimizerKind parse_optimizer(const std::string& text, const std::string& name);
/// A recipe that is not there is refused with its reason where the run is checked.
[[nodiscard]] QuantizationRecipe parse_recipe(const std::string& text, const std::string& name);
/// "0,26:27", in ascending order and without overlaps, so that equal settings are equal.
[[nodiscard]] std::vector<LayerRange> parse_layers(const std::string& text,
                                                   const std::string& name);
[[nodiscard]] MomentType parse_moments(const std::string& text, const std::string& name);
/// "FILE" or "NAME=FILE". What is there as a file is one; a NAME has no '/'.
[[nodiscard]] EvalFile parse_eval_file(const std::string& text);
/// "10:12"; empty: none.
[[nodiscard]] std::optional<StepRange> parse_steps(const std::string& text,
                                                   const std::string& name);

}  // namespace tessera
