// Files in tiktoken's form, and how the kind of a tokenizer's file is recognised.
#define BOOST_TEST_MODULE tiktoken
#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/hash.h"
#include "tests/model/tokenizer/small_tokenizer.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      bits = (bits << 8U) | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += i + j <= bytes.size() ? kDigits[(bits >> (18 - 6 * j)) & 63U] : '=';
    }
  }
  return text;
}

/// The bytes, then `tokens`, ranked in their order.
std::string ranked(const std::vector<std::string>& tokens) {
  std::string content;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte) {
    content +=
        base64(std::string(1, static_cast<char>(byte))) + " " + std::to_string(rank++) + "\n";
  }
  for (const std::string& token : tokens) {
    content += base64(token) + " " + std::to_string(rank++) + "\n";
  }
  return content;
}

std::unique_ptr<Tokenizer> make_ranked(std::string content, const char* kind) {
  return make_tokenizer(
      {.kind = kind, .name = "small.tiktoken", .content = std::move(content), .companions = {}},
      "small.tiktoken");
}

template <typename Error>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tiktoken)

BOOST_AUTO_TEST_CASE(pairs_merge_by_the_rank_of_both_together) {
  // "bc" before "ab"; "abcd" is built of "a" and "bcd" too
  const auto tokenizer = make_ranked(ranked({"bc", "ab", "bcd", "abcd"}), "tiktoken-qwen");
  BOOST_TEST(encode(*tokenizer, "xabcdx abc") == (Ids{'x', 259, 'x', ' ', 'a', 256}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_word_that_is_a_token_is_taken_whole) {
  // no pairs lead to "xyz"
  const auto tokenizer = make_ranked(ranked({"xyz"}), "tiktoken-llama3");
  BOOST_TEST(encode(*tokenizer, "xyz xyz") == (Ids{256, ' ', 'x', 'y', 'z'}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(families_have_their_special_tokens) {
  const std::string content = ranked({"ab"});
  const auto llama3 = make_ranked(content, "tiktoken-llama3");
  BOOST_TEST(llama3->vocab_size() == 257 + 256);
  BOOST_TEST(llama3->begin_tokens() == (Ids{257}), boost::test_tools::per_element());
  BOOST_TEST(llama3->end_token() == 258);
  BOOST_TEST(llama3->token_id("<|eot_id|>").value_or(-1) == 257 + 9);
  BOOST_TEST(llama3->stop_tokens() == (std::vector<Index>{258, 257 + 9, 257 + 8}),
             boost::test_tools::per_element());
  BOOST_TEST(encode(*llama3, "ab<|eot_id|>") == (Ids{256, 257 + 9}),
             boost::test_tools::per_element());
  const auto llama4 = make_ranked(content, "tiktoken-llama4");
  BOOST_TEST(llama4->vocab_size() == 257 + 2048);
  BOOST_TEST(llama4->token_id("<|reasoning_thinking_end|>").value_or(-1) == 257 + 1143);
  const auto qwen = make_ranked(content, "tiktoken-qwen");
  BOOST_TEST(qwen->vocab_size() == 257 + 208);
  BOOST_TEST(qwen->end_token() == 257);
  BOOST_TEST(qwen->begin_tokens().empty());
}

BOOST_AUTO_TEST_CASE(damaged_lines_are_refused_by_number) {
  for (const auto& [content, named] : std::vector<std::pair<std::string, std::string>>{
           {"YQ== 0\nYg=\n", "line 2 is not a token"},
           {"YQ== 0\n Yg== 1\n", "line 2 is not a token"},
           {"YQ== 0\nYg== 1 2\n", "line 2 is not a token"},
           {"YQ== 0\nYg== -1\n", "line 2 is not a token"},
           {"YQ== 0\nYg== 99999999\n", "line 2 is not a token"},
           {"YQ== 0\n= 1\n", "line 2 is not a token"},
           {"YQ== 0\nYg== 0\n", "line 2 gives rank 0 a second time"},
           {"YQ== 0\r\n\r\nYQ== 1\r\n", "line 3 gives a token a second time"},
           {"YQ== 0\n", "has no token for the bytes 0x00 0x01"}}) {
    const std::string message =
        message_of<FormatError>([&] { make_ranked(content, "tiktoken-qwen"); });
    BOOST_TEST(message.find(named) != std::string::npos, message << ", without: " << named);
  }
}

BOOST_AUTO_TEST_CASE(an_unknown_vocabulary_needs_its_kind) {
  const TempFolder folder;
  const std::filesystem::path file = folder / "own.tiktoken";
  write_whole_file(file, bytes_of(ranked({"ab"})));
  const std::string message =
      message_of<ConfigError>([&] { static_cast<void>(read_tokenizer_files(file)); });
  BOOST_TEST(message.find("own.tiktoken has tiktoken's form") != std::string::npos, message);
  BOOST_TEST(message.find("--tokenizer-kind: tiktoken-llama3 (Llama 3)") != std::string::npos,
             message);
  const TokenizerFiles files = read_tokenizer_files(file, "tiktoken-qwen");
  BOOST_TEST(make_tokenizer(files, "x")->kind() == "tiktoken-qwen");
}

BOOST_AUTO_TEST_CASE(a_folder_is_read_with_what_is_beside_its_tokenizer) {
  const TempFolder folder;
  BOOST_TEST(message_of<ConfigError>([&] {
               static_cast<void>(read_tokenizer_files(folder.path()));
             }).find("has neither tokenizer.json nor tokenizer.model") != std::string::npos);
  BOOST_TEST(!has_tokenizer(folder.path()));
  const std::string json = small_json({{"a", "b"}}).dump();
  const std::string config = R"({"eos_token": "ab"})";
  write_whole_file(folder / "tokenizer.json", bytes_of(json));
  write_whole_file(folder / "tokenizer_config.json", bytes_of(config));
  write_whole_file(folder / "model.safetensors", bytes_of("x"));
  for (const std::filesystem::path& path : {folder.path(), folder / "tokenizer.json"}) {
    const TokenizerFiles files = read_tokenizer_files(path);
    BOOST_TEST(files.kind == "tokenizer.json");
    BOOST_TEST(files.hash() == xxh3_128(bytes_of(json)).text());
    BOOST_TEST_REQUIRE(files.companions.size() == 1U);
    BOOST_TEST((files.companions[0] == TokenizerFile{"tokenizer_config.json", config}));
    BOOST_TEST(make_tokenizer(files, "x")->end_token() == 256);
  }
  // Llama 3's folder has both; the other file beside a SentencePiece model is kept with it.
  write_whole_file(folder / "tokenizer.model", bytes_of("YQ== 0\n"));
  BOOST_TEST(read_tokenizer_files(folder.path()).kind == "tokenizer.json");
  std::filesystem::remove(folder / "tokenizer.model");
  write_whole_file(folder / "tokenizer.model", bytes_of("\n\x0e\n\x05<unk>"));
  const TokenizerFiles both = read_tokenizer_files(folder.path());
  BOOST_TEST(both.kind == "sentencepiece");
  BOOST_TEST_REQUIRE(both.companions.size() == 2U);
  const std::vector<TokenizerFile> kept = kept_files(both);
  BOOST_TEST_REQUIRE(kept.size() == 3U);
  BOOST_TEST(kept[0].name == "tokenizer.model");
  BOOST_TEST((kept[2] == TokenizerFile{"tokenizer.json", json}));
  BOOST_TEST(read_tokenizer_files("bytes").kind == "bytes");
  BOOST_TEST(kept_files(read_tokenizer_files("bytes")).empty());
  BOOST_TEST(message_of<FormatError>([] {
               static_cast<void>(make_tokenizer(
                   {.kind = "unigram", .name = {}, .content = "x", .companions = {}}, "y"));
             }).find("y is of the kind unigram") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
