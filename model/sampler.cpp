#include "model/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/error.h"
#include "kernels/base/random.h"

namespace tessera {
namespace {

constexpr std::uint64_t kSamplingStream = 9;  // of the random numbers of a seed

double uniform(std::uint64_t seed, std::uint64_t position) {
  const auto words = philox(seed, kSamplingStream, position);
  const std::uint64_t bits = (std::uint64_t{words[0]} << 32U) | words[1];
  return static_cast<double>(bits >> 11U) * 0x1p-53;
}

}  // namespace

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          std::uint64_t position) {
  TESSERA_REQUIRE(
      !logits.empty() && options.temperature >= 0 && options.top_p > 0 && options.top_p <= 1,
      "logits, a temperature, and a top-p in (0, 1]");
  if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
    throw DivergedError("the model's logits are not finite: its parameters have diverged",
                        TESSERA_HERE);
  }
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0) {
    return static_cast<std::int32_t>(likeliest - logits.begin());
  }
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b); });
  std::vector<double> weights;
  weights.reserve(order.size());
  for (const std::int32_t id : order) {
    weights.push_back(std::exp((static_cast<double>(logit(id)) - static_cast<double>(*likeliest)) /
                               options.temperature));
  }
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  double nucleus = 0;
  std::size_t kept = 0;
  while (kept < weights.size() && (kept == 0 || nucleus < options.top_p * all)) {
    nucleus += weights[kept++];
  }
  double left = uniform(options.seed, position) * nucleus;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    left -= weights[i];
    if (left < 0) {
      return order[i];
    }
  }
  return order[kept - 1];
}

void generate(Decoder& decoder, const ModelParams& params, Stream& stream,
              std::span<const std::int32_t> prompt, const GenerationOptions& options,
              const std::function<bool(std::int32_t)>& on_token) {
  std::vector<std::int32_t> tokens(prompt.begin(), prompt.end());
  decoder.forget();
  std::size_t known = 0;
  for (Index i = 0; i < options.max_tokens; ++i) {
    if (options.cache == KeyCache::rebuild) {
      decoder.forget();
      known = 0;
    }
    const std::span<const float> logits =
        decoder.append(std::span(tokens).subspan(known), params, stream);
    known = tokens.size();
    const std::int32_t next = sample_token(logits.first(static_cast<std::size_t>(options.vocab)),
                                           options.sampling, tokens.size());
    if (std::find(options.end_tokens.begin(), options.end_tokens.end(), next) !=
        options.end_tokens.end()) {
      return;
    }
    tokens.push_back(next);
    if (!on_token(next)) {
      return;
    }
  }
}

}  // namespace tessera
