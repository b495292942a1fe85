#include "model/tokenizer/chat/chat_formats.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "model/json_text.h"
#include "model/tokenizer/chat/chat_templates.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kOtherChatTemplate = "chat_template.json";  // of processors

constexpr std::array<std::string_view, 2> kImTokens = {"<|im_start|>", "<|im_end|>"};
constexpr std::array<std::string_view, 4> kLlamaTokens = {
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
constexpr std::array<std::string_view, 6> kMistralTokens = {
    "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"};

struct Row {
  std::string_view name;
  std::span<const std::string_view> tokens;
  void (*write)(const Chat& chat, ChatText& text);
  std::string (*jinja_template)();
};
constexpr std::array<Row, 7> kRows = {{
    {"chatml", kImTokens, &write_chatml, &chatml_template},
    {"qwen2.5", kImTokens, &write_qwen25, &qwen25_template},
    {"qwen3", kImTokens, &write_qwen3, &qwen3_template},
    {"qwen3-instruct", kImTokens, &write_qwen3_instruct, &qwen3_instruct_template},
    {"llama3", kLlamaTokens, &write_llama3, &llama3_template},
    {"llama3.1", kLlamaTokens, &write_llama31, &llama31_template},
    {"mistral", kMistralTokens, &write_mistral, &mistral_template},
}};

// Chat templates as folders hold them, by XXH3-128 without a line end at the end (which Jinja drops).
struct KnownTemplate {
  std::string_view hash;
  std::string_view format;   // empty: refused
  std::string_view refusal;  // why, for "its chat template {}"
};
constexpr std::array<KnownTemplate, 8> kTemplates = {{
    // of setup_chat_format and many models, with line ends as such and as \n
    {"f0a6a8278439fdb056191e205a440263", "chatml", ""},
    {"577a7fce73f72e1ee2be9fd6966bb5eb", "chatml", ""},
    {"e392aa06018503fd2469c9508f79506e", "qwen2.5", ""},
    {"0fab82ce8f4d5175c9e0155c80737cf2", "qwen3", ""},
    {"cc9ddd5a40bc1c0c8fb5d937b1e8f5d0", "qwen3-instruct", ""},
    {"09facc0e4aa943189799ad6e2dea0594", "llama3", ""},
    {"9ddcd6cd71f96dd76ca7779b7730196a", "llama3.1", ""},
    {"573e1bcc8c56f178c3d57e38f5ff0756", "",
     "is Llama 3.2's, which writes the date of the day: give --chat llama3.1, which writes 26 Jul "
     "2024 and is the same otherwise"},
}};

class TableFormat final : public ChatFormat {
 public:
  explicit TableFormat(const Row& row) : row_(row) {}
  [[nodiscard]] std::string_view name() const override { return row_.name; }
  [[nodiscard]] std::vector<std::string_view> tokens() const override {
    return {row_.tokens.begin(), row_.tokens.end()};
  }
  void write(const Chat& chat, ChatText& text) const override { row_.write(chat, text); }
  [[nodiscard]] std::string jinja_template() const override { return row_.jinja_template(); }

 private:
  const Row& row_;
};

// The template of an object's chat_template: a text, or a list of named ones. Empty: there is none.
std::string template_in(const Json& object) {
  const auto value = object.find("chat_template");
  if (value == object.end()) {
    return {};
  }
  if (value->is_string()) {
    return value->get<std::string>();
  }
  if (value->is_array()) {
    for (const Json& element : *value) {
      if (element.is_object() && element.value("name", Json()) == "default" &&
          element.value("template", Json()).is_string()) {
        return element.at("template").get<std::string>();
      }
    }
  }
  return {};
}

// As transformers chooses: a file of its own first.
std::string find_template(std::span<const TokenizerFile> companions, std::string_view source) {
  for (const std::string_view name :
       {kChatTemplate, kOtherChatTemplate, std::string_view("tokenizer_config.json")}) {
    for (const TokenizerFile& file : companions) {
      if (file.name != name) {
        continue;
      }
      if (name.ends_with(".jinja")) {
        return file.content;
      }
      const Json json = parse_json(file.content, fmt::format("{} beside {}", name, source));
      if (std::string found = json.is_object() ? template_in(json) : ""; !found.empty()) {
        return found;
      }
    }
  }
  return {};
}

std::string_view without_line_end(std::string_view text) {
  return text.ends_with('\n') ? text.substr(0, text.size() - 1) : text;
}

// Empty format and refusal: it is not known.
KnownTemplate known_template(std::string_view text) {
  text = without_line_end(text);
  const std::string hash = xxh3_128(bytes_of(text)).text();
  for (const KnownTemplate& known : kTemplates) {
    if (known.hash == hash) {
      return known;
    }
  }
  for (const Row& row : kRows) {  // of a folder of ours
    if (without_line_end(row.jinja_template()) == text) {
      return {"", row.name, ""};
    }
  }
  return {};
}

}  // namespace

std::string chat_format_names() {
  std::string names;
  for (const Row& row : kRows) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  }
  return names;
}

std::unique_ptr<ChatFormat> find_chat_format(std::string_view name) {
  const auto* const row =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& r) { return r.name == name; });
  return row == kRows.end() ? nullptr : std::make_unique<TableFormat>(*row);
}

std::unique_ptr<ChatFormat> detect_chat_format(const TokenizerFiles& files,
                                               std::string_view source) {
  const std::string list = fmt::format(
      "give the format with --chat: {}, or a file of prefixes and suffixes", chat_format_names());
  const std::string found = find_template(files.companions, source);
  if (found.empty()) {
    throw ConfigError(fmt::format("{} has no chat template: {}", source, list), TESSERA_HERE);
  }
  const KnownTemplate known = known_template(found);
  if (!known.refusal.empty()) {
    throw ConfigError(fmt::format("{}: its chat template {}", source, known.refusal), TESSERA_HERE);
  }
  if (known.format.empty()) {
    throw ConfigError(fmt::format("the chat template of {} is not one of those that are known "
                                  "exactly: {}",
                                  source, list),
                      TESSERA_HERE);
  }
  return find_chat_format(known.format);
}

void keep_chat_template(const ChatFormat& format, std::vector<TokenizerFile>& companions) {
  if (known_template(find_template(companions, "the tokenizer")).format == format.name()) {
    return;
  }
  std::erase_if(companions, [](const TokenizerFile& file) {
    return file.name == kChatTemplate || file.name == kOtherChatTemplate;
  });
  companions.push_back({std::string(kChatTemplate), format.jinja_template()});
}

std::unique_ptr<ChatFormat> choose_chat_format(std::string_view wanted, const TokenizerFiles& files,
                                               std::string_view source) {
  if (wanted == kAutoChat) {
    return detect_chat_format(files, source);
  }
  if (auto format = find_chat_format(wanted)) {
    return format;
  }
  if (!path_exists(wanted)) {
    throw ConfigError(fmt::format("--chat {} is neither {}, one of {}, nor a file", wanted,
                                  kAutoChat, chat_format_names()),
                      TESSERA_HERE);
  }
  return read_chat_format(wanted);
}

}  // namespace tessera
