#include "model/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/error.h"
#include "kernels/base/random.h"

namespace tessera {
namespace {

constexpr std::uint64_t kSamplingStream = 9;  // of the random numbers of a seed

constexpr unsigned kTextShift = 32;  // above it: the number of a text

double uniform(const SamplingOptions& options, std::uint64_t position) {
  const auto words = philox(options.seed, kSamplingStream + (options.text << kTextShift), position);
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
  double left = uniform(options, position) * nucleus;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    left -= weights[i];
    if (left < 0) {
      return order[i];
    }
  }
  return order[kept - 1];
}

void generate(Decoder& decoder, const ModelParams& params, Stream& stream,
              std::span<const std::vector<std::int32_t>> prompts, const GenerationOptions& options,
              const std::function<bool(std::span<const std::int32_t>)>& on_tokens) {
  std::vector<std::vector<std::int32_t>> texts(prompts.begin(), prompts.end());
  std::vector<std::size_t> known(texts.size(), 0);
  std::vector<std::int32_t> next(texts.size(), 0);
  std::vector<std::span<const std::int32_t>> more(texts.size());
  decoder.forget();
  for (Index i = 0; i < options.max_tokens; ++i) {
    if (options.cache == KeyCache::rebuild) {
      decoder.forget();
      std::fill(known.begin(), known.end(), 0);
    }
    for (std::size_t text = 0; text < texts.size(); ++text) {
      more[text] = next[text] == kNoToken ? std::span<const std::int32_t>()
                                          : std::span(texts[text]).subspan(known[text]);
    }
    decoder.append(more, params, stream);
    for (std::size_t text = 0; text < texts.size(); ++text) {
      if (next[text] == kNoToken) {
        continue;
      }
      known[text] = texts[text].size();
      SamplingOptions sampling = options.sampling;
      sampling.text += text;
      const std::span<const float> logits = decoder.logits(static_cast<Index>(text));
      const std::int32_t token = sample_token(logits.first(static_cast<std::size_t>(options.vocab)),
                                              sampling, texts[text].size());
      const bool ends = std::find(options.end_tokens.begin(), options.end_tokens.end(), token) !=
                        options.end_tokens.end();
      next[text] = ends ? kNoToken : token;
      if (!ends) {
        texts[text].push_back(token);
      }
    }
    const bool all_ended =
        std::all_of(next.begin(), next.end(), [](std::int32_t token) { return token == kNoToken; });
    if (all_ended || !on_tokens(next)) {
      return;
    }
  }
}

void generate(Decoder& decoder, const ModelParams& params, Stream& stream,
              std::span<const std::int32_t> prompt, const GenerationOptions& options,
              const std::function<bool(std::int32_t)>& on_token) {
  const std::vector<std::int32_t> tokens(prompt.begin(), prompt.end());
  generate(decoder, params, stream, std::span(&tokens, 1), options,
           [&](std::span<const std::int32_t> next) { return on_token(next.front()); });
}

}  // namespace tessera
