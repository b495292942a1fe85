#include "model/tokenizer.h"

#include <algorithm>

namespace tessera {
namespace {

unsigned byte_of(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

// Bytes of the UTF-8 character that `text` begins with; 0 if it begins with none.
std::size_t character_bytes(std::string_view text) {
  const unsigned byte = byte_of(text, 0);
  const std::size_t length = byte < 0x80U                    ? 1
                             : byte >= 0xC2U && byte < 0xE0U ? 2
                             : byte >= 0xE0U && byte < 0xF0U ? 3
                             : byte >= 0xF0U && byte < 0xF5U ? 4
                                                             : 0;
  if (length > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte_of(text, i) & 0xC0U) != 0x80U) {
      return 0;
    }
  }
  return length;
}

// Of a whole character: C0 but for line feed and tab, DEL, and C1.
bool is_control(std::string_view character) {
  const unsigned byte = byte_of(character, 0);
  return (byte < 0x20U && byte != '\n' && byte != '\t') || byte == 0x7FU ||
         (byte == 0xC2U && byte_of(character, 1) < 0xA0U);
}

}  // namespace

std::string terminal_text(std::string_view text) {
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = character_bytes(text.substr(at));
    const std::string_view character = text.substr(at, std::max<std::size_t>(length, 1));
    if (length > 0 && !is_control(character)) {
      shown += character;
    } else {
      shown += '?';
    }
    at += character.size();
  }
  return shown;
}

}  // namespace tessera
