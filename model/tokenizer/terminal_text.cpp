#include "model/tokenizer/terminal_text.h"

#include <algorithm>

#include "model/tokenizer/utf8.h"

namespace tessera {
namespace {

// C0 but for line feed and tab, DEL, and C1.
bool is_control(std::uint32_t code) {
  return (code < 0x20U && code != '\n' && code != '\t') || (code >= 0x7FU && code < 0xA0U);
}

}  // namespace

std::string terminal_text(std::string_view text) {
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Character character = first_character(text.substr(at));
    if (character.bytes > 0 && !is_control(character.code)) {
      shown += text.substr(at, character.bytes);
    } else {
      shown += '?';
    }
    at += std::max<std::size_t>(character.bytes, 1);
  }
  return shown;
}

}  // namespace tessera
