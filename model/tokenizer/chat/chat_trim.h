// What templates cut off texts, as Python's str.strip does.
#pragma once

#include <string_view>

#include "model/tokenizer/utf8.h"

namespace tessera {

/// Python's str.strip(): Unicode's white space and U+001C to U+001F on both sides.
[[nodiscard]] inline std::string_view python_strip(std::string_view text) {
  const auto is_space = [](Utf8Character c) {
    constexpr std::uint32_t kFirstSeparator = 0x1C;
    constexpr std::uint32_t kLastSeparator = 0x1F;
    return c.bytes != 0 &&
           (is_white_space(c.code) || (c.code >= kFirstSeparator && c.code <= kLastSeparator));
  };
  for (Utf8Character c = first_character(text); is_space(c); c = first_character(text)) {
    text.remove_prefix(c.bytes);
  }
  for (Utf8Character c = last_character(text); is_space(c); c = last_character(text)) {
    text.remove_suffix(c.bytes);
  }
  return text;
}

[[nodiscard]] inline std::string_view without_line_ends_before(std::string_view text) {
  while (text.starts_with('\n')) {
    text.remove_prefix(1);
  }
  return text;
}

[[nodiscard]] inline std::string_view without_line_ends_behind(std::string_view text) {
  while (text.ends_with('\n')) {
    text.remove_suffix(1);
  }
  return text;
}

}  // namespace tessera
