#include "model/tokenizer/chat/chat.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/escaped_text.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

struct RoleName {
  std::string_view name;
  std::string_view role;
};
constexpr std::array<RoleName, 12> kRoles = {{{"system", "system"},
                                              {"user", "user"},
                                              {"human", "user"},
                                              {"assistant", "assistant"},
                                              {"gpt", "assistant"},
                                              {"chatgpt", "assistant"},
                                              {"model", "assistant"},
                                              {"tool", "tool"},
                                              {"function", "tool"},
                                              {"ipython", "tool"},
                                              {"observation", "tool"},
                                              {"function_response", "tool"}}};

[[noreturn]] void refuse(const std::string& reason) {
  throw FormatError(reason, TESSERA_HERE);
}

std::string shown(std::string_view text) {
  constexpr std::size_t kMostShown = 40;
  return shown_text(text.substr(0, kMostShown));
}

// Null where there is no such member, or it is null.
const Json* find(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// One message; `number` is for messages to people, from 1.
class MessageReader {
 public:
  MessageReader(const Json& json, std::size_t number) : json_(json), number_(number) {
    if (!json.is_object()) {
      refuse_this("that is not an object");
    }
  }

  [[nodiscard]] ChatMessage read(std::string_view role_key, std::string_view content_key) const {
    ChatMessage message;
    message.role = role_of(text(role_key));
    message.has_tool_calls = json_.contains("tool_calls");
    if (const Json* const calls = find(json_, "tool_calls")) {
      message.tool_calls = read_calls(*calls);
    }
    const bool is_assistant = message.role == "assistant";
    if (!is_assistant && !message.tool_calls.empty()) {
      refuse_this("with tool_calls that is not of an assistant");
    }
    if (find(json_, content_key) != nullptr) {
      message.content = text(content_key);
    } else if (message.tool_calls.empty()) {
      refuse_this(fmt::format("without {}", content_key));
    }
    if (find(json_, "reasoning_content") != nullptr) {
      message.thinking = text("reasoning_content");
    }
    if (const Json* const weight = find(json_, "weight")) {
      if (*weight != 0 && *weight != 1) {
        refuse_this("with a weight that is neither 0 nor 1");
      }
      message.is_learned = *weight == 1;
    }
    return message;
  }

 private:
  [[noreturn]] void refuse_this(const std::string& reason) const {
    refuse(fmt::format("has a message {} {}", number_, reason));
  }
  [[nodiscard]] std::string text(std::string_view key) const {
    const Json* const value = find(json_, key);
    if (value == nullptr) {
      refuse_this(fmt::format("without {}", key));
    }
    if (!value->is_string()) {
      refuse_this(
          fmt::format("whose {} is not a text but of the type {}", key, value->type_name()));
    }
    return value->get<std::string>();
  }
  [[nodiscard]] std::string role_of(const std::string& name) const {
    const auto* const row = std::find_if(kRoles.begin(), kRoles.end(),
                                         [&](const RoleName& role) { return role.name == name; });
    if (row == kRoles.end()) {
      refuse_this(fmt::format("with the role \"{}\"; system, user, assistant and tool are read",
                              shown(name)));
    }
    return std::string(row->role);
  }
  // [{"function": {"name": ..., "arguments": ...}}], or without "function".
  [[nodiscard]] std::vector<ToolCall> read_calls(const Json& json) const {
    std::vector<ToolCall> calls;
    if (!json.is_array()) {
      refuse_this("whose tool_calls are not a list");
    }
    for (const Json& element : json) {
      const Json* const function = element.is_object() ? find(element, "function") : nullptr;
      const Json& call = function == nullptr ? element : *function;
      const Json* const name = call.is_object() ? find(call, "name") : nullptr;
      const Json* const arguments = call.is_object() ? find(call, "arguments") : nullptr;
      if (name == nullptr || !name->is_string() || arguments == nullptr) {
        refuse_this("with a tool call that has no name or no arguments");
      }
      calls.push_back({name->get<std::string>(), *arguments});
    }
    return calls;
  }

  const Json& json_;
  std::size_t number_;
};

void add_messages(const Json& list, std::string_view role_key, std::string_view content_key,
                  bool are_learned, Chat& chat) {
  for (const Json& json : list) {
    const MessageReader reader(json, chat.messages.size() + 1);
    chat.messages.push_back(reader.read(role_key, content_key));
    chat.messages.back().is_learned = chat.messages.back().is_learned && are_learned;
  }
}

void add_list(const Json& value, std::string_view name, std::string_view role_key,
              std::string_view content_key, Chat& chat) {
  if (!value.is_array()) {
    refuse(fmt::format("has {} that are not a list", name));
  }
  add_messages(value, role_key, content_key, true, chat);
}

// The prompt or the completion: a text that `role` says, or a list of messages.
void add_side(const Json& value, std::string_view name, std::string_view role, bool is_learned,
              Chat& chat) {
  if (value.is_string()) {
    ChatMessage message;
    message.role = role;
    message.content = value.get<std::string>();
    message.is_learned = is_learned;
    chat.messages.push_back(std::move(message));
  } else if (value.is_array()) {
    add_messages(value, "role", "content", is_learned, chat);
  } else {
    refuse(fmt::format("has a {} that is neither a text nor a list of messages", name));
  }
}

// JSON text within a record is read again, and what is written of it is written level by level.
Json parse_tools(const std::string& text) {
  static constexpr int kMostDepth = 64;
  return Json::parse(
      text,
      [](int depth, Json::parse_event_t /*event*/, Json& /*value*/) {
        if (depth > kMostDepth) {
          refuse(fmt::format("has tools that are nested deeper than {}", kMostDepth));
        }
        return true;
      },
      false);
}

void add_tools(const Json& value, Chat& chat) {
  const Json list = value.is_string() ? parse_tools(value.get_ref<const std::string&>()) : value;
  if (!list.is_array()) {
    refuse("has tools that are not a list");
  }
  chat.tools.assign(list.begin(), list.end());
}

}  // namespace

Chat parse_chat(const Json& record) {
  if (!record.is_object()) {
    refuse("is not a JSON object");
  }
  const Json* const messages = find(record, "messages");
  const Json* const conversations = find(record, "conversations");
  const Json* const prompt = find(record, "prompt");
  const Json* const completion = find(record, "completion");
  const int kinds = (messages != nullptr ? 1 : 0) + (conversations != nullptr ? 1 : 0) +
                    (prompt != nullptr || completion != nullptr ? 1 : 0);
  if (kinds == 0) {
    refuse("has no messages, no conversations, and no prompt and completion");
  }
  if (kinds > 1) {
    refuse("has more than one of messages, conversations, and prompt and completion");
  }
  Chat chat;
  if (messages != nullptr) {
    add_list(*messages, "messages", "role", "content", chat);
  } else if (conversations != nullptr) {
    const Json* const system = find(record, "system");
    // NOLINTNEXTLINE(readability-container-size-empty): no text of JSON is empty(), "" neither
    if (system != nullptr && *system != "") {
      add_side(*system, "system", "system", true, chat);
    }
    add_list(*conversations, "conversations", "from", "value", chat);
  } else {
    if (prompt == nullptr || completion == nullptr) {
      refuse(prompt == nullptr ? "has a completion and no prompt"
                               : "has a prompt and no completion");
    }
    add_side(*prompt, "prompt", "user", false, chat);
    add_side(*completion, "completion", "assistant", true, chat);
  }
  if (chat.messages.empty()) {
    refuse("has no messages");
  }
  if (const Json* const tools = find(record, "tools")) {
    add_tools(*tools, chat);
  }
  return chat;
}

}  // namespace tessera
