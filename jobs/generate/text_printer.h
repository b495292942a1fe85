// Text that is printed as it is written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace tessera::generation {

/// Prints to stdout whole characters of UTF-8 only, until the end.
class TextPrinter {
 public:
  /// `end_text`, unless it is empty, ends the text and is not of it. `tokenizer` must outlive this.
  explicit TextPrinter(const Tokenizer& tokenizer, std::string end_text = {});

  /// False: the text has ended.
  bool add(std::int32_t id);
  void finish();
  /// All of it so far, without the text that ended it.
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  void print(std::size_t end);
  [[nodiscard]] std::size_t certain() const;

  const Tokenizer& tokenizer_;
  std::string end_text_;
  bool terminal_;
  std::vector<std::int32_t> ids_;
  std::string text_;
  std::size_t shown_ = 0;
};

}  // namespace tessera::generation
