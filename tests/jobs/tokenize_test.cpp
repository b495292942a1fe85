// The program as a user runs it.
#include <array>
#include <chrono>
#include <memory>
#include <random>
#include <thread>

#include <boost/test/unit_test.hpp>
#include <sentencepiece_trainer.h>
#include <sys/stat.h>

#include "jobs/tokenize/space_cut.h"
#include "model/tokenizer/kinds.h"
#include "runtime/data/text_file.h"
#include "runtime/data/token_file.h"
#include "tests/runtime/data/id_files.h"
#include "tests/runtime/data/token_files.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

using Path = std::filesystem::path;

RunResult tokenize(std::vector<std::string> arguments) {
  return run_program("tokenize", std::move(arguments));
}

// Runs it with arguments that make no file; returns its message, if that was one line.
std::string refusal(std::vector<std::string> arguments, int status) {
  const RunResult result = tokenize(std::move(arguments));
  BOOST_TEST(result.status == status, result.err);
  BOOST_TEST(result.out == "");
  const bool is_one_line = std::count(result.err.begin(), result.err.end(), '\n') == 1 &&
                           result.err.rfind("tokenize: ", 0) == 0;
  return is_one_line ? result.err : "not one line: " + result.err;
}

std::vector<std::int32_t> ids_of(const TokenFile& file) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.token_count()));
  static_cast<void>(file.read_tokens(0, ids));
  return ids;
}

std::vector<std::string> documents_of(const Path& path) {
  const TokenFile file(path);
  file.verify_content();
  const std::vector<std::int32_t> ids = ids_of(file);
  std::vector<std::string> documents;
  for (Index begin = 0; begin < file.token_count();) {
    const Index end = next_document(file, begin + 1);
    documents.push_back(make_byte_tokenizer()->decode(std::span(ids).subspan(
        static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin))));
    begin = end;
  }
  return documents;
}

std::vector<std::string> names_in(const Path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// A folder of `count` different small texts.
void write_texts(const Path& folder, int count) {
  std::filesystem::create_directories(folder);
  for (int i = 0; i < count; ++i) {
    write_bytes(folder / fmt::format("{:05}.txt", i), fmt::format("text number {}\n", i));
  }
}

BOOST_AUTO_TEST_SUITE(tokenize_program)

BOOST_AUTO_TEST_CASE(help_names_every_option_and_version_the_version) {
  const RunResult help = tokenize({"--help"});
  BOOST_TEST(help.status == 0);
  for (const char* name : {"--tokenizer", "--vocab", "--end-token", "--mask", "--out", "--held-out",
                           "--held-out-out", "--threads", "--check", "--version"}) {
    BOOST_TEST(contains(help.out, name), name);
  }
  BOOST_TEST(tokenize({"--version"}).out.rfind("tokenize of tessera ", 0) == 0U);
}

BOOST_AUTO_TEST_CASE(folders_are_read_recursively_in_order_and_only_text_is_taken) {
  const TempFolder folder;
  const Path in = folder / "in";
  std::filesystem::create_directories(in / "sub");
  write_bytes(in / "b.txt", "second\n");
  write_bytes(in / "a.txt", "first \xC3\xA9\xF0\x9F\x8E\x89\n");
  write_bytes(in / "sub/c.txt", "third");
  write_bytes(in / "d.bin", std::string("has\0nul", 7));
  write_bytes(in / "latin1.txt", "caf\xE9\n");
  write_bytes(in / "empty.txt", "");
  const Path out = folder / "corpus.h5";
  const RunResult result = tokenize({"--out", out.string(), "--tokenizer", "bytes", in.string()});
  BOOST_TEST(result.status == 0, result.err);
  BOOST_TEST(result.err == "");
  BOOST_TEST(documents_of(out) == (std::vector<std::string>{"first \xC3\xA9\xF0\x9F\x8E\x89\n",
                                                            "second\n", "third"}),
             boost::test_tools::per_element());
  const TokenFile file(out);
  BOOST_TEST(file.info().tokenizer == "bytes");
  BOOST_TEST(file.info().vocab_size == 256);
  BOOST_TEST(file.info().source == in.string());
  BOOST_TEST(file.info().source_bytes == file.token_count());
  BOOST_TEST(contains(result.out, out.string() + ": 25 tokens, 3 documents, vocabulary 256, 1.00 "
                                                 "bytes a token\n"),
             result.out);
  BOOST_TEST(contains(result.out, "read 3 files"), result.out);
  BOOST_TEST(contains(result.out,
                      "skipped 2 files (not UTF-8 text), the first " + (in / "d.bin").string()),
             result.out);
  BOOST_TEST(contains(result.out, "skipped 1 file (empty)"), result.out);
  BOOST_TEST(names_in(folder.path()) == (std::vector<std::string>{"corpus.h5", "in"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_document_larger_than_every_buffer_stays_whole) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; text.size() < 10'000'000; ++i) {
    text += fmt::format("line {} \xE2\x82\xAC\n", i);
  }
  write_bytes(folder / "a.txt", text);
  write_bytes(folder / "b.txt", "after it");
  const Path out = folder / "x.h5";
  BOOST_TEST(
      tokenize({"--out", out.string(), (folder / "a.txt").string(), (folder / "b.txt").string()})
          .status == 0);
  const std::vector<std::string> documents = documents_of(out);
  BOOST_REQUIRE_EQUAL(documents.size(), 2U);
  BOOST_TEST((documents[0] == text));
  BOOST_TEST(documents[1] == "after it");
}

BOOST_AUTO_TEST_CASE(held_out_documents_are_a_share_in_a_second_file) {
  const TempFolder folder;
  write_texts(folder / "in", 2000);
  write_bytes(folder / "in/copy.txt", "text number 7\n");  // equal text, another name
  const Path out = folder / "corpus.h5";
  const RunResult result =
      tokenize({"--held-out", "0.1", "--out", out.string(), (folder / "in").string()});
  BOOST_TEST(result.status == 0, result.err);
  const std::vector<std::string> kept = documents_of(out);
  const std::vector<std::string> held = documents_of(folder / "corpus.held-out.h5");
  BOOST_TEST(kept.size() + held.size() == 2001U);
  // 200 expected; six standard deviations of a binomial are 80
  BOOST_TEST(held.size() > 120U);
  BOOST_TEST(held.size() < 280U);
  for (const std::string& text : held) {
    BOOST_REQUIRE(std::find(kept.begin(), kept.end(), text) == kept.end());
  }
  // the same documents fall on the same side when there are fewer of them, under another name
  std::filesystem::rename(folder / "in/00005.txt", folder / "in/zz.txt");
  std::filesystem::remove(folder / "in/00000.txt");
  const Path again = folder / "again.h5";
  const Path named = folder / "named.h5";
  BOOST_TEST(tokenize({"--held-out", "0.1", "--held-out-out", named.string(), "--out",
                       again.string(), (folder / "in").string()})
                 .status == 0);
  for (const std::string& text : documents_of(named)) {
    BOOST_REQUIRE(std::find(held.begin(), held.end(), text) != held.end());
  }
}

BOOST_AUTO_TEST_CASE(a_share_that_takes_nothing_or_all_is_refused) {
  const TempFolder folder;
  write_texts(folder / "in", 2);
  for (const char* share : {"0.000001", "0.999999"}) {
    BOOST_TEST(contains(refusal({"--held-out", share, "--out", (folder / "x.h5").string(),
                                 (folder / "in").string()},
                                2),
                        "of 2 documents leaves no document on one side"));
  }
  BOOST_TEST(names_in(folder.path()) == std::vector<std::string>{"in"},
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(ready_ids_are_taken_from_npy_and_bin) {
  const TempFolder folder;
  const std::vector<std::int64_t> ids = {5, 0, 50256, 7, 50256, 9};
  const std::vector<std::int32_t> expected = {5, 0, 50256, 7, 50256, 9};
  const Path out = folder / "x.h5";
  struct Input {
    const char* name;
    std::string content;
  };
  for (const Input& input : {Input{"a.npy", npy("<i4", ids)}, Input{"b.npy", npy("<u2", ids)},
                             Input{"c.npy", npy(">i8", ids, 2)}, Input{"d.bin", llmc_bin(ids)}}) {
    write_bytes(folder / input.name, input.content);
    const RunResult result = tokenize({"--out", out.string(), (folder / input.name).string()});
    BOOST_TEST(result.status == 0, result.err);
    const TokenFile file(out);
    BOOST_TEST(file.info().tokenizer == "ids");
    BOOST_TEST(file.info().vocab_size == 50257);
    BOOST_TEST(file.document_count() == 1);
    BOOST_TEST(ids_of(file) == expected, boost::test_tools::per_element());
  }
  // documents end behind the token given
  BOOST_TEST(tokenize({"--out", out.string(), "--vocab", "50304", "--end-token", "50256",
                       (folder / "d.bin").string(), (folder / "a.npy").string()})
                 .status == 0);
  const TokenFile file(out);
  BOOST_TEST(file.info().vocab_size == 50304);
  BOOST_TEST(file.info().end_token == 50256);
  BOOST_TEST(file.document_count() == 6);
  BOOST_TEST(next_document(file, 1) == 3);
  BOOST_TEST(next_document(file, 4) == 5);
  BOOST_TEST(next_document(file, 6) == 6);
}

BOOST_AUTO_TEST_CASE(ids_above_16_bits_are_kept) {
  const TempFolder folder;
  for (const std::int64_t highest : {65535, 65536, 151935}) {
    write_bytes(folder / "a.npy", npy("<u4", {1, highest, 2}));
    BOOST_TEST(
        tokenize({"--out", (folder / "x.h5").string(), (folder / "a.npy").string()}).status == 0);
    BOOST_TEST(ids_of(TokenFile(folder / "x.h5")) ==
                   (std::vector<std::int32_t>{1, static_cast<std::int32_t>(highest), 2}),
               boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(ids_outside_the_vocabulary_are_named_with_file_and_position) {
  const TempFolder folder;
  const std::string out = (folder / "x.h5").string();
  const std::string path = (folder / "a.npy").string();
  write_bytes(path, npy("<i4", {1, 2, 256, 3}));
  BOOST_TEST(refusal({"--vocab", "256", "--out", out, path}, 3) ==
             "tokenize: token 2 of " + path +
                 " has the id 256, outside the vocabulary (0 to 255)\n");
  write_bytes(path, npy("<i4", {1, -1}));
  BOOST_TEST(contains(refusal({"--out", out, path}, 3), "token 1 of " + path + " has the id -1"));
  write_bytes(path, npy("<i8", {1, std::int64_t{1} << 40U}));
  BOOST_TEST(contains(refusal({"--out", out, path}, 3), "has the id 1099511627776"));
  BOOST_TEST(!std::filesystem::exists(out));
}

BOOST_AUTO_TEST_CASE(a_vocabulary_that_the_type_of_the_ids_cannot_hold_is_refused) {
  const TempFolder folder;
  const std::string out = (folder / "x.h5").string();
  const std::string path = (folder / "a.npy").string();
  const std::string bin = (folder / "a.bin").string();
  write_bytes(bin, llmc_bin({1, 2, 3}));
  struct Row {
    const char* type;
    std::int64_t limit;
  };
  for (const Row& row : {Row{"|u1", 256}, {"|i1", 128}, {"<u2", 65536}, {">i2", 32768}}) {
    write_bytes(path, npy(row.type, {1, 2, 3}));
    BOOST_TEST(contains(refusal({"--vocab", std::to_string(row.limit + 1), "--out", out, path}, 2),
                        path + " holds ids of "));
    BOOST_TEST(tokenize({"--vocab", std::to_string(row.limit), "--out", out, path}).status == 0);
  }
  BOOST_TEST(refusal({"--vocab", "70000", "--out", out, bin}, 2) ==
             "tokenize: " + bin +
                 " holds ids of 16 bits, up to 65,535, and --vocab is 70,000: larger ids cannot be "
                 "in it as they were; write it with a wider type (numpy: ids.astype('uint32')), or "
                 "give --vocab 65536 if no id is larger\n");
  write_bytes(path, npy("<u4", {1, 255, 3}));
  const RunResult reported = tokenize({"--vocab", "70000", "--out", out, path});
  BOOST_TEST(reported.status == 0);
  BOOST_TEST(contains(reported.out, "the highest id is 255, of a vocabulary of 70,000\n"),
             reported.out);
}

BOOST_AUTO_TEST_CASE(a_file_size_limit_ends_it_with_a_sentence) {
  const TempFolder folder;
  const Path text = folder / "a.txt";
  write_bytes(text, std::string(300'000, 'a'));
  // Within the header checksum, within HDF5's header, within the tokens.
  for (const rlim_t bytes : {rlim_t{1000}, rlim_t{5000}, rlim_t{100'000}}) {
    RunResult result;
    {
      const FileSizeLimit small(bytes);
      result = tokenize({"--out", (folder / "out.h5").string(), text.string()});
    }
    BOOST_TEST(result.status == 4, result.err);
    BOOST_TEST(result.err.rfind("tokenize: cannot write " + folder.path().string(), 0) == 0U,
               result.err);
    BOOST_TEST(contains(result.err, "out.h5"), result.err);
    BOOST_TEST(contains(result.err, ": the file size limit (ulimit -f"), result.err);
    BOOST_TEST(std::count(result.err.begin(), result.err.end(), '\n') == 1, result.err);
    BOOST_TEST(names_in(folder.path()) == std::vector<std::string>{"a.txt"},
               boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(masks_say_which_tokens_are_targets) {
  const TempFolder folder;
  const std::string out = (folder / "x.h5").string();
  const std::string ids = (folder / "ids.npy").string();
  const std::string mask = (folder / "mask.npy").string();
  write_bytes(ids, npy("<u2", {10, 11, 12, 13}));
  for (const char* type : {"|b1", "|u1", "<i8"}) {
    write_bytes(mask, npy(type, {0, 0, 1, 1}));
    BOOST_TEST(tokenize({"--out", out, ids, "--mask", mask}).status == 0);
    const TokenFile file(out);
    file.verify_content();
    std::array<std::uint8_t, 4> values = {};
    file.read_mask(0, values);
    BOOST_TEST(std::vector<int>(values.begin(), values.end()) == (std::vector<int>{0, 0, 1, 1}),
               boost::test_tools::per_element());
  }
  write_bytes(mask, npy("|u1", {0, 0, 1}));
  BOOST_TEST(contains(refusal({"--out", out, ids, "--mask", mask}, 3),
                      mask + " has 3 values, but " + ids + " has 4 ids"));
  write_bytes(mask, npy("|u1", {0, 2, 1, 1}));
  BOOST_TEST(contains(refusal({"--out", out, ids, "--mask", mask}, 3),
                      "token 1 of " + mask + " has the mask 2, neither 0 nor 1"));
  BOOST_TEST(
      contains(refusal({"--out", out, ids, ids, "--mask", mask}, 2), "1 mask for 2 files of ids"));
}

BOOST_AUTO_TEST_CASE(malformed_ids_end_with_3_and_leave_no_file) {
  const TempFolder folder;
  const std::string out = (folder / "x.h5").string();
  const std::string path = (folder / "a.npy").string();
  const std::string good = npy("<i4", {1, 2, 3});
  for (const std::string& content :
       {std::string(), std::string("text"), good.substr(0, good.size() - 1), good + "x",
        npy("<f4", {1}), llmc_bin({1, 2}).substr(0, 1000)}) {
    write_bytes(path, content);
    BOOST_TEST(contains(refusal({"--out", out, path}, 3), path));
    BOOST_TEST(names_in(folder.path()) == std::vector<std::string>{"a.npy"},
               boost::test_tools::per_element());
  }
  write_bytes(path, npy("<i4", {}));
  BOOST_TEST(contains(refusal({"--out", out, path}, 2), "no token ids"));
}

BOOST_AUTO_TEST_CASE(options_that_make_no_run_end_with_2) {
  const TempFolder folder;
  write_texts(folder / "in", 3);
  const std::string in = (folder / "in").string();
  const std::string out = (folder / "x.h5").string();
  BOOST_TEST(contains(refusal({}, 2), "no PATH to read"));
  BOOST_TEST(contains(refusal({in}, 2), "--out is missing"));
  BOOST_TEST(contains(refusal({"--bogus", "--out", out, in}, 2), "no option --bogus"));
  BOOST_TEST(contains(refusal({in, "--out"}, 2), "'--out' is missing"));
  BOOST_TEST(contains(refusal({"--out", out, "--held", "0.1", in}, 2),
                      "no option --held; did you mean --held-out"));
  for (const char* share : {"0", "1", "-0.5", "2", "x", "0,5", "nan", "0.5x"}) {
    BOOST_TEST(contains(refusal({"--out", out, std::string("--held-out=") + share, in}, 2),
                        "must be a number between 0 and 1"));
  }
  BOOST_TEST(contains(refusal({"--out", out, "--vocab", "300", in}, 2), "--vocab goes with ready"));
  BOOST_TEST(contains(refusal({"--out", out, "--tokenizer", "ids", "--vocab", "0", in}, 2),
                      "--vocab '0' is not a whole number from 1 to"));
  BOOST_TEST(contains(refusal({"--out", out, "--tokenizer", "ids", "--vocab", "ten", in}, 2),
                      "--vocab 'ten' is not a whole number from 1 to 2147483648"));
  BOOST_TEST(contains(
      refusal({"--out", out, "--tokenizer", "ids", "--vocab", "10", "--end-token", "10", in}, 2),
      "--end-token 10 is outside the vocabulary"));
  BOOST_TEST(
      contains(refusal({"--out", out, "--held-out-out", "y.h5", in}, 2), "--held-out SHARE"));
  BOOST_TEST(contains(refusal({"--out", out, "--held-out", "0.5", "--held-out-out", out, in}, 2),
                      "the same file"));
  BOOST_TEST(contains(refusal({"--out", out, "--threads", "0", in}, 2),
                      "--threads '0' is not a whole number from 1 to 1024"));
  BOOST_TEST(
      contains(refusal({"--out", out, (folder / "missing").string()}, 2),
               "cannot read " + (folder / "missing").string() + ": No such file or directory"));
  BOOST_TEST(contains(refusal({"--out", out, "--tokenizer", "missing.spm", in}, 2),
                      "there is no tokenizer missing.spm: give a Hugging Face folder, "));
  BOOST_TEST(contains(refusal({"--out", out, "--tokenizer", "qwen/qwen3-0.6b", in}, 2),
                      "`hf download qwen/qwen3-0.6b --local-dir qwen3-0.6b`"));
  write_bytes(folder / "binary", std::string("\0\1", 2));
  BOOST_TEST(contains(refusal({"--out", out, (folder / "binary").string()}, 2),
                      "binary: 1 file, not UTF-8 text\n"));
  BOOST_REQUIRE_EQUAL(tokenize({"--out", (folder / "made.h5").string(), in}).status, 0);
  BOOST_TEST(contains(refusal({"--out", out, (folder / "made.h5").string()}, 3),
                      "made.h5 is a token file already: train --data reads it as it is"));
  BOOST_TEST(contains(refusal({"--check"}, 2), "--check names no token file"));
  BOOST_TEST(names_in(folder.path()) == (std::vector<std::string>{"binary", "in", "made.h5"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(an_input_is_never_written_over) {
  const TempFolder folder;
  const std::string ids = (folder / "a.npy").string();
  const std::string mask = (folder / "mask.npy").string();
  write_bytes(ids, npy("<i4", {1, 2, 3}));
  write_bytes(mask, npy("|u1", {1, 1, 1}));
  std::filesystem::create_symlink("a.npy", folder / "link.h5");
  const std::string end = " would be written over, but is to be read\n";
  BOOST_TEST(refusal({"--out", ids, ids}, 2) == "tokenize: " + ids + end);
  BOOST_TEST(contains(refusal({"--out", (folder / "link.h5").string(), ids}, 2), end));
  BOOST_TEST(refusal({"--out", mask, ids, "--mask", mask}, 2) == "tokenize: " + mask + end);
  BOOST_TEST(refusal({"--out", "x.h5", "--held-out", "0.5", "--held-out-out", ids, ids}, 2) ==
             "tokenize: " + ids + end);
  BOOST_TEST((read_bytes(ids) == npy("<i4", {1, 2, 3})));
}

BOOST_AUTO_TEST_CASE(only_a_token_file_is_replaced) {
  const TempFolder folder;
  write_texts(folder / "in", 3);
  const std::string in = (folder / "in").string();
  const auto out = [&](const char* name) { return (folder / name).string(); };
  write_bytes(folder / "thesis.h5", "three years of work");
  write_bytes(folder / "other.h5", "\x89HDF\r\n\x1a\n and what another program wrote");
  for (const char* name : {"thesis.h5", "other.h5"}) {
    const std::string before = read_bytes(folder / name);
    BOOST_TEST(refusal({"--out", out(name), in}, 2) ==
               "tokenize: " + out(name) +
                   " exists and is not a token file, so it is not replaced: give another "
                   "name, or remove it first\n");
    BOOST_TEST(contains(
        refusal({"--out", out("x.h5"), "--held-out", "0.5", "--held-out-out", out(name), in}, 2),
        "is not a token file"));
    BOOST_TEST(read_bytes(folder / name) == before);
  }
  // whatever its name, an older token file is one; also through a link, which stays
  const RunResult first = tokenize({"--out", out("tokens.dat"), in});
  BOOST_TEST(first.status == 0);
  BOOST_TEST(!contains(first.out, "replaced"));
  const Index count = TokenFile(folder / "tokens.dat").token_count();
  const RunResult second = tokenize({"--out", out("tokens.dat"), in + "/00000.txt"});
  BOOST_TEST(second.status == 0);
  BOOST_TEST(contains(second.out, fmt::format("replaced {}, which had {} tokens of {}\n",
                                              out("tokens.dat"), count, in)));
  BOOST_TEST(TokenFile(folder / "tokens.dat").document_count() == 1);
  std::filesystem::create_symlink("tokens.dat", folder / "link.h5");
  BOOST_TEST(tokenize({"--out", out("link.h5"), in}).status == 0);
  BOOST_TEST(std::filesystem::is_symlink(folder / "link.h5"));
  BOOST_TEST(TokenFile(folder / "tokens.dat").document_count() == 3);
  std::filesystem::create_symlink("thesis.h5", folder / "wrong.h5");
  BOOST_TEST(contains(refusal({"--out", out("wrong.h5"), in}, 2), "is not a token file"));
  std::filesystem::create_symlink("nowhere", folder / "dangling.h5");
  BOOST_TEST(contains(refusal({"--out", out("dangling.h5"), in}, 2), "is a link to nowhere"));
  BOOST_REQUIRE_EQUAL(::mkfifo(out("pipe").c_str(), 0600), 0);
  BOOST_TEST(contains(refusal({"--out", out("pipe"), in}, 2), "is a named pipe"));
  BOOST_TEST(contains(refusal({"--out", "/dev/null", in}, 2), "/dev/null is a device"));
  BOOST_TEST(std::filesystem::is_character_file("/dev/null"));
  // one place by two names, before it exists
  BOOST_TEST(contains(refusal({"--out", out("x.h5"), "--held-out", "0.5", "--held-out-out",
                               (folder / "./in/../x.h5").string(), in},
                              2),
                      "is the same file as --out"));
  BOOST_TEST(names_in(folder.path()) ==
                 (std::vector<std::string>{"dangling.h5", "in", "link.h5", "other.h5", "pipe",
                                           "thesis.h5", "tokens.dat", "wrong.h5"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(places_that_cannot_be_written_are_refused_before_anything_is_read) {
  const TempFolder folder;
  write_texts(folder / "in", 3);
  const std::string in = (folder / "in").string();
  for (const std::string& out : {std::string("/proc/x.h5"), (folder / "no/x.h5").string()}) {
    BOOST_TEST(contains(refusal({"--out", out, in}, 4), "cannot write " + out));
  }
  for (const std::string& out : {folder.path().string(), in + "/00000.txt/x.h5"}) {
    BOOST_TEST(contains(refusal({"--out", out, in}, 2), out));
  }
}

BOOST_AUTO_TEST_CASE(check_tells_whole_files_from_damaged_ones) {
  const TempFolder folder;
  const std::string path = (folder / "x.h5").string();
  write_tokens(path, {counting(5000)});
  const RunResult result = tokenize({"--check", path});
  BOOST_TEST(result.status == 0);
  BOOST_TEST(contains(result.out, path + ": 5,000 tokens, 1 document, vocabulary 256"));
  std::string content = read_bytes(path);
  content[content.find("\x10\x11\x12\x13")] ^= 1;
  write_bytes(path, content);
  BOOST_TEST(contains(refusal({"--check", path}, 3), path + " is damaged: its content"));
  // cut within the block that its checksum is in: inspect says what --check does
  write_bytes(path, content.substr(0, 3000));
  const RunResult inspected = run_program("inspect", {path});
  BOOST_TEST(inspected.status == 3);
  BOOST_TEST(inspected.err == "inspect: " + path + " is damaged in its first 4096 bytes\n");
}

BOOST_AUTO_TEST_CASE(paths_may_hold_spaces_accents_percent_signs_and_quotes) {
  const TempFolder folder;
  const Path odd = folder / "a b/\xC3\xA9%s%d'\"";
  write_texts(odd, 3);
  const Path out = odd / "c \xC3\xBC 100%.h5";
  const RunResult result = tokenize({"--out", out.string(), odd.string()});
  BOOST_TEST(result.status == 0, result.err);
  BOOST_TEST(contains(result.out, out.string()));
  BOOST_TEST(documents_of(out).size() == 3U);
}

BOOST_AUTO_TEST_CASE(a_comma_locale_changes_nothing) {
  const TempFolder folder;
  write_texts(folder / "in", 100);
  const Path out = folder / "x.h5";
  const RunResult result = run_program(
      "tokenize", {"--held-out", "0.5", "--out", out.string(), (folder / "in").string()},
      {"LC_ALL=de_DE.UTF-8"});
  BOOST_TEST(result.status == 0, result.err);
  BOOST_TEST(contains(result.out, "1.00 bytes a token"), result.out);
}

BOOST_AUTO_TEST_CASE(killed_at_any_moment_it_leaves_a_whole_file_or_none) {
  const TempFolder folder;
  write_bytes(folder / "a.txt", std::string(8'000'000, 'a'));
  const std::vector<std::string> arguments = {"--out", (folder / "out/x.h5").string(),
                                              (folder / "a.txt").string()};
  std::filesystem::create_directories(folder / "out");
  const auto start = std::chrono::steady_clock::now();
  BOOST_REQUIRE_EQUAL(tokenize(arguments).status, 0);
  const auto whole_run = std::chrono::steady_clock::now() - start;
  std::filesystem::remove(folder / "out/x.h5");
  int without_file = 0;
  constexpr int kKills = 12;
  for (int i = 0; i < kKills; ++i) {
    RunningProgram program("tokenize", arguments);
    std::this_thread::sleep_for(whole_run * i / kKills);
    program.send(SIGKILL);
    static_cast<void>(program.wait());
    if (std::filesystem::exists(folder / "out/x.h5")) {
      const TokenFile file(folder / "out/x.h5");
      BOOST_CHECK_NO_THROW(file.verify_content());
      BOOST_TEST(file.token_count() == 8'000'000);
      std::filesystem::remove(folder / "out/x.h5");
    } else {
      ++without_file;
    }
    // a temporary may be left, under a hidden name
    for (const std::string& name : names_in(folder / "out")) {
      BOOST_TEST(name.rfind(".x.h5.tmp-", 0) == 0U, name);
    }
  }
  BOOST_TEST(without_file > 0);
  BOOST_TEST(tokenize(arguments).status == 0);
  BOOST_TEST(TokenFile(folder / "out/x.h5").token_count() == 8'000'000);
}

// A model trained on a few sentences.
std::string train_model(const Path& folder, const std::string& more = "", int vocab = 100) {
  std::string text;
  for (int i = 0; i < 400; ++i) {
    text += fmt::format("the quick brown fox {} jumps over the lazy dog, and the caf\xC3\xA9 is "
                        "open until {} o'clock\n",
                        i, i % 12);
  }
  write_bytes(folder / "train.txt", text);
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      fmt::format("--input={} --model_prefix={} --vocab_size={} {} --minloglevel=2",
                  (folder / "train.txt").string(), (folder / "small").string(), vocab,
                  more.empty() ? "--hard_vocab_limit=false" : more));
  BOOST_REQUIRE_MESSAGE(status.ok(), status.ToString());
  return (folder / "small.model").string();
}

BOOST_AUTO_TEST_CASE(a_sentencepiece_model_encodes_the_same_on_any_number_of_threads) {
  const TempFolder folder;
  const std::string model = train_model(folder.path());
  write_texts(folder / "in", 200);
  write_bytes(folder / "in/other.txt", "the lazy dog jumps over the caf\xC3\xA9");
  std::string hash;
  for (const char* threads : {"1", "2", "7"}) {
    const Path out = folder / (std::string(threads) + ".h5");
    const RunResult result = tokenize({"--tokenizer", model, "--threads", threads, "--out",
                                       out.string(), (folder / "in").string()});
    BOOST_TEST(result.status == 0, result.err);
    const TokenFile file(out);
    hash = hash.empty() ? file.content_hash() : hash;
    BOOST_TEST(file.content_hash() == hash);
  }
  const TokenFile file(folder / "1.h5");
  file.verify_content();
  BOOST_TEST(file.info().tokenizer == "sentencepiece");
  BOOST_TEST(file.info().tokenizer_name == "small.model");
  BOOST_TEST(file.info().source_bytes > file.token_count());  // pieces are longer than bytes
  BOOST_TEST((file.tokenizer_model() == read_bytes(model)));
  // what is in the file is enough to read it
  const auto tokenizer = make_sentencepiece_tokenizer(file.tokenizer_model(), "x");
  BOOST_TEST(tokenizer->vocab_size() == file.info().vocab_size);
  BOOST_TEST(tokenizer->end_token() == file.info().end_token);
  BOOST_TEST(file.info().end_token == 2);
  const std::vector<std::int32_t> ids = ids_of(file);
  BOOST_TEST(ids.back() == 2);
  Index begin = 0;
  while (next_document(file, begin + 1) < file.token_count()) {
    begin = next_document(file, begin + 1);
    BOOST_REQUIRE_EQUAL(ids[static_cast<std::size_t>(begin) - 1], 2);
  }
  const auto last = std::span(ids).subspan(static_cast<std::size_t>(begin));
  BOOST_TEST(tokenizer->decode(last.first(last.size() - 1)) ==
             "the lazy dog jumps over the caf\xC3\xA9");
}

// All ids of a file but the end tokens, as text.
std::string text_of(const Path& path, const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids = ids_of(TokenFile(path));
  std::erase(ids, static_cast<std::int32_t>(tokenizer.end_token()));
  return tokenizer.decode(ids);
}

BOOST_AUTO_TEST_CASE(a_long_document_is_encoded_as_a_whole) {
  const TempFolder folder;
  const std::string model =
      train_model(folder.path(),
                  "--model_type=bpe --byte_fallback=true --normalization_rule_name=identity "
                  "--remove_extra_whitespaces=false",
                  400);
  std::string text;
  for (int i = 0; text.size() < 1'500'000; ++i) {
    text += fmt::format("the quick  brown fox {}\njumps\t\xE2\x82\xAC", i);
  }
  write_bytes(folder / "a.txt", text);
  const RunResult result = tokenize(
      {"--tokenizer", model, "--out", (folder / "x.h5").string(), (folder / "a.txt").string()});
  BOOST_TEST(result.status == 0, result.err);
  BOOST_TEST(!contains(result.out, "warning"), result.out);
  const TokenFile file(folder / "x.h5");
  const auto tokenizer = make_sentencepiece_tokenizer(file.tokenizer_model(), "x");
  BOOST_TEST((text_of(folder / "x.h5", *tokenizer) == text));  // no space that was not there
  std::vector<std::uint32_t> whole;
  tokenizer->encode(text, whole);
  whole.push_back(static_cast<std::uint32_t>(tokenizer->end_token()));
  BOOST_TEST((ids_of(file) == std::vector<std::int32_t>(whole.begin(), whole.end())));
}

// The ids of a document that is cut into pieces, as tokenize does it.
std::vector<std::uint32_t> ids_of_pieces(const Path& path, const Tokenizer& tokenizer,
                                         const TextCuts& cuts, int& pieces) {
  std::vector<std::uint32_t> all;
  std::vector<std::uint32_t> ids;
  pieces = 0;
  read_text(path, scan_text(path), cuts, [&](std::string_view piece) {
    ids.clear();
    if (pieces++ == 0) {
      tokenizer.encode(piece, ids);
    } else {
      tokenize::encode_behind_cut(tokenizer, piece, ids);
    }
    all.insert(all.end(), ids.begin(), ids.end());
  });
  return all;
}

// Words with all kinds of neighbours, known and unknown.
std::string mixed_text(std::size_t bytes) {
  constexpr std::array<std::string_view, 16> kParts = {"the quick brown fox",
                                                       " jumps over ",
                                                       " ",
                                                       "\n",
                                                       "  ",
                                                       " Z Q x ",
                                                       "lazy dogs",
                                                       " caf\xC3\xA9 is ",
                                                       "7 o'c",
                                                       "\t",
                                                       "<s> a",
                                                       "\xE6\x97\xA5",
                                                       " \xE6\x97\xA5 b",
                                                       "e \xCC\x81",
                                                       " \xC2\xA0",
                                                       "a\xE2\x96\x81z"};
  std::mt19937_64 random(3);
  std::string text;
  while (text.size() < bytes) {
    text += kParts[random() % kParts.size()];
  }
  return text;
}

BOOST_AUTO_TEST_CASE(a_document_that_is_cut_at_spaces_has_the_ids_of_one_call) {
  const TempFolder folder;
  const std::string text = mixed_text(50'000);
  write_bytes(folder / "a.txt", text);
  constexpr std::size_t kMost = 10'000;
  for (const char* type : {"bpe", "unigram"}) {
    for (const char* prefix : {"true", "false"}) {
      for (const char* more :
           {"--remove_extra_whitespaces=true", "--remove_extra_whitespaces=false",
            "--normalization_rule_name=identity --byte_fallback=true",
            "--normalization_rule_name=nmt_nfkc_cf "
            "--user_defined_symbols=dog,\xE2\x96\x81\xE2\x96\x81"}) {
        const std::string options =
            fmt::format("--hard_vocab_limit=false --model_type={} --add_dummy_prefix={} {}", type,
                        prefix, more);
        const std::string model = read_bytes(train_model(folder.path(), options, 330));
        const auto tokenizer = make_sentencepiece_tokenizer(model, "x");
        BOOST_TEST(tokenize::can_cut_at_spaces(model), options);
        std::vector<std::uint32_t> whole;
        tokenizer->encode(text, whole);
        for (const std::size_t piece_bytes :
             {std::size_t{16}, std::size_t{100}, std::size_t{3000}}) {
          int pieces = 0;
          const std::vector<std::uint32_t> joined = ids_of_pieces(
              folder / "a.txt", *tokenizer, tokenize::space_cuts(true, piece_bytes, kMost), pieces);
          BOOST_TEST(pieces > 10);
          BOOST_TEST((joined == whole), options << ", pieces of " << piece_bytes);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(models_with_which_a_cut_could_show_are_not_cut) {
  const TempFolder folder;
  const std::string rules = (folder / "rules.tsv").string();
  struct Row {
    std::string options;
    const char* rule;  // code points, from and to
    bool is_cut;
  };
  for (const Row& row : {
           Row{"--model_type=word", "", false},
           Row{"--model_type=char", "", false},
           Row{"--treat_whitespace_as_suffix=true", "", false},
           Row{"--user_defined_symbols=fox\xE2\x96\x81jumps", "", false},
           Row{"--control_symbols=<a\xE2\x96\x81"
               "b>",
               "", false},
           Row{"--user_defined_symbols=<a>,\xE2\x96\x81\xE2\x96\x81", "", true},
           Row{"--split_by_whitespace=false --max_sentencepiece_length=40", "", false},
           Row{"", "20\t5F", false},
           Row{"", "61 20 62\t78", false},
           Row{"", "20 62\t78", false},
           Row{"", "63\t", false},
           Row{"", "63\t64 20", false},
           Row{"", "63\t20 64", false},
           Row{"", "63\t64\n20 31\t32\n9\t20", true},
       }) {
    std::string options = row.options;
    if (*row.rule != '\0') {
      write_bytes(rules, std::string(row.rule) + "\n");
      options += "--normalization_rule_tsv=" + rules;
    }
    const std::string model =
        read_bytes(train_model(folder.path(), options + " --hard_vocab_limit=false", 120));
    BOOST_TEST(tokenize::can_cut_at_spaces(model) == row.is_cut, options << " " << row.rule);
    if (row.is_cut) {  // what is not a whole model is never cut, and never read beyond
      for (std::size_t size = 0; size < model.size(); size += 97) {
        static_cast<void>(tokenize::can_cut_at_spaces(std::string(model, 0, size)));
      }
    }
  }
  BOOST_TEST(!tokenize::can_cut_at_spaces("no model"));
}

BOOST_AUTO_TEST_CASE(text_without_a_place_to_cut_is_refused_above_the_limit) {
  const TempFolder folder;
  const Path path = folder / "a.txt";
  const auto refusal_of = [&](const std::string& text, bool can_cut) {
    write_bytes(path, text);
    Index bytes = 0;
    try {
      read_text(path, scan_text(path), tokenize::space_cuts(can_cut, 100, 5000),
                [&](std::string_view piece) { bytes += static_cast<Index>(piece.size()); });
    } catch (const FormatError& error) {
      return std::string(error.what());
    }
    BOOST_TEST(bytes == static_cast<Index>(text.size()));
    return std::string();
  };
  const std::string words = mixed_text(20'000);
  BOOST_TEST(refusal_of(words, true) == "");
  BOOST_TEST(refusal_of(words + std::string(5000, '1'), true) != "");
  BOOST_TEST(refusal_of("a b" + std::string(4900, '1') + "c d", true) == "");
  BOOST_TEST(contains(refusal_of("a b" + std::string(5001, '1') + " c d", true),
                      path.string() + " has more than 0.0 MB without a single space between two "
                                      "letters (a to z)"));
  BOOST_TEST(refusal_of(words.substr(0, 5000), false) == "");
  BOOST_TEST(contains(refusal_of(words.substr(0, 5001), false), "encodes a document as a whole"));
}

BOOST_AUTO_TEST_CASE(unknown_tokens_and_lost_line_ends_are_counted) {
  const TempFolder folder;
  const std::string model = train_model(folder.path());
  std::filesystem::create_directory(folder / "in");
  write_bytes(folder / "in/a.txt", "the lazy dog\n\xE6\x97\xA5 jumps \xE6\x97\xA5\n");
  write_bytes(folder / "in/b.txt", "the quick fox\n");
  const RunResult result = tokenize(
      {"--tokenizer", model, "--out", (folder / "x.h5").string(), (folder / "in").string()});
  BOOST_TEST(result.status == 0, result.err);
  BOOST_TEST(contains(result.out, "warning: 2 unknown tokens in 1 document: "), result.out);
  BOOST_TEST(contains(result.out, "id 0\n"), result.out);
  BOOST_TEST(contains(result.out, "warning: 3 line ends are lost: "), result.out);
}

BOOST_AUTO_TEST_CASE(a_document_too_large_to_be_encoded_whole_is_named) {
  const TempFolder folder;
  const std::string model = train_model(folder.path());
  write_bytes(folder / "a.txt", std::string((std::size_t{32} << 20U) + 1, 'a'));
  BOOST_TEST(contains(
      refusal(
          {"--tokenizer", model, "--out", (folder / "x.h5").string(), (folder / "a.txt").string()},
          3),
      (folder / "a.txt").string() + " has more than 33.6 MB without a single space "));
}

BOOST_AUTO_TEST_CASE(what_is_no_text_is_refused_by_name_and_counted_in_folders) {
  const TempFolder folder;
  const Path in = folder / "in";
  const std::string out = (folder / "x.h5").string();
  std::filesystem::create_directory(in);
  write_bytes(in / "a.txt", "text\n");
  write_bytes(in / "b.jsonl", "{\"text\": \"x\"}\n{\"text\": \"y\"}\n");
  write_bytes(in / "c.txt.gz", "\x1f\x8b\x08 and more");
  write_bytes(in / "d.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n");
  std::filesystem::create_symlink("nowhere", in / "e.txt");
  BOOST_REQUIRE_EQUAL(::mkfifo((in / "f.txt").c_str(), 0600), 0);
  for (const char* name : {"b.jsonl", "c.txt.gz", "d.txt", "f.txt"}) {
    const std::string message =
        refusal({"--out", out, (in / "a.txt").string(), (in / name).string()}, 3);
    BOOST_TEST(contains(message, (in / name).string()), message);
  }
  const RunResult result = tokenize({"--out", out, in.string()});
  BOOST_TEST(result.status == 0, result.err);
  BOOST_TEST(documents_of(out) == std::vector<std::string>{"text\n"},
             boost::test_tools::per_element());
  for (const char* reason : {"JSON Lines, not prose", "a compressed file", "a pointer of git-lfs",
                             "a link to nothing", "a named pipe"}) {
    BOOST_TEST(contains(result.out, std::string("skipped 1 file (") + reason), result.out);
  }
  BOOST_TEST(tokenize({"--as-text", "--out", out, (in / "b.jsonl").string()}).status == 0);
  BOOST_TEST(documents_of(out) == std::vector<std::string>{read_bytes(in / "b.jsonl")},
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_is_no_sentencepiece_model_ends_with_3) {
  const TempFolder folder;
  write_texts(folder / "in", 2);
  const std::string whole = read_bytes(train_model(folder.path()));
  const std::string model = (folder / "x.model").string();
  for (const std::string& content :
       {std::string(), std::string("text, no model"), whole.substr(0, whole.size() / 2)}) {
    write_bytes(model, content);
    BOOST_TEST(contains(refusal({"--tokenizer", model, "--out", (folder / "x.h5").string(),
                                 (folder / "in").string()},
                                3),
                        model + (content.empty() ? " is empty" : " is not a SentencePiece model")));
  }
}

BOOST_AUTO_TEST_CASE(bytes_decode_to_the_text_they_came_from) {
  const auto tokenizer = make_byte_tokenizer();
  std::string text;
  for (int byte = 0; byte < 256; ++byte) {
    text += static_cast<char>(byte);
  }
  std::vector<std::uint32_t> ids;
  tokenizer->encode(text, ids);
  BOOST_REQUIRE_EQUAL(ids.size(), 256U);
  BOOST_TEST(ids[200] == 200U);
  const std::vector<std::int32_t> signed_ids(ids.begin(), ids.end());
  BOOST_TEST((tokenizer->decode(signed_ids) == text));
  const std::array<std::int32_t, 3> beyond = {-100, 'x', 256};
  BOOST_TEST(tokenizer->decode(beyond) == "x");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
