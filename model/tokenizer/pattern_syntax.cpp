#include "model/tokenizer/pattern_syntax.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "model/tokenizer/utf8.h"

namespace tessera {
namespace {

constexpr int kMostDepth = 50;  // of groups

// White_Space, and what is not: PCRE2's \s also matches U+180E. Written as parts of a class.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kNotSpaces =
    R"(\x{0}-\x{8}\x{E}-\x{1F}\x{21}-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF})"
    R"(\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";
// Oniguruma's \w: PCRE2's lacks marks and connectors, and has all numbers; there superscripts and
// fractions of Latin-1 alone are of words too.
constexpr std::string_view kWord =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

// General categories, whose letters both libraries read alike. Not C and Cn: what is unassigned
// differs between versions of Unicode.
constexpr std::array<std::string_view, 34> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N", "Nd",
    "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm",
    "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};

// Without regard to case Oniguruma lets one character (ß, ﬁ, ﬆ) match these two.
constexpr std::array<std::string_view, 5> kFoldedPairs = {"ss", "ff", "fi", "fl", "st"};

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string code_text(std::uint32_t code) {
  return fmt::format("\\x{{{:X}}}", code);
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string translate() {
    if (const std::size_t valid = utf8_bytes(pattern_); valid != pattern_.size()) {
      throw FormatError(fmt::format("byte {} is not UTF-8", valid), TESSERA_HERE);
    }
    std::string out = alternatives(0);
    if (!is_at_end()) {
      refuse(")", "closes no group");
    }
    return out;
  }

 private:
  [[noreturn]] void refuse(std::string_view what, std::string_view why) const {
    throw FormatError(fmt::format("{} at byte {} {}", what, at_, why), TESSERA_HERE);
  }
  [[nodiscard]] bool is_at_end() const { return at_ == pattern_.size(); }
  [[nodiscard]] bool is_at(std::string_view text) const {
    return pattern_.substr(at_).starts_with(text);
  }
  bool take(std::string_view text) {
    const bool is_here = is_at(text);
    at_ += is_here ? text.size() : 0;
    return is_here;
  }
  std::uint32_t take_character() {
    const Utf8Character character = first_character(pattern_.substr(at_));
    at_ += character.bytes;
    return character.code;
  }

  // To the end, or to the parenthesis that closes the group.
  std::string alternatives(int depth) {
    if (depth > kMostDepth) {
      refuse("a group", "is nested too deeply");
    }
    std::string out;
    while (!is_at_end() && !is_at(")")) {
      if (take("|")) {
        out += '|';
        last_letter_ = 0;
        continue;
      }
      const bool is_quantifiable = !is_at("(?=") && !is_at("(?!") && !is_at("(?<") && !is_at("$");
      std::string part = atom(depth);
      out += quantified(std::move(part), is_quantifiable);
    }
    return out;
  }

  std::string group(int depth) {
    constexpr std::array<std::string_view, 8> kOpenings = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "("};
    for (const std::string_view opening : kOpenings) {
      if (opening == "(" && is_at("(?")) {
        break;
      }
      if (!take(opening)) {
        continue;
      }
      const bool was_caseless = is_caseless_;
      is_caseless_ = is_caseless_ || opening == "(?i:";
      last_letter_ = 0;
      std::string out =
          std::string(opening == "(" ? "(?:" : opening) + alternatives(depth + 1) + ")";
      is_caseless_ = was_caseless;
      last_letter_ = 0;
      if (!take(")")) {
        refuse("the end", "comes before a group is closed");
      }
      return out;
    }
    refuse(pattern_.substr(at_, 3), "is a kind of group that is not known here");
  }

  std::string atom(int depth) {
    if (is_at("(")) {
      return group(depth);
    }
    if (is_caseless_ && !is_letter(pattern_[at_]) && !is_at("'")) {
      refuse(pattern_.substr(at_, 1),
             "is within (?i:, where only letters and ' are known to be the same");
    }
    if (is_at("[")) {
      return character_class();
    }
    if (take("$")) {
      return R"((?=\n|\z))";
    }
    if (take(".")) {
      return ".";
    }
    for (const std::string_view sign : {"^", "*", "+", "?", "{", "}", "]"}) {
      if (is_at(sign)) {
        refuse(sign, "is not known to mean the same there (a sign itself is written \\)");
      }
    }
    if (is_at("\\")) {
      const Escape escape = escaped();
      return escape.code ? code_text(*escape.code) : fmt::format("[{}]", escape.part);
    }
    const std::uint32_t code = take_character();
    if (is_caseless_) {
      refuse_folded(static_cast<char>(code));
      return {static_cast<char>(code)};  // PCRE2 folds no code written as \x
    }
    return code_text(code);
  }

  void refuse_folded(char letter) {
    const char small = static_cast<char>(is_letter(letter) ? letter | 0x20 : letter);
    const std::array<char, 2> pair = {last_letter_, small};
    if (std::find(kFoldedPairs.begin(), kFoldedPairs.end(),
                  std::string_view(pair.data(), pair.size())) != kFoldedPairs.end()) {
      at_ -= pair.size();
      refuse(std::string_view(pair.data(), pair.size()),
             "within (?i: also matches a single character (ß, ﬁ, ﬆ) elsewhere");
    }
    last_letter_ = small;
  }

  std::string quantified(std::string part, bool is_quantifiable) {
    const std::size_t begin = at_;
    bool is_interval = false;
    if (is_at("*") || is_at("+") || is_at("?")) {
      part += pattern_[at_++];
    } else if (is_at("{")) {
      part += interval();
      is_interval = true;
    } else {
      return part;
    }
    last_letter_ = 0;
    if (!is_quantifiable) {
      at_ = begin;
      refuse("a quantifier", "stands behind a place, not a character");
    }
    if (is_interval) {
      if (is_at("?")) {
        refuse("{}?", "is not known to mean the same there");
      }
      if (take("+")) {  // Oniguruma: repeats the interval; PCRE2: makes it possessive
        part = "(?:" + part + ")+";
      }
    } else if (is_at("?") || is_at("+")) {
      part += pattern_[at_++];
    }
    if (is_at("*") || is_at("+") || is_at("?") || is_at("{")) {
      refuse("a quantifier", "stands behind a quantifier");
    }
    return part;
  }

  // "{2}", "{2,}", "{2,3}".
  std::string interval() {
    constexpr std::size_t kMostDigits = 4;
    const std::size_t begin = at_++;
    const auto number = [this] {
      const std::size_t from = at_;
      while (!is_at_end() && is_digit(pattern_[at_])) {
        ++at_;
      }
      return at_ - from;
    };
    const std::size_t least = number();
    const std::size_t most = take(",") ? number() : 0;
    if (least == 0 || least > kMostDigits || most > kMostDigits || !take("}")) {
      at_ = begin;
      refuse("{", "begins no interval such as {2}, {2,} or {2,3}");
    }
    return std::string(pattern_.substr(begin, at_ - begin));
  }

  // One character, or part of a class.
  struct Escape {
    std::optional<std::uint32_t> code;
    std::string part;
  };

  Escape escaped() {
    const std::size_t begin = at_++;
    if (is_at_end()) {
      refuse("\\", "ends the pattern");
    }
    const char c = pattern_[at_];
    if (!is_letter(c) && !is_digit(c)) {
      return {.code = take_character(), .part = {}};
    }
    ++at_;
    switch (c) {
      case 'n':
        return {.code = '\n', .part = {}};
      case 'r':
        return {.code = '\r', .part = {}};
      case 't':
        return {.code = '\t', .part = {}};
      case 'f':
        return {.code = '\f', .part = {}};
      case 'v':
        return {.code = '\v', .part = {}};
      case 's':
        return {.code = {}, .part = std::string(kSpaces)};
      case 'S':
        return {.code = {}, .part = std::string(kNotSpaces)};
      case 'd':
        return {.code = {}, .part = R"(\p{Nd})"};
      case 'w':
        return {.code = {}, .part = std::string(kWord)};
      case 'x':
      case 'u':
        return {.code = hexadecimal(begin, c), .part = {}};
      case 'p':
      case 'P':
        return {.code = {}, .part = property(begin, c)};
      default:
        at_ = begin;
        refuse(pattern_.substr(begin, 2), "is not known to mean the same there");
    }
  }

  // "\x41", "\x{1F600}", "A".
  std::uint32_t hexadecimal(std::size_t begin, char letter) {
    const std::size_t close = is_at("{") ? pattern_.find('}', at_) : std::string_view::npos;
    const bool is_braced = letter == 'x' && close != std::string_view::npos;
    const std::size_t digits_at = is_braced ? at_ + 1 : at_;
    const std::size_t count = is_braced ? close - digits_at : letter == 'x' ? 2 : 4;
    constexpr std::size_t kMostDigits = 6;
    std::uint32_t code = 0;
    const std::string_view digits = pattern_.substr(std::min(digits_at, pattern_.size()), count);
    bool is_number = !digits.empty() && digits.size() == count && count <= kMostDigits;
    for (const char digit : digits) {
      const bool is_hexadecimal = is_digit(digit) || (is_letter(digit) && (digit | 0x20) <= 'f');
      is_number = is_number && is_hexadecimal;
      code = code * 16 +
             static_cast<std::uint32_t>(is_digit(digit) ? digit - '0' : (digit | 0x20) - 'a' + 10);
    }
    const bool is_byte_above_ascii = letter == 'x' && !is_braced && code >= 0x80;
    if (!is_number || code > kLastCodePoint || (code >= 0xD800 && code < 0xE000) ||
        is_byte_above_ascii) {
      at_ = begin;
      refuse(pattern_.substr(begin, 2), "is not followed by a character's number");
    }
    at_ = digits_at + count + (is_braced ? 1 : 0);
    return code;
  }

  std::string property(std::size_t begin, char letter) {
    const std::size_t close = is_at("{") ? pattern_.find('}', at_) : std::string_view::npos;
    const std::string_view name = close == std::string_view::npos
                                      ? std::string_view()
                                      : pattern_.substr(at_ + 1, close - at_ - 1);
    if (std::find(kCategories.begin(), kCategories.end(), name) == kCategories.end()) {
      at_ = begin;
      refuse(fmt::format("\\{}{{{}}}", letter, name),
             "is not a general category such as \\p{L} or \\p{Lu}, which alone are known to be the "
             "same");
    }
    at_ = close + 1;
    return fmt::format("\\{}{{{}}}", letter, name);
  }

  std::string character_class() {
    std::string out = "[";
    ++at_;
    if (take("^")) {
      out += '^';
    }
    bool is_empty = true;
    while (!is_at("]")) {
      if (is_at_end()) {
        refuse("the end", "comes before a class is closed");
      }
      if (is_at("[") || is_at("&&")) {
        refuse(is_at("[") ? "[" : "&&",
               "within a class means something else there (a sign itself is written \\)");
      }
      out += class_part(is_empty);
      is_empty = false;
    }
    if (is_empty) {
      refuse("]", "ends an empty class");
    }
    ++at_;
    return out + "]";
  }

  std::string class_part(bool is_first) {
    if (is_at("-") && !is_first && !is_at("-]")) {
      refuse("-", "within a class is neither a range nor at its begin or end");
    }
    const Escape first = class_character();
    const bool is_range = is_at("-") && !is_at("-]");
    if (!first.code) {
      if (is_range) {
        refuse("-", "begins a range behind something that is not a character");
      }
      return first.part;
    }
    if (!is_range) {
      return code_text(*first.code);
    }
    ++at_;
    const Escape last = class_character();
    if (!last.code || *last.code < *first.code) {
      refuse("a range", "does not end with a later character");
    }
    return code_text(*first.code) + "-" + code_text(*last.code);
  }

  Escape class_character() {
    if (is_at("\\")) {
      return escaped();
    }
    if (is_at_end() || is_at("[")) {
      refuse("a range", "has no end");
    }
    return {.code = take_character(), .part = {}};
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  bool is_caseless_ = false;
  char last_letter_ = 0;  // of a caseless text, small; 0: something else came between
};

}  // namespace

std::string pcre2_from_oniguruma(std::string_view pattern) {
  return Translator(pattern).translate();
}

std::string pcre2_of_literal(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    if (character.bytes == 0) {
      throw FormatError("it is not UTF-8", TESSERA_HERE);
    }
    out += code_text(character.code);
    text.remove_prefix(character.bytes);
  }
  return out;
}

}  // namespace tessera
