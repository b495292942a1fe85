#include "runtime/data/tokenizer_match.h"

#include <fstream>
#include <iterator>

#include <boost/test/unit_test.hpp>

#include "tests/runtime/data/token_files.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

TokenizerFacts facts(const std::string& source, const std::string& kind, Index vocab,
                     const std::string& hash = {}) {
  return {.source = source, .kind = kind, .name = {}, .vocab_size = vocab, .model_hash = hash};
}

const TokenizerFacts kBytes = facts("bytes.h5", "bytes", 256);
const TokenizerFacts kPieces = facts("pieces.h5", "sentencepiece", 32000, "0123456789abcdef");
const TokenizerFacts kOthers = facts("others.h5", "sentencepiece", 32000, "fedcba9876543210");
const TokenizerFacts kJson = facts("folder", "tokenizer.json", 0, "aaaa0000");

std::string comparison(const TokenizerFacts& a, const TokenizerFacts& b) {
  TokenizerCheck check(OnTokenizerMismatch::refuse);
  return message_of<ConfigError>([&] { check.compare(a, b); });
}

bool suits(const TokenizerFacts& tokens, Index model_vocab) {
  TokenizerCheck check(OnTokenizerMismatch::refuse);
  return message_of<ConfigError>([&] { check.compare_vocabulary(tokens, model_vocab); }) ==
         "no exception";
}

BOOST_AUTO_TEST_SUITE(tokenizer_match)

BOOST_AUTO_TEST_CASE(known_tokenizers_are_the_same_or_refused_with_both_sides) {
  for (const TokenizerFacts& one : {kBytes, kPieces, kOthers, kJson}) {
    BOOST_TEST(comparison(one, one) == "no exception");
  }
  BOOST_TEST(comparison(kPieces, kBytes) ==
             "pieces.h5 and bytes.h5 have other tokens: a SentencePiece model (hash 01234567, "
             "32,000 tokens), and bytes (256 tokens): use the same tokenizer for both, or give "
             "--allow-tokenizer-mismatch");
  BOOST_TEST(contains(comparison(kBytes, kPieces), "bytes.h5 and pieces.h5 have other tokens"));
  BOOST_TEST(contains(comparison(kPieces, kOthers), "hash fedcba98"));
  BOOST_TEST(contains(comparison(kJson, kBytes), "a tokenizer.json (hash aaaa0000), and bytes"));
  // the same SentencePiece model may be kept as tokenizer.json
  BOOST_TEST(comparison(kJson, kPieces) == "no exception");
}

BOOST_AUTO_TEST_CASE(ids_made_elsewhere_are_compared_by_their_vocabulary_and_reported_once) {
  const TokenizerFacts ids = facts("ids.h5", "ids", 31000);
  BOOST_TEST(comparison(ids, kPieces) == "no exception");
  BOOST_TEST(comparison(ids, facts("more.h5", "ids", 50257)) == "no exception");
  BOOST_TEST(contains(comparison(ids, kBytes), "ids.h5 and bytes.h5 have other tokens: an unknown "
                                               "tokenizer (31,000 tokens), and bytes"));
  BOOST_TEST(contains(comparison(kBytes, ids), "bytes.h5 and ids.h5 have other tokens"));
  TokenizerCheck check(OnTokenizerMismatch::refuse);
  check.compare(ids, kPieces);
  check.compare(kPieces, ids);
  check.compare_vocabulary(ids, 32000);
  BOOST_TEST(check.notes() ==
                 std::vector<std::string>{
                     "ids.h5: unknown tokenizer: the ids were made elsewhere, and only their "
                     "vocabulary of 31,000 can be compared"},
             boost::test_tools::per_element());
}

// Vocabularies of published models and of the tokenizers that come with them.
BOOST_AUTO_TEST_CASE(padding_of_published_models_is_none_of_a_mismatch) {
  struct Published {
    Index tokenizer;
    Index model;
  };
  for (const Published& row : {Published{151643, 151936},
                               {151665, 151936},
                               {151669, 151936},
                               {151665, 152064},
                               {128000, 128256},
                               {128256, 128256},
                               {32000, 32000},
                               {32000, 32064},
                               {32768, 32768},
                               {50257, 50304},
                               {50257, 50257},
                               {50295, 51200},
                               {100015, 102400},
                               {128815, 129280},
                               {49152, 49152},
                               {50277, 50688},
                               {262145, 262208},
                               {256, 256},
                               {256, 384}}) {
    BOOST_TEST(suits(facts("x", "sentencepiece", row.tokenizer), row.model),
               row.tokenizer << " of " << row.model);
  }
  for (const Published& row : {Published{256, 151936},
                               {256, 50304},
                               {256, 512},
                               {32000, 151936},
                               {50257, 128256},
                               {32000, 50257}}) {
    BOOST_TEST(!suits(facts("x", "bytes", row.tokenizer), row.model),
               row.tokenizer << " of " << row.model);
    BOOST_TEST(!suits(facts("x", "ids", row.tokenizer), row.model));
  }
  BOOST_TEST(suits(kJson, 151936));  // its vocabulary is not known
  BOOST_TEST(suits(kBytes, 0));      // the model takes the data's
}

BOOST_AUTO_TEST_CASE(what_is_allowed_is_reported) {
  TokenizerCheck check(OnTokenizerMismatch::report);
  check.compare(kPieces, kBytes);
  check.compare_vocabulary(kBytes, 151936);
  BOOST_REQUIRE(check.notes().size() == 2U);
  BOOST_TEST(check.notes()[1] ==
             "allowed by --allow-tokenizer-mismatch: bytes.h5 has tokens of bytes (256 tokens), "
             "and the model a vocabulary of 151,936, more than padding explains");
}

BOOST_AUTO_TEST_CASE(a_folder_says_whose_tokens_it_has) {
  const TempFolder folder;
  BOOST_TEST(!tokenizer_of_folder(folder.path(), "x").has_value());
  std::ofstream(folder / "tokenizer.json") << "{}";
  BOOST_TEST(tokenizer_of_folder(folder.path(), "x")->kind == "tokenizer.json");
  std::ofstream(folder / "tokenizer.model") << "a model";
  const TokenizerFacts theirs = tokenizer_of_folder(folder.path(), "x").value();
  BOOST_TEST(theirs.kind == "sentencepiece");
  BOOST_TEST(!theirs.model_hash.empty());
  write_run_tokenizer(folder.path(),
                      {.kind = "bytes", .vocab_size = 256, .end_token = -1, .model = {}});
  BOOST_TEST(tokenizer_of_folder(folder.path(), "x")->kind == "bytes");
  BOOST_TEST(run_folder_of("/runs/a/step-00000001") == "/runs/a");
  BOOST_TEST(run_folder_of("/runs/a/./step-00000001/") == "/runs/a");
}

// Nothing that is known of a run's tokens is lost, whatever data it continues with.
BOOST_AUTO_TEST_CASE(a_known_tokenizer_is_never_deleted) {
  const TempFolder run;
  const auto model = [&](const char* name) {
    std::ifstream file(run / name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const RunTokenizer first = {
      .kind = "sentencepiece", .vocab_size = 300, .end_token = 2, .model = "the first model"};
  BOOST_TEST(write_run_tokenizer(run.path(), first).empty());
  BOOST_TEST(write_run_tokenizer(run.path(), first).empty());
  const RunTokenizer ids = {.kind = "ids", .vocab_size = 300, .end_token = -1, .model = {}};
  BOOST_TEST(write_run_tokenizer(run.path(), ids).empty());
  BOOST_TEST(read_run_tokenizer(run.path())->kind == "sentencepiece");
  BOOST_TEST(read_run_tokenizer(run.path())->end_token == 2);
  BOOST_TEST(model("tokenizer.model") == "the first model");
  // Another one comes in its place, and the first stays beside it.
  const RunTokenizer bytes = {.kind = "bytes", .vocab_size = 256, .end_token = -1, .model = {}};
  BOOST_TEST(write_run_tokenizer(run.path(), bytes).size() == 2U);
  BOOST_TEST(read_run_tokenizer(run.path())->kind == "bytes");
  BOOST_TEST(model(".earlier-tokenizer.model.1") == "the first model");
  BOOST_TEST(!std::filesystem::exists(run / "tokenizer.model"));
  // With one description for both, too.
  RunTokenizer second = first;
  BOOST_TEST(write_run_tokenizer(run.path(), first).empty());
  second.model = "the second model";
  BOOST_TEST(write_run_tokenizer(run.path(), second).size() == 2U);
  BOOST_TEST(read_run_tokenizer(run.path())->model == "the second model");
  // One of another kind has a file of another name.
  const RunTokenizer json = {
      .kind = "tokenizer.json", .vocab_size = 300, .end_token = 2, .model = "{}"};
  BOOST_TEST(write_run_tokenizer(run.path(), json).size() == 2U);
  BOOST_TEST(model("tokenizer.json") == "{}");
  BOOST_TEST(read_run_tokenizer(run.path())->model == "{}");
  BOOST_TEST(!std::filesystem::exists(run / "tokenizer.model"));
}

BOOST_AUTO_TEST_CASE(what_is_beside_a_tokenizer_is_kept_with_it) {
  const TempFolder run;
  RunTokenizer tokenizer = {
      .kind = "tokenizer.json",
      .vocab_size = 300,
      .end_token = 2,
      .model = "{}",
      .companions = {{"tokenizer_config.json", "a"}, {"generation_config.json", "b"}}};
  BOOST_TEST(write_run_tokenizer(run.path(), tokenizer).empty());
  BOOST_TEST(write_run_tokenizer(run.path(), tokenizer).empty());
  BOOST_TEST((read_run_tokenizer(run.path())->companions == tokenizer.companions));
  // One that is new to the folder is added, one that differs is put away, one that is missing stays.
  tokenizer.companions = {{"generation_config.json", "c"}, {"chat_template.jinja", "d"}};
  const std::vector<std::string> expected = {".earlier-generation_config.json.1"};
  BOOST_TEST(write_run_tokenizer(run.path(), tokenizer) == expected);
  const std::vector<TokenizerFile> all = {{"tokenizer_config.json", "a"},
                                          {"generation_config.json", "c"},
                                          {"chat_template.jinja", "d"}};
  BOOST_TEST((read_run_tokenizer(run.path())->companions == all));
  // Of another tokenizer none stays.
  const RunTokenizer bytes = {.kind = "bytes", .vocab_size = 256, .end_token = -1, .model = {}};
  BOOST_TEST(write_run_tokenizer(run.path(), bytes).size() == 5U);
  BOOST_TEST(!std::filesystem::exists(run / "tokenizer_config.json"));
  BOOST_TEST(read_run_tokenizer(run.path())->companions.empty());
  // A file of the user's is not replaced.
  const TempFolder theirs;
  std::ofstream(theirs / "chat_template.jinja") << "mine";
  BOOST_CHECK_THROW(require_tokenizer_place(theirs.path(), tokenizer), ConfigError);
}

BOOST_AUTO_TEST_CASE(a_kind_that_is_not_known_is_refused_by_name) {
  const TempFolder run;
  std::ofstream(run / "tokens.json")
      << R"({"tokenizer": "wordpiece", "vocab_size": 9, "end_token": -1})";
  BOOST_CHECK_EXCEPTION(
      static_cast<void>(read_run_tokenizer(run.path())), FormatError, [](const FormatError& error) {
        return error.message().find("wordpiece is not known to this version") != std::string::npos;
      });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
