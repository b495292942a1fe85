// What report writes, and what of it an older one may be replaced by.
#pragma once

#include <filesystem>
#include <string_view>

#include "kernels/base/output_file.h"

namespace tessera::report {

/// write_output, but for the folder of `path`, which is made where it is missing. Throws
/// ConfigError and WriteError.
OutputPlace write_in_folder(const std::filesystem::path& path, const OutputRules& rules,
                            std::string_view content);

}  // namespace tessera::report
