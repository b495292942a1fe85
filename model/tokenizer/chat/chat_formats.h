// How families of models write chats: what their Jinja templates write, as C++. A further family is a
// file with a function, and a row in chat_formats.cpp; without a file, `read_chat_format` reads
// prefixes and suffixes.
//
// The reference is apply_chat_template of Hugging Face's transformers with the templates that PyPI's
// trl ships; tests/model/tokenizer/compare_chats.py compares.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/chat/chat.h"
#include "model/tokenizer/chat/chat_text.h"
#include "model/tokenizer/kinds.h"

namespace tessera {

class ChatFormat {
 public:
  virtual ~ChatFormat() = default;
  ChatFormat(const ChatFormat&) = delete;
  ChatFormat& operator=(const ChatFormat&) = delete;

  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Tokens that chats of this format are made of.
  [[nodiscard]] virtual std::vector<std::string_view> tokens() const = 0;
  /// Appends `chat` to `text`. Throws FormatError, a clause that says what this format has nothing
  /// for: "has tool calls, which chatml does not write".
  virtual void write(const Chat& chat, ChatText& text) const = 0;
  /// A Jinja template that writes the same, but for what `write` refuses.
  [[nodiscard]] virtual std::string jinja_template() const = 0;

 protected:
  ChatFormat() = default;
};

/// "chatml, qwen2.5, ...": for messages and help.
[[nodiscard]] std::string chat_format_names();
/// A format of the table; null: there is none of this name.
[[nodiscard]] std::unique_ptr<ChatFormat> find_chat_format(std::string_view name);
/// The format of the chat template in a Hugging Face folder (chat_template.jinja, or chat_template
/// in tokenizer_config.json), if it is exactly one that is known. Throws ConfigError that lists the
/// formats: there is no template, or it is not known. `source` is for messages.
[[nodiscard]] std::unique_ptr<ChatFormat> detect_chat_format(const TokenizerFiles& files,
                                                             std::string_view source);
/// A format by prefixes and suffixes:
///
///     {"tokens": ["<|turn|>", "<|end|>"],
///      "begin": "",
///      "roles": {"user": {"prefix": "<|turn|>user\n", "suffix": "<|end|>\n"}, ...}}
///
/// `tokens` are those of the vocabulary that occur in the other texts, `begin` stands before the first turn
/// and may be left out, and so may roles that no chat has. What an assistant says is a target, and its suffix up to
/// its first token, or all of it where it has none. Throws FormatError, MissingError that name `path`.
[[nodiscard]] std::unique_ptr<ChatFormat> read_chat_format(const std::filesystem::path& path);

inline constexpr std::string_view kAutoChat = "auto";

/// `--chat`'s value: kAutoChat for the format of the folder's template, a name of the table, or the path
/// of a file of prefixes and suffixes. Throws as the three do, and ConfigError where it is none.
[[nodiscard]] std::unique_ptr<ChatFormat> choose_chat_format(std::string_view wanted,
                                                             const TokenizerFiles& files,
                                                             std::string_view source);

/// Gives a folder's files the template of `format` as chat_template.jinja, which transformers reads
/// before what is in tokenizer_config.json; unchanged where they have a known template of it.
void keep_chat_template(const ChatFormat& format, std::vector<TokenizerFile>& companions);

// What the rows of the table name, each in a file of its own.
void write_chatml(const Chat& chat, ChatText& text);
void write_qwen25(const Chat& chat, ChatText& text);
void write_qwen3(const Chat& chat, ChatText& text);
void write_qwen3_instruct(const Chat& chat, ChatText& text);
void write_llama3(const Chat& chat, ChatText& text);
void write_llama31(const Chat& chat, ChatText& text);
void write_mistral(const Chat& chat, ChatText& text);

}  // namespace tessera
