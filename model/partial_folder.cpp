#include "model/partial_folder.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/file_status.h"

namespace tessera {
namespace {

// Names a folder of ours that is not finished, so that no other is taken for one and removed.
constexpr std::string_view kPartialMark = ".tessera-export";
// What an empty folder may hold: an export under way, and what a new file system begins with.
constexpr std::string_view kInnerPartial = ".partial";
constexpr std::string_view kLostAndFound = "lost+found";

// Whether there is nothing of the user's in it.
bool is_empty_folder(const std::filesystem::path& folder) {
  const std::vector<std::filesystem::path> entries = list_folder(folder);
  return std::all_of(entries.begin(), entries.end(), [](const std::filesystem::path& entry) {
    return entry.filename() == kInnerPartial || entry.filename() == kLostAndFound;
  });
}

// `folder` with links followed, if it is empty or not there.
std::filesystem::path new_or_empty_folder(const std::filesystem::path& folder) {
  require_room_for_folder(folder, folder.string());
  if (!output_exists(folder)) {
    return folder;
  }
  if (!is_empty_folder(folder)) {
    throw ConfigError(
        fmt::format("{} exists and is not empty: give another folder", folder.string()),
        TESSERA_HERE);
  }
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(folder, error);
  return error ? folder : real;
}

// Whether nobody else has the lock; true too where the file system has none.
bool is_free(File& mark) {
  try {
    return mark.try_lock();
  } catch (const WriteError&) {
    return true;
  }
}

// Beside a folder that is not there, which a rename makes whole at once. Within one that is: it may
// be a mount point, or in a folder that is not writable.
std::filesystem::path partial_of(const std::filesystem::path& folder) {
  if (output_exists(folder)) {
    return folder / kInnerPartial;
  }
  std::filesystem::path partial = folder;
  partial += ".partial";
  return partial;
}

// Makes the partial folder anew, with its mark, whose lock says for as long as it is open that the
// export is under way. What a killed export left there is removed; a folder of the user's of that
// name is not, nor one that another process writes.
File make_partial_folder(const std::filesystem::path& partial,
                         const std::filesystem::path& folder) {
  const auto refuse = [&](std::string_view why) {
    throw WriteError(
        fmt::format("{} is needed to write {}, but {}", partial.string(), folder.string(), why),
        TESSERA_HERE);
  };
  constexpr std::string_view kBusy =
      "another export is writing there: wait for its end, or give another folder";
  std::error_code error;
  File left;  // what a killed export left: kept locked until it is gone
  if (std::filesystem::exists(partial / kPartialMark, error)) {
    left = File::open_or_create(partial / kPartialMark);
    if (!is_free(left)) {
      refuse(kBusy);
    }
  } else if (std::filesystem::exists(std::filesystem::symlink_status(partial, error)) &&
             !(std::filesystem::is_directory(partial, error) &&
               std::filesystem::is_empty(partial, error))) {
    refuse("exists and is not an unfinished export: remove it or give another folder");
  }
  std::filesystem::remove_all(partial, error);
  std::filesystem::create_directories(partial.parent_path(), error);
  if (!std::filesystem::create_directory(partial, error)) {
    refuse(error ? "cannot be made: " + error.message() : std::string(kBusy));
  }
  File mark = File::create(partial / kPartialMark);
  if (!is_free(mark)) {
    refuse(kBusy);
  }
  return mark;
}

}  // namespace

PartialFolder::PartialFolder(const std::filesystem::path& folder)
    // without a last slash
    : folder_(new_or_empty_folder(folder.has_filename() ? folder : folder.parent_path())) {
  const std::filesystem::path partial = partial_of(folder_);
  mark_ = make_partial_folder(partial, folder_);
  partial_ = partial;
}

PartialFolder::~PartialFolder() {
  if (!partial_.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(partial_, ignored);
  }
}

void PartialFolder::finish(std::string_view last) {
  sync_folder(partial_);
  if (partial_.filename() == kInnerPartial) {
    move_into_folder(last);
    return;
  }
  std::error_code error;
  std::filesystem::rename(partial_, folder_, error);
  if (error) {
    throw WriteError(fmt::format("cannot rename {} to {}: {}", partial_.string(), folder_.string(),
                                 error.message()),
                     TESSERA_HERE);
  }
  std::filesystem::remove(folder_ / kPartialMark, error);
  partial_.clear();
  sync_folder(folder_.has_parent_path() ? folder_.parent_path() : std::filesystem::path("."));
}

void PartialFolder::move_into_folder(std::string_view last) {
  std::vector<std::filesystem::path> files = list_folder(partial_);
  std::erase(files, partial_ / kPartialMark);
  std::stable_partition(files.begin(), files.end(), [last](const std::filesystem::path& file) {
    return file.filename() != last;
  });
  std::vector<std::filesystem::path> moved;
  std::error_code error;
  try {
    for (const std::filesystem::path& file : files) {
      rename_to_new(file, folder_ / file.filename());
      moved.push_back(folder_ / file.filename());
    }
    sync_folder(folder_);
  } catch (...) {
    for (const std::filesystem::path& file : moved) {
      std::filesystem::remove(file, error);
    }
    throw;
  }
  std::filesystem::remove_all(partial_, error);
  partial_.clear();
}

}  // namespace tessera
