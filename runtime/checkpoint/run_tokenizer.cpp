#include "runtime/checkpoint/run_tokenizer.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/output_file.h"
#include "model/json_text.h"
#include "runtime/checkpoint/run_folder.h"

namespace tessera {
namespace {

constexpr std::size_t kMostDescription = std::size_t{1} << 16U;
constexpr std::string_view kOutputFolder = "the output folder's";  // before a path, in messages

std::string described_kind(const std::filesystem::path& description) {
  const nlohmann::json json =
      parse_json(read_whole_file(description, kMostDescription), description.string());
  const nlohmann::json& kind = json.at("tokenizer");
  return kind.is_string() ? unescaped_text(kind.get<std::string>()) : std::string();
}

bool is_description(const std::filesystem::path& path) {
  const nlohmann::json json = parse_json(read_whole_file(path, kMostDescription), path.string());
  return json.is_object() && json.contains("tokenizer") && json.contains("vocab_size") &&
         json.contains("end_token");
}

// Its name in a run's folder; empty: there is none. Kinds that this version does not know are refused.
std::string_view kept_name(const std::string& kind, const std::filesystem::path& described_by) {
  if (kind == kIdsKind) {
    return {};
  }
  const TokenizerKind* const row = find_tokenizer_kind(kind);
  if (row == nullptr) {
    throw FormatError(fmt::format("{}: the tokenizer {} is not known to this version",
                                  described_by.string(), kind),
                      TESSERA_HERE);
  }
  return row->kept_as;
}

// A file of a run's folder as it should be. There may be one of the user's of that name: a Hugging
// Face model has a tokenizer.model too.
struct WantedFile {
  std::filesystem::path path;
  OutputRules rules;
  std::string content;
};

bool is_written(const WantedFile& file) {
  return path_exists(file.path) && first_bytes(file.path, file.content.size() + 1) == file.content;
}

struct WantedFiles {
  std::vector<std::filesystem::path> put_away;  // of another tokenizer
  std::vector<WantedFile> written;
};

// What is to be done in the folder. All places are looked at. Throws where one must not be written.
WantedFiles wanted_files(const std::filesystem::path& run_folder, const RunTokenizer& tokenizer) {
  const std::filesystem::path description = run_folder / "tokens.json";
  static_cast<void>(kept_name(tokenizer.kind, description));  // of a kind that is known
  // A Hugging Face folder has a tokenizer.model without a tokens.json.
  const bool is_described = path_exists(description) && is_description(description);
  if (tokenizer.kind == kIdsKind && is_described) {
    return {};  // ids do not tell their tokenizer: what is known of it stays
  }
  const OutputRules file_rules = {.option = kOutputFolder,
                                  .what = "the tokenizer of a run",
                                  .is_ours = [description](const std::filesystem::path&) {
                                    return path_exists(description) && is_description(description);
                                  }};
  const OutputRules description_rules = {.option = kOutputFolder,
                                         .what = "the description of a run's tokens",
                                         .is_ours = is_description};
  WantedFiles wanted;
  std::set<std::string, std::less<>> own_names;
  for (TokenizerFile& file : kept_files(files_of(tokenizer))) {
    wanted.written.push_back({run_folder / file.name, file_rules, std::move(file.content)});
    own_names.insert(std::move(file.name));
  }
  const nlohmann::json json = {{"tokenizer", tokenizer.kind},
                               {"vocab_size", tokenizer.vocab_size},
                               {"end_token", tokenizer.end_token}};
  wanted.written.push_back({description, description_rules, json_text(json) + "\n"});
  // The file of the tokenizer that was there, of whatever kind.
  const std::filesystem::path before =
      run_folder / (is_described ? kept_name(described_kind(description), description) : "");
  const bool is_replaced = before.has_filename() && path_exists(before) &&
                           first_bytes(before, tokenizer.model.size() + 1) != tokenizer.model;
  const auto put_away = [&places = wanted.put_away](const std::filesystem::path& place) {
    if (path_exists(place) && std::find(places.begin(), places.end(), place) == places.end()) {
      places.push_back(place);
    }
  };
  if (is_replaced) {
    put_away(before);
    put_away(description);
    for (const std::string_view name : kTokenizerCompanions) {
      put_away(run_folder / name);
    }
  } else {
    std::erase_if(wanted.written, is_written);
    for (const WantedFile& file : wanted.written) {
      if (is_described && file.path != description) {
        put_away(file.path);
      }
    }
  }
  for (const TokenizerKind& kind : tokenizer_kinds()) {  // an earlier run's
    if (is_described && !kind.kept_as.empty() && !own_names.contains(kind.kept_as)) {
      put_away(run_folder / kind.kept_as);
    }
  }
  for (const WantedFile& file : wanted.written) {
    static_cast<void>(find_output_place(file.path, file.rules));
  }
  return wanted;
}

}  // namespace

std::filesystem::path run_folder_of(const std::filesystem::path& step) {
  const std::filesystem::path whole = absolute_path(step);
  // "run/step-00000042/" has an empty name behind its last slash
  return whole.has_filename() ? whole.parent_path() : whole.parent_path().parent_path();
}

TokenizerFiles files_of(const RunTokenizer& tokenizer) {
  return {.kind = tokenizer.kind,
          .name = {},
          .content = tokenizer.model,
          .companions = tokenizer.companions};
}

std::vector<std::string> write_run_tokenizer(const std::filesystem::path& run_folder,
                                             const RunTokenizer& tokenizer) {
  const WantedFiles wanted = wanted_files(run_folder, tokenizer);
  std::vector<std::string> earlier;
  earlier.reserve(wanted.put_away.size());
  for (const std::filesystem::path& old : wanted.put_away) {
    earlier.push_back(put_away(run_folder, old.filename().string()));
  }
  for (const WantedFile& file : wanted.written) {
    write_output(file.path, file.rules, file.content);
  }
  return earlier;
}

void require_tokenizer_place(const std::filesystem::path& run_folder,
                             const RunTokenizer& tokenizer) {
  static_cast<void>(wanted_files(run_folder, tokenizer));
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
    if (const std::string_view name = kept_name(tokenizer.kind, file); !name.empty()) {
      tokenizer.model = read_whole_file(run_folder / name, kMostTokenizerBytes);
      tokenizer.companions = read_companions(run_folder, name);
    }
    return tokenizer;
  } catch (const nlohmann::json::exception&) {
    throw FormatError(fmt::format("{} is not the description of a run's tokens (tokenizer, "
                                  "vocab_size, end_token): restore the one that train wrote, or "
                                  "rename it",
                                  file.string()),
                      TESSERA_HERE);
  }
}

}  // namespace tessera
