#include "runtime/run/option_values.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/base/error.h"
#include "kernels/base/quantity.h"

namespace tessera {

Index parse_tokens(const std::string& text, const std::string& name) {
  constexpr std::string_view kSuffixes = "KMBT";
  const std::size_t place = text.empty() ? std::string::npos : kSuffixes.find(text.back());
  constexpr double kThousand = 1000;
  try {
    if (place == std::string::npos) {
      return parse_count(text, kRunTokens, name);
    }
    const double factor = std::pow(kThousand, static_cast<double>(place + 1));
    const double most = static_cast<double>(kRunTokens.most) / factor;
    const double number = parse_real(text.substr(0, text.size() - 1), {1 / factor, most}, name);
    return static_cast<Index>(std::llround(number * factor));
  } catch (const ConfigError&) {
    throw ConfigError(
        fmt::format("{} '{}' is not a number of tokens from {}: give a whole number, or a number "
                    "and K, M, B or T (thousands, millions, billions, trillions), such as 20000, "
                    "500K or 1.5B",
                    name, text, range_text(kRunTokens)),
        TESSERA_HERE);
  }
}

ResidentBytes parse_resident(const std::string& text, const std::string& name) {
  if (text == "auto") {
    return {ResidentKind::automatic, 0};
  }
  if (text == "all") {
    return {ResidentKind::all, 0};
  }
  if (text == "none") {
    return {ResidentKind::none, 0};
  }
  if (text == "0") {
    throw ConfigError(name + " 0 could mean two things: write none (page everything) or all (page "
                             "nothing)",
                      TESSERA_HERE);
  }
  return {ResidentKind::bytes, parse_bytes(text, kSomeBytes, name)};
}

GradOffload parse_offload(const std::string& text, const std::string& name) {
  if (text == "auto") {
    return {OffloadKind::automatic, 0};
  }
  if (text == "true" || text == "false") {
    return {text == "true" ? OffloadKind::all : OffloadKind::none, 0};
  }
  if (text.find_first_of("-0123456789") != 0) {
    throw ConfigError(fmt::format("{} '{}': choose true, false, auto, or bytes", name, text),
                      TESSERA_HERE);
  }
  return {OffloadKind::bytes, parse_bytes(text, kSomeBytes, name)};
}

OptimizerKind parse_optimizer(const std::string& text, const std::string& name) {
  const std::optional<OptimizerKind> kind = find_optimizer(text);
  if (!kind) {
    throw ConfigError(fmt::format("{} '{}': choose {}", name, text, optimizer_names()),
                      TESSERA_HERE);
  }
  return *kind;
}

QuantizationRecipe parse_recipe(const std::string& text, const std::string& name) {
  std::vector<std::string_view> names;
  for (const RecipeRow& row : recipe_table()) {
    if (row.name == text) {
      return row.recipe;
    }
    names.push_back(row.name);
  }
  throw ConfigError(fmt::format("{} '{}': choose {}", name, text, fmt::join(names, ", ")),
                    TESSERA_HERE);
}

std::vector<LayerRange> parse_layers(const std::string& text, const std::string& name) {
  constexpr CountRange kLayers = {0, kMostSteps};
  std::vector<LayerRange> layers;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const std::size_t colon = part.find(':');
    const Index first = parse_count(part.substr(0, colon), kLayers, name);
    const Index last =
        colon == std::string::npos ? first : parse_count(part.substr(colon + 1), kLayers, name);
    if (first > last || (!layers.empty() && first <= layers.back().last)) {
      throw ConfigError(fmt::format("{} {}: give blocks in ascending order, each once, as in "
                                    "0,26:27",
                                    name, text),
                        TESSERA_HERE);
    }
    layers.push_back({first, last});
    begin = end + 1;
  }
  return layers;
}

MomentType parse_moments(const std::string& text, const std::string& name) {
  const std::optional<MomentType> type = find_moments(text);
  if (!type) {
    throw ConfigError(fmt::format("{} '{}': choose f32, bf16 or 8bit", name, text), TESSERA_HERE);
  }
  return *type;
}

EvalFile parse_eval_file(const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const auto is_of_name = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  };
  std::error_code ignored;
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size() ||
      !std::all_of(name.begin(), name.end(), is_of_name) ||
      std::filesystem::exists(text, ignored)) {
    return {{}, text};
  }
  return {name, text.substr(equals + 1)};
}

std::optional<StepRange> parse_steps(const std::string& text, const std::string& name) {
  if (text.empty()) {
    return std::nullopt;
  }
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) {
    throw ConfigError(
        fmt::format("{} {}: give the first and the last step, as in 10:12", name, text),
        TESSERA_HERE);
  }
  const StepRange steps = {parse_count(text.substr(0, colon), kSteps, name),
                           parse_count(text.substr(colon + 1), kSteps, name)};
  if (steps.first > steps.last) {
    throw ConfigError(fmt::format("{} {}: the first step is behind the last", name, text),
                      TESSERA_HERE);
  }
  return steps;
}

}  // namespace tessera
