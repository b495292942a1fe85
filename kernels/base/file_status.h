// Whether something is there under a name: std::filesystem's functions of this kind, which throw
// where a folder on the way may not be searched, with the errors that a user can act on.
#pragma once

#include <filesystem>
#include <string_view>

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

/// Refuses a folder to write to that cannot be one, however the system stands: the name is too long,
/// or there or on the way there is something else, such as a file or a link that leads nowhere.
/// Looks and makes nothing. `name`: what the message calls it, such as "--out runs/a". Throws
/// ConfigError, "NAME is not a folder: give another one"; WriteError where it cannot be known.
void require_room_for_folder(const std::filesystem::path& folder, std::string_view name);

/// `path` from the root on, without "." and "..", as the text has it; as it is where the working
/// folder is gone.
[[nodiscard]] std::filesystem::path absolute_path(const std::filesystem::path& path);

}  // namespace tessera
