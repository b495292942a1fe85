#include "runtime/data/file_descriptor.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/input_file.h"
#include "kernels/base/write_failure.h"

namespace tessera {
namespace {

[[noreturn]] void throw_read_error(const std::filesystem::path& path) {
  throw FormatError(fmt::format("cannot read {}: {}", path.string(), std::strerror(errno)),
                    TESSERA_HERE);
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (value_ >= 0) {
    static_cast<void>(::close(value_));  // what was written has been synced before, or is dropped
  }
}

FileDescriptor open_to_read(const std::filesystem::path& path) {
  const OpenedFile opened = open_regular_file(path, O_RDONLY);
  if (opened.is_open()) {
    return FileDescriptor(opened.descriptor);
  }
  const std::string message = fmt::format("cannot open {}: {}", path.string(), opened.failure);
  if (opened.code != ENOENT && opened.code != ENOTDIR) {
    throw FormatError(message, TESSERA_HERE);
  }
  throw ConfigError(message, TESSERA_HERE);
}

FileStamp stamp_of(const FileDescriptor& file, const std::filesystem::path& path) {
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) {
    throw_read_error(path);
  }
  return {static_cast<std::uint64_t>(status.st_size),
          status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec};
}

std::uint64_t size_of(const FileDescriptor& file, const std::filesystem::path& path) {
  return stamp_of(file, path).bytes;
}

std::size_t read_at(const FileDescriptor& file, void* data, std::size_t bytes, std::uint64_t offset,
                    const std::filesystem::path& path) {
  auto* to = static_cast<char*>(data);
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t count =
        ::pread(file.get(), to + done, bytes - done, static_cast<off_t>(offset + done));
    if (count == 0) {
      break;
    }
    if (count > 0) {
      done += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      throw_read_error(path);
    }
  }
  return done;
}

void write_at(const FileDescriptor& file, const void* data, std::size_t bytes, std::uint64_t offset,
              const std::filesystem::path& path) {
  const auto* from = static_cast<const char*>(data);
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t count =
        ::pwrite(file.get(), from + done, bytes - done, static_cast<off_t>(offset + done));
    if (count >= 0) {
      done += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      throw_write_error(path);
    }
  }
}

void throw_write_error(const std::filesystem::path& path) {
  throw WriteError(fmt::format("cannot write {}: {}", path.string(), write_failure(errno)),
                   TESSERA_HERE);
}

}  // namespace tessera
