// Chats in, ids and masks out, for compare_chats.py: stdin holds JSON Lines; stdout gets a line of JSON for
// each: {"text": ..., "ids": [...], "mask": [...], "prompt": [...]}, of the chat before its last
// answer, or {"error": ...}.
//
//   encode_chats TOKENIZER FORMAT|auto|FILE assistant|turn|all
//   encode_chats TOKENIZER FORMAT|auto|FILE template    prints the format's Jinja template
#include <iostream>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "model/tokenizer/chat/chat_encoder.h"

namespace tessera {
namespace {

int run(const std::vector<std::string>& words) {
  const TokenizerFiles files = read_tokenizer_files(words.at(0));
  const auto tokenizer = make_tokenizer(files, words.at(0));
  if (words.at(2) == "template") {
    std::cout << choose_chat_format(words.at(1), files, words.at(0))->jinja_template();
    return std::cout.flush() ? 0 : 1;
  }
  const ChatLoss loss = words.at(2) == "all"    ? ChatLoss::all
                        : words.at(2) == "turn" ? ChatLoss::turn
                                                : ChatLoss::assistant;
  const ChatEncoder encoder(*tokenizer, choose_chat_format(words.at(1), files, words.at(0)), loss,
                            words.at(0));
  std::string line;
  while (std::getline(std::cin, line)) {
    nlohmann::ordered_json out;
    try {
      Chat chat = parse_chat(nlohmann::ordered_json::parse(line));
      ChatText text;
      encoder.format().write(chat, text);
      std::vector<std::uint32_t> ids;
      std::vector<std::uint8_t> mask;
      encoder.encode(chat, ids, mask);
      out = {{"text", text.text()}, {"ids", ids}, {"mask", mask}};
      while (!chat.messages.empty() && chat.messages.back().role == "assistant") {
        chat.messages.pop_back();
      }
      if (!chat.messages.empty()) {
        out["prompt"] = encoder.prompt(std::move(chat)).ids;
      }
    } catch (const FormatError& error) {
      out = {{"error", error.message()}};
    }
    std::cout << out.dump() << '\n';
  }
  return std::cout.flush() ? 0 : 1;
}

}  // namespace
}  // namespace tessera

// NOLINTNEXTLINE(bugprone-exception-escape): ends a test, as it should
int main(int argc, char** argv) {
  try {
    return tessera::run({argv + 1, argv + argc});
  } catch (const tessera::Error& error) {
    std::cerr << "encode_chats: " << error.message() << '\n';
    return error.exit_status();
  }
}
