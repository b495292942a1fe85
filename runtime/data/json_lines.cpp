#include "runtime/data/json_lines.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/escaped_text.h"
#include "runtime/data/text_file.h"

namespace tessera {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 18U;
constexpr std::size_t kMostDepth = 64;
constexpr std::string_view kSpace = " \t\r\n";

[[noreturn]] void refuse(const std::string& reason) {
  throw FormatError(reason, TESSERA_HERE);
}

// `text` of a stranger for a message.
std::string shown(std::string_view text) {
  constexpr std::size_t kMostShown = 40;
  return shown_text(text.size() > kMostShown ? fmt::format("{}...", text.substr(0, kMostShown))
                                             : std::string(text));
}

void require_text(std::string_view line) {
  Utf8Checker checker;
  if (checker.add(line) && checker.is_whole()) {
    return;
  }
  // The checker does not say where: bytes are few, and the line is refused.
  Utf8Checker bytewise;
  std::size_t at = 0;
  while (at < line.size() && bytewise.add(line.substr(at, 1))) {
    ++at;
  }
  refuse(at < line.size() && line[at] == '\0' ? fmt::format("has a NUL at byte {}", at + 1)
         : at < line.size()                   ? fmt::format("is not UTF-8 at byte {}", at + 1)
                                              : std::string("ends within a character of UTF-8"));
}

// Builds the value of a line and refuses what has no one meaning. nlohmann's own builder keeps one
// of two equal keys, and searches an ordered object's keys one by one.
// NOLINTNEXTLINE(bugprone-exception-escape): nlohmann's destructors keep what they may throw
class RecordBuilder final : public nlohmann::json_sax<Record> {
 public:
  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") == std::string::npos) {
      refuse(fmt::format("has a number of more than 64 bits: {}", shown(text)));
    }
    return add(value);
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*count*/) override { return open(Record::object()); }
  bool key(string_t& value) override {
    Level& level = levels_.back();
    if (!level.keys.insert(value).second) {
      refuse(fmt::format("has the key \"{}\" twice in one object", shown(value)));
    }
    level.key = std::move(value);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*count*/) override { return open(Record::array()); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    constexpr int kNumberOutOfRange = 406;
    if (error.id == kNumberOutOfRange) {
      refuse("has a number of more than 64 bits");
    }
    const bool has_more = std::string_view(error.what()).ends_with("expected end of input");
    refuse(fmt::format(
        "is not one JSON object: {} at byte {}",
        has_more ? "its text ends, and more follows" : "something is missing or does not belong",
        position));
  }

  [[nodiscard]] Record take() { return std::move(root_); }

 private:
  struct Level {
    Record* value;
    std::string key;
    std::unordered_set<std::string> keys;
  };

  Record* place(Record value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.value->is_array()) {
      auto& array = level.value->get_ref<Record::array_t&>();
      array.push_back(std::move(value));
      return &array.back();
    }
    auto& object = level.value->get_ref<Record::object_t&>();
    object.push_back({std::move(level.key), std::move(value)});
    return &object.back().second;
  }
  bool add(Record value) {
    static_cast<void>(place(std::move(value)));
    return true;
  }
  bool open(Record value) {
    if (levels_.size() == kMostDepth) {
      refuse(fmt::format("is nested deeper than {}", kMostDepth));
    }
    Record* const placed = place(std::move(value));
    levels_.push_back({placed, {}, {}});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  Record root_;
  std::vector<Level> levels_;
};

}  // namespace

LineReader::LineReader(const std::filesystem::path& path, std::size_t most_bytes)
    : path_(path), most_bytes_(most_bytes), stream_(open_byte_stream(path)), buffer_(kBlockBytes) {}

std::optional<std::string_view> LineReader::next() {
  std::size_t searched = begin_;
  while (true) {
    const auto* const line_end =
        static_cast<const char*>(std::memchr(buffer_.data() + searched, '\n', end_ - searched));
    const bool is_whole = line_end != nullptr;
    const std::size_t length =
        (is_whole ? static_cast<std::size_t>(line_end - buffer_.data()) : end_) - begin_;
    if (length > most_bytes_) {
      throw FormatError(fmt::format("{}: line {} has more than {} bytes, the most that are read",
                                    path_.string(), line_number_ + 1, most_bytes_),
                        TESSERA_HERE);
    }
    std::size_t count = 0;
    if (!is_whole) {
      searched = end_ - begin_;
      std::memmove(buffer_.data(), buffer_.data() + begin_, searched);
      end_ = searched;
      begin_ = 0;
      if (end_ == buffer_.size()) {
        buffer_.resize(2 * buffer_.size());
      }
      count = stream_->read(std::span(buffer_).subspan(end_));
      end_ += count;
    }
    if (is_whole || (count == 0 && length > 0)) {
      constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
      std::string_view line(buffer_.data() + begin_, length);
      begin_ = std::min(begin_ + length + 1, end_);
      ++line_number_;
      if (line_number_ == 1 && line.starts_with(kByteOrderMark)) {
        line.remove_prefix(kByteOrderMark.size());
      }
      return line;
    }
    if (count == 0) {
      return std::nullopt;
    }
  }
}

std::optional<Record> parse_record(std::string_view line) {
  const std::size_t begin = line.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) {
    return std::nullopt;
  }
  require_text(line);
  if (line[begin] != '{') {
    refuse("is not a JSON object");
  }
  RecordBuilder builder;
  if (!nlohmann::ordered_json::sax_parse(line, &builder)) {
    refuse("is not a JSON object");
  }
  return builder.take();
}

std::string take_text(Record& record, std::string_view field) {
  auto& members = record.get_ref<Record::object_t&>();
  const auto found = std::find_if(members.begin(), members.end(),
                                  [&](const auto& member) { return member.first == field; });
  if (found == members.end()) {
    constexpr std::size_t kMostNamed = 8;
    std::string names;
    for (std::size_t i = 0; i < std::min(members.size(), kMostNamed); ++i) {
      names += fmt::format("{}{}", i == 0 ? "" : ", ",
                           shown((members.begin() + static_cast<std::ptrdiff_t>(i))->first));
    }
    refuse(members.empty() ? std::string("has no fields")
                           : fmt::format("has no field \"{}\"; its fields are {}{}", shown(field),
                                         names, members.size() > kMostNamed ? ", ..." : ""));
  }
  if (!found->second.is_string()) {
    refuse(fmt::format("has a field \"{}\" that is not a text but of the type {}", shown(field),
                       found->second.type_name()));
  }
  return std::move(found->second.get_ref<std::string&>());
}

bool has_json_lines_name(const std::filesystem::path& path) {
  std::filesystem::path name = path.filename();
  if (name.extension() == ".gz" || name.extension() == ".zst") {
    name = name.stem();
  }
  return name.extension() == ".jsonl" || name.extension() == ".ndjson";
}

}  // namespace tessera
