#include "runtime/data/text_kind.h"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "kernels/base/input_file.h"
#include "runtime/data/text_file.h"

namespace tessera {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

// The next line that is not blank, and whether it ends with a line end.
struct Line {
  std::string_view text;
  bool is_whole = false;
};

Line take_line(std::string_view& rest) {
  rest.remove_prefix(std::min(rest.find_first_not_of(kSpace), rest.size()));
  const std::size_t end = rest.find('\n');
  const Line line{rest.substr(0, end), end != std::string_view::npos};
  rest.remove_prefix(std::min(line.text.size(), rest.size()));
  return line;
}

bool is_record(std::string_view text) {
  return !text.empty() && (text.front() == '{' || text.front() == '[') &&
         nlohmann::json::accept(text);
}

// `{ "name" :`, as an object begins that continues over several lines.
bool begins_object(std::string_view text) {
  const auto skip = [&text] {
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  };
  const auto take = [&text](char c) {
    const bool there = !text.empty() && text.front() == c;
    text.remove_prefix(there ? 1 : 0);
    return there;
  };
  if (!take('{')) {
    return false;
  }
  skip();
  if (!take('"')) {
    return false;
  }
  const std::size_t end = text.find_first_of("\"\n");
  if (end == std::string_view::npos || text[end] != '"') {
    return false;
  }
  text.remove_prefix(end + 1);
  skip();
  return take(':');
}

std::string_view json_kind(std::string_view text, bool is_whole_file) {
  constexpr std::string_view kLines =
      "JSON Lines, not prose: its braces and field names would be learned as text. Give --field "
      "text to take the text of its records, each a document, --chat auto where they are chats, or "
      "--as-text to take it as it is";
  constexpr std::string_view kJson =
      "JSON, not prose: its braces and field names would be learned as text. Write its texts to "
      "files first, one document each, or give --as-text to take it as it is";
  if (is_whole_file && is_record(text)) {
    return text.find('\n') == std::string_view::npos && text.front() == '{' ? kLines : kJson;
  }
  std::string_view rest = text;
  const Line first = take_line(rest);
  const Line second = take_line(rest);
  if (first.is_whole && is_record(first.text)) {
    // of the second there may be only the begin here; a line of prose may be "[1]"
    const bool both = second.text.empty() || !second.is_whole ? first.text.front() == '{'
                                                              : is_record(second.text);
    return both ? kLines : std::string_view();
  }
  std::string_view inside = text;
  if (inside.front() == '[') {
    inside.remove_prefix(1);
    inside.remove_prefix(std::min(inside.find_first_not_of(kSpace), inside.size()));
  }
  return begins_object(inside) ? kJson : std::string_view();
}

}  // namespace

std::string_view text_kind(std::string_view first_bytes) {
  constexpr std::array<std::string_view, 6> kTextual = {"version https://git-lfs.github.com/spec/",
                                                        "/annex/objects/",
                                                        "%PDF-",
                                                        "PAR1",
                                                        "BZh",
                                                        "PK\x03\x04"};
  // Of what is text by its bytes, only these are other files for sure.
  Utf8Checker checker;
  const bool may_be_text = checker.add(first_bytes);
  if (!may_be_text || std::any_of(kTextual.begin(), kTextual.end(), [&](std::string_view begin) {
        return first_bytes.starts_with(begin);
      })) {
    return foreign_content(first_bytes);
  }
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  const bool is_whole_file = first_bytes.size() < kTextKindBytes;
  std::string_view text = first_bytes;
  text.remove_prefix(text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0);
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  if (text.empty() || (text.front() != '{' && text.front() != '[')) {
    return {};
  }
  return json_kind(text, is_whole_file);
}

}  // namespace tessera
