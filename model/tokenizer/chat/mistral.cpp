// Mistral's chats as of its seventh form with tekken tokenizers:
// <s>[SYSTEM_PROMPT]...[/SYSTEM_PROMPT][INST]...[/INST]...</s>, without spaces between, and without
// spaces at the end of an answer. The reference is PyPI's mistral-common (InstructTokenizerV7).
#include <string_view>

#include "kernels/base/error.h"
#include "model/tokenizer/chat/chat_formats.h"

namespace tessera {
namespace {

[[noreturn]] void refuse(std::string_view reason) {
  throw FormatError(reason, TESSERA_HERE);
}

void add_between(std::string_view begin, std::string_view content, std::string_view end,
                 ChatText& text) {
  text.add_token(begin, ChatPart::header);
  text.add(content, ChatPart::header);
  text.add_token(end, ChatPart::header);
}

}  // namespace

void write_mistral(const Chat& chat, ChatText& text) {
  if (!chat.tools.empty()) {
    refuse("has tools, which mistral does not write here");
  }
  text.add_token("<s>", ChatPart::header);
  std::string_view before = "assistant";
  for (const ChatMessage& message : chat.messages) {
    if (!message.tool_calls.empty() || message.role == "tool") {
      refuse("has turns of tools, which mistral does not write here");
    }
    if (message.thinking) {
      refuse("has reasoning_content, which mistral does not write");
    }
    if (message.role == "system") {
      add_between("[SYSTEM_PROMPT]", *message.content, "[/SYSTEM_PROMPT]", text);
      continue;
    }
    if (message.role == before) {
      refuse("has turns of user and assistant that do not alternate, beginning with the user's");
    }
    before = message.role;
    if (message.role == "user") {
      add_between("[INST]", *message.content, "[/INST]", text);
    } else {
      const ChatPart part = message.is_learned ? ChatPart::answer : ChatPart::header;
      const std::string_view content = *message.content;
      text.add(content.substr(0, content.find_last_not_of(' ') + 1), part);
      text.add_token("</s>", part);
    }
  }
}

}  // namespace tessera
