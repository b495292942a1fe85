#include "runtime/checkpoint/run_tokenizer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/device/error.h"
#include "model/json_text.h"
#include "runtime/checkpoint/checksum.h"
#include "runtime/checkpoint/posix_file.h"

namespace tessera {
namespace {

constexpr std::size_t kMostDescription = std::size_t{1} << 16U;

}  // namespace

void write_run_tokenizer(const std::filesystem::path& run_folder, const RunTokenizer& tokenizer) {
  if (!tokenizer.model.empty()) {
    replace_whole_file(run_folder / "tokenizer.model", bytes_of(tokenizer.model));
  }
  const nlohmann::json json = {{"tokenizer", tokenizer.kind},
                               {"vocab_size", tokenizer.vocab_size},
                               {"end_token", tokenizer.end_token}};
  replace_whole_file(run_folder / "tokens.json", bytes_of(json.dump() + "\n"));
}

std::optional<RunTokenizer> read_run_tokenizer(const std::filesystem::path& run_folder) {
  const std::filesystem::path file = run_folder / "tokens.json";
  if (!std::filesystem::exists(file)) {
    return std::nullopt;
  }
  const nlohmann::json json = parse_json(read_whole_file(file, kMostDescription), file.string());
  try {
    RunTokenizer tokenizer{.kind = json.at("tokenizer").get<std::string>(),
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
