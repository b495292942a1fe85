// Owner of one open file, with reads at a place and complete writes. What went wrong is thrown with
// the file's name; what it means is the caller's to say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace tessera {

/// Move-only. Reads and writes are safe from several threads.
class FileHandle {
 public:
  /// Opens an existing regular file. Throws FormatError if it is none or cannot be read.
  [[nodiscard]] static FileHandle open_for_reading(const std::filesystem::path& file);
  /// Makes a new file. Throws WriteError if it exists or cannot be made.
  [[nodiscard]] static FileHandle create(const std::filesystem::path& file);
  ~FileHandle();
  FileHandle(FileHandle&& other) noexcept;
  FileHandle& operator=(FileHandle&& other) noexcept;
  FileHandle(const FileHandle&) = delete;
  FileHandle& operator=(const FileHandle&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// Bytes it held when it was opened for reading.
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return size_bytes_; }
  /// For system calls; stays this object's.
  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  /// Fills all of `bytes` from byte `offset` on. Throws FormatError if the file ends before or
  /// fails.
  void read_at(std::int64_t offset, std::span<std::byte> bytes) const;
  /// Writes all of `bytes` from byte `offset` on. Throws WriteError, with the reason (no space,
  /// quota, ...).
  void write_at(std::int64_t offset, std::span<const std::byte> bytes) const;
  /// Asks the system to begin writing to the device what lies in its cache. A hint: never fails.
  void start_writeback() const noexcept;
  /// Makes what was written survive a power loss, and closes. Throws WriteError.
  void sync_and_close();

 private:
  FileHandle(std::filesystem::path path, int descriptor, std::int64_t size_bytes);
  std::filesystem::path path_;
  int descriptor_ = -1;  // -1 when closed or moved from
  std::int64_t size_bytes_ = 0;
};

/// The whole of a regular file. Throws FormatError: unreadable, or more than `most_bytes`.
[[nodiscard]] std::string read_small_file(const std::filesystem::path& file,
                                          std::int64_t most_bytes);

}  // namespace tessera
