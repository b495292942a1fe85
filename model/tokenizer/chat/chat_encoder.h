// Chats to token ids, and which of them are targets of training.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/chat/chat_formats.h"
#include "model/tokenizer/tokenizer.h"

namespace tessera {

/// Which tokens are targets.
enum class ChatLoss : std::uint8_t {
  assistant,  // what assistants say, and the token that ends it; not a token with bytes of a header
  turn,       // as TRL's training templates mark turns: also line ends beside it, and such tokens
  all
};

/// What a model answers.
struct ChatPrompt {
  std::vector<std::uint32_t> ids;
  std::optional<Index> end_token;  // of the answer
  std::string end_text;            // where the format ends answers with text: what ends it
};

class ChatEncoder {
 public:
  /// `tokenizer` must outlive it. Throws ConfigError: the tokenizer is of a kind whose chats are not
  /// known to have the ids of Hugging Face's (bytes, SentencePiece), or lacks a token of the format;
  /// `source` is for messages.
  ChatEncoder(const Tokenizer& tokenizer, std::unique_ptr<ChatFormat> format, ChatLoss loss,
              std::string_view source);

  /// Appends the ids of `chat`, and for each 1 where it is a target, else 0. Special tokens that stand
  /// in contents stay text. Safe to call from several threads. Throws FormatError, a clause: what the format has nothing for, or no target.
  void encode(const Chat& chat, std::vector<std::uint32_t>& ids,
              std::vector<std::uint8_t>& mask) const;

  /// `chat`, and what the format writes before an answer, as apply_chat_template does with
  /// add_generation_prompt. Throws FormatError, a clause: what the format has nothing for.
  [[nodiscard]] ChatPrompt prompt(Chat chat) const;

  [[nodiscard]] const ChatFormat& format() const noexcept { return *format_; }

 private:
  void encode_spans(const ChatText& text, std::size_t count, std::vector<std::uint32_t>& ids,
                    std::vector<std::uint8_t>& mask) const;
  void encode_run(const ChatText& chat, std::size_t first, std::size_t last,
                  std::vector<std::uint32_t>& ids, std::vector<std::uint8_t>& mask) const;
  [[nodiscard]] std::optional<std::uint32_t> id_of(const ChatText& chat,
                                                   const ChatText::Span& span) const;
  [[nodiscard]] bool counts(ChatPart part) const noexcept;
  [[nodiscard]] std::size_t decoded_bytes(const std::vector<std::uint32_t>& ids) const;

  const Tokenizer& tokenizer_;
  std::unique_ptr<ChatFormat> format_;
  ChatLoss loss_;
};

}  // namespace tessera
