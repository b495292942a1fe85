#include "runtime/checkpoint/run_tokenizer.h"

#include <functional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "kernels/base/output_file.h"
#include "kernels/base/posix_file.h"
#include "model/json_text.h"

namespace tessera {
namespace {

constexpr std::size_t kMostDescription = std::size_t{1} << 16U;

bool is_description(const std::filesystem::path& path) {
  const nlohmann::json json = parse_json(read_whole_file(path, kMostDescription), path.string());
  return json.is_object() && json.contains("tokenizer") && json.contains("vocab_size") &&
         json.contains("end_token");
}

// A run's folder may hold files of the user's: a Hugging Face model has a tokenizer.model too.
void write_if_other(const std::filesystem::path& path, std::string_view what,
                    std::string_view content,
                    const std::function<bool(const std::filesystem::path&)>& is_ours) {
  if (path_exists(path) && first_bytes(path, content.size() + 1) == content) {
    return;
  }
  write_output(path, {.option = "the output folder's", .what = what, .is_ours = is_ours}, content);
}

}  // namespace

std::filesystem::path run_folder_of(const std::filesystem::path& step) {
  const std::filesystem::path whole = absolute_path(step);
  // "run/step-00000042/" has an empty name behind its last slash
  return whole.has_filename() ? whole.parent_path() : whole.parent_path().parent_path();
}

void write_run_tokenizer(const std::filesystem::path& run_folder, const RunTokenizer& tokenizer) {
  const std::filesystem::path model = run_folder / "tokenizer.model";
  if (!tokenizer.model.empty()) {
    write_if_other(model, "the tokenizer of a run", tokenizer.model,
                   [](const std::filesystem::path& path) {
                     return is_description(path.parent_path() / "tokens.json");
                   });
  } else if (path_exists(model) && path_exists(run_folder / "tokens.json") &&
             is_description(run_folder / "tokens.json")) {
    std::error_code error;
    std::filesystem::remove(model, error);  // an earlier run's
    if (error) {
      throw WriteError(fmt::format("cannot remove {}: {}", model.string(), error.message()),
                       TESSERA_HERE);
    }
  }
  const nlohmann::json json = {{"tokenizer", tokenizer.kind},
                               {"vocab_size", tokenizer.vocab_size},
                               {"end_token", tokenizer.end_token}};
  write_if_other(run_folder / "tokens.json", "the description of a run's tokens",
                 json_text(json) + "\n", is_description);
}

std::optional<RunTokenizer> read_run_tokenizer(const std::filesystem::path& run_folder) {
  const std::filesystem::path file = run_folder / "tokens.json";
  if (!path_exists(file)) {
    return std::nullopt;
  }
  const nlohmann::json json = parse_json(read_whole_file(file, kMostDescription), file.string());
  try {
    RunTokenizer tokenizer{.kind = unescaped_text(json.at("tokenizer").get<std::string>()),
                           .vocab_size = json.at("vocab_size").get<Index>(),
                           .end_token = json.at("end_token").get<Index>(),
                           .model = {}};
    if (tokenizer.kind == "sentencepiece") {
      tokenizer.model = read_whole_file(run_folder / "tokenizer.model", kMostTokenizerBytes);
    }
    return tokenizer;
  } catch (const nlohmann::json::exception&) {
    throw FormatError(fmt::format("{} does not say what the ids of this run mean: give --tokenizer",
                                  file.string()),
                      TESSERA_HERE);
  }
}

}  // namespace tessera
