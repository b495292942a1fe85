// Llama 3's and 3.1's chats: <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>, contents
// without white space around them.
#include <string_view>

#include "kernels/base/error.h"
#include "model/tokenizer/chat/chat_formats.h"
#include "model/tokenizer/chat/chat_trim.h"
#include "model/tokenizer/chat/python_json.h"
#include "model/tokenizer/chat/tool_texts.h"

namespace tessera {
namespace {

[[noreturn]] void refuse(std::string_view reason) {
  throw FormatError(reason, TESSERA_HERE);
}

void begin_turn(std::string_view role, ChatText& text) {
  text.add_token("<|start_header_id|>", ChatPart::header);
  text.add(role, ChatPart::header);
  text.add_token("<|end_header_id|>", ChatPart::header);
  text.add("\n\n", ChatPart::header);
}

ChatPart part_of(const ChatMessage& message) {
  return message.role == "assistant" && message.is_learned ? ChatPart::answer : ChatPart::header;
}

void add_turn(const ChatMessage& message, ChatText& text) {
  begin_turn(message.role, text);
  text.add(python_strip(*message.content), part_of(message));
  text.add_token("<|eot_id|>", part_of(message));
}

void add_call(const ChatMessage& message, ChatText& text) {
  if (message.tool_calls.size() != 1) {
    refuse("has a message with other than one tool call; llama3.1 writes one at a time");
  }
  const ToolCall& call = message.tool_calls.front();
  const ChatPart part = part_of(message);
  begin_turn("assistant", text);
  text.add(R"({"name": ")", part);
  text.add(call.name, part);
  text.add(R"(", "parameters": )", part);
  text.add(python_json(call.arguments), part);
  text.add("}", part);
  text.add_token("<|eot_id|>", part);
}

void add_tools(const Chat& chat, const ChatMessage& first, ChatText& text) {
  constexpr std::size_t kIndent = 4;
  begin_turn("user", text);
  text.add(kLlamaToolsBefore, ChatPart::header);
  for (const nlohmann::ordered_json& tool : chat.tools) {
    text.add(python_json(tool, kIndent), ChatPart::header);
    text.add("\n\n", ChatPart::header);
  }
  text.add(python_strip(*first.content), ChatPart::header);
  text.add_token("<|eot_id|>", ChatPart::header);
}

void require_no_thinking(const Chat& chat) {
  for (const ChatMessage& message : chat.messages) {
    if (message.thinking) {
      refuse("has reasoning_content, which llama3 and llama3.1 do not write");
    }
  }
}

}  // namespace

void write_llama3(const Chat& chat, ChatText& text) {
  require_no_thinking(chat);
  if (!chat.tools.empty()) {
    refuse("has tools, which llama3 does not write");
  }
  text.add_token("<|begin_of_text|>", ChatPart::header);
  for (const ChatMessage& message : chat.messages) {
    if (!message.tool_calls.empty()) {
      refuse("has tool calls, which llama3 does not write");
    }
    add_turn(message, text);
  }
}

void write_llama31(const Chat& chat, ChatText& text) {
  require_no_thinking(chat);
  std::size_t at = 0;
  text.add_token("<|begin_of_text|>", ChatPart::header);
  begin_turn("system", text);
  text.add(chat.tools.empty() ? std::string_view() : kLlamaToolsSystem, ChatPart::header);
  text.add(kLlamaDates, ChatPart::header);
  if (chat.messages.front().role == "system") {
    text.add(python_strip(*chat.messages.front().content), ChatPart::header);
    ++at;
  }
  text.add_token("<|eot_id|>", ChatPart::header);
  if (!chat.tools.empty()) {
    if (at == chat.messages.size() || !chat.messages[at].content) {
      refuse("has tools, and no first message that llama3.1 can write them into");
    }
    add_tools(chat, chat.messages[at++], text);
  }
  for (; at < chat.messages.size(); ++at) {
    const ChatMessage& message = chat.messages[at];
    if (message.role == "tool") {
      begin_turn("ipython", text);
      text.add(python_json(*message.content), ChatPart::header);
      text.add_token("<|eot_id|>", ChatPart::header);
    } else if (message.has_tool_calls) {
      add_call(message, text);
    } else {
      add_turn(message, text);
    }
  }
}

}  // namespace tessera
