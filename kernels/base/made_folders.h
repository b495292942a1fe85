// Folders that are made for a run which may still be refused.
#pragma once

#include <filesystem>
#include <vector>

namespace tessera {

/// The folders of a path that are missing now and are about to be made. The destructor removes those
/// that are empty, innermost first, unless `keep` was called: whoever else writes there keeps them.
class MadeFolders {
 public:
  MadeFolders() noexcept = default;  // none
  /// Changes nothing. What cannot be looked at counts as there.
  explicit MadeFolders(const std::filesystem::path& folder);
  ~MadeFolders() { remove(); }
  MadeFolders(MadeFolders&& other) noexcept;
  MadeFolders& operator=(MadeFolders&& other) noexcept;
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;

  void keep() noexcept { innermost_first_.clear(); }

 private:
  void remove() noexcept;
  std::vector<std::filesystem::path> innermost_first_;
};

}  // namespace tessera
