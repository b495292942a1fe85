// Formats that a user writes down: prefixes and suffixes by role.
#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "model/json_text.h"
#include "model/tokenizer/chat/chat_formats.h"
#include "model/tokenizer/chat/chat_templates.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

struct Affixes {
  std::string prefix;
  std::string suffix;
};

class FileFormat final : public ChatFormat {
 public:
  FileFormat(std::string name, std::vector<std::string> tokens, std::string begin,
             std::map<std::string, Affixes, std::less<>> roles)
      : name_(std::move(name)),
        tokens_(std::move(tokens)),
        begin_(std::move(begin)),
        roles_(std::move(roles)) {}

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] std::vector<std::string_view> tokens() const override {
    return {tokens_.begin(), tokens_.end()};
  }
  void write(const Chat& chat, ChatText& text) const override {
    if (!chat.tools.empty()) {
      refuse("has tools, which a format by prefixes and suffixes does not write");
    }
    add(begin_, ChatPart::header, text);
    for (const ChatMessage& message : chat.messages) {
      if (!message.tool_calls.empty() || message.thinking) {
        refuse("has tool calls or reasoning_content, which a format by prefixes and suffixes does "
               "not write");
      }
      const auto role = roles_.find(message.role);
      if (role == roles_.end()) {
        refuse(fmt::format("has a turn of the role \"{}\", for which {} has no prefix and suffix",
                           message.role, name_));
      }
      const bool is_answer = message.role == "assistant" && message.is_learned;
      const ChatPart part = is_answer ? ChatPart::answer : ChatPart::header;
      add(role->second.prefix, ChatPart::header, text);
      text.add(*message.content, part);
      const std::size_t end = end_of_answer(role->second.suffix);
      add(std::string_view(role->second.suffix).substr(0, end), part, text);
      add(std::string_view(role->second.suffix).substr(end),
          is_answer ? ChatPart::line_end : ChatPart::header, text);
    }
  }
  [[nodiscard]] std::string jinja_template() const override {
    std::string turns;
    for (const auto& [role, affixes] : roles_) {
      turns += fmt::format("{{%- {} message.role == {} %}}{{{{- {} + message.content + {} }}}}\n",
                           turns.empty() ? "if" : "elif", jinja_literal(role),
                           jinja_literal(affixes.prefix), jinja_literal(affixes.suffix));
    }
    return fmt::format(
        "{{{{- {} }}}}\n{{%- for message in messages %}}\n{}{{%- else %}}{{{{- "
        "raise_exception('there is no format for the role ' + message.role) }}}}\n{{%- endif "
        "%}}\n{{%- endfor %}}\n{{%- if add_generation_prompt %}}{{{{- {} }}}}{{%- endif %}}\n",
        jinja_literal(begin_), turns, jinja_literal(roles_.at("assistant").prefix));
  }

 private:
  [[noreturn]] static void refuse(const std::string& reason) {
    throw FormatError(reason, TESSERA_HERE);
  }

  struct Found {
    std::size_t at = std::string_view::npos;
    std::string_view token;
  };
  // The leftmost token in `text`, the longest of those that begin there.
  [[nodiscard]] Found find_token(std::string_view text) const {
    Found found;
    for (const std::string& token : tokens_) {
      const std::size_t at = text.find(token);
      if (at < found.at ||
          (at == found.at && at != std::string_view::npos && token.size() > found.token.size())) {
        found = {at, token};
      }
    }
    return found;
  }
  [[nodiscard]] std::size_t end_of_answer(std::string_view suffix) const {
    const Found found = find_token(suffix);
    return found.token.empty() ? suffix.size() : found.at + found.token.size();
  }
  void add(std::string_view literal, ChatPart part, ChatText& text) const {
    while (!literal.empty()) {
      const Found found = find_token(literal);
      text.add(literal.substr(0, found.at), part);
      if (found.token.empty()) {
        return;
      }
      text.add_token(found.token, part);
      literal.remove_prefix(found.at + found.token.size());
    }
  }

  std::string name_;
  std::vector<std::string> tokens_;
  std::string begin_;
  std::map<std::string, Affixes, std::less<>> roles_;
};

// Reads a member that is a text, and forgets none that is not known.
class ObjectReader {
 public:
  ObjectReader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) {
      refuse("is not a JSON object");
    }
  }
  [[nodiscard]] std::string text(const char* key) const {
    const auto found = json_.find(key);
    if (found != json_.end() && !found->is_string()) {
      refuse(fmt::format("has a {} that is not a text", key));
    }
    return found == json_.end() ? std::string() : found->get<std::string>();
  }
  void require_keys(std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : json_.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        refuse(fmt::format("has a \"{}\", which is not known; known are {}", shown_text(key),
                           fmt::join(known, ", ")));
      }
    }
  }
  [[noreturn]] void refuse(const std::string& reason) const {
    throw FormatError(fmt::format("{} {}", where_, reason), TESSERA_HERE);
  }

 private:
  const Json& json_;
  std::string where_;
};

}  // namespace

std::unique_ptr<ChatFormat> read_chat_format(const std::filesystem::path& path) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20U;
  const std::string source = path.string();
  const Json json = parse_json(read_whole_file(path, kMostBytes), source);
  const ObjectReader reader(json, source);
  reader.require_keys({"tokens", "begin", "roles"});
  std::vector<std::string> tokens;
  if (const auto list = json.find("tokens"); list != json.end()) {
    for (const Json& token : list->is_array() ? *list : Json::array({nullptr})) {
      if (!token.is_string() || token.get_ref<const std::string&>().empty()) {
        reader.refuse("has tokens that are not a list of texts");
      }
      tokens.push_back(token.get<std::string>());
    }
  }
  const auto roles_json = json.find("roles");
  if (roles_json == json.end() || !roles_json->is_object() || !roles_json->contains("assistant")) {
    reader.refuse("has no roles with an assistant among them");
  }
  std::map<std::string, Affixes, std::less<>> roles;
  for (const auto& [role, affixes] : roles_json->items()) {
    constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};
    if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
      reader.refuse(fmt::format("has a role \"{}\"; known are {}", shown_text(role),
                                fmt::join(kRoles, ", ")));
    }
    const ObjectReader one(affixes, fmt::format("{}: the role {}", source, role));
    one.require_keys({"prefix", "suffix"});
    roles[role] = {one.text("prefix"), one.text("suffix")};
  }
  if (roles["assistant"].suffix.empty()) {
    reader.refuse("has no suffix for the assistant: a model would not learn to end its turn");
  }
  return std::make_unique<FileFormat>(path.filename().string(), std::move(tokens),
                                      reader.text("begin"), std::move(roles));
}

}  // namespace tessera
