// From logits to the next token, on the host: a function of its arguments alone.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/decoder.h"

namespace tessera {

struct SamplingOptions {
  double temperature = 0.8;  // 0: the likeliest token, the first of equals
  double top_p = 0.95;       // of the likeliest tokens, as few as have this probability together
  std::uint64_t seed = 0;
};

/// The token at `position` of a text: by temperature and nucleus (Holtzman et al. 2020,
/// arXiv:1904.09751). Throws DivergedError where a logit is not finite.
/// Requires: temperature >= 0, 0 < top_p <= 1.
[[nodiscard]] std::int32_t sample_token(std::span<const float> logits,
                                        const SamplingOptions& options, std::uint64_t position);

enum class KeyCache : std::uint8_t { keep, rebuild };

struct GenerationOptions {
  SamplingOptions sampling;
  Index max_tokens = 0;                  // beside the prompt
  Index vocab = 0;                       // ids below it are taken
  std::vector<std::int32_t> end_tokens;  // each ends the text
  /// `rebuild`: every token is computed from the first one on again; bit-identical, for tests.
  KeyCache cache = KeyCache::keep;
};

/// Continues `prompt`, from an empty decoder, and calls `on_token` with each new token but the end
/// token; the text ends where it returns false. Requires: a token or more, and room in the decoder.
void generate(Decoder& decoder, const ModelParams& params, Stream& stream,
              std::span<const std::int32_t> prompt, const GenerationOptions& options,
              const std::function<bool(std::int32_t)>& on_token);

}  // namespace tessera
