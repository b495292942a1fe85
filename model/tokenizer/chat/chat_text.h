// A chat as a model reads it: text and tokens, and which part of a turn each is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

enum class ChatPart : std::uint8_t {
  header,    // what the template writes around turns, and turns that are not learned
  line_end,  // line ends beside an assistant's turn, which TRL's training templates count to it
  answer     // what an assistant says, and the token that ends it
};

/// Text and tokens in their order. Text that stands beside text is one text: it is encoded as a whole.
class ChatText {
 public:
  struct Span {
    std::size_t begin = 0;  // bytes of text()
    std::size_t end = 0;
    ChatPart part = ChatPart::header;
    enum class Kind : std::uint8_t {
      text,
      token,       // of the format: a vocabulary without it cannot write the chat
      maybe_token  // as text where the vocabulary has no such token
    } kind = Kind::text;
  };

  void add(std::string_view text, ChatPart part) { add(text, part, Span::Kind::text); }
  void add_token(std::string_view content, ChatPart part) { add(content, part, Span::Kind::token); }
  /// For what some vocabularies have a token for (`<think>`), and others spell.
  void add_maybe_token(std::string_view content, ChatPart part) {
    add(content, part, Span::Kind::maybe_token);
  }

  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  [[nodiscard]] const std::vector<Span>& spans() const noexcept { return spans_; }
  [[nodiscard]] std::string_view text_of(const Span& span) const {
    return std::string_view(text_).substr(span.begin, span.end - span.begin);
  }

 private:
  void add(std::string_view text, ChatPart part, Span::Kind kind) {
    if (!text.empty()) {
      spans_.push_back({text_.size(), text_.size() + text.size(), part, kind});
      text_ += text;
    }
  }

  std::string text_;
  std::vector<Span> spans_;
};

}  // namespace tessera
