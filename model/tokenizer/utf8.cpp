#include "model/tokenizer/utf8.h"

#include <algorithm>
#include <cstring>

namespace tessera {
namespace {

constexpr std::size_t kMostBytes = 4;  // of a character

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

}  // namespace

Utf8Character first_character(std::string_view text) noexcept {
  if (text.empty()) {
    return {};
  }
  const std::uint32_t lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80U) {
    return {lead, 1};
  }
  const std::size_t bytes = lead >= 0xC2U && lead < 0xE0U   ? 2
                            : lead >= 0xE0U && lead < 0xF0U ? 3
                            : lead >= 0xF0U && lead < 0xF5U ? kMostBytes
                                                            : 0;
  if (bytes == 0 || bytes > text.size()) {
    return {};
  }
  std::uint32_t code = lead & (0x7FU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if (!is_continuation(text[i])) {
      return {};
    }
    code = (code << 6U) | (static_cast<unsigned char>(text[i]) & 0x3FU);
  }
  const bool is_overlong =
      (bytes == 3 && code < 0x800U) || (bytes == kMostBytes && code < 0x10000U);
  const bool is_surrogate = code >= 0xD800U && code < 0xE000U;
  return is_overlong || is_surrogate || code > kLastCodePoint ? Utf8Character{}
                                                              : Utf8Character{code, bytes};
}

Utf8Character last_character(std::string_view text) noexcept {
  for (std::size_t bytes = 1; bytes <= std::min(kMostBytes, text.size()); ++bytes) {
    const std::string_view end = text.substr(text.size() - bytes);
    if (!is_continuation(end[0])) {
      const Utf8Character character = first_character(end);
      return character.bytes == bytes ? character : Utf8Character{};
    }
  }
  return {};
}

std::size_t utf8_bytes(std::string_view text) noexcept {
  constexpr std::uint64_t kHighBits = 0x8080808080808080U;
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight = 0;
    if (at + sizeof(eight) <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof(eight));
      if ((eight & kHighBits) == 0) {
        at += sizeof(eight);
        continue;
      }
    }
    const Utf8Character character = first_character(text.substr(at));
    if (character.bytes == 0) {
      return at;
    }
    at += character.bytes;
  }
  return at;
}

void append_utf8(std::uint32_t code, std::string& text) {
  if (code < 0x80U) {
    text.push_back(static_cast<char>(code));
  } else if (code < 0x800U) {
    text.push_back(static_cast<char>(0xC0U | (code >> 6U)));
    text.push_back(static_cast<char>(0x80U | (code & 0x3FU)));
  } else if (code < 0x10000U) {
    text.push_back(static_cast<char>(0xE0U | (code >> 12U)));
    text.push_back(static_cast<char>(0x80U | ((code >> 6U) & 0x3FU)));
    text.push_back(static_cast<char>(0x80U | (code & 0x3FU)));
  } else {
    text.push_back(static_cast<char>(0xF0U | (code >> 18U)));
    text.push_back(static_cast<char>(0x80U | ((code >> 12U) & 0x3FU)));
    text.push_back(static_cast<char>(0x80U | ((code >> 6U) & 0x3FU)));
    text.push_back(static_cast<char>(0x80U | (code & 0x3FU)));
  }
}

bool is_white_space(std::uint32_t code) noexcept {
  return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

}  // namespace tessera
