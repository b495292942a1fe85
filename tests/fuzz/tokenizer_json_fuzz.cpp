// Any text as tokenizer.json, and as the files beside it. Half of the inputs are put into a sound file, so
// that patterns, added tokens and templates are reached without 256 tokens of bytes in the input.
#include "tests/fuzz/tokenizer_fuzz.h"
#include "tests/model/tokenizer/small_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  tessera::TokenizerFiles files = {.kind = std::string(tessera::kTokenizerJsonKind),
                                   .name = "tokenizer.json",
                                   .content = text,
                                   .companions = {}};
  tessera::fuzz::try_tokenizer(files);
  static const nlohmann::json sound = tessera::test::small_json({{"a", "b"}, {" ", "a"}});
  const nlohmann::json part = nlohmann::json::parse(text, nullptr, false);
  if (part.is_object()) {
    nlohmann::json json = sound;
    json.merge_patch(part);
    files.content = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    tessera::fuzz::try_tokenizer(files);
    files.content = sound.dump();
    files.companions = {{"tokenizer_config.json", text}, {"generation_config.json", text}};
    tessera::fuzz::try_tokenizer(files);
  }
  return 0;
}
