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

struct CodeRange {
  std::int32_t first;
  std::int32_t last;
};
// What has a combining class in Unicode 15 and none in Unicode 9, and U+11930, the second part of the only
// composition that came between them. In their order.
constexpr std::array<CodeRange, 36> kBehindUnicode9 = {
    {{0x07FD, 0x07FD},   {0x0898, 0x089F},   {0x08CA, 0x08D3},   {0x09FE, 0x09FE},
     {0x0C3C, 0x0C3C},   {0x0D3B, 0x0D3C},   {0x0EBA, 0x0EBA},   {0x1715, 0x1715},
     {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
     {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
     {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
     {0x11930, 0x11930}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
     {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
     {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1},
     {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}}};

bool is_behind_unicode9(std::int32_t code) {
  const auto* const behind = std::upper_bound(
      kBehindUnicode9.begin(), kBehindUnicode9.end(), code,
      [](std::int32_t value, const CodeRange& range) { return value < range.first; });
  return behind != kBehindUnicode9.begin() && code <= std::prev(behind)->last;
}

int class_of(std::int32_t code, NfcTables tables) {
  return tables == NfcTables::unicode9 && is_behind_unicode9(code)
             ? 0
             : utf8proc_get_property(code)->combining_class;
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
void order_marks(std::vector<std::int32_t>& codes, NfcTables tables) {
  const auto class_here = [tables](std::int32_t code) { return class_of(code, tables); };
  for (auto begin = codes.begin(); begin != codes.end();) {
    if (class_here(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end =
        std::find_if(begin, codes.end(), [&](auto code) { return class_here(code) == 0; });
    std::stable_sort(begin, end, [&](auto a, auto b) { return class_here(a) < class_here(b); });
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

Nfc::Nfc(NfcTables tables) : tables_(tables), unsettled_(kLastCodePoint + 1) {
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
    const bool is_mark = class_of(static_cast<std::int32_t>(code), tables) != 0;
    if (is_decomposed) {
      compose(codes);
    }
    if (is_mark || codes.size() > 1 || codes[0] != static_cast<std::int32_t>(code)) {
      unsettled_[code] = true;
    }
  }
  if (tables == NfcTables::unicode9) {  // there they neither move nor are composed with anything
    for (const CodeRange& range : kBehindUnicode9) {
      std::fill(unsettled_.begin() + range.first, unsettled_.begin() + range.last + 1, false);
    }
  }
}

bool Nfc::is_settled(std::uint32_t code) const {
  return code < kFirstUnsettled || !unsettled_[code];
}

void Nfc::append_composed(std::string_view part, std::string& text) const {
  std::vector<std::int32_t> codes;
  while (!part.empty()) {
    const Utf8Character character = first_character(part);
    TESSERA_REQUIRE(character.bytes > 0, "UTF-8");
    decompose(character.code, codes);
    part.remove_prefix(character.bytes);
  }
  order_marks(codes, tables_);
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
