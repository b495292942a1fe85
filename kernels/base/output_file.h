// Where a program may write a whole file: one place that answers "may I replace this?", so that no
// slip in an option costs a file of the user's, an input, a device or a link. Only what is
// recognised by its content as an earlier output of the same kind is replaced.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace tessera {

/// What a kind of output replaces, and what it can be written to.
struct OutputRules {
  std::string_view option;  // "--out", which messages begin with; empty: none
  std::string_view what;    // "a token file": what alone is replaced
  /// Whether the regular file of this name is such a one, by its content. May throw: ReadError
  /// where that cannot be known, any other Error where it is not.
  std::function<bool(const std::filesystem::path&)> is_ours;
  /// Pipes, character devices and standard output are written to; otherwise they are refused.
  bool takes_streams = false;
};

/// Where an output goes.
struct OutputPlace {
  enum class Kind : std::uint8_t { file, stream, standard_output };
  std::filesystem::path path;  // links followed: a replaced file is renamed to here
  Kind kind = Kind::file;
};

/// Looks at `path` without opening what it must not touch. A link is followed: what it leads to is
/// written or refused, and the link itself stays. Throws ConfigError if something is there that is
/// not to be replaced (a file of another kind, a folder, a device, a pipe, a link to nothing) or
/// nothing can be there (the name is too long, a file is on the way), ReadError if the file there
/// cannot be read, WriteError if it cannot be looked at.
[[nodiscard]] OutputPlace find_output_place(const std::filesystem::path& path,
                                            const OutputRules& rules);

/// Writes the whole content. To a file: beside it, synced, then renamed, after `find_output_place`
/// has been asked once more; on failure nothing is left. To a stream: all of it. Throws as
/// find_output_place, and WriteError.
OutputPlace write_output(const std::filesystem::path& path, const OutputRules& rules,
                         std::string_view content);

/// Whether both names lead to one file, which need not exist yet: "x" and "./x", or by a link.
[[nodiscard]] bool is_same_place(const std::filesystem::path& a, const std::filesystem::path& b);

/// A name for a temporary file beside `file`, short enough for the file system: ".NAME.tmp-NUMBER",
/// NUMBER being the process's.
[[nodiscard]] std::filesystem::path temporary_name(const std::filesystem::path& file);

/// Up to `bytes` from the begin of a regular file; fewer if it is shorter. Throws as
/// File::open_read.
[[nodiscard]] std::string first_bytes(const std::filesystem::path& path, std::size_t bytes);

}  // namespace tessera
