// Frequencies of the rotary embedding (Su et al. 2021, arXiv:2104.09864), and the ways in which
// models stretch them over longer texts: the rope types of transformers.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/device/stream.h"

namespace tessera {

/// none     theta^(-2i/D) radians per position for pair i
/// linear   the same divided by `factor` (Chen et al. 2023, arXiv:2306.15595)
/// dynamic  another theta for sequences longer than the model's positions (NTK-aware scaling)
/// yarn     short wavelengths as they are, long ones divided by `factor`, a ramp between them, and
///          queries and keys scaled (Peng et al. 2023, arXiv:2309.00071)
/// llama3   as yarn with another ramp and without the scale (Llama 3.1)
enum class RopeType : std::uint8_t { none, linear, dynamic, yarn, llama3 };

/// "default", "linear", "dynamic", "yarn", "llama3".
[[nodiscard]] const char* rope_type_name(RopeType type) noexcept;
[[nodiscard]] std::optional<RopeType> find_rope_type(std::string_view name) noexcept;

/// Values that a type does not use stay as they are here.
struct RopeScaling {
  RopeType type = RopeType::none;
  double factor = 1;
  Index original_max_position = 8192;  // of yarn and llama3: positions before the stretching
  double low_freq_factor = 1;          // llama3: turns over them, below which all is divided,
  double high_freq_factor = 4;         // and above which nothing is
  double beta_fast = 32;               // yarn: turns over them, above which nothing is divided,
  double beta_slow = 1;                // and below which all is
  bool truncate = true;                // yarn: the ramp begins and ends at whole pairs
  /// yarn: scale of queries and keys. None: by mscale and mscale_all_dim, else 0.1 ln(factor) + 1.
  std::optional<double> attention_factor;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

/// Throws ConfigError that names the value that does not fit.
void check(const RopeScaling& scaling);

/// What the rotary embedding of a sequence is made of.
struct RotaryFrequencies {
  std::vector<double> radians;  // [D / 2]: of pair i per position
  double scale = 1;             // of cosines and sines
};

/// Of heads of `head_dim` elements. `max_position` is the model's, `length` that of the sequence:
/// they matter to `dynamic` alone. transformers lets a text that grows change its own frequencies
/// there; here a sequence has those of its full length.
[[nodiscard]] RotaryFrequencies rotary_frequencies(const RopeScaling& scaling, double theta,
                                                   Index head_dim, Index max_position,
                                                   Index length);

}  // namespace tessera
