// Whether something is there under a name: std::filesystem's functions of this kind, which throw
// where a folder on the way may not be searched, with the errors that a user can act on.
#pragma once

#include <filesystem>

namespace tessera {

/// Of what is to be read, links followed. Throws ReadError, "cannot read PATH: CAUSE", where it
/// cannot be known: a folder on the way may not be searched, a name is too long, links go in
/// circles.
[[nodiscard]] bool path_exists(const std::filesystem::path& path);
[[nodiscard]] bool is_folder(const std::filesystem::path& path);

/// The same of the entry itself: a link counts even if it leads nowhere, since opening it says where.
/// False where it cannot be known.
[[nodiscard]] bool entry_exists(const std::filesystem::path& path);

/// Of what is to be written: the same, but throws WriteError, "cannot write PATH: CAUSE".
[[nodiscard]] bool output_exists(const std::filesystem::path& path);
[[nodiscard]] bool is_output_folder(const std::filesystem::path& path);

/// `path` from the root on, without "." and "..", as the text has it; as it is where the working
/// folder is gone.
[[nodiscard]] std::filesystem::path absolute_path(const std::filesystem::path& path);

}  // namespace tessera
