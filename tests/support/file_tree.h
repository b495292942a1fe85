// Files of a made-up /proc or /sys, in a folder that goes with the object.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temp_folder.h"

namespace tessera::test {

class FileTree {
 public:
  /// A file `name` of the tree, and the folders that it needs.
  void put(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root() / name).parent_path());
    std::ofstream(root() / name) << text;
  }
  /// A symbolic link.
  void link(const std::string& name, const std::string& target) const {
    std::filesystem::create_directories((root() / name).parent_path());
    std::filesystem::create_symlink(target, root() / name);
  }
  [[nodiscard]] const std::filesystem::path& root() const noexcept { return folder_.path(); }

 private:
  TempFolder folder_;
};

}  // namespace tessera::test
