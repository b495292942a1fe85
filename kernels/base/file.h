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

/// What changes when a file is written to.
struct FileStamp {
  std::uint64_t bytes = 0;
  std::int64_t modified = 0;  // nanoseconds since 1970
};

/// One open file. Move-only; the destructor closes, and what has been written counts only after
/// `sync`. Reads and writes are safe from several threads.
class File {
 public:
  File() noexcept = default;
  /// Read-only. Throws MissingError, FormatError (it is not a regular file), ReadError.
  [[nodiscard]] static File open_read(const std::filesystem::path& path);
  /// An existing file, to read and write. Throws WriteError.
  [[nodiscard]] static File open_write(const std::filesystem::path& path);
  /// An existing file of which other processes, on other hosts too, write other bytes: opened for
  /// writing alone, so that a client of NFS sends the bytes written and no whole pages. Throws
  /// WriteError.
  [[nodiscard]] static File open_write_only(const std::filesystem::path& path);
  /// A new file, to read and write. Throws WriteError, also if the file exists.
  [[nodiscard]] static File create(const std::filesystem::path& path);
  /// A file to read and write, which may be there or not. Throws WriteError.
  [[nodiscard]] static File open_or_create(const std::filesystem::path& path);
  /// A new file in memory, which takes room only where it has been written. `name` is for messages.
  /// Throws WriteError.
  [[nodiscard]] static File create_in_memory(const std::string& name);
  /// A new file in `folder` that has no name and goes when it is closed. `name` is for messages.
  /// Throws WriteError.
  [[nodiscard]] static File create_unnamed(const std::filesystem::path& folder,
                                           const std::filesystem::path& name);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  [[nodiscard]] bool is_open() const noexcept { return descriptor_ >= 0; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// A name by which this process can open the file a second time.
  [[nodiscard]] std::string own_name() const;
  [[nodiscard]] FileStamp stamp() const;
  [[nodiscard]] std::uint64_t size() const { return stamp().bytes; }
  /// Reads from byte `offset` on what fits into `target`; fewer bytes only at the end of the file.
  /// Throws ReadError.
  [[nodiscard]] std::size_t read_up_to(std::uint64_t offset, std::span<std::byte> target) const;
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
  File(std::filesystem::path path, int descriptor) noexcept;
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Throws WriteError if this process may not write a file of so many bytes (ulimit -f).
void require_file_size(const std::filesystem::path& path, std::uint64_t bytes);

/// What a folder holds, by name. Throws MissingError, ReadError.
[[nodiscard]] std::vector<std::filesystem::path> list_folder(const std::filesystem::path& folder);
/// The whole of a file. Throws MissingError, FormatError (more than `most_bytes`, or not a regular
/// file), ReadError.
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
