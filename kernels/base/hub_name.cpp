#include "kernels/base/hub_name.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace tessera {
namespace {

bool is_hub_word(std::string_view word) {
  return !word.empty() && word.front() != '.' && std::all_of(word.begin(), word.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  });
}

// Whose models are of the families that are read, in lower case.
constexpr std::array<std::string_view, 10> kOwners = {
    "qwen",         "meta-llama", "mistralai",   "huggingfacetb",   "tinyllama",
    "nousresearch", "unsloth",    "deepseek-ai", "openlm-research", "eleutherai"};

bool is_known_owner(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::find(kOwners.begin(), kOwners.end(), name) != kOwners.end();
}

}  // namespace

std::string hub_hint(const std::filesystem::path& path) {
  constexpr std::size_t kOwnerAndName = 2;
  std::vector<std::string> words;
  for (const std::filesystem::path& part : path) {
    if (!part.empty()) {  // behind a slash at the end
      words.push_back(part.string());
    }
  }
  const bool has_file =
      words.size() == kOwnerAndName + 1 && words.back().find('.') != std::string::npos;
  std::error_code ignored;
  if (path.is_absolute() || (words.size() != kOwnerAndName && !has_file) ||
      !std::all_of(words.begin(), words.end(), is_hub_word) ||
      std::filesystem::exists(words.front(), ignored)) {
    return {};
  }
  // Folders of runs are seldom named so, models always: Qwen3-0.6B, Llama-3.1-8B.
  const std::string& name = words[1];
  const auto any = [&name](int (*is_kind)(int)) {
    return std::any_of(name.begin(), name.end(),
                       [is_kind](char c) { return is_kind(static_cast<unsigned char>(c)) != 0; });
  };
  if (!is_known_owner(words.front()) && (!any(std::isupper) || !any(std::isdigit))) {
    return {};
  }
  return fmt::format("; models of the Hugging Face hub are not downloaded: `hf download {}/{} "
                     "--local-dir {}`, then give {}",
                     words.front(), name, name, name);
}

}  // namespace tessera
