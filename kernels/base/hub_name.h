// Names of models on the Hugging Face hub, where the path of a folder is expected.
#pragma once

#include <filesystem>
#include <string>

namespace tessera {

/// For a message that `path` is not there: "; models of the Hugging Face hub are not downloaded: ..." with
/// the command that does, where it may be such a name (OWNER/NAME, or a file in it) rather than a
/// path; else empty.
[[nodiscard]] std::string hub_hint(const std::filesystem::path& path);

}  // namespace tessera
