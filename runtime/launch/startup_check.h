// Checks of a run's start that need all ranks: that they were started alike, and that they write to
// one folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "kernels/base/made_folders.h"

namespace tessera {

class MpiSession;

/// Something that must be the same on every rank: an option and its effective value, a data file's
/// hash.
struct NamedValue {
  std::string name;
  std::string value;
};

/// Collective. Throws ConfigError, agreed on all ranks, that names the first value that differs
/// from rank 0's on the lowest such rank, with each value and the ranks and hosts that have it, and
/// what else differs there. The build (build_id) is always compared.
void require_same_start(MpiSession& session, std::span<const NamedValue> values);

/// Version, compiler, git commit where the source tree had one, and a hash of this executable's
/// bytes.
[[nodiscard]] std::string build_id();
/// "tessera 0.1.0, commit f2fa774".
[[nodiscard]] std::string version_text();

enum class OutContents : std::uint8_t { must_be_empty, may_be_there };

struct OutFolderOptions {
  OutContents contents = OutContents::must_be_empty;
  /// How long a host may take to see a file that another made: NFS caches lookups for some seconds.
  double timeout_seconds = 20;
};

/// Collective. Makes the folder where it is missing, and checks that every host can write to it and
/// that it is the same folder everywhere. Leaves nothing in it. Rank 0 gets the folders that it made,
/// which go again unless they are kept, and also where this throws. Throws, agreed on all ranks:
/// WriteError (cannot be made or written, with the system's reason), ConfigError (cannot be a folder,
/// is not empty, or is another one on some host, which is named).
[[nodiscard]] MadeFolders prepare_out_folder(MpiSession& session,
                                             const std::filesystem::path& folder,
                                             const OutFolderOptions& options);

}  // namespace tessera
