// Which files lie under the paths that a program is given, and what was left out of them and why.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/stream.h"

namespace tessera {

/// Files that were passed over, counted by reason: nothing goes missing unsaid.
class LeftOut {
 public:
  struct Row {
    std::string reason;  // "empty"
    Index count = 0;
    std::filesystem::path first;
  };
  void add(std::string_view reason, const std::filesystem::path& path);
  void add(const LeftOut& other);
  /// In the order of their first file.
  [[nodiscard]] const std::vector<Row>& rows() const noexcept { return rows_; }
  [[nodiscard]] Index count() const noexcept;

 private:
  std::vector<Row> rows_;
};

struct InputFiles {
  struct File {
    std::filesystem::path path;
    bool was_named = false;  // not found in a folder: it is meant, whatever it is
  };
  std::vector<File> files;
  LeftOut left_out;  // found in folders: pipes, sockets, devices, links to nothing, closed folders
};

/// The files under `paths`: what is named as it is; folders recursively, in the order of their
/// names. A link to a folder is followed, each folder (by device and inode) being read once for a
/// path. Throws ConfigError if a path does not exist, or is a folder that cannot be read.
[[nodiscard]] InputFiles list_files(const std::vector<std::filesystem::path>& paths);

}  // namespace tessera
