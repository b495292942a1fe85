// Files through POSIX calls, for what HDF5 is not trusted with: bytes at a place, room, durability
// and renames that never replace. Every return code is checked; messages name the file and the
// cause.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// One open file. Move-only; the destructor closes, and what has been written counts only after
/// `sync`.
class PosixFile {
 public:
  PosixFile() noexcept = default;
  /// Read-only. Throws FormatError (there is no such file, or it is no regular one), ReadError.
  [[nodiscard]] static PosixFile open_read(const std::filesystem::path& path);
  /// An existing file, to read and write. Throws WriteError.
  [[nodiscard]] static PosixFile open_write(const std::filesystem::path& path);
  /// A new file, to read and write. Throws WriteError, also if the file exists.
  [[nodiscard]] static PosixFile create(const std::filesystem::path& path);
  /// A file to read and write, which may be there or not. Throws WriteError.
  [[nodiscard]] static PosixFile open_or_create(const std::filesystem::path& path);
  /// A new file in memory, which takes room only where it has been written. `name` is for messages.
  /// Throws WriteError.
  [[nodiscard]] static PosixFile create_in_memory(const std::string& name);
  ~PosixFile();
  PosixFile(PosixFile&& other) noexcept;
  PosixFile& operator=(PosixFile&& other) noexcept;
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  [[nodiscard]] bool is_open() const noexcept { return descriptor_ >= 0; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// A name by which this process can open the file a second time.
  [[nodiscard]] std::string own_name() const;
  [[nodiscard]] std::uint64_t size() const;
  /// Fills `target` from byte `offset` on. Throws DamageError if the file ends before, ReadError.
  void read_at(std::uint64_t offset, std::span<std::byte> target) const;
  /// Asks the system to read these bytes ahead. A hint: never fails.
  void will_read(std::uint64_t offset, std::uint64_t bytes) const noexcept;
  /// Throws WriteError: no space, quota, file size limit (ignore_file_size_signal), device errors.
  void write_at(std::uint64_t offset, std::span<const std::byte> source);
  /// Asks the system to begin writing these bytes to the device. A hint: never fails.
  void start_writeback(std::uint64_t offset, std::uint64_t bytes) const noexcept;
  /// Takes room for bytes [0, size) now, so that a full disk shows before data is written. Where
  /// the file system cannot, nothing happens. Throws WriteError.
  void allocate(std::uint64_t size);
  /// Everything written is on the device on return. Throws WriteError.
  void sync();
  /// Takes the file's advisory lock (flock), which ends when it is closed and with the process.
  /// False where someone else has it. Throws WriteError: the file system has no locks.
  [[nodiscard]] bool try_lock();
  /// Throws WriteError: some file systems report a failed write only here.
  void close();

 private:
  PosixFile(std::filesystem::path path, int descriptor) noexcept;
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Throws WriteError if this process may not write a file of so many bytes (ulimit -f).
void require_file_size(const std::filesystem::path& path, std::uint64_t bytes);

/// Whether there is such a file or folder. Throws ReadError where the system cannot say.
[[nodiscard]] bool is_there(const std::filesystem::path& path);
/// What a folder holds, by name. Throws FormatError (there is no such folder), ReadError.
[[nodiscard]] std::vector<std::filesystem::path> list_folder(const std::filesystem::path& folder);
/// The whole of a file. Throws FormatError (there is none, or more than `most_bytes`), ReadError.
[[nodiscard]] std::string read_whole_file(const std::filesystem::path& path,
                                          std::size_t most_bytes);
/// A new file with this content, synced. Throws WriteError.
void write_whole_file(const std::filesystem::path& path, std::span<const std::byte> content);
/// Makes the names in a folder durable. Throws WriteError.
void sync_folder(const std::filesystem::path& folder);
/// Renames. Throws WriteError, also if `to` exists (an empty folder too, which rename(2) replaces).
void rename_to_new(const std::filesystem::path& from, const std::filesystem::path& to);
/// Renames, replacing a file `to`. Throws WriteError.
void rename_over(const std::filesystem::path& from, const std::filesystem::path& to);
/// Makes one folder. Throws WriteError, also if it exists.
void make_new_folder(const std::filesystem::path& folder);
/// Removes a folder and what is in it. Throws WriteError; a folder that is not there is none.
void remove_folder(const std::filesystem::path& folder);

}  // namespace tessera
