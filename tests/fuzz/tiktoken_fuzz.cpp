// Any bytes as a file in tiktoken's form, alone and behind the 256 bytes, which no short input holds.
#include "tests/fuzz/tokenizer_fuzz.h"

namespace {

std::string single_bytes() {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string content;
  for (unsigned byte = 0; byte < 256; ++byte) {
    content += {kDigits[byte >> 2U], kDigits[(byte & 3U) << 4U], '=', '=', ' '};
    content += std::to_string(byte) + "\n";
  }
  return content;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string all_bytes = single_bytes();
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const std::string& content : {text, all_bytes + text}) {
    tessera::fuzz::try_tokenizer(
        {.kind = "tiktoken-qwen", .name = "fuzz.tiktoken", .content = content, .companions = {}});
  }
  return 0;
}
