// JSON Lines: one JSON object a line, plain or compressed (byte_stream.h), and what is read of it.
//
// What is passed over: a byte order mark at the beginning of the file, the CR before a line end,
// lines with nothing but white space, and a last line end that is missing. A line is bad (the
// functions throw, naming the reason) if it is not UTF-8, has a NUL byte, is not a JSON object, names a
// key twice in one object, is nested deeper than kMostDepth, or has a number that no 64-bit number holds.
// `\u0000` in a string is the character U+0000; half a surrogate pair (`\ud800`) is not a character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "kernels/base/types.h"
#include "runtime/data/byte_stream.h"

namespace tessera {

/// A longer line is refused: it is held in memory.
inline constexpr std::size_t kMostLineBytes = std::size_t{1} << 30U;

/// The lines of a file in bounded memory: one line and a block.
class LineReader {
 public:
  /// Throws as open_byte_stream. `most_bytes`: of a line.
  explicit LineReader(const std::filesystem::path& path, std::size_t most_bytes = kMostLineBytes);

  /// The next line without its line end; it is valid until the next call. Empty: there is none.
  /// Throws as ByteStream::read, and FormatError for a line that is too long.
  [[nodiscard]] std::optional<std::string_view> next();
  /// Number of the line that `next` gave, from 1.
  [[nodiscard]] Index line_number() const noexcept { return line_number_; }
  [[nodiscard]] std::uint64_t file_bytes_read() const { return stream_->file_bytes_read(); }

 private:
  std::filesystem::path path_;
  std::size_t most_bytes_;
  std::unique_ptr<ByteStream> stream_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // of the line to come
  std::size_t end_ = 0;    // of what has been read
  Index line_number_ = 0;
};

/// A record with its keys in the order of the line.
using Record = nlohmann::ordered_json;

/// The object that a line holds; empty for a line with nothing but white space. Throws FormatError, a
/// clause that says why the line is bad: "is not UTF-8 at byte 17".
[[nodiscard]] std::optional<Record> parse_record(std::string_view line);

/// The text in `field`, moved out of `record`. Throws FormatError, a clause as above: there is no
/// such field (it names those that there are), or it is not a string.
[[nodiscard]] std::string take_text(Record& record, std::string_view field);

/// Whether a file's name says that it is JSON Lines: .jsonl or .ndjson, and these with .gz or .zst.
[[nodiscard]] bool has_json_lines_name(const std::filesystem::path& path);

}  // namespace tessera
