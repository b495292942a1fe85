#include "kernels/base/file.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/hub_name.h"
#include "kernels/base/input_file.h"
#include "kernels/base/log.h"
#include "kernels/base/read_error.h"
#include "kernels/base/write_failure.h"

namespace tessera {
namespace {

constexpr mode_t kNewFile = 0666;    // less what the umask takes away
constexpr mode_t kNewFolder = 0777;  // likewise
/// Linux moves at most 2 GiB - 4 KiB in one call.
constexpr std::size_t kMostBytesOfOneCall = std::size_t{1} << 30U;

[[noreturn]] void throw_write(const std::filesystem::path& path, const char* what, int code,
                              SourceLocation where) {
  throw WriteError(fmt::format("cannot {} {}: {}", what, path.string(), write_failure(code)),
                   where);
}

// `code` 0: it is there, and no regular file.
[[noreturn]] void throw_read(const std::filesystem::path& path, int code, const std::string& reason,
                             SourceLocation where) {
  const std::string message = fmt::format("cannot read {}: {}", path.string(), reason);
  if (code == 0) {
    throw FormatError(message, where);
  }
  if (code == ENOENT || code == ENOTDIR) {
    throw MissingError(message + hub_hint(path), where);
  }
  throw ReadError(message, where);
}

[[noreturn]] void throw_read(const std::filesystem::path& path, int code, SourceLocation where) {
  throw_read(path, code, std::generic_category().message(code), where);
}

int open_descriptor(const std::filesystem::path& path, int flags) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, kNewFile);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

int open_for_writing(const std::filesystem::path& path, int flags) {
  const OpenedFile opened = open_regular_file(path, flags);
  if (!opened.is_open()) {
    throw WriteError(fmt::format("cannot write {}: {}", path.string(),
                                 opened.code == 0 ? opened.failure : write_failure(opened.code)),
                     TESSERA_HERE);
  }
  return opened.descriptor;
}

/// renameat2 through the system call: older C libraries have no function for it.
int rename_noreplace(const char* from, const char* to) {
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE));
}

}  // namespace

File::File(std::filesystem::path path, int descriptor) noexcept
    : path_(std::move(path)), descriptor_(descriptor) {}

File File::open_read(const std::filesystem::path& path) {
  const OpenedFile opened = open_regular_file(path, O_RDONLY);
  if (!opened.is_open()) {
    throw_read(path, opened.code, opened.failure, TESSERA_HERE);
  }
  return {path, opened.descriptor};
}

File File::open_write(const std::filesystem::path& path) {
  return {path, open_for_writing(path, O_RDWR)};
}

File File::open_write_only(const std::filesystem::path& path) {
  return {path, open_for_writing(path, O_WRONLY)};
}

File File::create(const std::filesystem::path& path) {
  const int descriptor = open_descriptor(path, O_RDWR | O_CREAT | O_EXCL);
  if (descriptor < 0) {
    throw_write(path, "write", errno, TESSERA_HERE);
  }
  return {path, descriptor};
}

File File::open_or_create(const std::filesystem::path& path) {
  return {path, open_for_writing(path, O_RDWR | O_CREAT)};
}

File File::create_in_memory(const std::string& name) {
  // The system's name for it is for /proc alone, and shorter than a path may be.
  const int descriptor = ::memfd_create("tessera", MFD_CLOEXEC);
  if (descriptor < 0) {
    throw_write(name, "write", errno, TESSERA_HERE);
  }
  return {name, descriptor};
}

File File::create_unnamed(const std::filesystem::path& folder, const std::filesystem::path& name) {
  int descriptor = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (descriptor < 0) {
    // not every file system has unnamed files: a named one that loses its name at once
    std::string temporary = (folder / ".unnamed-XXXXXX").string();
    descriptor = ::mkostemp(temporary.data(), O_CLOEXEC);
    if (descriptor < 0) {
      throw_write(name, "write", errno, TESSERA_HERE);
    }
    static_cast<void>(::unlink(temporary.c_str()));
  }
  return {name, descriptor};
}

std::string File::own_name() const {
  return fmt::format("/proc/self/fd/{}", descriptor_);
}

File::~File() {
  if (descriptor_ >= 0 && ::close(descriptor_) != 0) {
    log_line(LogLevel::warning,
             fmt::format("closing {}: {}", path_.string(), write_failure(errno)));
  }
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileStamp File::stamp() const {
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0) {
    throw_read(path_, errno, TESSERA_HERE);
  }
  return {static_cast<std::uint64_t>(status.st_size),
          status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec};
}

bool File::try_lock() {
  int code = 0;
  do {
    code = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  } while (code == EINTR);
  if (code != 0 && code != EWOULDBLOCK) {
    throw_write(path_, "lock", code, TESSERA_HERE);
  }
  return code == 0;
}

std::size_t File::read_up_to(std::uint64_t offset, std::span<std::byte> target) const {
  std::size_t done = 0;
  while (done < target.size()) {
    const std::size_t wanted = std::min(target.size() - done, kMostBytesOfOneCall);
    const ssize_t got =
        ::pread(descriptor_, target.data() + done, wanted, static_cast<off_t>(offset + done));
    if (got == 0) {
      break;
    }
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (errno != EINTR) {
      throw_read(path_, errno, TESSERA_HERE);
    }
  }
  return done;
}

void File::read_at(std::uint64_t offset, std::span<std::byte> target) const {
  const std::size_t got = read_up_to(offset, target);
  if (got != target.size()) {
    throw DamageError(fmt::format("{} ends at byte {}, {} bytes are missing: it is truncated",
                                  path_.string(), offset + got, target.size() - got),
                      TESSERA_HERE);
  }
}

void File::will_read(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  static_cast<void>(::posix_fadvise(descriptor_, static_cast<off_t>(offset),
                                    static_cast<off_t>(bytes), POSIX_FADV_WILLNEED));
}

void File::write_at(std::uint64_t offset, std::span<const std::byte> source) {
  while (!source.empty()) {
    const std::size_t wanted = std::min(source.size(), kMostBytesOfOneCall);
    const ssize_t put = ::pwrite(descriptor_, source.data(), wanted, static_cast<off_t>(offset));
    if (put < 0) {
      if (errno == EINTR) {
        continue;
      }
      throw_write(path_, "write", errno, TESSERA_HERE);
    }
    if (put == 0) {  // POSIX allows it; trying again permanently would hang the save
      throw_write(path_, "write", EIO, TESSERA_HERE);
    }
    offset += static_cast<std::uint64_t>(put);
    source = source.subspan(static_cast<std::size_t>(put));
  }
}

void File::start_writeback(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  static_cast<void>(::sync_file_range(descriptor_, static_cast<off_t>(offset),
                                      static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE));
}

void File::allocate(std::uint64_t size) {
  // fallocate, not posix_fallocate: where the file system cannot allocate, the C library's function
  // would write a byte into every block instead.
  int code = 0;
  do {
    code = size == 0 || ::fallocate(descriptor_, 0, 0, static_cast<off_t>(size)) == 0 ? 0 : errno;
  } while (code == EINTR);
  if (code == EOPNOTSUPP || code == ENOSYS) {
    code = ::ftruncate(descriptor_, static_cast<off_t>(size)) == 0 ? 0 : errno;
  }
  if (code != 0) {
    throw_write(path_, "write", code, TESSERA_HERE);
  }
}

void File::sync() {
  int code = 0;
  do {
    code = ::fsync(descriptor_) == 0 ? 0 : errno;
  } while (code == EINTR);
  if (code != 0) {
    throw_write(path_, "sync", code, TESSERA_HERE);
  }
}

void File::close() {
  const int descriptor = std::exchange(descriptor_, -1);
  // After EINTR Linux has closed the descriptor all the same.
  if (descriptor >= 0 && ::close(descriptor) != 0 && errno != EINTR) {
    throw_write(path_, "close", errno, TESSERA_HERE);
  }
}

void require_file_size(const std::filesystem::path& path, std::uint64_t bytes) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      bytes > limit.rlim_cur) {
    throw_write(path, "write", EFBIG, TESSERA_HERE);
  }
}

std::vector<std::filesystem::path> list_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> entries;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    entries.push_back(entry->path());
  }
  if (error) {
    throw_read(folder, error.value(), TESSERA_HERE);
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

std::string read_whole_file(const std::filesystem::path& path, std::size_t most_bytes) {
  const File file = File::open_read(path);
  const std::uint64_t size = file.size();
  if (size > most_bytes) {
    throw FormatError(
        fmt::format("{} has {} bytes; at most {} are read", path.string(), size, most_bytes),
        TESSERA_HERE);
  }
  std::string content(size, '\0');
  file.read_at(0, std::as_writable_bytes(std::span(content)));
  return content;
}

void write_whole_file(const std::filesystem::path& path, std::span<const std::byte> content) {
  File file = File::create(path);
  file.write_at(0, content);
  file.sync();
  file.close();
}

void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = open_descriptor(folder, O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) {
    throw_write(folder, "sync", errno, TESSERA_HERE);
  }
  const int code = ::fsync(descriptor) == 0 ? 0 : errno;
  static_cast<void>(::close(descriptor));
  // Some network file systems cannot sync a folder (EINVAL): their names are durable at once.
  if (code != 0 && code != EINVAL) {
    throw_write(folder, "sync", code, TESSERA_HERE);
  }
}

void rename_to_new(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (rename_noreplace(from.c_str(), to.c_str()) == 0) {
    return;
  }
  if (errno != EINVAL && errno != ENOSYS) {
    throw WriteError(fmt::format("cannot rename {} to {}: {}", from.string(),
                                 to.filename().string(), write_failure(errno)),
                     TESSERA_HERE);
  }
  // The file system does not know RENAME_NOREPLACE: look first. Only we make names of this kind.
  struct stat status = {};
  if (::lstat(to.c_str(), &status) == 0) {
    throw WriteError(fmt::format("cannot rename {} to {}: {}", from.string(),
                                 to.filename().string(), write_failure(EEXIST)),
                     TESSERA_HERE);
  }
  rename_over(from, to);
}

void rename_over(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw WriteError(fmt::format("cannot rename {} to {}: {}", from.string(),
                                 to.filename().string(), write_failure(errno)),
                     TESSERA_HERE);
  }
}

void make_new_folder(const std::filesystem::path& folder) {
  if (::mkdir(folder.c_str(), kNewFolder) != 0) {
    throw_write(folder, "make folder", errno, TESSERA_HERE);
  }
}

void remove_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (error) {
    throw_write(folder, "remove", error.value(), TESSERA_HERE);
  }
}

}  // namespace tessera
