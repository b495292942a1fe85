#include "jobs/report/output_file.h"

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace tessera::report {

OutputPlace write_in_folder(const std::filesystem::path& path, const OutputRules& rules,
                            std::string_view content) {
  std::error_code error;
  if (path.has_parent_path()) {
    std::filesystem::create_directories(path.parent_path(), error);
    if (error) {
      throw WriteError(fmt::format("cannot write {}: {}", path.string(), error.message()),
                       TESSERA_HERE);
    }
  }
  return write_output(path, rules, content);
}

}  // namespace tessera::report
