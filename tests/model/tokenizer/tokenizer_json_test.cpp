// tokenizer.json files made here. Ids beside PyPI's tokenizers: tests/model/tokenizer/compare_tokenizers.py.
#define BOOST_TEST_MODULE tokenizer_json
#include <cctype>
#include <functional>
#include <random>
#include <thread>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "model/tokenizer/known_patterns.h"
#include "tests/model/tokenizer/small_tokenizer.h"

namespace tessera::test {
namespace {

constexpr std::uint32_t kThe = 258;

nlohmann::json small() {
  return small_json({{" ", "t"}, {"h", "e"}, {" t", "he"}, {"a", "b"}, {"b", "c"}});
}

std::string refusal(const nlohmann::json& json, std::vector<TokenizerFile> companions = {}) {
  try {
    static_cast<void>(make(json, std::move(companions)));
  } catch (const FormatError& error) {
    return error.message();
  }
  return "accepted";
}

void check_refusal(const nlohmann::json& json, std::string_view part) {
  const std::string message = refusal(json);
  BOOST_TEST(message.starts_with("small.json: "), message);
  BOOST_TEST(message.find(part) != std::string::npos, message << ", without: " << part);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tokenizer_json)

BOOST_AUTO_TEST_CASE(words_are_merged_by_rank) {
  const auto tokenizer = make(small());
  BOOST_TEST(encode(*tokenizer, " the abc the") == (Ids{kThe, ' ', 259, 'c', kThe}),
             boost::test_tools::per_element());
  BOOST_TEST(tokenizer->vocab_size() == 261);
  BOOST_TEST(tokenizer->kind() == "tokenizer.json");
  BOOST_TEST(tokenizer->hash().size() == 32U);
  BOOST_TEST(tokenizer->token_id("ab").value_or(-1) == 259);
  BOOST_TEST(tokenizer->token_id("abc").value_or(-1) == -1);
}

BOOST_AUTO_TEST_CASE(ids_are_appended) {
  const auto tokenizer = make(small());
  Ids ids = {7};
  tokenizer->encode("ab", ids);
  BOOST_TEST(ids == (Ids{7, 259}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(merges_may_be_pairs) {
  nlohmann::json json = small();
  for (nlohmann::json& merge : json["model"]["merges"]) {
    const std::string both = merge;
    const std::size_t blank = both.find(' ');
    merge = {both.substr(0, blank), both.substr(blank + 1)};
  }
  BOOST_TEST(encode(*make(json), " the abc") == encode(*make(small()), " the abc"),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(ignore_merges_takes_a_word_that_is_a_token_whole) {
  nlohmann::json json = small();
  json["model"]["vocab"]["abc"] = 261;
  BOOST_TEST(encode(*make(json), "abc") == (Ids{259, 'c'}), boost::test_tools::per_element());
  json["model"]["ignore_merges"] = true;
  BOOST_TEST(encode(*make(json), "abc") == (Ids{261}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(added_tokens_come_before_everything_and_the_longest_wins) {
  nlohmann::json json = small();
  json["added_tokens"] = {added("<a>", 261), added("<a>b", 262)};
  const auto tokenizer = make(json);
  BOOST_TEST(encode(*tokenizer, "<a>ab<a>b<a") == (Ids{261, 259, 262, '<', 'a'}),
             boost::test_tools::per_element());
  BOOST_TEST(decode(*tokenizer, {261, 259, 262}) == "<a>ab<a>b");
  BOOST_TEST(*tokenizer->token_id("<a>b") == 262);
}

BOOST_AUTO_TEST_CASE(added_tokens_take_the_white_space_that_they_ask_for) {
  nlohmann::json json = small();
  json["added_tokens"] = {added("<l>", 261), added("<r>", 262)};
  json["added_tokens"][0]["lstrip"] = true;
  json["added_tokens"][1]["rstrip"] = true;
  const auto tokenizer = make(json);
  BOOST_TEST(
      encode(*tokenizer, "a \n\u00A0<l> a <r> \u3000b") == (Ids{'a', 261, ' ', 'a', ' ', 262, 'b'}),
      boost::test_tools::per_element());
  // what <r> has taken is not there for <l>
  BOOST_TEST(encode(*tokenizer, "<r>  <l>") == (Ids{262, 261}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(single_words_stand_alone) {
  nlohmann::json json = small();
  json["added_tokens"] = {added("xy", 261)};
  json["added_tokens"][0]["single_word"] = true;
  const auto tokenizer = make(json);
  BOOST_TEST(encode(*tokenizer, "xy,xya xy\u0301 é") ==
                 (Ids{261, ',', 'x', 'y', 'a', ' ', 'x', 'y', 0xCC, 0x81, ' ', 0xC3, 0xA9}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(normalized_tokens_are_looked_for_in_normalized_text) {
  nlohmann::json json = small();
  json["normalizer"] = {{"type", "NFC"}};
  json["added_tokens"] = {added("\u00E9!", 261), added("e\u0301?", 262)};
  json["added_tokens"][0]["normalized"] = true;
  const auto tokenizer = make(json);
  // The first is found where the text becomes it, the second only as it stands.
  BOOST_TEST(encode(*tokenizer, "e\u0301!e\u0301?\u00E9?") == (Ids{261, 262, 0xC3, 0xA9, '?'}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(special_tokens_of_strangers_can_stay_text) {
  nlohmann::json json = small();
  json["added_tokens"] = {added("<|x|>", 261), added("<y>", 262)};
  json["added_tokens"][0]["special"] = true;
  const auto tokenizer = make(json);
  BOOST_TEST(encode(*tokenizer, "<|x|><y>") == (Ids{261, 262}), boost::test_tools::per_element());
  BOOST_TEST(
      encode(*tokenizer, "<|x|><y>", SpecialText::is_text) == (Ids{'<', '|', 'x', '|', '>', 262}),
      boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(steps_split_one_after_the_other) {
  nlohmann::json json = small();
  json["pre_tokenizer"] = steps({split(R"(\p{N}{1,3})"), split("b|,")});
  BOOST_TEST(
      encode(*make(json), "ab,bc,1234") == (Ids{'a', 'b', ',', 'b', 'c', ',', '1', '2', '3', '4'}),
      boost::test_tools::per_element());
  json["pre_tokenizer"] = steps({split("x")});
  BOOST_TEST(encode(*make(json), "abxbc") == (Ids{259, 'x', 260}),
             boost::test_tools::per_element());
  json["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
  json["pre_tokenizer"]["pretokenizers"][0]["invert"] = true;
  BOOST_TEST(encode(*make(json), "abxbc") == (Ids{'x'}), boost::test_tools::per_element());
  json["pre_tokenizer"] = steps({{{"type", "Digits"}, {"individual_digits", true}}});
  BOOST_TEST(encode(*make(json), "ab1") == (Ids{259, '1'}), boost::test_tools::per_element());
  json["pre_tokenizer"]["pretokenizers"][0] = split("x");
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", "a.c"}};
  BOOST_TEST(encode(*make(json), "abca.c") == (Ids{259, 'c', 'a', '.', 'c'}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_prefix_space_is_added_where_there_is_none) {
  nlohmann::json json = small();
  json["pre_tokenizer"]["add_prefix_space"] = true;
  json["added_tokens"] = {added("<a>", 261)};
  BOOST_TEST(encode(*make(json), "the<a> the<a>\n") == (Ids{kThe, 261, kThe, 261, ' ', '\n'}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(text_is_normalized_where_the_file_says_so) {
  nlohmann::json json = small();
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
  BOOST_TEST(encode(*make(json), "e\u0301") == (Ids{0xC3, 0xA9}), boost::test_tools::per_element());
  json["normalizer"] = nullptr;
  BOOST_TEST(encode(*make(json), "e\u0301") == (Ids{'e', 0xCC, 0x81}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_template_says_what_a_document_begins_and_ends_with) {
  nlohmann::json json = small();
  json["added_tokens"] = {added("<s>", 261), added("<e>", 262)};
  const auto special = [](const char* name) {
    return nlohmann::json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}};
  };
  const nlohmann::json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const auto entry = [](const char* name, int id) {
    return nlohmann::json{{"id", name}, {"ids", {id}}, {"tokens", {name}}};
  };
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {special("<s>"), text}},
      {"pair", nlohmann::json::array()},
      {"special_tokens", {{"<s>", entry("<s>", 261)}, {"<e>", entry("<e>", 262)}}}};
  BOOST_TEST(make(json)->begin_tokens() == (Ids{261}), boost::test_tools::per_element());
  BOOST_TEST(make(json)->end_token() == -1);
  BOOST_TEST(encode(*make(json), "a") == (Ids{'a'}), boost::test_tools::per_element());
  json["post_processor"]["single"].push_back(special("<e>"));
  BOOST_TEST(make(json)->end_token() == 262);
  json["post_processor"]["single"].push_back(special("<e>"));
  check_refusal(json, "$.post_processor.special_tokens[\"<e>\"].ids is [262]");
}

BOOST_AUTO_TEST_CASE(end_tokens_are_those_of_the_folder_or_known) {
  nlohmann::json json = small();
  json["added_tokens"] = {added("<|endoftext|>", 261), added("<|im_end|>", 262), added("<e>", 263)};
  BOOST_TEST(make(json)->end_token() == 261);
  BOOST_TEST(make(json)->stop_tokens() == (std::vector<Index>{261, 262}),
             boost::test_tools::per_element());
  const auto with = [&](const char* eos, const char* generation) {
    return make(json, {{"tokenizer_config.json", eos}, {"generation_config.json", generation}});
  };
  // A turn's end is not a document's where the latter is known.
  const auto chat = with(R"({"eos_token": "<|im_end|>"})", R"({"eos_token_id": [262, 263]})");
  BOOST_TEST(chat->end_token() == 261);
  BOOST_TEST(chat->stop_tokens() == (std::vector<Index>{261, 262, 263}),
             boost::test_tools::per_element());
  const auto own =
      with(R"({"eos_token": {"content": "<e>"}, "add_bos_token": true, "bos_token": "<|im_end|>"})",
           "{}");
  BOOST_TEST(own->end_token() == 263);
  BOOST_TEST(own->begin_tokens() == (Ids{262}), boost::test_tools::per_element());
  BOOST_TEST(refusal(json, {{"tokenizer_config.json", R"({"eos_token": "<z>"})"}})
                 .find("tokenizer_config.json beside small.json: eos_token is \"<z>\"") !=
             std::string::npos);
  BOOST_TEST(refusal(json, {{"generation_config.json", R"({"eos_token_id": 999})"}}).find("999") !=
             std::string::npos);
  BOOST_TEST(refusal(json, {{"tokenizer_config.json",
                             R"({"added_tokens_decoder": {"300": {"content": "<z>"}}})"}})
                 .find("added_tokens_decoder has \"<z>\" as 300") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(every_field_that_is_not_understood_is_refused_by_its_path) {
  using Edit = std::function<void(nlohmann::json&)>;
  for (const auto& [edit, part] : std::vector<std::pair<Edit, std::string>>{
           {[](auto& j) { j["extra"] = 1; }, "$.extra is 1"},
           {[](auto& j) { j["version"] = "2.0"; }, "$.version is \"2.0\""},
           {[](auto& j) {
              j["truncation"] = {{"max_length", 5}};
            },
            "$.truncation is"},
           {[](auto& j) {
              j["padding"] = {{"length", 5}};
            },
            "$.padding is"},
           {[](auto& j) { j.erase("model"); }, "it has no model"},
           {[](auto& j) { j["model"]["type"] = "Unigram"; }, "$.model.type is \"Unigram\""},
           {[](auto& j) { j["model"]["dropout"] = 0.1; }, "$.model.dropout is 0.1"},
           {[](auto& j) { j["model"]["continuing_subword_prefix"] = "##"; },
            "$.model.continuing_subword_prefix is \"##\""},
           {[](auto& j) { j["model"]["end_of_word_suffix"] = "</w>"; },
            "$.model.end_of_word_suffix"},
           {[](auto& j) { j["model"]["byte_fallback"] = true; }, "$.model.byte_fallback is true"},
           {[](auto& j) { j["model"]["ignore_merges"] = 1; }, "$.model.ignore_merges is 1"},
           {[](auto& j) { j["model"]["cache_capacity"] = 1; }, "$.model.cache_capacity"},
           {[](auto& j) { j["model"]["vocab"]["x"] = -1; }, "$.model.vocab[\"x\"] is -1"},
           {[](auto& j) { j["model"]["vocab"]["xx"] = 97; }, "another token has this id"},
           {[](auto& j) { j["model"]["vocab"]["xx"] = 1 << 24; }, "an id from 0 to 16777215"},
           {[](auto& j) {
              j["model"]["vocab"].erase("a");
              j["model"]["vocab"]["zz"] = 97;
              j["model"]["merges"] = nlohmann::json::array();
            },
            "no token for the bytes 0x61"},
           {[](auto& j) { j["model"]["merges"][0] = "a b c"; }, "$.model.merges[0] is \"a b c\""},
           {[](auto& j) { j["model"]["merges"][1] = {"a"}; }, "$.model.merges[1] is [\"a\"]"},
           {[](auto& j) { j["model"]["merges"][1] = "a z"; }, "\"az\" is not in the vocabulary"},
           {[](auto& j) {
              j["normalizer"] = {{"type", "NFKC"}};
            },
            R"($.normalizer is {"type":"NFKC"})"},
           {[](auto& j) {
              j["normalizer"] = {{"type", "NFC"}, {"x", 1}};
            },
            "$.normalizer.x is 1"},
           {[](auto& j) { j["pre_tokenizer"] = nullptr; }, "$.pre_tokenizer is null: a ByteLevel"},
           {[](auto& j) {
              j["pre_tokenizer"] = {{"type", "Metaspace"}};
            },
            "$.pre_tokenizer is"},
           {[](auto& j) {
              j["pre_tokenizer"] = steps({split("x")});
              j["pre_tokenizer"]["pretokenizers"].push_back(split("y"));
            },
            "$.pre_tokenizer.pretokenizers[2] is"},
           {[](auto& j) { j["pre_tokenizer"] = steps({split(R"(\h)")}); },
            "$.pre_tokenizer.pretokenizers[0].pattern is {\"Regex\":\"\\\\h\"}: its pattern is not "
            "supported: \\h at byte 0"},
           {[](auto& j) {
              j["pre_tokenizer"] = steps({split("x")});
              j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "MergedWithNext";
            },
            "Isolated is supported"},
           {[](auto& j) {
              j["post_processor"] = {{"type", "BertProcessing"}};
            },
            "$.post_processor is"},
           {[](auto& j) {
              j["decoder"] = {{"type", "WordPiece"}};
            },
            "$.decoder is"},
           {[](auto& j) { j["added_tokens"] = {added("<x>", 300)}; },
            "$.added_tokens[0].id is 300: tokenizers gives \"<x>\" the id 261"},
           {[](auto& j) { j["added_tokens"] = {added("a", 261)}; }, "the id 97"},
           {[](auto& j) { j["added_tokens"] = {added("", 261)}; }, "$.added_tokens[0].content"},
           {[](auto& j) {
              j["added_tokens"] = {added("x1", 261), added("x1", 262)};
            },
            "listed twice"},
           {[](auto& j) {
              j["added_tokens"] = {added("<x>", 261)};
              j["added_tokens"][0]["stripped"] = true;
            },
            "$.added_tokens[0].stripped"}}) {
    nlohmann::json json = small();
    edit(json);
    check_refusal(json, part);
  }
}

BOOST_AUTO_TEST_CASE(text_that_is_not_utf8_is_refused) {
  Ids ids;
  BOOST_CHECK_THROW(make(small())->encode("a\xFF", ids), FormatError);
}

BOOST_AUTO_TEST_CASE(long_runs_take_time_in_proportion_and_come_back) {
  nlohmann::json json = small_json({{" ", " "}, {"  ", "  "}, {"a", "a"}, {"aa", "aa"}});
  for (const char* pattern : {kLlama3Pattern.data(), kGpt2Pattern.data()}) {
    json["pre_tokenizer"] = steps({split(pattern)});
    const auto tokenizer = make(json);
    for (const char* unit : {" ", "a", "中", "\u0301", "1", "\n", " \n"}) {
      std::string text;
      while (text.size() < (std::size_t{1} << 20U)) {
        text += unit;
      }
      BOOST_TEST((decode(*tokenizer, encode(*tokenizer, text)) == text),
                 unit);  // the case's TIMEOUT judges
    }
  }
}

BOOST_AUTO_TEST_CASE(text_may_be_cut_where_the_tokenizer_says_so) {
  constexpr unsigned kSeed = 3;
  std::mt19937 random(kSeed);
  const std::vector<std::string> parts = {"a", "bc", "Z", " ",      "  ", "\n",  "'s",
                                          ".", "1",  "é", "\u0301", "中", "the", " t"};
  for (const std::string_view pattern :
       {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern, kLlama4Pattern, kTekkenPattern}) {
    nlohmann::json json = small();
    json["normalizer"] = {{"type", "NFC"}};
    json["pre_tokenizer"] = steps({split(pattern)});
    const auto tokenizer = make(json);
    BOOST_TEST_REQUIRE((tokenizer->text_cut() == TextCut::at_spaces));
    for (int i = 0; i < 300; ++i) {
      std::string text;
      for (int part = 0; part < 20; ++part) {
        text += parts[random() % parts.size()];
      }
      const auto is_letter = [&](std::size_t at) {
        return std::isalpha(static_cast<unsigned char>(text[at])) != 0 &&
               static_cast<unsigned char>(text[at]) < 0x80;
      };
      const Ids whole = encode(*tokenizer, text);
      for (std::size_t at = 1; at + 1 < text.size(); ++at) {
        if (text[at] == ' ' && is_letter(at - 1) && is_letter(at + 1)) {
          Ids both = encode(*tokenizer, text.substr(0, at));
          tokenizer->encode(text.substr(at), both);
          BOOST_TEST((both == whole), pattern << " at " << at << " of " << text);
        }
      }
    }
  }
  nlohmann::json json = small();
  BOOST_TEST((make(json)->text_cut() == TextCut::at_spaces));
  json["added_tokens"] = {added("a b", 261)};
  BOOST_TEST((make(json)->text_cut() == TextCut::nowhere));
  json["added_tokens"] = {added("<a", 261)};
  json["added_tokens"][0]["rstrip"] = true;
  BOOST_TEST((make(json)->text_cut() == TextCut::nowhere));
  json["added_tokens"] = nlohmann::json::array();
  json["pre_tokenizer"] = steps({split(R"(\w+)")});
  BOOST_TEST((make(json)->text_cut() == TextCut::nowhere));
}

BOOST_AUTO_TEST_CASE(threads_encode_at_once) {
  const auto tokenizer = make(small());
  std::string text;
  for (int i = 0; i < 20000; ++i) {
    text += " the abc" + std::to_string(i % 977);
  }
  const Ids expected = encode(*tokenizer, text);
  std::vector<Ids> found(4);
  {
    std::vector<std::jthread> threads;
    for (Ids& ids : found) {
      threads.emplace_back([&] { tokenizer->encode(text, ids); });
    }
  }
  for (const Ids& ids : found) {
    BOOST_TEST((ids == expected));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
