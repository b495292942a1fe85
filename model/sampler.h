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
  std::uint64_t text = 0;  // of those written side by side: each has random numbers of its own
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

/// In the place of a token: the text has ended.
inline constexpr std::int32_t kNoToken = -1;

/// Continues `prompts`, one a text of `decoder`, from an empty one, a token of each at a time, and
/// calls `on_tokens` with these tokens: kNoToken for a text that has come to an end token. All texts
/// end where it returns false. Each text is what it would be alone; text i of several has the random
/// numbers of SamplingOptions::text + i. Requires: as many prompts as texts, each of a token or
/// more, and room in the decoder. Throws as sample_token.
void generate(Decoder& decoder, const ModelParams& params, Stream& stream,
              std::span<const std::vector<std::int32_t>> prompts, const GenerationOptions& options,
              const std::function<bool(std::span<const std::int32_t>)>& on_tokens);

/// The same of one prompt; the end token is left out. Requires: a decoder of one text.
void generate(Decoder& decoder, const ModelParams& params, Stream& stream,
              std::span<const std::int32_t> prompt, const GenerationOptions& options,
              const std::function<bool(std::int32_t)>& on_token);

}  // namespace tessera
