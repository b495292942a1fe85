#include "kernels/base/made_folders.h"

#include <system_error>
#include <utility>

#include <unistd.h>

namespace tessera {

MadeFolders::MadeFolders(const std::filesystem::path& folder) {
  std::filesystem::path each = folder.lexically_normal();
  if (!each.has_filename()) {
    each = each.parent_path();
  }
  std::error_code error;
  while (!each.empty() && std::filesystem::symlink_status(each, error).type() ==
                              std::filesystem::file_type::not_found) {
    innermost_first_.push_back(each);
    each = each.parent_path();
  }
}

MadeFolders::MadeFolders(MadeFolders&& other) noexcept
    : innermost_first_(std::exchange(other.innermost_first_, {})) {}

MadeFolders& MadeFolders::operator=(MadeFolders&& other) noexcept {
  if (this != &other) {
    remove();
    innermost_first_ = std::exchange(other.innermost_first_, {});
  }
  return *this;
}

void MadeFolders::remove() noexcept {
  for (const std::filesystem::path& folder : innermost_first_) {
    if (::rmdir(folder.c_str()) != 0) {  // not empty, or not there
      return;
    }
  }
}

}  // namespace tessera
