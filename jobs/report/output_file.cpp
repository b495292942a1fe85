#include "jobs/report/output_file.h"

#include <cerrno>
#include <fstream>

#include <fmt/format.h>

#include "kernels/device/error.h"
#include "kernels/device/write_failure.h"

namespace tessera::report {

void write_whole_file(const std::filesystem::path& file, std::string_view content) {
  const auto refuse = [&file](const std::string& cause) {
    throw WriteError(fmt::format("cannot write {}: {}", file.string(), cause), TESSERA_HERE);
  };
  std::error_code error;
  if (file.has_parent_path()) {
    std::filesystem::create_directories(file.parent_path(), error);
    if (error) {
      refuse(error.message());
    }
  }
  const std::filesystem::path part = file.string() + ".part";
  errno = 0;
  std::ofstream out(part, std::ios::binary | std::ios::trunc);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.close();
  if (!out) {
    const std::string cause = write_failure(errno);
    std::filesystem::remove(part, error);
    refuse(cause);
  }
  std::filesystem::rename(part, file, error);
  if (error) {
    const std::string cause = error.message();
    std::filesystem::remove(part, error);
    refuse(cause);
  }
}

}  // namespace tessera::report
