#include "runtime/run/config_file.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/base/error.h"
#include "runtime/data/text_file.h"

namespace tessera {
namespace {

constexpr std::string_view kBlanks = " \t\r\f\v";

bool is_blank(char c) {
  return kBlanks.find(c) != std::string_view::npos;
}

std::string_view without_blanks(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

bool is_utf8(std::string_view text) {
  Utf8Checker checker;
  (void)checker.add(text);
  return checker.is_whole();
}

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20U || byte == 0x7FU;
}

// What follows a backslash in quotes, and how many characters that are. Nothing for what does not.
struct Escape {
  char value;
  std::size_t length;
};
std::optional<Escape> escape_of(std::string_view text) {
  constexpr std::size_t kHexLength = 3;  // xHH
  if (text.empty()) {
    return std::nullopt;
  }
  switch (text[0]) {
    case '"':
    case '\\':
      return Escape{text[0], 1};
    case 'n':
      return Escape{'\n', 1};
    case 't':
      return Escape{'\t', 1};
    case 'x': {
      unsigned byte = 0;
      const std::string_view digits = text.substr(1, 2);
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
      if (digits.size() != 2 || error != std::errc{} || end != digits.data() + digits.size()) {
        return std::nullopt;
      }
      return Escape{static_cast<char>(byte), kHexLength};
    }
    default:
      return std::nullopt;
  }
}

// A quoted value at the beginning of a text.
struct Quoted {
  std::string value;
  std::size_t length = 0;         // of the text, both quotes included
  const char* problem = nullptr;  // why there is none
};
Quoted read_quoted(std::string_view text) {
  Quoted quoted;
  std::size_t at = 1;
  while (at < text.size() && text[at] != '"') {
    if (text[at] != '\\') {
      quoted.value += text[at++];
      continue;
    }
    const std::optional<Escape> escape = escape_of(text.substr(at + 1));
    if (!escape) {
      quoted.problem = R"(in quotes a backslash goes before ", \, n, t or xHH: write \\ for one)";
      return quoted;
    }
    quoted.value += escape->value;
    at += 1 + escape->length;
  }
  if (at >= text.size()) {
    quoted.problem = R"(the value begins with a quote that is not closed: end it with ", or write )"
                     R"("\"..." for a value that begins with one)";
  }
  quoted.length = at + 1;
  return quoted;
}

// Of a text without blanks around it: whether a reader takes it as it stands, unquoted.
bool is_plain(std::string_view value) {
  return value.empty() || (value.front() != '"' && value.find('#') == std::string_view::npos &&
                           !is_blank(value.front()) && !is_blank(value.back()) &&
                           std::none_of(value.begin(), value.end(), is_control) && is_utf8(value));
}

std::string quoted_text(std::string_view value) {
  const bool is_text = is_utf8(value);
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (c == '\n') {
      text += "\\n";
    } else if (c == '\t') {
      text += "\\t";
    } else if (is_control(c) || (!is_text && static_cast<unsigned char>(c) >= 0x80U)) {
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      text += c;
    }
  }
  return text + "\"";
}

class LineReader {
 public:
  LineReader(std::string_view source, int line) : source_(source), line_(line) {}

  // Nothing for an empty line or a comment.
  [[nodiscard]] std::optional<ConfigEntry> read(std::string_view text) const {
    text = without_blanks(text);
    if (text.empty() || text.front() == '#') {
      return std::nullopt;
    }
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) {
      refuse("this is not `name = value`");
    }
    const std::string_view name = without_blanks(text.substr(0, equals));
    if (name.empty() || name.find_first_of("\"#[") != std::string_view::npos) {
      refuse("this is not `name = value`");
    }
    return ConfigEntry{std::string(name), value_of(without_blanks(text.substr(equals + 1))), line_};
  }

 private:
  [[noreturn]] void refuse(std::string_view problem) const {
    throw ConfigError(fmt::format("{} line {}: {}", source_, line_, problem), TESSERA_HERE);
  }

  [[nodiscard]] std::string value_of(std::string_view text) const {
    if (text.starts_with('"')) {
      Quoted quoted = read_quoted(text);
      if (quoted.problem != nullptr) {
        refuse(quoted.problem);
      }
      const std::string_view behind = without_blanks(text.substr(quoted.length));
      if (!behind.empty() && behind.front() != '#') {
        refuse("there are words behind the closing quote");
      }
      return quoted.value;
    }
    if (const std::size_t at = text.find('#'); at != std::string_view::npos) {
      if (at != 0 && !is_blank(text[at - 1])) {
        refuse(
            "'#' begins a comment only after a blank: put the value in \"quotes\" if '#' belongs "
            "to it, or a blank before the comment");
      }
      return std::string(without_blanks(text.substr(0, at)));
    }
    return std::string(text);
  }

  std::string_view source_;
  int line_;
};

}  // namespace

std::vector<ConfigEntry> parse_config_text(std::string_view text, std::string_view source) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) {
    text.remove_prefix(kByteOrderMark.size());
  }
  std::vector<ConfigEntry> entries;
  for (int line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (auto entry = LineReader(source, line).read(text.substr(0, end))) {
      entries.push_back(std::move(*entry));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return entries;
}

std::string config_value(std::string_view value) {
  return is_plain(value) ? std::string(value) : quoted_text(value);
}

std::string join_values(const std::vector<std::string>& values) {
  std::vector<std::string> texts;
  texts.reserve(values.size());
  for (const std::string& value : values) {
    const bool is_one = !value.empty() && std::none_of(value.begin(), value.end(), is_blank);
    texts.push_back(is_one ? config_value(value) : quoted_text(value));
  }
  return fmt::format("{}", fmt::join(texts, " "));
}

std::vector<std::string> split_values(std::string_view text) {
  std::vector<std::string> values;
  for (text = without_blanks(text); !text.empty(); text = without_blanks(text)) {
    std::size_t length = std::min(text.find_first_of(kBlanks), text.size());
    if (text.starts_with('"')) {
      Quoted quoted = read_quoted(text);
      if (quoted.problem != nullptr) {
        return {};
      }
      length = quoted.length;
      values.push_back(std::move(quoted.value));
    } else {
      values.emplace_back(text.substr(0, length));
    }
    text.remove_prefix(length);
  }
  return values;
}

}  // namespace tessera
