// The folder of --export: whose it is, and how a finished export takes the place of an earlier one of
// the same run. A mark in it, `.tessera-export`, says which run wrote which step. For rank 0 alone.
//
// An export is written into a folder of its own inside, and moved file by file: config.json (of
// adapters adapter_config.json) of the
// earlier one goes first and the new one comes last, so that whoever dies on the way leaves the
// earlier export, or none that loads, and what else the user keeps there stays. The folder may be a
// mount point or a link.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/types.h"

namespace tessera {

/// Which run writes there.
struct ExportOwner {
  std::string run_id;
  std::filesystem::path run_folder;
};

class ExportFolder {
 public:
  ExportFolder(std::filesystem::path folder, ExportOwner owner);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return folder_; }
  /// Changes nothing. Throws ConfigError where it is not a folder or holds anything but an export
  /// of this run; WriteError: it cannot be looked at.
  void require_ours() const;
  /// The step of the whole export that it holds; none: there is none.
  [[nodiscard]] std::optional<Index> exported_step() const;
  /// Leaves the mark and removes what an export that died left. Requires: the folder is there.
  /// Throws as require_ours, and WriteError.
  void claim() const;
  /// Makes a folder inside, of a name that was not there before: other hosts may remember names.
  /// Throws WriteError.
  [[nodiscard]] std::filesystem::path make_partial(Index step) const;
  /// Lets the files of `partial` be the export of `step`. Throws WriteError.
  void replace(const std::filesystem::path& partial, Index step) const;

 private:
  struct Mark {
    ExportOwner owner;
    std::optional<Index> step;
    std::vector<std::string> files;
  };
  [[nodiscard]] std::optional<Mark> read_mark() const;
  static void write_mark(const std::filesystem::path& in, const Mark& mark);

  std::filesystem::path folder_;
  ExportOwner owner_;
};

}  // namespace tessera
