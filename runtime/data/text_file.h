// Text to be tokenised: whether a file is text, and its content.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "kernels/device/stream.h"

namespace tessera {

/// Tells whether bytes handed over piece by piece are UTF-8 (RFC 3629: no overlong forms, no
/// surrogates, nothing above U+10FFFF) without NUL.
class Utf8Checker {
 public:
  /// False from the first byte on that cannot be.
  bool add(std::string_view part);
  /// Whether all that was added is whole.
  [[nodiscard]] bool is_whole() const noexcept { return is_valid_ && pending_ == 0; }

 private:
  void add_byte(unsigned char byte) noexcept;

  bool is_valid_ = true;
  int pending_ = 0;           // bytes that must follow
  unsigned char low_ = 0x80;  // the next of them is in low_ .. high_
  unsigned char high_ = 0xBF;
};

/// What a first look at a file found.
struct TextScan {
  bool is_text = false;
  Index bytes = 0;         // up to the first that is not text
  std::uint64_t hash = 0;  // of the content, if it is text
};

/// Reads a file in bounded memory to see whether it is text. Throws ConfigError if it cannot be
/// opened, FormatError if it cannot be read.
[[nodiscard]] TextScan scan_text(const std::filesystem::path& path);

/// Hands over the content in pieces of at most `piece_bytes`, cut behind a line end where there is
/// one in the second half of a piece, else between characters. Throws FormatError if the content is
/// no longer what `scan` saw. Requires: scan.is_text, piece_bytes >= 16.
void read_text(const std::filesystem::path& path, const TextScan& scan, std::size_t piece_bytes,
               const std::function<void(std::string_view)>& take);

/// Where a text may be cut, if not everywhere.
struct TextCuts {
  std::size_t piece_bytes = 0;  // at most, if there is a place
  std::size_t most_bytes = 0;   // of any piece
  /// Bytes of the text before the last place; 0: there is none.
  std::function<std::size_t(std::string_view)> last_place;
  std::string refusal;  // for "PATH {}", where a piece would be larger
};

/// Hands over the content in pieces that end where `cuts` allows it. Throws FormatError as above,
/// and where more than most_bytes have no place. Requires: scan.is_text, 16 <= piece_bytes <=
/// most_bytes.
void read_text(const std::filesystem::path& path, const TextScan& scan, const TextCuts& cuts,
               const std::function<void(std::string_view)>& take);

}  // namespace tessera
