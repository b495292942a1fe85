// A folder of files on the way out, from one process, which is there whole or not at all.
#pragma once

#include <filesystem>
#include <string_view>

#include "kernels/base/file.h"

namespace tessera {

/// Until `finish` all files are in a partial folder, so that half of one is never taken for a whole one:
/// FOLDER.partial, or FOLDER/.partial where FOLDER exists. What a killed export left there is removed,
/// nothing of the user's.
class PartialFolder {
 public:
  /// Makes the partial folder. Throws ConfigError if `folder` cannot be one or is not empty, and WriteError,
  /// also if another process writes there, and if something of the user's has the partial folder's name.
  explicit PartialFolder(const std::filesystem::path& folder);
  /// Without `finish` leaves nothing behind.
  ~PartialFolder();
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  /// Where the files are made; empty after `finish`.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return partial_; }
  /// The folder is there, and on the disk, on return. `last`: the file without which nobody takes the folder
  /// for a whole one. Requires: all files are closed. Throws WriteError.
  void finish(std::string_view last);

 private:
  void move_into_folder(std::string_view last);

  std::filesystem::path folder_;
  File mark_;                      // of the partial folder, locked until it has its name
  std::filesystem::path partial_;  // until `finish`; empty after it
};

}  // namespace tessera
