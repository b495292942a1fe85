// Characters of UTF-8, for tokenizers: forwards, backwards, and which are white space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// A code point and its bytes; no bytes: the text does not begin (or end) with a character.
struct Utf8Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;
};

inline constexpr std::uint32_t kLastCodePoint = 0x10FFFF;

/// The character that `text` begins with. Overlong forms, surrogates and what is beyond U+10FFFF are not
/// characters.
[[nodiscard]] Utf8Character first_character(std::string_view text) noexcept;
/// The character that `text` ends with.
[[nodiscard]] Utf8Character last_character(std::string_view text) noexcept;
/// Bytes of `text` before the first that belongs to no character; text.size(): it is UTF-8.
[[nodiscard]] std::size_t utf8_bytes(std::string_view text) noexcept;
/// Requires: `code` is a code point and not a surrogate.
void append_utf8(std::uint32_t code, std::string& text);

/// Unicode's White_Space, which is `\s` of Rust's and Oniguruma's patterns.
[[nodiscard]] bool is_white_space(std::uint32_t code) noexcept;

}  // namespace tessera
