#include "kernels/base/file_status.h"

#include <system_error>

#include <fmt/format.h>

#include "kernels/base/read_error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

template <typename Refusal>
fs::file_type type_of(const fs::path& path, const char* purpose) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::none) {
    throw Refusal(fmt::format("cannot {} {}: {}", purpose, path.string(), error.message()),
                  TESSERA_HERE);
  }
  return status.type();
}

}  // namespace

bool path_exists(const fs::path& path) {
  return type_of<ReadError>(path, "read") != fs::file_type::not_found;
}

bool is_folder(const fs::path& path) {
  return type_of<ReadError>(path, "read") == fs::file_type::directory;
}

bool entry_exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

bool output_exists(const fs::path& path) {
  return type_of<WriteError>(path, "write") != fs::file_type::not_found;
}

void require_room_for_folder(const fs::path& folder, std::string_view name) {
  const auto refuse = [](const std::string& sentence) {
    throw ConfigError(sentence, TESSERA_HERE);
  };
  // From the folder up to the nearest that is there.
  for (fs::path place = folder.lexically_normal();; place = place.parent_path()) {
    if (!place.has_filename()) {  // "runs/", "/" or ""
      if (place.empty() || place == place.root_path()) {
        return;
      }
      continue;
    }
    std::error_code error;
    const fs::file_status status = fs::status(place, error);
    if (error == std::errc::filename_too_long ||
        error == std::errc::too_many_symbolic_link_levels) {
      refuse(fmt::format("{}: {}: give another folder", name, error.message()));
    }
    if (status.type() == fs::file_type::none) {
      throw WriteError(fmt::format("cannot write {}: {}", folder.string(), error.message()),
                       TESSERA_HERE);
    }
    if (fs::is_directory(status)) {
      return;
    }
    const bool is_itself = place == folder.lexically_normal();
    if (fs::exists(status)) {
      refuse(is_itself
                 ? fmt::format("{} is there and is not a folder: give another one", name)
                 : fmt::format("{}: {} is not a folder: give another one", name, place.string()));
    }
    if (fs::is_symlink(fs::symlink_status(place, error))) {
      refuse(fmt::format("{}: {} is a link to {}, which is not there: make that folder, or remove "
                         "the link",
                         name, place.string(), fs::read_symlink(place, error).string()));
    }
  }
}

fs::path absolute_path(const fs::path& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  return (error ? path : absolute).lexically_normal();
}

}  // namespace tessera
