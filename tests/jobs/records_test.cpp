// tokenize on JSON Lines and chats, as a user runs it.
#include <algorithm>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "runtime/data/token_file.h"
#include "tests/model/tokenizer/small_tokenizer.h"
#include "tests/runtime/data/id_files.h"
#include "tests/runtime/data/token_files.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

using Path = std::filesystem::path;

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

RunResult tokenize(std::vector<std::string> arguments) {
  return run_program("tokenize", std::move(arguments));
}

std::string refusal(std::vector<std::string> arguments, int status) {
  const RunResult result = tokenize(std::move(arguments));
  BOOST_TEST(result.status == status, result.err);
  BOOST_TEST(result.out == "");
  BOOST_TEST(std::count(result.err.begin(), result.err.end(), '\n') == 1, result.err);
  return result.err;
}

// Each document: the text of its tokens, or of those that are targets.
std::vector<std::string> documents_of(const Path& path, const Tokenizer& tokenizer,
                                      bool only_targets = false) {
  const TokenFile file(path);
  file.verify_content();
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.token_count()));
  std::vector<std::uint8_t> mask(ids.size(), 1);
  static_cast<void>(file.read_tokens(0, ids));
  if (file.has_mask()) {
    file.read_mask(0, mask);
  }
  std::vector<Index> starts;
  file.document_starts(0, file.token_count(), starts);
  starts.push_back(file.token_count());
  std::vector<std::string> documents;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    std::vector<std::int32_t> part;
    for (auto at = static_cast<std::size_t>(starts[i]);
         at < static_cast<std::size_t>(starts[i + 1]); ++at) {
      if (!only_targets || mask[at] != 0) {
        part.push_back(ids[at]);
      }
    }
    documents.push_back(tokenizer.decode(part));
  }
  return documents;
}

std::vector<std::string> byte_documents(const Path& path) {
  return documents_of(path, *make_byte_tokenizer());
}

constexpr std::string_view kChatml =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{% endif %}";

// A Hugging Face folder with ChatML's tokens and template.
void write_model_folder(const Path& folder) {
  std::filesystem::create_directories(folder);
  nlohmann::json json = small_json({{"\n", "\n"}, {"H", "i"}});
  int id = 258;
  for (const char* content : {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}) {
    nlohmann::json token = added(content, id++);
    token["special"] = true;
    json["added_tokens"].push_back(token);
  }
  write_bytes(folder / "tokenizer.json", json.dump());
  write_bytes(folder / "tokenizer_config.json",
              nlohmann::json{{"chat_template", kChatml}, {"eos_token", "<|im_end|>"}}.dump());
}

std::unique_ptr<Tokenizer> tokenizer_of(const Path& folder) {
  return make_tokenizer(read_tokenizer_files(folder), folder.string());
}

std::string chat_line(const std::string& question, const std::string& answer) {
  return nlohmann::json{{"messages",
                         {{{"role", "user"}, {"content", question}},
                          {{"role", "assistant"}, {"content", answer}}}}}
             .dump() +
         "\n";
}

BOOST_AUTO_TEST_SUITE(records)

BOOST_AUTO_TEST_CASE(a_field_of_each_line_is_a_document) {
  const TempFolder folder;
  const Path in = folder / "a.jsonl";
  const Path out = folder / "a.h5";
  write_bytes(in,
              "\xef\xbb\xbf{\"text\": \"one\\n\", \"id\": 1}\r\n\r\n{\"id\": 2, \"text\": \"\"}\n"
              "{\"text\": \"nul \\u0000 \\ud83d\\ude00\"}");
  const RunResult result = tokenize({"--field", "text", "--out", out.string(), in.string()});
  BOOST_REQUIRE_MESSAGE(result.status == 0, result.err);
  BOOST_TEST(byte_documents(out) ==
                 (std::vector<std::string>{"one\n", std::string("nul \0 \xf0\x9f\x98\x80", 10)}),
             boost::test_tools::per_element());
  BOOST_TEST(has(result.out, "read 1 file (0.0 MB of text): 2 documents, 14 tokens, 12 targets"),
             result.out);
  BOOST_TEST(has(result.out, "skipped 1 record without text\n"), result.out);
}

BOOST_AUTO_TEST_CASE(bad_lines_are_refused_by_number_or_left_out_and_reported) {
  const TempFolder folder;
  const Path in = folder / "a.jsonl";
  const Path out = folder / "a.h5";
  write_bytes(in, "{\"text\": \"one\"}\n\n{\"txt\": \"two\"}\n{\"text\": \"thr\xff\"}\n{\"text\": "
                  "\"four\"}\n");
  const std::vector<std::string> words = {"--field", "text", "--out", out.string(), in.string()};
  const auto with = [&](const char* count) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--skip-bad", count});
    return all;
  };
  BOOST_TEST(refusal(words, 3) == "tokenize: " + in.string() +
                                      ": line 3 has no field \"text\"; its fields are txt. Fix it, "
                                      "or give --skip-bad N to leave out up to N such lines\n");
  BOOST_TEST(
      refusal(with("1"), 3) ==
      "tokenize: " + in.string() +
          ": line 4 is not UTF-8 at byte 14; it is bad line number 2, and --skip-bad is 1\n");
  BOOST_TEST(!std::filesystem::exists(out));
  const RunResult result = tokenize(with("2"));
  BOOST_REQUIRE_MESSAGE(result.status == 0, result.err);
  BOOST_TEST(byte_documents(out) == (std::vector<std::string>{"one", "four"}),
             boost::test_tools::per_element());
  BOOST_TEST(has(result.out, "skipped 2 bad lines, the first " + in.string() +
                                 ": line 3 has no field \"text\"; its fields are txt\n"),
             result.out);
}

BOOST_AUTO_TEST_CASE(sources_and_files_of_other_names_are_reported) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "in/sub");
  write_bytes(folder / "in/a.jsonl", "{\"text\": \"aaa\"}\n");
  write_bytes(folder / "in/sub/b.ndjson", "{\"text\": \"bbb\"}\n");
  write_bytes(folder / "in/readme.txt", "not read");
  write_bytes(folder / "c", "{\"text\": \"cc\"}\n");
  const RunResult result = tokenize({"--field", "text", "--out", (folder / "x.h5").string(),
                                     (folder / "in").string(), (folder / "c").string()});
  BOOST_REQUIRE_MESSAGE(result.status == 0, result.err);
  BOOST_TEST(byte_documents(folder / "x.h5") == (std::vector<std::string>{"aaa", "bbb", "cc"}),
             boost::test_tools::per_element());
  BOOST_TEST(has(result.out, (folder / "in").string() + ": 2 documents, 6 tokens (75.0%)\n"));
  BOOST_TEST(has(result.out, (folder / "c").string() + ": 1 document, 2 tokens (25.0%)\n"));
  BOOST_TEST(has(result.out, "skipped 1 file (not named .jsonl"), result.out);
}

BOOST_AUTO_TEST_CASE(chats_become_documents_with_a_mask) {
  const TempFolder folder;
  write_model_folder(folder / "model");
  const auto tokenizer = tokenizer_of(folder / "model");
  const Path in = folder / "chats.jsonl";
  const Path out = folder / "x.h5";
  write_bytes(in, chat_line("Hi", "you<|im_end|>") + chat_line("\n", "\nHi"));
  const std::vector<std::string> words = {
      "--tokenizer", (folder / "model").string(), "--out", out.string(), in.string(), "--chat"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    const RunResult result = tokenize(more);
    BOOST_REQUIRE_MESSAGE(result.status == 0, result.err);
    return result.out;
  };
  const std::string printed = run({"auto"});
  BOOST_TEST(
      documents_of(out, *tokenizer) ==
          (std::vector<std::string>{
              "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nyou<|im_end|><|im_end|>\n",
              "<|im_start|>user\n\n<|im_end|>\n<|im_start|>assistant\n\nHi<|im_end|>\n"}),
      boost::test_tools::per_element());
  BOOST_TEST(documents_of(out, *tokenizer, true) ==
                 (std::vector<std::string>{"you<|im_end|><|im_end|>", "\nHi<|im_end|>"}),
             boost::test_tools::per_element());
  BOOST_TEST(has(printed, "2 chats, "), printed);
  BOOST_TEST(has(printed, " 17 targets ("), printed);
  static_cast<void>(run({"chatml", "--loss", "turn"}));
  BOOST_TEST(documents_of(out, *tokenizer, true) ==
                 (std::vector<std::string>{"you<|im_end|><|im_end|>\n", "\nHi<|im_end|>\n"}),
             boost::test_tools::per_element());
  static_cast<void>(run({"chatml", "--loss", "all"}));
  BOOST_TEST(!TokenFile(out).has_mask());
}

BOOST_AUTO_TEST_CASE(the_file_is_the_same_for_any_number_of_threads) {
  const TempFolder folder;
  write_model_folder(folder / "model");
  std::string lines;
  for (int i = 0; i < 40'000; ++i) {
    lines += i % 997 == 5 ? "{\"bad\": 1}\n"
                          : chat_line(fmt::format("question {}", i), std::string(i % 50, 'a'));
  }
  write_bytes(folder / "chats.jsonl", lines);
  const auto run = [&](const char* threads) {
    const Path out = folder / "x.h5";
    const RunResult result =
        tokenize({"--tokenizer", (folder / "model").string(), "--chat", "auto", "--skip-bad", "50",
                  "--threads", threads, "--held-out", "0.1", "--out", out.string(),
                  (folder / "chats.jsonl").string()});
    BOOST_REQUIRE_MESSAGE(result.status == 0, result.err);
    BOOST_TEST(has(result.out, "skipped 41 bad lines"), result.out);
    return read_bytes(out) + read_bytes(folder / "x.held-out.h5");
  };
  const std::string alone = run("1");
  BOOST_CHECK(run("7") == alone);
}

BOOST_AUTO_TEST_CASE(few_large_documents_give_their_share_from_the_end) {
  const TempFolder folder;
  const Path in = folder / "in";
  std::filesystem::create_directories(in);
  std::vector<std::string> whole;
  for (int i = 0; i < 3; ++i) {
    std::string text;
    while (text.size() < 1'500'000U + 700'000U * static_cast<unsigned>(i)) {
      text += fmt::format("{} words of file {}\n", text.size(), i);
    }
    whole.push_back(text);
    write_bytes(in / fmt::format("{}.txt", i), text);
  }
  const Path out = folder / "x.h5";
  const RunResult result =
      tokenize({"--held-out", "0.01", "--out", out.string(), "--tokenizer", "bytes", in.string()});
  BOOST_REQUIRE_MESSAGE(result.status == 0, result.err);
  const std::vector<std::string> kept = byte_documents(out);
  const std::vector<std::string> held = byte_documents(folder / "x.held-out.h5");
  BOOST_REQUIRE_EQUAL(kept.size(), 3U);
  BOOST_REQUIRE_EQUAL(held.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    BOOST_CHECK(kept[i] + held[i] == whole[i]);
    BOOST_TEST(held[i].size() == whole[i].size() / 100);
  }
}

BOOST_AUTO_TEST_CASE(other_kinds_of_files_are_refused_with_what_to_do) {
  const TempFolder folder;
  const std::string out = (folder / "x.h5").string();
  write_bytes(folder / "a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
  BOOST_TEST(has(refusal({"--out", out, (folder / "a.jsonl").string()}, 3),
                 "Give --field text to take the text of its records"));
  write_bytes(folder / "a.parquet", "PAR1 and more");
  const std::string parquet =
      refusal({"--field", "text", "--out", out, (folder / "a.parquet").string()}, 3);
  BOOST_TEST(has(parquet, "pandas.read_parquet('FILE').to_json('FILE.jsonl'"));
  write_bytes(folder / "empty.jsonl", "");
  BOOST_TEST(has(refusal({"--field", "text", "--out", out, (folder / "empty.jsonl").string()}, 2),
                 "no documents in"));
}

BOOST_AUTO_TEST_CASE(options_that_do_not_go_together_are_refused) {
  const TempFolder folder;
  write_model_folder(folder / "model");
  const std::string model = (folder / "model").string();
  const std::string in = (folder / "a.jsonl").string();
  write_bytes(in, chat_line("a", "b"));
  const auto refused = [&](std::vector<std::string> words, int status = 2) {
    words.insert(words.end(), {"--out", (folder / "x.h5").string(), in});
    return refusal(words, status);
  };
  BOOST_TEST(has(refused({"--field", "a", "--chat", "auto"}), "exclude each other"));
  BOOST_TEST(has(refused({"--chat", "auto"}), "--chat needs --tokenizer"));
  BOOST_TEST(has(refused({"--loss", "all"}), "--loss goes with chats"));
  BOOST_TEST(has(refused({"--chat", "auto", "--loss", "some"}), "--loss some is not one of"));
  BOOST_TEST(has(refused({"--skip-bad", "3"}), "--skip-bad goes with JSON Lines"));
  BOOST_TEST(has(refused({"--field", "text", "--as-text"}), "--as-text takes JSON Lines as plain"));
  BOOST_TEST(has(refused({"--raw", "int8"}), "--raw int8 is neither uint16 nor uint32"));
  BOOST_TEST(
      has(refused({"--raw", "uint16", "--tokenizer", "bytes"}), "--raw goes with ready ids"));
  BOOST_TEST(has(refused({"--chat", "vicuna", "--tokenizer", model}),
                 "--chat vicuna is neither auto, one of chatml, qwen2.5,"));
  BOOST_TEST(has(refused({"--chat", "llama3", "--tokenizer", model}),
                 "has no <|begin_of_text|>, <|start_header_id|>"));
  BOOST_TEST(
      has(refused({"--chat", "chatml", "--tokenizer", "bytes"}), "chats need a tokenizer.json"));
  BOOST_TEST(has(refused({"--field", "text", "--tokenizer", "ids"}), "--field goes with text"));
}

BOOST_AUTO_TEST_CASE(ids_without_a_header_are_read_as_the_type_says) {
  const TempFolder folder;
  const Path in = folder / "a.ids";
  write_bytes(in, llmc_bin({1, 2, 300}).substr(1024));
  const Path out = folder / "x.h5";
  const RunResult result = tokenize({"--raw", "uint16", "--out", out.string(), in.string()});
  BOOST_REQUIRE_MESSAGE(result.status == 0, result.err);
  const TokenFile file(out);
  BOOST_TEST(file.token_count() == 3);
  BOOST_TEST(file.info().vocab_size == 301);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
