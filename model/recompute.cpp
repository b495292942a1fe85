#include "model/recompute.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/base/error.h"
#include "kernels/base/quantity.h"
#include "model/model_limits.h"

namespace tessera {
namespace {

constexpr std::array<std::string_view, 4> kWords = {"none", "attention", "mlp", "block"};

std::string_view word_of(Recompute level) {
  return kWords.at(static_cast<std::size_t>(level));
}

std::string text_of(const RecomputePart& part) {
  return part.layers ? fmt::format("{}:{}", word_of(part.level), *part.layers)
                     : std::string(word_of(part.level));
}

RecomputePart parse_part(std::string_view text, std::string_view whole, std::string_view name) {
  constexpr CountRange kLayers = {1, kLargestLayerCount};
  const std::size_t colon = text.find(':');
  const auto* const word = std::find(kWords.begin(), kWords.end(), text.substr(0, colon));
  const auto level = static_cast<Recompute>(word - kWords.begin());
  if (word == kWords.end() || (level == Recompute::none && whole != kWords.front())) {
    throw ConfigError(
        fmt::format(
            "{} '{}': choose none, auto, or attention, mlp or block, each for all layers or, "
            "as in mlp:24 and block:8,mlp, for the first ones",
            name, whole),
        TESSERA_HERE);
  }
  if (colon == std::string_view::npos) {
    return {level, std::nullopt};
  }
  return {level, parse_count(text.substr(colon + 1), kLayers,
                             fmt::format("{} {}: the number of layers", name, whole))};
}

}  // namespace

Recompute RecomputeLevels::of(Index layer) const noexcept {
  Index end = 0;
  for (const RecomputePart& part : parts_) {
    end += part.layers.value_or(0);
    if (!part.layers || layer < end) {
      return part.level;
    }
  }
  return Recompute::none;
}

bool RecomputeLevels::has(Recompute level) const noexcept {
  return std::any_of(parts_.begin(), parts_.end(),
                     [level](const RecomputePart& part) { return part.level == level; });
}

void RecomputeLevels::require_layers(Index layers) const {
  Index named = 0;
  for (const RecomputePart& part : parts_) {
    if (!part.layers && named > 0 && named >= layers) {
      throw ConfigError(
          fmt::format("--recompute {}: the model has {}, and none is left for {}: "
                      "give smaller numbers, or leave {} out",
                      text(), counted(layers, "layer"), word_of(part.level), word_of(part.level)),
          TESSERA_HERE);
    }
    named += part.layers.value_or(0);
  }
  if (named > layers) {
    throw ConfigError(fmt::format("--recompute {}: {}, and the model has {}: give at most as many, "
                                  "or a level without a number for all",
                                  text(), counted(named, "layer"), layers),
                      TESSERA_HERE);
  }
}

std::string RecomputeLevels::text() const {
  std::vector<std::string> texts;
  texts.reserve(parts_.size());
  std::transform(parts_.begin(), parts_.end(), std::back_inserter(texts), text_of);
  return fmt::format("{}", fmt::join(texts, ","));
}

RecomputeLevels parse_recompute(std::string_view text, std::string_view name) {
  std::vector<RecomputePart> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (!parts.empty() && !parts.back().layers) {
      throw ConfigError(
          fmt::format("{} {}: {} without a number is for all layers that follow: give "
                      "it last, or a number as in {}:8",
                      name, text, text_of(parts.back()), text_of(parts.back())),
          TESSERA_HERE);
    }
    parts.push_back(parse_part(text.substr(begin, end - begin), text, name));
    begin = end + 1;
  }
  return RecomputeLevels(std::move(parts));
}

}  // namespace tessera
