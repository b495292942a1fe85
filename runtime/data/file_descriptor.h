// An open file that closes itself, and whole reads and writes at a place of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <utility>

namespace tessera {

class FileDescriptor {
 public:
  FileDescriptor() noexcept = default;
  /// Takes what open() returned; below 0: none.
  explicit FileDescriptor(int value) noexcept : value_(value) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  [[nodiscard]] int get() const noexcept { return value_; }
  [[nodiscard]] bool is_open() const noexcept { return value_ >= 0; }

 private:
  int value_ = -1;
};

/// Opens for reading. Throws ConfigError if there is no such file or it may not be read,
/// FormatError if it is a folder or a device.
[[nodiscard]] FileDescriptor open_to_read(const std::filesystem::path& path);
/// Bytes of the file. `path` is for the message here and below. Throws FormatError.
[[nodiscard]] std::uint64_t size_of(const FileDescriptor& file, const std::filesystem::path& path);
/// What changes when a file is written to.
struct FileStamp {
  std::uint64_t bytes = 0;
  std::int64_t modified = 0;  // nanoseconds since 1970
};
/// Throws FormatError.
[[nodiscard]] FileStamp stamp_of(const FileDescriptor& file, const std::filesystem::path& path);
/// Reads up to `bytes` from `offset`; fewer only at the end of the file. Throws FormatError.
[[nodiscard]] std::size_t read_at(const FileDescriptor& file, void* data, std::size_t bytes,
                                  std::uint64_t offset, const std::filesystem::path& path);
/// Throws WriteError.
void write_at(const FileDescriptor& file, const void* data, std::size_t bytes, std::uint64_t offset,
              const std::filesystem::path& path);
/// Throws WriteError: "cannot write PATH: what errno says".
[[noreturn]] void throw_write_error(const std::filesystem::path& path);

}  // namespace tessera
