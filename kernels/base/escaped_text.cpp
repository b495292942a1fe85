#include "kernels/base/escaped_text.h"

#include <charconv>
#include <cstdint>
#include <optional>

#include <fmt/format.h>

namespace tessera {
namespace {

constexpr std::size_t kEscapeLength = 4;  // \xHH

// Bytes of the character of UTF-8 that `text` begins with; 0 where it begins with none.
std::size_t character_length(std::string_view text) {
  struct Form {
    unsigned char mask;
    unsigned char lead;
    std::size_t length;
    std::uint32_t least;  // shorter forms hold what is below
  };
  constexpr Form kForms[] = {
      {0x80, 0x00, 1, 0}, {0xE0, 0xC0, 2, 0x80}, {0xF0, 0xE0, 3, 0x800}, {0xF8, 0xF0, 4, 0x10000}};
  constexpr std::uint32_t kHighest = 0x10FFFF;
  constexpr std::uint32_t kFirstSurrogate = 0xD800;
  constexpr std::uint32_t kLastSurrogate = 0xDFFF;
  constexpr unsigned kBitsOfOne = 6;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (const Form& form : kForms) {
    if ((byte(0) & form.mask) != form.lead) {
      continue;
    }
    if (text.size() < form.length) {
      return 0;
    }
    std::uint32_t code = byte(0) & static_cast<unsigned char>(~form.mask);
    for (std::size_t i = 1; i < form.length; ++i) {
      if ((byte(i) & 0xC0U) != 0x80U) {
        return 0;
      }
      code = (code << kBitsOfOne) | (byte(i) & 0x3FU);
    }
    const bool is_character =
        code >= form.least && code <= kHighest && (code < kFirstSurrogate || code > kLastSurrogate);
    return is_character ? form.length : 0;
  }
  return 0;
}

// The byte of the escape that `text` begins with.
std::optional<char> escape_at(std::string_view text) {
  if (text.size() < kEscapeLength || text.substr(0, 2) != "\\x") {
    return std::nullopt;
  }
  constexpr int kHexadecimal = 16;
  unsigned value = 0;
  const char* const end = text.data() + kEscapeLength;
  const auto [stop, code] = std::from_chars(text.data() + 2, end, value, kHexadecimal);
  if (code != std::errc() || stop != end) {
    return std::nullopt;
  }
  return static_cast<char>(value);
}

enum class Backslashes : std::uint8_t { stay, are_escaped };

std::string replaced(std::string_view text, Backslashes backslashes) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    std::size_t length = character_length(text);
    if (length == 0 || (backslashes == Backslashes::are_escaped && escape_at(text))) {
      length = 1;
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return out;
}

}  // namespace

std::string escaped_text(std::string_view text) {
  return replaced(text, Backslashes::are_escaped);
}

std::string shown_text(std::string_view text) {
  return replaced(text, Backslashes::stay);
}

std::string unescaped_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::optional<char> byte = escape_at(text);
    out += byte.value_or(text[0]);
    text.remove_prefix(byte ? kEscapeLength : 1);
  }
  return out;
}

}  // namespace tessera
