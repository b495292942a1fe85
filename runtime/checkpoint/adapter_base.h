// The frozen base beside which a step's adapters were trained, as the step's manifest tells it.
#pragma once

#include <string>

#include "runtime/checkpoint/layout.h"

namespace tessera {

struct AdapterBase {
  std::string hash;    // ManifestInfo::base_model_hash
  std::string source;  // the run's --init; empty: random codes, or fresh weights of a preset
  std::string dtype;  // how it was stored: "f32", "bf16", "nf4"; empty where the step does not tell
  bool is_random = false;  // --base-random: it was made for a measurement, and is nowhere
};

/// Requires: the step holds adapters.
[[nodiscard]] AdapterBase adapter_base(const ManifestInfo& info);

/// "the base has hash 7bf165c44e23894e, was stored in nf4 and came from QWEN3_FOLDER".
[[nodiscard]] std::string adapter_base_text(const AdapterBase& base);

/// Throws ConfigError, naming `step`, where the adapters' base was random: there is nothing to merge
/// them into or to use them with. Steps of whole models pass.
void require_real_base(const ManifestInfo& info, const std::string& step);

}  // namespace tessera
