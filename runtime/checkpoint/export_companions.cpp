#include "runtime/checkpoint/export_companions.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "model/huggingface.h"
#include "model/json_text.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kEndTokens = "eos_token_id";  // a number or a list of them

std::vector<std::int32_t> stop_tokens(const RunTokenizer& tokenizer) {
  if (tokenizer.kind != kIdsKind) {
    try {
      const TokenizerFiles files = files_of(tokenizer);
      return end_tokens_of(*make_tokenizer(files, "the run's tokenizer"), tokenizer.end_token);
    } catch (const Error&) {  // whoever uses it will hear why
    }
  }
  return tokenizer.end_token < 0
             ? std::vector<std::int32_t>()
             : std::vector<std::int32_t>{static_cast<std::int32_t>(tokenizer.end_token)};
}

// `text` with these tokens among those that end a text; unchanged where it has them all, or is not
// what it should be.
std::string with_end_tokens(const std::string& text, const std::vector<std::int32_t>& stop) {
  Json config = text.empty() ? Json::object() : Json::parse(text, nullptr, false);
  if (!config.is_object()) {
    return text;
  }
  Json ends = config.value(kEndTokens, Json());
  ends = ends.is_array() ? ends : ends.is_null() ? Json::array() : Json::array({ends});
  bool is_changed = false;
  for (const std::int32_t token : stop) {
    if (std::find(ends.begin(), ends.end(), Json(token)) == ends.end()) {
      ends.push_back(token);
      is_changed = true;
    }
  }
  if (!is_changed) {
    return text;
  }
  config.erase("_from_model_config");  // which says that it holds nothing of its own
  config[kEndTokens] = ends.size() == 1 ? ends.front() : ends;
  return config.dump(2) + "\n";
}

}  // namespace

std::vector<TokenizerFile> export_companions(const RunTokenizer& tokenizer) {
  std::vector<TokenizerFile> files = kept_files(files_of(tokenizer));
  const std::vector<std::int32_t> stop = stop_tokens(tokenizer);
  const auto generation = std::find_if(files.begin(), files.end(), [](const TokenizerFile& file) {
    return file.name == kGenerationConfig;
  });
  if (generation != files.end()) {
    generation->content = with_end_tokens(generation->content, stop);
  } else if (!stop.empty()) {
    files.push_back({std::string(kGenerationConfig), with_end_tokens({}, stop)});
  }
  return files;
}

int write_companions(const std::filesystem::path& run_folder, const std::filesystem::path& to) {
  const std::optional<RunTokenizer> tokenizer = read_run_tokenizer(run_folder);
  if (!tokenizer) {
    return 0;
  }
  for (const TokenizerFile& file : export_companions(*tokenizer)) {
    write_whole_file(to / file.name, bytes_of(file.content));
  }
  return static_cast<int>(kept_files(files_of(*tokenizer)).size());
}

void write_chat_template(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (const std::filesystem::path file = from / kChatTemplate; path_exists(file)) {
    write_whole_file(to / kChatTemplate, bytes_of(read_whole_file(file, kMostTokenizerBytes)));
  }
}

}  // namespace tessera
