#include "kernels/base/input_file.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <span>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/read_error.h"

namespace tessera {
namespace {

constexpr mode_t kNewFileMode = 0666;  // less what the user's umask takes away

// Empty for a regular file.
std::string_view kind_of(mode_t mode) {
  if (S_ISREG(mode)) {
    return {};
  }
  if (S_ISDIR(mode)) {
    return "a folder";
  }
  if (S_ISFIFO(mode)) {
    return "a named pipe";
  }
  return S_ISSOCK(mode) ? "a socket" : "a device";
}

OpenedFile not_opened(const std::filesystem::path& path, int code) {
  OpenedFile none;
  none.code = code;
  none.failure = open_failure(path, code);
  return none;
}

OpenedFile not_regular(std::string_view kind) {
  OpenedFile none;
  none.failure = fmt::format("it is {}, and a regular file is needed here", kind);
  return none;
}

struct ForeignRow {
  std::size_t offset;
  std::string_view bytes;
  std::string_view what;
};

using std::string_view_literals::operator""sv;

constexpr std::string_view kArchive =
    "a compressed file or an archive: unpack it and give what is in it";
constexpr std::string_view kPickle =
    "a pickle of Python (PyTorch's older .bin and .pt files are): load it with transformers and "
    "save it again with save_pretrained, which writes safetensors";
constexpr std::string_view kAnnex =
    "a pointer of git-annex, not the file itself: fetch it with `git annex get`";
constexpr std::string_view kErrorText =
    "a server's error message saved in place of the file: download it again, signed in and with "
    "the model's licence accepted where it needs that";
constexpr std::string_view kWebPage =
    "a web page saved in place of the file (a login or error page?): download it again";
constexpr std::string_view kGgml =
    "a model file of llama.cpp (GGUF): get the safetensors files it was made from";

constexpr std::array kForeign = {
    ForeignRow{0, "version https://git-lfs.github.com/spec/"sv,
               "a pointer of git-lfs, not the file itself: fetch it with `git lfs pull`"},
    ForeignRow{0, "/annex/objects/"sv, kAnnex},
    ForeignRow{0, "PK\x03\x04"sv,
               "a zip archive (PyTorch's .bin and .pt files are too): unpack it, or load PyTorch "
               "weights with transformers and save them again with save_pretrained, which writes "
               "safetensors"},
    ForeignRow{0, "PK\x05\x06"sv, "an empty zip archive"},
    ForeignRow{0, "\x1f\x8b\x08"sv, kArchive},
    ForeignRow{0, "BZh"sv, kArchive},
    ForeignRow{0,
               "\xfd"
               "7zXZ\0"sv,
               kArchive},
    ForeignRow{0, "\x28\xb5\x2f\xfd"sv, kArchive},
    ForeignRow{0, "\x04\x22\x4d\x18"sv, kArchive},
    ForeignRow{0, "7z\xbc\xaf\x27\x1c"sv, kArchive},
    ForeignRow{0, "Rar!\x1a\x07"sv, kArchive},
    ForeignRow{257, "ustar"sv, kArchive},
    ForeignRow{0, "GGUF"sv, kGgml},
    ForeignRow{0, "lmgg"sv, kGgml},
    ForeignRow{0, "tjgg"sv, kGgml},
    ForeignRow{0, "\x80\x02"sv, kPickle},
    ForeignRow{0, "\x80\x03"sv, kPickle},
    ForeignRow{0, "\x80\x04"sv, kPickle},
    ForeignRow{0, "\x80\x05"sv, kPickle},
    ForeignRow{0, "\x89HDF\r\n\x1a\n"sv, kHdf5Content},
    ForeignRow{0, "tessera token file "sv, "a token file already: train --data reads it as it is"},
    ForeignRow{8, "{\""sv, kSafetensorsContent},
    ForeignRow{0, "%PDF-"sv, "a PDF document"},
    ForeignRow{
        0, "PAR1"sv,
        "a Parquet table: make JSON Lines of it first, for tokenize --field or --chat (pip install "
        "pandas pyarrow; python3 -c \"import pandas; pandas.read_parquet('FILE').to_json("
        "'FILE.jsonl', orient='records', lines=True, force_ascii=False)\")"},
    ForeignRow{0,
               "\x7f"
               "ELF"sv,
               "a program"},
    ForeignRow{0, "Entry not found"sv, kErrorText},
    ForeignRow{0, "Repository not found"sv, kErrorText},
    ForeignRow{0, "Invalid username or password"sv, kErrorText},
    ForeignRow{0, "Access to model "sv, kErrorText},
};

bool begins_with_word(std::string_view text, std::string_view word) {
  return text.size() >= word.size() &&
         std::equal(word.begin(), word.end(), text.begin(), [](char wanted, char found) {
           return wanted == static_cast<char>(std::tolower(static_cast<unsigned char>(found)));
         });
}

bool is_markup(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
    text.remove_prefix(kByteOrderMark.size());
  }
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  constexpr std::array kBegins = {"<!doctype", "<html", "<head", "<?xml"};
  return std::any_of(kBegins.begin(), kBegins.end(),
                     [text](const char* word) { return begins_with_word(text, word); });
}

}  // namespace

OpenedFile open_regular_file(const std::filesystem::path& path, int flags) {
  // Looked at first: merely opening a device can change it (a tape, a watchdog timer).
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0) {
    if (const std::string_view kind = kind_of(status.st_mode); !kind.empty()) {
      return not_regular(kind);
    }
  }
  OpenedFile file;
  do {
    // Without O_NONBLOCK opening a pipe that has just taken the file's place would wait.
    file.descriptor = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, kNewFileMode);
  } while (file.descriptor < 0 && errno == EINTR);
  if (file.descriptor < 0) {
    return not_opened(path, errno);
  }
  if (::fstat(file.descriptor, &status) != 0) {
    const int code = errno;
    static_cast<void>(::close(file.descriptor));
    return not_opened(path, code);
  }
  if (const std::string_view kind = kind_of(status.st_mode); !kind.empty()) {
    static_cast<void>(::close(file.descriptor));
    return not_regular(kind);
  }
  file.size_bytes = status.st_size;
  return file;
}

std::string unreadable(const std::filesystem::path& path) {
  OpenedFile opened = open_regular_file(path, O_RDONLY);
  if (opened.is_open()) {
    static_cast<void>(::close(opened.descriptor));
  }
  return std::move(opened.failure);
}

void require_regular_file(const std::filesystem::path& path) {
  static_cast<void>(File::open_read(path));
}

void require_folder(const std::filesystem::path& path, std::string_view content) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0 || S_ISDIR(status.st_mode)) {
    return;
  }
  std::string_view what = kind_of(status.st_mode);
  if (what.empty()) {
    try {
      what = foreign_content(File::open_read(path));
    } catch (const FormatError&) {  // it cannot be read: that it is not a folder is enough
    }
  }
  throw FormatError(fmt::format("{} is {}; give the folder that holds {}", path.string(),
                                what.empty() ? "a file" : what, content),
                    TESSERA_HERE);
}

std::string open_failure(const std::filesystem::path& path, int code) {
  std::string reason = std::generic_category().message(code);
  std::error_code error;
  if (code != ENOENT || !std::filesystem::is_symlink(path, error)) {
    return reason;
  }
  const std::string target = std::filesystem::read_symlink(path, error).string();
  if (target.find("annex/objects/") != std::string::npos) {
    return "it is a link of git-annex whose content is not here: fetch it with `git annex get`";
  }
  return fmt::format("it is a link to {}, which does not exist", target);
}

std::string_view foreign_content(std::string_view first_bytes) {
  for (const ForeignRow& row : kForeign) {
    if (first_bytes.size() >= row.offset &&
        first_bytes.substr(row.offset, row.bytes.size()) == row.bytes) {
      return row.what;
    }
  }
  return is_markup(first_bytes) ? kWebPage : std::string_view();
}

std::string_view foreign_content(const File& file) {
  std::array<char, kForeignBytes> bytes = {};
  try {
    const std::size_t count = file.read_up_to(0, std::as_writable_bytes(std::span(bytes)));
    return foreign_content(std::string_view(bytes.data(), count));
  } catch (const ReadError&) {
    return {};
  }
}

}  // namespace tessera
