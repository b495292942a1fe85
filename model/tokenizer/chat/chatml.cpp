// ChatML, and Qwen's templates, which are made of it: <|im_start|>ROLE\nCONTENT<|im_end|>\n.
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "model/tokenizer/chat/chat_formats.h"
#include "model/tokenizer/chat/chat_trim.h"
#include "model/tokenizer/chat/python_json.h"
#include "model/tokenizer/chat/tool_texts.h"

namespace tessera {
namespace {

constexpr std::string_view kStart = "<|im_start|>";
constexpr std::string_view kEnd = "<|im_end|>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";

void end_turn(ChatText& text, ChatPart part) {
  text.add_token(kEnd, part);
  text.add("\n", part == ChatPart::answer ? ChatPart::line_end : part);
}

void add_turn(std::string_view role, std::string_view content, ChatText& text) {
  text.add_token(kStart, ChatPart::header);
  text.add(role, ChatPart::header);
  text.add("\n", ChatPart::header);
  text.add(content, ChatPart::header);
  end_turn(text, ChatPart::header);
}

// Text that names what some vocabularies have tokens for: <tools>, <tool_call>, <think>.
void add_tagged(std::string_view tag, ChatText& text, ChatPart part) {
  text.add_maybe_token(tag, part);
}

void add_tools(const Chat& chat, ChatText& text) {
  constexpr ChatPart kPart = ChatPart::header;
  text.add(kQwenToolsBefore, kPart);
  text.add("<tools>", kPart);
  for (const nlohmann::ordered_json& tool : chat.tools) {
    text.add("\n", kPart);
    text.add(python_json(tool), kPart);
  }
  text.add("\n</tools>", kPart);
  text.add(kQwenToolsBehind, kPart);
  add_tagged("<tool_call>", text, kPart);
  add_tagged("</tool_call>", text, kPart);
  text.add(" XML tags:\n", kPart);
  add_tagged("<tool_call>", text, kPart);
  text.add(kQwenToolsExample, kPart);
  add_tagged("</tool_call>", text, kPart);
}

// `comes_behind_text`: a line end stands before the first call.
void add_calls(const ChatMessage& message, bool comes_behind_text, bool takes_text_as_json,
               ChatPart part, ChatText& text) {
  for (const ToolCall& call : message.tool_calls) {
    text.add(comes_behind_text ? "\n" : "", part);
    comes_behind_text = true;
    add_tagged("<tool_call>", text, part);
    text.add("\n{\"name\": \"", part);
    text.add(call.name, part);
    text.add(R"(", "arguments": )", part);
    text.add(takes_text_as_json && call.arguments.is_string() ? call.arguments.get<std::string>()
                                                              : python_json(call.arguments),
             part);
    text.add("}\n", part);
    add_tagged("</tool_call>", text, part);
  }
}

// Answers of tools that stand beside each other are one turn of the user.
void add_tool_answer(const Chat& chat, std::size_t i, ChatText& text) {
  const auto is_tool = [&](std::size_t at) {
    return at < chat.messages.size() && chat.messages[at].role == "tool";
  };
  constexpr ChatPart kPart = ChatPart::header;
  if (i == 0 || !is_tool(i - 1)) {
    text.add_token(kStart, kPart);
    text.add("user", kPart);
  }
  text.add("\n", kPart);
  add_tagged("<tool_response>", text, kPart);
  text.add("\n", kPart);
  text.add(chat.messages[i].content.value_or(""), kPart);
  text.add("\n", kPart);
  add_tagged("</tool_response>", text, kPart);
  if (!is_tool(i + 1)) {
    end_turn(text, kPart);
  }
}

std::string_view first_system(const Chat& chat, std::string_view otherwise) {
  const ChatMessage& first = chat.messages.front();
  return first.role == "system" ? std::string_view(*first.content) : otherwise;
}

ChatPart part_of(const ChatMessage& message) {
  return message.is_learned ? ChatPart::answer : ChatPart::header;
}

void require_no_thinking(const Chat& chat, std::string_view name) {
  for (const ChatMessage& message : chat.messages) {
    if (message.thinking) {
      throw FormatError(fmt::format("has reasoning_content, which {} does not write", name),
                        TESSERA_HERE);
    }
  }
}

// Qwen3's assistant: reasoning stands in a field, or within the content.
struct Answer {
  std::string_view thinking;
  std::string_view content;
};

Answer split_thinking(const ChatMessage& message) {
  Answer answer;
  answer.content = message.content ? std::string_view(*message.content) : std::string_view();
  if (message.thinking) {
    answer.thinking = *message.thinking;
    return answer;
  }
  const std::size_t first_end = answer.content.find(kEndThink);
  if (first_end == std::string_view::npos) {
    return answer;
  }
  std::string_view before = without_line_ends_behind(answer.content.substr(0, first_end));
  if (const std::size_t begin = before.rfind(kThink); begin != std::string_view::npos) {
    before.remove_prefix(begin + kThink.size());
  }
  answer.thinking = without_line_ends_before(before);
  answer.content.remove_prefix(answer.content.rfind(kEndThink) + kEndThink.size());
  answer.content = without_line_ends_before(answer.content);
  return answer;
}

// The last turn of the user that is not an answer of a tool; without one the last turn.
std::size_t last_query(const Chat& chat) {
  for (std::size_t i = chat.messages.size(); i-- > 0;) {
    const ChatMessage& message = chat.messages[i];
    if (message.role == "user" && !(message.content->starts_with("<tool_response>") &&
                                    message.content->ends_with("</tool_response>"))) {
      return i;
    }
  }
  return chat.messages.size() - 1;
}

void add_qwen3_answer(const ChatMessage& message, const Answer& answer, bool writes_thinking,
                      ChatText& text) {
  const ChatPart part = part_of(message);
  text.add_token(kStart, ChatPart::header);
  text.add("assistant\n", ChatPart::header);
  if (writes_thinking) {
    add_tagged(kThink, text, part);
    text.add("\n", part);
    text.add(without_line_ends_before(without_line_ends_behind(answer.thinking)), part);
    text.add("\n", part);
    add_tagged(kEndThink, text, part);
    text.add("\n\n", part);
    text.add(without_line_ends_before(answer.content), part);
  } else {
    text.add(answer.content, part);
  }
  add_calls(message, !answer.content.empty(), true, part, text);
  end_turn(text, part);
}

void add_qwen3_system(const Chat& chat, ChatText& text) {
  const std::string_view system = first_system(chat, "");
  const bool has_system = chat.messages.front().role == "system";
  if (chat.tools.empty()) {
    if (has_system) {
      add_turn("system", system, text);
    }
    return;
  }
  text.add_token(kStart, ChatPart::header);
  text.add("system\n", ChatPart::header);
  text.add(system, ChatPart::header);
  text.add(has_system ? "\n\n" : "", ChatPart::header);
  add_tools(chat, text);
  end_turn(text, ChatPart::header);
}

enum class Thinking : std::uint8_t { of_last_turns, never };

void write_qwen3(const Chat& chat, Thinking thinking, ChatText& text) {
  add_qwen3_system(chat, text);
  const std::size_t query = last_query(chat);
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    const ChatMessage& message = chat.messages[i];
    if (message.role == "tool") {
      add_tool_answer(chat, i, text);
    } else if (message.role == "assistant" && thinking == Thinking::never) {
      add_qwen3_answer(message, {{}, message.content ? *message.content : std::string_view()},
                       false, text);
    } else if (message.role == "assistant") {
      const Answer answer = split_thinking(message);
      const bool is_last = i + 1 == chat.messages.size();
      add_qwen3_answer(message, answer, i > query && (is_last || !answer.thinking.empty()), text);
    } else if (message.role == "user" || i != 0) {
      add_turn(message.role, *message.content, text);
    }
  }
}

}  // namespace

void write_chatml(const Chat& chat, ChatText& text) {
  require_no_thinking(chat, "chatml");
  if (!chat.tools.empty()) {
    throw FormatError("has tools, which chatml does not write", TESSERA_HERE);
  }
  for (const ChatMessage& message : chat.messages) {
    if (!message.tool_calls.empty()) {
      throw FormatError("has tool calls, which chatml does not write", TESSERA_HERE);
    }
    if (message.role != "assistant") {
      add_turn(message.role, *message.content, text);
      continue;
    }
    const ChatPart part = part_of(message);
    text.add_token(kStart, ChatPart::header);
    text.add("assistant\n", ChatPart::header);
    text.add(*message.content, part);
    end_turn(text, part);
  }
}

void write_qwen25(const Chat& chat, ChatText& text) {
  require_no_thinking(chat, "qwen2.5");
  if (chat.tools.empty()) {
    add_turn("system", first_system(chat, kQwen25System), text);
  } else {
    text.add_token(kStart, ChatPart::header);
    text.add("system\n", ChatPart::header);
    text.add(first_system(chat, kQwen25System), ChatPart::header);
    text.add("\n\n", ChatPart::header);
    add_tools(chat, text);
    end_turn(text, ChatPart::header);
  }
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    const ChatMessage& message = chat.messages[i];
    if (message.role == "tool") {
      add_tool_answer(chat, i, text);
    } else if (message.role == "assistant") {
      const ChatPart part = part_of(message);
      const bool has_text = message.content && !message.content->empty();
      text.add_token(kStart, ChatPart::header);
      text.add("assistant", ChatPart::header);
      text.add("\n", message.is_learned ? ChatPart::line_end : ChatPart::header);
      text.add(message.content.value_or(""), part);
      add_calls(message, has_text, false, part, text);
      end_turn(text, part);
    } else if (message.role == "user" || i != 0) {
      add_turn(message.role, *message.content, text);
    }
  }
}

void write_qwen3(const Chat& chat, ChatText& text) {
  write_qwen3(chat, Thinking::of_last_turns, text);
}

void write_qwen3_instruct(const Chat& chat, ChatText& text) {
  require_no_thinking(chat, "qwen3-instruct");
  write_qwen3(chat, Thinking::never, text);
}

}  // namespace tessera
