// A file that is there as a whole or not at all.
#pragma once

#include <filesystem>
#include <string_view>

namespace tessera::report {

/// Writes beside `file` and renames; makes its folder. Throws WriteError with path and cause.
void write_whole_file(const std::filesystem::path& file, std::string_view content);

}  // namespace tessera::report
