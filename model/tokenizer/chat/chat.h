// A chat: turns of a system, a user, an assistant and its tools, as data files have them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace tessera {

struct ToolCall {
  std::string name;
  nlohmann::ordered_json arguments;  // an object, or text that is one
};

struct ChatMessage {
  std::string role;                     // "system", "user", "assistant" or "tool"
  std::optional<std::string> content;   // only an assistant's may be missing
  std::optional<std::string> thinking;  // "reasoning_content"
  std::vector<ToolCall> tool_calls;
  bool has_tool_calls = false;  // the key is there, even if the list is empty
  bool is_learned = true;       // what an assistant says here is a target of training
};

struct Chat {
  std::vector<ChatMessage> messages;
  std::vector<nlohmann::ordered_json> tools;  // as the file describes them
};

/// Reads one of
///
///     {"messages": [{"role": "user", "content": "..."}, ...]}       (OpenAI, TRL)
///     {"conversations": [{"from": "human", "value": "..."}, ...]}   (ShareGPT), with "system": "..."
///     {"prompt": ..., "completion": ...}   each a text, or a list of messages
///
/// and "tools": a list, or JSON text of one. Of a prompt nothing is learned, nor of a message with
/// "weight": 0. Other fields are not looked at. Throws FormatError, a clause that says what is wrong
/// with the record: "has no messages", "has a message 2 with the role \"bot\", ...".
[[nodiscard]] Chat parse_chat(const nlohmann::ordered_json& record);

}  // namespace tessera
