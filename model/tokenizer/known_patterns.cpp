#include "model/tokenizer/known_patterns.h"

#include <algorithm>
#include <array>
#include <vector>

namespace tessera {
namespace {

// Of DeepSeek V3 and R1, in their order.
constexpr std::string_view kDeepSeekNumbers = R"(\p{N}{1,3})";
constexpr std::string_view kDeepSeekIdeographs = "[一-龥\u3040-ゟ゠-ヿ]+";
constexpr std::string_view kDeepSeekWords =
    "[!\"#$%&'()*+,\\-./"
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

}  // namespace

bool splits_before_spaces(std::span<const std::string_view> patterns) {
  static const std::vector<std::vector<std::string_view>> all = {
      {kGpt2Pattern},   {kLlama3Pattern}, {kQwen2Pattern},
      {kLlama4Pattern}, {kTekkenPattern}, {kDeepSeekNumbers, kDeepSeekIdeographs, kDeepSeekWords}};
  return std::any_of(all.begin(), all.end(), [&](const auto& known) {
    return std::equal(known.begin(), known.end(), patterns.begin(), patterns.end());
  });
}

}  // namespace tessera
