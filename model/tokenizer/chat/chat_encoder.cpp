#include "model/tokenizer/chat/chat_encoder.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "model/tokenizer/kinds.h"

namespace tessera {

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, std::unique_ptr<ChatFormat> format,
                         ChatLoss loss, std::string_view source)
    : tokenizer_(tokenizer), format_(std::move(format)), loss_(loss) {
  if (tokenizer.kind() == kBytesKind || tokenizer.kind() == kSentencePieceKind) {
    throw ConfigError(
        fmt::format("{}: chats need a tokenizer.json or a file in tiktoken's form, "
                    "not {}",
                    source, tokenizer.kind() == kBytesKind ? "bytes" : "a SentencePiece model"),
        TESSERA_HERE);
  }
  std::string missing;
  for (const std::string_view token : format_->tokens()) {
    if (!tokenizer.token_id(token)) {
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", token);
    }
  }
  if (!missing.empty()) {
    throw ConfigError(
        fmt::format(
            "{} has no {}, which chats of the format {} need: choose the format that the "
            "model was trained with, or add the tokens to added_tokens of its "
            "tokenizer.json (ids from {} on) and rows for them to the model: convert import "
            "--resize-vocab N",
            source, missing, format_->name(), tokenizer.vocab_size()),
        TESSERA_HERE);
  }
}

bool ChatEncoder::counts(ChatPart part) const noexcept {
  return loss_ == ChatLoss::all || part == ChatPart::answer ||
         (loss_ == ChatLoss::turn && part == ChatPart::line_end);
}

std::optional<std::uint32_t> ChatEncoder::id_of(const ChatText& chat,
                                                const ChatText::Span& span) const {
  if (span.kind == ChatText::Span::Kind::text) {
    return std::nullopt;
  }
  const std::optional<Index> id = tokenizer_.token_id(chat.text_of(span));
  return id ? std::make_optional(static_cast<std::uint32_t>(*id)) : std::nullopt;
}

void ChatEncoder::encode(const Chat& chat, std::vector<std::uint32_t>& ids,
                         std::vector<std::uint8_t>& mask) const {
  ChatText text;
  format_->write(chat, text);
  const std::size_t before = mask.size();
  encode_spans(text, text.spans().size(), ids, mask);
  if (std::find(mask.begin() + static_cast<std::ptrdiff_t>(before), mask.end(), 1) == mask.end()) {
    throw FormatError("has nothing to learn: no turn of an assistant", TESSERA_HERE);
  }
}

ChatPrompt ChatEncoder::prompt(Chat chat) const {
  for (ChatMessage& message : chat.messages) {
    message.is_learned = false;
  }
  ChatMessage answer;  // of no text: what is learned of it is what ends it
  answer.role = "assistant";
  answer.content = "";
  chat.messages.push_back(std::move(answer));
  ChatText text;
  format_->write(chat, text);
  const auto& spans = text.spans();
  const auto begin = std::find_if(spans.begin(), spans.end(), [](const ChatText::Span& span) {
    return span.part == ChatPart::answer;
  });
  ChatPrompt prompt;
  std::vector<std::uint8_t> mask;
  encode_spans(text, static_cast<std::size_t>(begin - spans.begin()), prompt.ids, mask);
  for (auto span = begin; span != spans.end() && span->part == ChatPart::answer; ++span) {
    if (span->kind == ChatText::Span::Kind::token) {
      prompt.end_token = id_of(text, *span);
    } else if (span->kind == ChatText::Span::Kind::text) {
      prompt.end_text += text.text_of(*span);
    }
  }
  if (prompt.end_token) {
    prompt.end_text.clear();
  }
  return prompt;
}

// The first `count` spans.
void ChatEncoder::encode_spans(const ChatText& text, std::size_t count,
                               std::vector<std::uint32_t>& ids,
                               std::vector<std::uint8_t>& mask) const {
  const auto& spans = text.spans();
  std::size_t run = 0;  // the first span of text that has not been encoded
  for (std::size_t i = 0; i < count; ++i) {
    if (const auto id = id_of(text, spans[i])) {
      encode_run(text, run, i, ids, mask);
      ids.push_back(*id);
      mask.push_back(counts(spans[i].part) ? 1 : 0);
      run = i + 1;
    }
  }
  encode_run(text, run, count, ids, mask);
}

std::size_t ChatEncoder::decoded_bytes(const std::vector<std::uint32_t>& ids) const {
  return tokenizer_.decode(std::vector<std::int32_t>(ids.begin(), ids.end())).size();
}

// Spans [first, last) are one text.
void ChatEncoder::encode_run(const ChatText& chat, std::size_t first, std::size_t last,
                             std::vector<std::uint32_t>& ids,
                             std::vector<std::uint8_t>& mask) const {
  if (first == last) {
    return;
  }
  const auto& spans = chat.spans();
  const std::size_t begin = spans[first].begin;
  const std::string_view text =
      std::string_view(chat.text()).substr(begin, spans[last - 1].end - begin);
  const std::size_t before = ids.size();
  tokenizer_.encode(text, ids, SpecialText::is_text);
  const bool first_counts = counts(spans[first].part);
  if (std::all_of(spans.begin() + static_cast<std::ptrdiff_t>(first),
                  spans.begin() + static_cast<std::ptrdiff_t>(last),
                  [&](const ChatText::Span& span) { return counts(span.part) == first_counts; })) {
    mask.resize(ids.size(), first_counts ? 1 : 0);
    return;
  }
  std::vector<std::size_t> ends;  // of each token, in bytes of the normalized text
  std::size_t bytes = 0;
  for (std::size_t i = before; i < ids.size(); ++i) {
    const auto id = static_cast<std::int32_t>(ids[i]);
    bytes += tokenizer_.decode(std::span(&id, 1)).size();
    ends.push_back(bytes);
  }
  // Where normalization changes the text, the end of a span is where the text before it ends alone.
  const auto end_of = [&](const ChatText::Span& span) {
    if (bytes == text.size()) {
      return span.end - begin;
    }
    std::vector<std::uint32_t> part;
    tokenizer_.encode(text.substr(0, span.end - begin), part, SpecialText::is_text);
    return decoded_bytes(part);
  };
  std::size_t span = first;
  std::size_t span_end = end_of(spans[span]);
  std::size_t token_begin = 0;
  for (const std::size_t token_end : ends) {
    while (span + 1 < last && span_end <= token_begin) {
      span_end = end_of(spans[++span]);
    }
    bool all_count = counts(spans[span].part);
    bool any_counts = all_count;
    while (span + 1 < last && span_end < token_end) {
      span_end = end_of(spans[++span]);
      all_count = all_count && counts(spans[span].part);
      any_counts = any_counts || counts(spans[span].part);
    }
    mask.push_back((loss_ == ChatLoss::turn ? any_counts : all_count) ? 1 : 0);
    token_begin = token_end;
  }
}

}  // namespace tessera
