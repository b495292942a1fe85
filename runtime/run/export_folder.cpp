#include "runtime/run/export_folder.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "kernels/base/output_file.h"
#include "model/huggingface.h"
#include "model/json_text.h"
#include "model/peft_folder.h"
#include "runtime/checkpoint/run_folder.h"

namespace tessera {
namespace {

constexpr std::string_view kMark = ".tessera-export";
constexpr std::string_view kPartial = ".partial-";  // and the step and a nonce
constexpr std::string_view kLostAndFound = "lost+found";
constexpr std::size_t kMostMarkBytes = std::size_t{1} << 20U;

bool is_partial(const std::filesystem::path& entry) {
  return entry.filename().string().starts_with(kPartial);
}

// Whether there is nothing in it that an export could cost.
bool is_without_content(const std::filesystem::path& entry) {
  return is_partial(entry) || entry.filename() == kMark || entry.filename() == kLostAndFound;
}

std::string text_of(const std::filesystem::path& path) {
  return absolute_path(path).string();
}

// What makes a folder one that loads: of a model, or of adapters.
constexpr std::array kConfigs = {kConfigFile, kPeftConfig};

bool is_config(std::string_view name) {
  return std::find(kConfigs.begin(), kConfigs.end(), name) != kConfigs.end();
}

}  // namespace

ExportFolder::ExportFolder(std::filesystem::path folder, ExportOwner owner)
    : folder_(std::move(folder)), owner_(std::move(owner)) {}

std::optional<ExportFolder::Mark> ExportFolder::read_mark() const {
  const std::filesystem::path file = folder_ / kMark;
  if (!output_exists(file)) {
    return std::nullopt;
  }
  const nlohmann::json json =
      nlohmann::json::parse(read_whole_file(file, kMostMarkBytes), nullptr, false);
  try {
    Mark mark = {{json.at("run_id").get<std::string>(),
                  unescaped_text(json.at("run_folder").get<std::string>())},
                 std::nullopt,
                 json.at("files").get<std::vector<std::string>>()};
    if (!json.at("step").is_null()) {
      mark.step = json.at("step").get<Index>();
    }
    return mark;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

void ExportFolder::write_mark(const std::filesystem::path& in, const Mark& mark) {
  const nlohmann::ordered_json json = {
      {"run_id", mark.owner.run_id},
      {"run_folder", text_of(mark.owner.run_folder)},
      {"step", mark.step ? nlohmann::ordered_json(*mark.step) : nlohmann::ordered_json()},
      {"files", mark.files}};
  write_whole_file(in / kMark, bytes_of(json_text(json) + "\n"));
}

void ExportFolder::require_ours() const {
  if (is_same_place(folder_, owner_.run_folder)) {
    throw ConfigError(fmt::format("--export {} is --out too: give a folder for the model alone",
                                  folder_.string()),
                      TESSERA_HERE);
  }
  require_room_for_folder(folder_, fmt::format("--export {}", folder_.string()));
  if (!output_exists(folder_)) {
    return;
  }
  const std::vector<std::filesystem::path> entries = list_folder(folder_);
  if (std::all_of(entries.begin(), entries.end(), is_without_content)) {
    return;
  }
  const std::optional<Mark> mark = read_mark();
  if (!mark) {
    throw ConfigError(fmt::format("--export {} is not empty and does not hold an export of this "
                                  "run: give a new folder",
                                  folder_.string()),
                      TESSERA_HERE);
  }
  if (mark->owner.run_id != owner_.run_id ||
      mark->owner.run_folder.string() != text_of(owner_.run_folder)) {
    throw ConfigError(fmt::format("--export {} holds an export of another run (of {}): give "
                                  "a new folder",
                                  folder_.string(), mark->owner.run_folder.string()),
                      TESSERA_HERE);
  }
}

std::optional<Index> ExportFolder::exported_step() const {
  if (std::none_of(kConfigs.begin(), kConfigs.end(),
                   [this](std::string_view name) { return output_exists(folder_ / name); })) {
    return std::nullopt;
  }
  const std::optional<Mark> mark = read_mark();
  return mark ? mark->step : std::nullopt;
}

void ExportFolder::claim() const {
  require_ours();
  for (const std::filesystem::path& entry : list_folder(folder_)) {
    if (is_partial(entry)) {
      remove_folder(entry);
    }
  }
  if (!exported_step()) {  // else the mark is this run's
    const std::optional<Mark> earlier = read_mark();
    const std::filesystem::path partial = make_partial(0);
    write_mark(partial, {owner_, std::nullopt, earlier ? earlier->files : decltype(Mark::files)()});
    rename_over(partial / kMark, folder_ / kMark);
    remove_folder(partial);
    sync_folder(folder_);
  }
}

std::filesystem::path ExportFolder::make_partial(Index step) const {
  constexpr std::size_t kNonce = 8;
  std::filesystem::path partial =
      folder_ / fmt::format("{}{:08}.{}", kPartial, step, new_uuid().substr(0, kNonce));
  make_new_folder(partial);
  return partial;
}

void ExportFolder::replace(const std::filesystem::path& partial, Index step) const {
  Mark mark = {owner_, step, {}};
  for (const std::filesystem::path& file : list_folder(partial)) {
    mark.files.push_back(file.filename().string());
  }
  const std::optional<Mark> earlier = read_mark();
  write_mark(partial, mark);
  sync_folder(partial);
  std::error_code error;
  for (const std::string_view name : kConfigs) {
    std::filesystem::remove(folder_ / name, error);  // what follows says if it stays
  }
  sync_folder(folder_);
  if (earlier) {
    for (const std::string& name : earlier->files) {
      if (std::find(mark.files.begin(), mark.files.end(), name) == mark.files.end()) {
        std::filesystem::remove(folder_ / name, error);
      }
    }
  }
  rename_over(partial / kMark, folder_ / kMark);
  for (const std::string& name : mark.files) {
    if (!is_config(name)) {
      rename_over(partial / name, folder_ / name);
    }
  }
  sync_folder(folder_);
  for (const std::string& name : mark.files) {
    if (is_config(name)) {
      rename_over(partial / name, folder_ / name);
    }
  }
  sync_folder(folder_);
  std::filesystem::remove(partial, error);
}

}  // namespace tessera
