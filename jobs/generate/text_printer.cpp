#include "jobs/generate/text_printer.h"

#include <algorithm>
#include <iostream>
#include <string_view>
#include <utility>

#include <unistd.h>

#include "model/tokenizer/terminal_text.h"

namespace tessera::generation {
namespace {

// Without the first bytes of a character that may not be complete yet.
std::size_t whole_characters(std::string_view text) {
  constexpr std::size_t kLongestCharacter = 4;
  for (std::size_t back = 1; back <= std::min(kLongestCharacter, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte >= 0xC0U) {
      return text.size() - back;
    }
    if (byte < 0x80U) {
      break;
    }
  }
  return text.size();
}

}  // namespace

TextPrinter::TextPrinter(const Tokenizer& tokenizer, std::string end_text)
    : tokenizer_(tokenizer),
      end_text_(std::move(end_text)),
      terminal_(isatty(STDOUT_FILENO) == 1) {}

bool TextPrinter::add(std::int32_t id) {
  ids_.push_back(id);
  text_ = tokenizer_.decode(ids_);
  const std::size_t end = end_text_.empty() ? std::string::npos : text_.find(end_text_);
  if (end != std::string::npos) {
    text_.resize(end);
    print(end);
    return false;
  }
  print(certain());
  return true;
}

void TextPrinter::finish() {
  print(text_.size());
  std::cout << "\n" << std::flush;
}

// Where what may become another character, or the text that ends all, begins.
std::size_t TextPrinter::certain() const {
  std::size_t end = whole_characters(text_);
  for (std::size_t part = std::min(end_text_.size(), text_.size()); part > 0; --part) {
    if (text_.ends_with(std::string_view(end_text_).substr(0, part))) {
      end = std::min(end, text_.size() - part);
      break;
    }
  }
  return end;
}

void TextPrinter::print(std::size_t end) {
  if (end > shown_) {
    const std::string part = text_.substr(shown_, end - shown_);
    std::cout << (terminal_ ? terminal_text(part) : part) << std::flush;
    shown_ = end;
  }
}

}  // namespace tessera::generation
