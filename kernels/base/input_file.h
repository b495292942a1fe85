// Opening what a program reads: in one place, so that a named pipe makes nobody wait, a folder or a
// device is refused with a sentence, and what is often found in place of a file (a pointer of
// git-lfs, an archive, a saved error page) is called by its name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace tessera {

class File;

struct OpenedFile {
  int descriptor = -1;          // for the caller to close; below 0: not opened
  int code = 0;                 // errno of what failed; 0 also where the file is not a regular one
  std::string failure;          // why it was not opened, for "cannot read FILE: {failure}"
  std::int64_t size_bytes = 0;  // when it was opened
  [[nodiscard]] bool is_open() const noexcept { return descriptor >= 0; }
};

/// Opens a regular file with `flags` of open(2) (O_RDONLY, O_RDWR, with or without O_CREAT). Never
/// waits and never throws; a folder, a named pipe, a socket or a device is not touched.
[[nodiscard]] OpenedFile open_regular_file(const std::filesystem::path& path, int flags);

/// For what reads a file with a stream of its own: why it cannot be read, or what it is instead of
/// a regular file. Empty: it can.
[[nodiscard]] std::string unreadable(const std::filesystem::path& path);
/// The same as an exception: throws as File::open_read.
void require_regular_file(const std::filesystem::path& path);

/// Why a path could not be opened: the system's word for `code`, and where the path is a link to
/// nothing, what it leads to and how it is filled (git-annex, a download cache).
[[nodiscard]] std::string open_failure(const std::filesystem::path& path, int code);

/// Bytes that foreign_content wants to see.
constexpr std::size_t kForeignBytes = 512;

/// Where something other than a folder is at `path`: throws FormatError that says what it is, and
/// to give the folder that holds `content` ("config.json and the weights").
void require_folder(const std::filesystem::path& path, std::string_view content);

/// What foreign_content calls these formats, for their own readers.
inline constexpr std::string_view kSafetensorsContent = "a safetensors file";
inline constexpr std::string_view kHdf5Content = "an HDF5 file";

/// What a file that begins with `first_bytes` is, if it is one that is commonly given in place of
/// another, and what to do: "a git-lfs pointer, not the file itself: ...", for "FILE is {}". Empty
/// for anything else. To be asked once the expected format has not been found: some formats begin
/// with any bytes.
[[nodiscard]] std::string_view foreign_content(std::string_view first_bytes);
/// The same of an open file. Where it cannot be read: empty.
[[nodiscard]] std::string_view foreign_content(const File& file);

}  // namespace tessera
