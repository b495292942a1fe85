#include "model/file_handle.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/input_file.h"
#include "kernels/base/write_failure.h"

namespace tessera {
namespace {

// Linux transfers at most this much in one call (read(2)).
constexpr std::size_t kLargestTransferBytes = 0x7ffff000;
constexpr mode_t kNewFileMode = 0666;  // less the user's umask

std::string error_text(int code) {
  return std::generic_category().message(code);
}

}  // namespace

FileHandle::FileHandle(std::filesystem::path path, int descriptor, std::int64_t size_bytes)
    : path_(std::move(path)), descriptor_(descriptor), size_bytes_(size_bytes) {}

FileHandle FileHandle::open_for_reading(const std::filesystem::path& file) {
  const OpenedFile opened = open_regular_file(file, O_RDONLY);
  if (!opened.is_open()) {
    throw FormatError(fmt::format("cannot read {}: {}", file.string(), opened.failure),
                      TESSERA_HERE);
  }
  return {file, opened.descriptor, opened.size_bytes};
}

FileHandle FileHandle::create(const std::filesystem::path& file) {
  const int descriptor =
      ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kNewFileMode);
  if (descriptor < 0) {
    throw WriteError(fmt::format("cannot make {}: {}", file.string(), write_failure(errno)),
                     TESSERA_HERE);
  }
  return {file, descriptor, 0};
}

FileHandle::~FileHandle() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

FileHandle::FileHandle(FileHandle&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_bytes_(other.size_bytes_) {}

FileHandle& FileHandle::operator=(FileHandle&& other) noexcept {
  if (this != &other) {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
    path_ = std::move(other.path_);
    descriptor_ = std::exchange(other.descriptor_, -1);
    size_bytes_ = other.size_bytes_;
  }
  return *this;
}

void FileHandle::read_at(std::int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got =
        ::pread(descriptor_, bytes.data(), std::min(bytes.size(), kLargestTransferBytes), offset);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      throw FormatError(
          fmt::format("cannot read {} at byte {}: {}", path_.string(), offset,
                      got < 0 ? error_text(errno) : std::string("the file has become shorter")),
          TESSERA_HERE);
    }
    offset += got;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

void FileHandle::write_at(std::int64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t put =
        ::pwrite(descriptor_, bytes.data(), std::min(bytes.size(), kLargestTransferBytes), offset);
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put < 0) {
      throw WriteError(fmt::format("cannot write {}: {}", path_.string(), write_failure(errno)),
                       TESSERA_HERE);
    }
    offset += put;
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

void FileHandle::start_writeback() const noexcept {
  static_cast<void>(::sync_file_range(descriptor_, 0, 0, SYNC_FILE_RANGE_WRITE));
}

void FileHandle::sync_and_close() {
  const int synced = ::fsync(descriptor_);
  const int sync_error = errno;
  const int closed = ::close(std::exchange(descriptor_, -1));
  const int close_error = errno;
  if (synced != 0 || closed != 0) {
    throw WriteError(fmt::format("cannot write {}: {}", path_.string(),
                                 write_failure(synced != 0 ? sync_error : close_error)),
                     TESSERA_HERE);
  }
}

std::string read_small_file(const std::filesystem::path& file, std::int64_t most_bytes) {
  const FileHandle handle = FileHandle::open_for_reading(file);
  if (handle.size_bytes() > most_bytes) {
    throw FormatError(fmt::format("{} has {} bytes, more than {} that are read of such a file",
                                  file.string(), handle.size_bytes(), most_bytes),
                      TESSERA_HERE);
  }
  std::string text(static_cast<std::size_t>(handle.size_bytes()), '\0');
  handle.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace tessera
