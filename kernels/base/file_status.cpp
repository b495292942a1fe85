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

bool is_output_folder(const fs::path& path) {
  return type_of<WriteError>(path, "write") == fs::file_type::directory;
}

fs::path absolute_path(const fs::path& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  return (error ? path : absolute).lexically_normal();
}

}  // namespace tessera
