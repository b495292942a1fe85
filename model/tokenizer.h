// Text to token ids and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/stream.h"

namespace tessera {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  [[nodiscard]] virtual Index vocab_size() const = 0;
  /// Id that ends a document; -1: none.
  [[nodiscard]] virtual Index end_token() const = 0;
  /// Id of text that the vocabulary has nothing for; -1: there is no such text.
  [[nodiscard]] virtual Index unknown_token() const = 0;
  /// Whether line ends come back when ids are decoded.
  [[nodiscard]] virtual bool keeps_line_ends() const = 0;
  /// Most bytes to encode in one call; 0: any number, and a document may be cut anywhere between
  /// characters: its ids are the same.
  [[nodiscard]] virtual std::size_t max_call_bytes() const = 0;
  /// Replaces `ids` by those of `text` (UTF-8). Safe to call from several threads.
  virtual void encode(std::string_view text, std::vector<std::uint32_t>& ids) const = 0;
  /// The text of `ids`. Ids outside the vocabulary stand for nothing.
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};

/// The text for a terminal: control characters but newline and tab become '?', so do bytes that are
/// no UTF-8.
[[nodiscard]] std::string terminal_text(std::string_view text);

}  // namespace tessera
