// What stands beside exported weights: the tokenizer, and the tokens that end a text.
#include "runtime/checkpoint/export_companions.h"

#include <algorithm>

#include <boost/test/unit_test.hpp>

#include "tests/model/tokenizer/small_tokenizer.h"

namespace tessera::test {
namespace {

constexpr int kTurnEnd = 257;
constexpr int kTextEnd = 258;

RunTokenizer chat_tokenizer(std::vector<TokenizerFile> companions) {
  nlohmann::json json = small_json({{"H", "i"}});
  json["added_tokens"] = {added("<|im_end|>", kTurnEnd), added("<|endoftext|>", kTextEnd)};
  return {.kind = std::string(kTokenizerJsonKind),
          .vocab_size = kTextEnd + 1,
          .end_token = kTextEnd,
          .model = json.dump(),
          .companions = std::move(companions)};
}

// generation_config.json among the files, where nothing but it may differ from what the run keeps.
std::string generation_of(const RunTokenizer& tokenizer) {
  std::vector<TokenizerFile> files = export_companions(tokenizer);
  std::vector<TokenizerFile> kept = kept_files(files_of(tokenizer));
  const auto is_generation = [](const TokenizerFile& file) {
    return file.name == "generation_config.json";
  };
  const auto found = std::find_if(files.begin(), files.end(), is_generation);
  const std::string content = found == files.end() ? "none" : found->content;
  std::erase_if(files, is_generation);
  std::erase_if(kept, is_generation);
  BOOST_TEST((files == kept));
  return content;
}

nlohmann::json ends_of(const std::string& generation) {
  return nlohmann::json::parse(generation).at("eos_token_id");
}

const nlohmann::json kBoth = {kTextEnd, kTurnEnd};

}  // namespace

BOOST_AUTO_TEST_SUITE(companions_of_exports)

BOOST_AUTO_TEST_CASE(text_ends_where_generate_ends_it) {
  BOOST_TEST((ends_of(generation_of(chat_tokenizer({}))) == kBoth));
}

BOOST_AUTO_TEST_CASE(what_a_generation_config_lacks_is_added_and_the_rest_of_it_stays) {
  const std::string base =
      R"({"temperature": 0.7, "eos_token_id": 258, "_from_model_config": true, "a": [1]})";
  const std::string added = generation_of(chat_tokenizer({{"generation_config.json", base}}));
  BOOST_TEST((nlohmann::json::parse(added) ==
              nlohmann::json{{"temperature", 0.7}, {"eos_token_id", kBoth}, {"a", {1}}}));
  const std::string none = R"({"eos_token_id": null})";
  BOOST_TEST((ends_of(generation_of(chat_tokenizer({{"generation_config.json", none}}))) == kBoth));
}

BOOST_AUTO_TEST_CASE(a_generation_config_that_has_them_or_is_broken_is_kept_byte_for_byte) {
  for (const std::string text : {R"({"eos_token_id": [257, 258], "top_k":20})", "{", "[1]", "7"}) {
    BOOST_TEST(generation_of(chat_tokenizer({{"generation_config.json", text}})) == text);
  }
}

BOOST_AUTO_TEST_CASE(without_a_tokenizer_the_end_token_of_the_data_is_what_is_known) {
  BOOST_TEST(
      (ends_of(generation_of({.kind = "ids", .vocab_size = 9, .end_token = 8, .model = {}})) ==
       nlohmann::json(8)));
  BOOST_TEST(generation_of({.kind = "ids", .vocab_size = 9, .end_token = -1, .model = {}}) ==
             "none");
  BOOST_TEST(generation_of({.kind = "bytes", .vocab_size = 256, .end_token = -1, .model = {}}) ==
             "none");
  RunTokenizer unreadable = chat_tokenizer({});
  unreadable.model = R"({"version": "1.0"})";
  BOOST_TEST((ends_of(generation_of(unreadable)) == nlohmann::json(kTextEnd)));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
