// With utf8proc; nfc_absent.cpp stands for it in builds without. Only the parts of a text that hold
// a character of the table are decomposed and composed: most text is returned as it is.
#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <utf8proc.h>

#include "kernels/base/error.h"
#include "model/tokenizer/nfc.h"
#include "model/tokenizer/utf8.h"

namespace tessera {
namespace {

constexpr std::uint32_t kFirstUnsettled = 0xC0;  // below: neither changed nor composed with
constexpr std::uint32_t kFirstSurrogate = 0xD800;
constexpr std::uint32_t kBehindSurrogates = 0xE000;
constexpr std::size_t kMostDecomposed = 32;  // more than any character has (4)

int class_of(std::int32_t code) {
  return utf8proc_get_property(code)->combining_class;
}

// Appends the canonical decomposition.
void decompose(std::uint32_t code, std::vector<std::int32_t>& codes) {
  std::array<std::int32_t, kMostDecomposed> parts = {};
  int boundary = 0;
  const utf8proc_ssize_t count = utf8proc_decompose_char(
      static_cast<std::int32_t>(code), parts.data(), parts.size(), UTF8PROC_DECOMPOSE, &boundary);
  TESSERA_REQUIRE(count > 0 && count <= std::ssize(parts), "utf8proc_decompose_char");
  codes.insert(codes.end(), parts.begin(), parts.begin() + count);
}

// Marks behind each other in the order of their classes.
void order_marks(std::vector<std::int32_t>& codes) {
  for (auto begin = codes.begin(); begin != codes.end();) {
    if (class_of(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end =
        std::find_if(begin, codes.end(), [](auto code) { return class_of(code) == 0; });
    std::stable_sort(begin, end, [](auto a, auto b) { return class_of(a) < class_of(b); });
    begin = end;
  }
}

void compose(std::vector<std::int32_t>& codes) {
  const utf8proc_ssize_t count =
      utf8proc_normalize_utf32(codes.data(), std::ssize(codes),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  TESSERA_REQUIRE(count >= 0, "utf8proc_normalize_utf32");
  codes.resize(static_cast<std::size_t>(count));
}

}  // namespace

Nfc::Nfc() : unsettled_(kLastCodePoint + 1) {
  std::vector<std::int32_t> codes;
  for (std::uint32_t code = kFirstUnsettled; code <= kLastCodePoint; ++code) {
    if (code >= kFirstSurrogate && code < kBehindSurrogates) {
      continue;
    }
    codes.clear();
    decompose(code, codes);
    for (std::size_t i = 1; i < codes.size(); ++i) {  // may be composed with what is before
      unsettled_[static_cast<std::size_t>(codes[i])] = true;
    }
    const bool is_decomposed = codes.size() > 1 || codes[0] != static_cast<std::int32_t>(code);
    const bool is_mark = class_of(static_cast<std::int32_t>(code)) != 0;
    if (is_decomposed) {
      compose(codes);
    }
    if (is_mark || codes.size() > 1 || codes[0] != static_cast<std::int32_t>(code)) {
      unsettled_[code] = true;
    }
  }
}

bool Nfc::is_settled(std::uint32_t code) const {
  return code < kFirstUnsettled || !unsettled_[code];
}

void Nfc::append_composed(std::string_view part, std::string& text) {
  std::vector<std::int32_t> codes;
  while (!part.empty()) {
    const Utf8Character character = first_character(part);
    TESSERA_REQUIRE(character.bytes > 0, "UTF-8");
    decompose(character.code, codes);
    part.remove_prefix(character.bytes);
  }
  order_marks(codes);
  compose(codes);
  for (const std::int32_t code : codes) {
    append_utf8(static_cast<std::uint32_t>(code), text);
  }
}

std::string_view Nfc::normalized(std::string_view text, std::string& room) const {
  room.clear();
  std::size_t done = 0;     // bytes that are in `room`
  std::size_t settled = 0;  // the last settled character begins here
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80U) {
      settled = at++;
      continue;
    }
    const Utf8Character character = first_character(text.substr(at));
    TESSERA_REQUIRE(character.bytes > 0, "UTF-8");
    if (is_settled(character.code)) {
      settled = at;
      at += character.bytes;
      continue;
    }
    // From the settled character before to the next one: what is outside cannot change with it.
    std::size_t end = at + character.bytes;
    while (end < text.size()) {
      const Utf8Character next = first_character(text.substr(end));
      TESSERA_REQUIRE(next.bytes > 0, "UTF-8");
      if (is_settled(next.code)) {
        break;
      }
      end += next.bytes;
    }
    const std::size_t begin = std::max(settled, done);
    room += text.substr(done, begin - done);
    append_composed(text.substr(begin, end - begin), room);
    done = end;
    settled = end;
    at = end;
  }
  if (done == 0) {
    return text;
  }
  room += text.substr(done);
  return room;
}

}  // namespace tessera
