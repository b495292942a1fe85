#include "jobs/generate/chat.h"

#include <algorithm>
#include <iostream>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "jobs/generate/generator.h"
#include "jobs/generate/text_printer.h"
#include "jobs/program.h"
#include "kernels/base/error.h"
#include "model/tokenizer/chat/chat_encoder.h"

namespace tessera::generation {
namespace {

// The next turn of the user; none at the end of stdin.
std::optional<std::string> read_turn() {
  static const bool is_terminal = isatty(STDIN_FILENO) == 1;
  std::string line;
  while (line.empty()) {
    if (is_terminal) {
      std::cout << "> " << std::flush;
    }
    if (!std::getline(std::cin, line)) {
      if (is_terminal) {
        std::cout << "\n";
      }
      return std::nullopt;
    }
    if (line.ends_with('\r')) {
      line.pop_back();
    }
  }
  return line;
}

class ChatWriter {
 public:
  ChatWriter(const Options& options, const TextTokens& tokens, const LoadedModel& loaded)
      : options_(options),
        tokens_(tokens),
        config_(loaded.config),
        encoder_(*tokens.tokenizer, choose_chat_format(options.chat, tokens.files, tokens.source),
                 ChatLoss::assistant, tokens.source),
        generator_(options, loaded) {
    if (!options.system.empty()) {
      add("system", options.system);
    }
  }

  void answer(std::string question) {
    add("user", std::move(question));
    const ChatPrompt prompt = encode();
    const auto length = std::ssize(prompt.ids);
    if (length >= config_.max_position) {
      refuse(fmt::format("the chat has {} tokens, and the model {} positions: begin another one",
                         length, config_.max_position));
    }
    GenerationOptions how = options_.generation;
    how.max_tokens = std::min(how.max_tokens, config_.max_position - length);
    if (prompt.end_token) {
      how.end_tokens.push_back(static_cast<std::int32_t>(*prompt.end_token));
    }
    TextPrinter printer(*tokens_.tokenizer, prompt.end_text);
    Index written = 0;
    bool ended = false;
    generator_.run(std::vector<std::int32_t>(prompt.ids.begin(), prompt.ids.end()), how,
                   [&](std::int32_t id) {
                     ++written;
                     ended = !printer.add(id);
                     return !ended && std::cout.good();
                   });
    printer.finish();
    if (written == how.max_tokens && !ended) {
      say_note(
          fmt::format("generate: the answer is cut off after {} tokens: --max-tokens", written));
    }
    add("assistant", printer.text());
  }

 private:
  void add(const char* role, std::string content) {
    ChatMessage message;
    message.role = role;
    message.content = std::move(content);
    chat_.messages.push_back(std::move(message));
  }

  [[nodiscard]] ChatPrompt encode() const {
    try {
      return encoder_.prompt(chat_);
    } catch (const FormatError& error) {
      refuse(fmt::format("the chat {}", error.message()));
    }
  }

  const Options& options_;
  const TextTokens& tokens_;
  const ModelConfig& config_;
  ChatEncoder encoder_;
  Generator generator_;
  Chat chat_;
};

}  // namespace

void hold_chat(const Options& options, const TextTokens& tokens, const LoadedModel& loaded) {
  ChatWriter writer(options, tokens, loaded);
  if (!options.prompt.empty()) {
    writer.answer(options.prompt);
    return;
  }
  while (std::cout.good()) {
    std::optional<std::string> question = read_turn();
    if (!question) {
      return;
    }
    writer.answer(std::move(*question));
  }
}

}  // namespace tessera::generation
