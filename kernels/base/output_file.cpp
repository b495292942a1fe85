#include "kernels/base/output_file.h"

#include <algorithm>
#include <cerrno>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/read_error.h"
#include "kernels/base/write_failure.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kNewFile = 0666;  // less what the user's umask takes away

[[noreturn]] void throw_write(const fs::path& path, std::string_view cause) {
  throw WriteError(fmt::format("cannot write {}: {}", path.string(), cause), TESSERA_HERE);
}

[[noreturn]] void refuse(const fs::path& path, const OutputRules& rules, std::string_view cause) {
  throw ConfigError(
      fmt::format("{}{}{} {}", rules.option, rules.option.empty() ? "" : " ", path.string(), cause),
      TESSERA_HERE);
}

std::string_view kind_name(mode_t mode) {
  return S_ISFIFO(mode) ? "a named pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
}

bool is_standard_output(const struct stat& status) {
  struct stat out = {};
  return ::fstat(STDOUT_FILENO, &out) == 0 && out.st_dev == status.st_dev &&
         out.st_ino == status.st_ino;
}

// A file that is not there yet: its folder with links followed, so that "x" and "./x" are one.
fs::path new_place(const fs::path& path) {
  std::error_code error;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const fs::path real = fs::canonical(folder, error);
  return error ? path : real / path.filename();
}

bool is_ours(const fs::path& path, const OutputRules& rules) {
  try {
    return !first_bytes(path, 1).empty() && rules.is_ours(path);
  } catch (const ReadError& error) {  // not known, which is not "no"
    throw ReadError(fmt::format("{}; only {} of ours is replaced: make it readable, give another "
                                "name, or remove it first",
                                error.message(), rules.what),
                    TESSERA_HERE);
  } catch (const Error&) {
    return false;  // damaged beyond recognition: not for us to replace
  }
}

// One descriptor for writing that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) {
      static_cast<void>(::close(value_));
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return value_; }
  [[nodiscard]] int close() { return ::close(std::exchange(value_, -1)); }

 private:
  int value_;
};

void write_all(int descriptor, std::string_view content, const fs::path& path) {
  while (!content.empty()) {
    const ssize_t count = ::write(descriptor, content.data(), content.size());
    if (count >= 0) {
      content.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      throw_write(path, write_failure(errno));
    }
  }
}

void write_stream(const fs::path& path, std::string_view content) {
  // without O_NONBLOCK opening a named pipe waits until someone reads it, perhaps never
  Descriptor stream(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (stream.get() < 0) {
    throw_write(path, errno == ENXIO ? "nothing reads from it" : write_failure(errno));
  }
  const int flags = ::fcntl(stream.get(), F_GETFL);  // NOLINT(*-vararg): the system's interface
  if (flags < 0 || ::fcntl(stream.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) {  // NOLINT(*-vararg)
    throw_write(path, write_failure(errno));
  }
  write_all(stream.get(), content, path);
  if (stream.close() != 0) {
    throw_write(path, write_failure(errno));
  }
}

void write_temporary(const fs::path& temporary, const fs::path& path, std::string_view content) {
  Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kNewFile));
  if (file.get() < 0) {
    throw_write(path, write_failure(errno));
  }
  write_all(file.get(), content, path);
  if (::fsync(file.get()) != 0 || file.close() != 0) {
    throw_write(path, write_failure(errno));
  }
}

}  // namespace

OutputPlace find_output_place(const fs::path& path, const OutputRules& rules) {
  if (!path.has_filename()) {
    refuse(path, rules, "is a folder: give the name of a file");
  }
  struct stat link = {};
  if (::lstat(path.c_str(), &link) != 0) {
    const int error = errno;
    if (error == ENOTDIR || error == ENAMETOOLONG || error == ELOOP) {  // of the name itself
      refuse(path, rules,
             fmt::format("cannot be a file: {}: give another name",
                         std::generic_category().message(error)));
    }
    if (error != ENOENT) {
      throw_write(path, write_failure(error));
    }
    return {new_place(path), OutputPlace::Kind::file};
  }
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ELOOP) {
      std::error_code ignored;
      refuse(path, rules,
             fmt::format("is a link to {}, which is not there: name that file itself, or remove "
                         "the link",
                         fs::read_symlink(path, ignored).string()));
    }
    throw_write(path, write_failure(errno));
  }
  if (S_ISDIR(status.st_mode)) {
    refuse(path, rules, "is a folder: give the name of a file");
  }
  if (rules.takes_streams && is_standard_output(status)) {
    return {path, OutputPlace::Kind::standard_output};
  }
  if (!S_ISREG(status.st_mode)) {
    if (!rules.takes_streams || S_ISBLK(status.st_mode) || S_ISSOCK(status.st_mode)) {
      refuse(path, rules,
             fmt::format("is {}: {} is written to a regular file", kind_name(status.st_mode),
                         rules.what));
    }
    return {path, OutputPlace::Kind::stream};
  }
  if (!is_ours(path, rules)) {
    refuse(path, rules,
           fmt::format("exists and is not {}, so it is not replaced: give another name, or "
                       "remove it first",
                       rules.what));
  }
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  return {error ? path : real, OutputPlace::Kind::file};
}

OutputPlace write_output(const fs::path& path, const OutputRules& rules, std::string_view content) {
  OutputPlace place = find_output_place(path, rules);
  if (place.kind == OutputPlace::Kind::standard_output) {
    write_all(STDOUT_FILENO, content, path);
    return place;
  }
  if (place.kind == OutputPlace::Kind::stream) {
    write_stream(place.path, content);
    return place;
  }
  const fs::path temporary = temporary_name(place.path);
  static_cast<void>(::unlink(temporary.c_str()));  // of a killed process with our number
  try {
    write_temporary(temporary, path, content);
    if (find_output_place(path, rules).path != place.path) {
      throw_write(path, "it became another file while it was written");
    }
    if (::rename(temporary.c_str(), place.path.c_str()) != 0) {
      throw_write(path, write_failure(errno));
    }
  } catch (...) {
    static_cast<void>(::unlink(temporary.c_str()));
    throw;
  }
  return place;
}

bool is_same_place(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return a == b || fs::equivalent(a, b, ignored) || new_place(a) == new_place(b);
}

fs::path temporary_name(const fs::path& file) {
  constexpr std::size_t kMostNameBytes = 255;  // NAME_MAX
  const std::string end = fmt::format(".tmp-{}", ::getpid());
  std::string name = file.filename().string();
  name.resize(std::min(name.size(), kMostNameBytes - 1 - end.size()));
  return file.parent_path() / fmt::format(".{}{}", name, end);
}

std::string first_bytes(const fs::path& path, std::size_t bytes) {
  const File file = File::open_read(path);
  std::string text(bytes, '\0');
  text.resize(file.read_up_to(0, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace tessera
