#include "model/tokenizer/chat/python_json.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// Python's repr: the fewest digits that give the number back, with an exponent below 1e-4 and from
// 1e16 on.
std::string number_text(double value) {
  constexpr std::size_t kMostCharacters = 32;
  constexpr int kFirstExponent = 16;
  constexpr int kLastSmallExponent = -5;
  std::array<char, kMostCharacters> room = {};
  const auto written =
      std::to_chars(room.data(), room.data() + room.size(), value, std::chars_format::scientific);
  std::string scientific(room.data(), written.ptr);
  const auto exponent = std::strtol(scientific.c_str() + scientific.find('e') + 1, nullptr, 10);
  if (exponent >= kFirstExponent || exponent <= kLastSmallExponent) {
    return scientific;
  }
  const auto fixed =
      std::to_chars(room.data(), room.data() + room.size(), value, std::chars_format::fixed);
  const std::string text(room.data(), fixed.ptr);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

class Writer {
 public:
  explicit Writer(std::optional<std::size_t> indent) : indent_(indent) {}

  void write(const Json& value, std::size_t depth) {
    if (value.is_number_float()) {
      text_ += number_text(value.get<double>());
    } else if (!value.is_structured()) {
      text_ += value.dump();
    } else if (value.empty()) {
      text_ += value.is_object() ? "{}" : "[]";
    } else {
      write_members(value, depth + 1);
    }
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  void write_members(const Json& value, std::size_t depth) {
    text_ += value.is_object() ? '{' : '[';
    bool is_first = true;
    for (const auto& [key, member] : value.items()) {
      text_ += is_first ? "" : indent_ ? "," : ", ";
      is_first = false;
      begin_line(depth);
      if (value.is_object()) {
        text_ += Json(key).dump();
        text_ += ": ";
      }
      write(member, depth);
    }
    begin_line(depth - 1);
    text_ += value.is_object() ? '}' : ']';
  }
  void begin_line(std::size_t depth) {
    if (indent_) {
      text_ += '\n';
      text_.append(*indent_ * depth, ' ');
    }
  }

  std::optional<std::size_t> indent_;
  std::string text_;
};

}  // namespace

std::string python_json(const nlohmann::ordered_json& value, std::optional<std::size_t> indent) {
  Writer writer(indent);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace tessera
