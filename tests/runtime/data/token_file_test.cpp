#include "runtime/data/token_file.h"

#include <array>
#include <chrono>
#include <clocale>
#include <fstream>
#include <functional>
#include <iterator>

#include <boost/test/unit_test.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/read_error.h"
#include "tests/runtime/data/token_files.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

std::vector<std::int32_t> all_tokens(const TokenFile& file) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.token_count()));
  static_cast<void>(file.read_tokens(0, ids));
  return ids;
}

std::string format_error(const std::filesystem::path& path) {
  return message_of<FormatError>([&] { const TokenFile file(path); });
}

std::size_t files_in(const std::filesystem::path& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder),
                                                std::filesystem::directory_iterator()));
}

BOOST_AUTO_TEST_SUITE(token_file)

BOOST_AUTO_TEST_CASE(what_is_written_is_read_back_in_every_width) {
  const TempFolder folder;
  struct Width {
    Index vocab;
    std::uint32_t last;
  };
  for (const auto& [vocab, last] : {Width{1, 0}, Width{2, 1}, Width{63, 62}, Width{256, 255},
                                    Width{257, 256}, Width{50257, 50256}, Width{65536, 65535},
                                    Width{65537, 65536}, Width{Index{1} << 31U, 0x7FFFFFFFU}}) {
    const std::filesystem::path path = folder / fmt::format("{}.h5", vocab);
    write_tokens(path, {{0, last}, {}, {last, 0, last}}, vocab);
    const TokenFile file(path);
    BOOST_TEST(file.info().vocab_size == vocab);
    BOOST_TEST(file.token_count() == 5);
    BOOST_TEST(file.document_count() == 2);
    BOOST_TEST(!file.has_mask());
    const auto id = static_cast<std::int32_t>(last);
    BOOST_TEST(all_tokens(file) == (std::vector<std::int32_t>{0, id, id, 0, id}),
               boost::test_tools::per_element());
    std::array<std::int32_t, 2> part = {};
    BOOST_TEST(file.read_tokens(2, part) == last);
    BOOST_TEST(next_document(file, 0) == 0);
    BOOST_TEST(next_document(file, 1) == 2);
    BOOST_TEST(next_document(file, 2) == 2);
    BOOST_TEST(next_document(file, 3) == 5);
    BOOST_CHECK_NO_THROW(file.verify_content());
    BOOST_CHECK_THROW(static_cast<void>(file.read_tokens(4, part)), ContractError);
    BOOST_CHECK_THROW(static_cast<void>(file.read_tokens(-1, part)), ContractError);
  }
}

BOOST_AUTO_TEST_CASE(a_file_larger_than_every_buffer_survives_in_pieces_of_any_size) {
  const TempFolder folder;
  const std::vector<std::uint32_t> ids = counting(3'000'001, 50257);
  const std::filesystem::path path = folder / "a.h5";
  TokenFileWriter writer(path, {"ids", "", 50257, 50256, "", 0}, "model bytes",
                         TokenFileWriter::Mask::present);
  std::vector<std::uint8_t> mask(ids.size());
  for (std::size_t i = 0; i < mask.size(); ++i) {
    mask[i] = i % 3 == 0 ? 1 : 0;
  }
  std::size_t step = 1;
  for (std::size_t at = 0; at < ids.size(); at += step, step = step * 7 % 100'003) {
    step = std::min(step, ids.size() - at);
    writer.begin_document();
    writer.append(std::span(ids).subspan(at, step), std::span(mask).subspan(at, step));
  }
  writer.add_source_bytes(12);
  const std::vector<TokenizerFile> companions = {
      {"tokenizer_config.json", R"({"eos_token": "x"})"},
      {"chat_template.jinja", std::string("{{ 1 }}\0\xff", 9)}};
  writer.keep_companions(companions);
  BOOST_CHECK_THROW(writer.keep_companions({{"tokens", "x"}}), ContractError);
  writer.commit();
  const TokenFile file(path);
  file.verify_content();
  BOOST_TEST((file.tokenizer_companions() == companions));
  const std::vector<std::int32_t> read = all_tokens(file);
  BOOST_TEST(std::equal(read.begin(), read.end(), ids.begin(), ids.end()));
  BOOST_TEST(file.has_mask());
  std::vector<std::uint8_t> read_mask(mask.size());
  file.read_mask(0, read_mask);
  BOOST_TEST(std::equal(read_mask.begin(), read_mask.end(), mask.begin(), mask.end()));
  BOOST_TEST(file.tokenizer_model() == "model bytes");
  BOOST_TEST(file.info().source_bytes == 12);
  BOOST_TEST(file.info().end_token == 50256);
}

BOOST_AUTO_TEST_CASE(equal_content_has_an_equal_hash_and_other_content_another) {
  const TempFolder folder;
  write_tokens(folder / "a.h5", {{1, 2}, {3}});
  write_tokens(folder / "b.h5", {{1, 2}, {3}});
  write_tokens(folder / "token.h5", {{1, 2}, {4}});
  write_tokens(folder / "border.h5", {{1}, {2, 3}});
  write_tokens(folder / "mask.h5", {{1, 2}, {3}}, 256, {1, 1, 1});
  write_tokens(folder / "vocab.h5", {{1, 2}, {3}}, 255);
  const std::string hash = TokenFile(folder / "a.h5").content_hash();
  BOOST_TEST(hash.size() == 32U);
  BOOST_TEST(hash == TokenFile(folder / "b.h5").content_hash());
  for (const char* name : {"token.h5", "border.h5", "mask.h5", "vocab.h5"}) {
    BOOST_TEST(hash != TokenFile(folder / name).content_hash());
  }
}

BOOST_AUTO_TEST_CASE(paths_may_hold_spaces_accents_percent_signs_and_quotes) {
  const TempFolder folder;
  const std::filesystem::path odd = folder / "a b/é%s%d'\"\\";
  std::filesystem::create_directories(odd);
  const std::filesystem::path path = odd / "c ü 100%.h5";
  write_tokens(path, {{1, 2, 3}});
  BOOST_TEST(TokenFile(path).token_count() == 3);
  BOOST_TEST(files_in(odd) == 1U);
}

BOOST_AUTO_TEST_CASE(a_comma_locale_changes_nothing) {
  const TempFolder folder;
  write_tokens(folder / "a.h5", {counting(5000)});
  const std::string before = TokenFile(folder / "a.h5").content_hash();
  if (std::setlocale(LC_ALL, "de_DE.UTF-8") == nullptr) {
    BOOST_TEST_MESSAGE("this machine has no de_DE.UTF-8");
  }
  write_tokens(folder / "b.h5", {counting(5000)});
  const TokenFile file(folder / "b.h5");
  BOOST_TEST(file.content_hash() == before);
  BOOST_TEST(file.token_count() == 5000);
  (void)std::setlocale(LC_ALL, "C");
}

BOOST_AUTO_TEST_CASE(a_missing_file_is_an_error_of_the_options) {
  const TempFolder folder;
  const std::string message =
      message_of<MissingError>([&] { const TokenFile file(folder / "no.h5"); });
  BOOST_TEST(message ==
             "cannot read " + (folder / "no.h5").string() + ": No such file or directory");
}

BOOST_AUTO_TEST_CASE(what_is_no_token_file_is_named) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "x.h5";
  write_bytes(path, "");
  BOOST_TEST(format_error(path) == path.string() + " is empty");
  write_bytes(path, "plain text, and no HDF5\n");
  BOOST_TEST(contains(format_error(path), path.string() + " is not a token file"));
  BOOST_TEST(format_error(folder.path()) ==
             "cannot read " + folder.path().string() +
                 ": it is a folder, and a regular file is needed here");
  std::filesystem::remove(path);
  write_raw(path, {.left_out = "format"});
  BOOST_TEST(contains(format_error(path), "is an HDF5 file but no token file"));
  std::filesystem::remove(path);
  write_raw_without_checksum(path, {});
  BOOST_TEST(contains(format_error(path), "is not a token file"));
}

BOOST_AUTO_TEST_CASE(each_attribute_and_dataset_is_needed_and_checked) {
  const TempFolder folder;
  int number = 0;
  const auto error_of = [&](const RawTokenFile& raw) {
    const std::filesystem::path path = folder / fmt::format("{}.h5", ++number);
    write_raw(path, raw);
    return format_error(path);
  };
  BOOST_TEST(error_of({}) == "no exception");
  for (const char* name : {"version", "tokenizer", "vocab_size", "end_token", "source_bytes",
                           "token_count", "document_count", "content_hash"}) {
    BOOST_TEST(contains(error_of({.left_out = name}), std::string("'") + name + "'"), name);
  }
  BOOST_TEST(contains(error_of({.left_out = "tokens"}), "has no dataset tokens"));
  BOOST_TEST(contains(error_of({.left_out = "documents"}), "has no dataset documents"));
  BOOST_TEST(contains(error_of({.format = "tessera-checkpoint"}), "format 'tessera-checkpoint'"));
  BOOST_TEST(contains(error_of({.version = 2}), "version 2; this program reads up to 1"));
  BOOST_TEST(contains(error_of({.vocab = 0}), "'vocab_size' is 0"));
  BOOST_TEST(contains(error_of({.vocab = (std::int64_t{1} << 31U) + 1}), "'vocab_size'"));
  BOOST_TEST(contains(error_of({.hash = "xyz"}), "'content_hash'"));
  BOOST_TEST(contains(error_of({.token_count = 9}), "says 9 tokens"));
  BOOST_TEST(contains(error_of({.token_count = -1}), "'token_count' is -1"));
  BOOST_TEST(contains(error_of({.document_count = 1}), "in 1 documents"));
  BOOST_TEST(contains(error_of({.tokens = {}, .token_count = 0}), "holds no tokens"));
  // types
  BOOST_TEST(contains(error_of({.token_type = H5T_STD_I8LE}), "another type than u8, u16 or u32"));
  BOOST_TEST(contains(error_of({.token_type = H5T_STD_U16BE}), "another type"));
  BOOST_TEST(contains(error_of({.token_type = H5T_STD_U64LE}), "another type"));
  BOOST_TEST(contains(error_of({.token_type = H5T_IEEE_F32LE}), "another type"));
  BOOST_TEST(contains(error_of({.document_type = H5T_STD_U32LE}), "documents of another type"));
  // a type too narrow, and one wider than needed
  BOOST_TEST(contains(error_of({.vocab = 257}), "u8 tokens, too narrow for its vocabulary of 257"));
  BOOST_TEST(contains(error_of({.token_type = H5T_STD_U16LE, .vocab = 65537}), "too narrow"));
  BOOST_TEST(error_of({.token_type = H5T_STD_U16LE, .vocab = 65536}) == "no exception");
  BOOST_TEST(error_of({.token_type = H5T_STD_U32LE, .vocab = 2}) == "no exception");
  // documents
  BOOST_TEST(contains(error_of({.documents = {}, .document_count = 0}), "first document"));
  BOOST_TEST(contains(error_of({.documents = {1, 3}}), "first document"));
  BOOST_TEST(contains(error_of({.documents = {0, 0}}), "document 1 starts at token 0, after 0"));
  BOOST_TEST(contains(error_of({.documents = {0, 8}}), "document 1 starts at token 8"));
  BOOST_TEST(contains(error_of({.documents = {0, 5, 4}, .document_count = 3}), "document 2"));
  BOOST_TEST(contains(error_of({.documents = {0, ~std::uint64_t{0}}}), "document 1"));
  // mask
  BOOST_TEST(
      contains(error_of({.mask = std::vector<std::uint32_t>{1, 1}}), "8 tokens but 2 mask values"));
}

BOOST_AUTO_TEST_CASE(tokens_that_are_not_in_one_piece_of_the_file_are_refused) {
  const TempFolder folder;
  int number = 0;
  const auto error_of = [&](const auto& make) {
    const std::filesystem::path path = folder / fmt::format("{}.h5", ++number);
    write_raw(path, {.make_tokens = make});
    return format_error(path);
  };
  const auto dataset = [](hid_t file, const std::filesystem::path& path, int rank,
                          hid_t properties) {
    const std::array<hsize_t, 2> extents = {8, 1};
    const Hdf5Handle space(
        TESSERA_WRITE_HDF5(path, H5Screate_simple(rank, extents.data(), nullptr)), H5Sclose);
    const Hdf5Handle data(
        TESSERA_WRITE_HDF5(path, H5Dcreate2(file, "tokens", H5T_STD_U8LE, space.get(), H5P_DEFAULT,
                                            properties, H5P_DEFAULT)),
        H5Dclose);
  };
  BOOST_TEST(contains(error_of([&](hid_t file, const std::filesystem::path& path) {
                        const Hdf5Handle list(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
                        const hsize_t chunk = 4;
                        H5Pset_chunk(list.get(), 1, &chunk);
                        dataset(file, path, 1, list.get());
                      }),
                      "not stored in one piece"));
  BOOST_TEST(contains(error_of([&](hid_t file, const std::filesystem::path& path) {
                        const Hdf5Handle list(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
                        H5Pset_external(list.get(), "/etc/passwd", 0, 8);
                        dataset(file, path, 1, list.get());
                      }),
                      "not stored in one piece"));
  BOOST_TEST(contains(error_of([&](hid_t file, const std::filesystem::path& path) {
                        dataset(file, path, 2, H5P_DEFAULT);
                      }),
                      "not one-dimensional"));
  // contiguous, but never written: no space in the file yet
  BOOST_TEST(contains(error_of([&](hid_t file, const std::filesystem::path& path) {
                        dataset(file, path, 1, H5P_DEFAULT);
                      }),
                      "has no data"));
  write_raw(folder / "other.h5", {});
  BOOST_TEST(contains(error_of([&](hid_t file, const std::filesystem::path&) {
                        H5Lcreate_external((folder / "other.h5").c_str(), "/tokens", file, "tokens",
                                           H5P_DEFAULT, H5P_DEFAULT);
                      }),
                      "is a link to another place"));
  BOOST_TEST(contains(error_of([&](hid_t file, const std::filesystem::path& path) {
                        const Hdf5Handle group(
                            H5Gcreate2(file, "tokens", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                            H5Gclose);
                        static_cast<void>(path);
                      }),
                      "cannot read"));
}

BOOST_AUTO_TEST_CASE(a_file_cut_at_any_64th_byte_is_refused) {
  const TempFolder folder;
  write_tokens(folder / "whole.h5", {counting(300), counting(100)}, 256,
               std::vector<std::uint8_t>(400, 1));
  const std::string whole = read_bytes(folder / "whole.h5");
  const std::filesystem::path path = folder / "cut.h5";
  std::size_t cut = 0;
  for (; cut < whole.size(); cut += 64) {
    write_bytes(path, std::string_view(whole).substr(0, cut));
    const std::string message = format_error(path);
    BOOST_REQUIRE_MESSAGE(
        contains(message, path.string()) && message.find('\n') == std::string::npos,
        "cut at " << cut << " of " << whole.size() << ": " << message);
  }
  write_bytes(path, std::string_view(whole).substr(0, whole.size() - 1));
  BOOST_TEST(format_error(path) ==
             fmt::format("{} is truncated: it has {} bytes and should have {}", path.string(),
                         whole.size() - 1, whole.size()));
  write_bytes(path, whole + '\0');
  BOOST_TEST(contains(format_error(path), "is damaged: it has"));
}

BOOST_AUTO_TEST_CASE(a_flipped_byte_anywhere_is_refused_or_found_by_the_hash) {
  const TempFolder folder;
  write_tokens(folder / "whole.h5", {counting(300), counting(100)}, 256,
               std::vector<std::uint8_t>(400, 1));
  const std::string whole = read_bytes(folder / "whole.h5");
  const std::filesystem::path path = folder / "whole.h5";
  File file = File::open_write(path);
  int found = 0;
  for (std::size_t at = 0; at<whole.size(); at += at> 512 && at < kHeaderBytes ? 61 : 1) {
    const char flipped = static_cast<char>(whole[at] ^ 0x5A);
    file.write_at(at, std::as_bytes(std::span(&flipped, 1)));
    try {
      const TokenFile damaged(path);
      BOOST_REQUIRE_MESSAGE(
          contains(message_of<FormatError>([&] { damaged.verify_content(); }), "has the hash"),
          "byte " << at << " changed unseen");
      ++found;
    } catch (const FormatError&) {
    }
    file.write_at(at, std::as_bytes(std::span(&whole[at], 1)));
  }
  BOOST_CHECK_NO_THROW(TokenFile(path).verify_content());
  // every token and mask value; most wrong document starts are seen at opening
  BOOST_TEST(found >= 400 + 400);
  BOOST_TEST(found <= 400 + 400 + 2 * 8);
}

BOOST_AUTO_TEST_CASE(verify_names_a_damaged_file) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  write_raw(path, {});
  const TokenFile file(path);
  BOOST_TEST(contains(message_of<FormatError>([&] { file.verify_content(); }),
                      path.string() + " is damaged: its content has the hash"));
}

BOOST_AUTO_TEST_CASE(ids_outside_the_vocabulary_are_never_written) {
  const TempFolder folder;
  TokenFileWriter writer(folder / "a.h5", {"ids", "", 256, -1, "", 0}, "",
                         TokenFileWriter::Mask::absent);
  const std::array<std::uint32_t, 2> ids = {1, 256};
  BOOST_CHECK_THROW(writer.append(ids), ContractError);
  const std::array<std::uint8_t, 2> mask = {1, 1};
  BOOST_CHECK_THROW(writer.append(std::span(ids).first(1), mask), ContractError);
}

BOOST_AUTO_TEST_CASE(nothing_is_left_without_a_commit) {
  const TempFolder folder;
  {
    TokenFileWriter writer(folder / "a.h5", {"bytes", "", 256, -1, "", 0}, "",
                           TokenFileWriter::Mask::absent);
    writer.append(counting(3'000'000));
    BOOST_TEST(files_in(folder.path()) == 0U);  // not even while it works
  }
  BOOST_TEST(files_in(folder.path()) == 0U);
}

BOOST_AUTO_TEST_CASE(a_commit_replaces_the_file_that_was_there) {
  const TempFolder folder;
  write_tokens(folder / "a.h5", {{1, 2, 3}});
  const TokenFile old(folder / "a.h5");
  write_tokens(folder / "a.h5", {{4, 5, 6, 7}});
  BOOST_TEST(TokenFile(folder / "a.h5").token_count() == 4);
  BOOST_TEST(all_tokens(old) == (std::vector<std::int32_t>{1, 2, 3}),
             boost::test_tools::per_element());
  BOOST_TEST(files_in(folder.path()) == 1U);
}

// Before reads were preads: a SIGBUS.
BOOST_AUTO_TEST_CASE(a_file_that_is_truncated_after_opening_is_named_by_every_read) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  write_tokens(path, {counting(100'000), counting(50'000)}, 300,
               std::vector<std::uint8_t>(150'000, 1));
  const TokenFile file(path);
  const auto before = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, 5000);
  std::vector<std::int32_t> tokens(1000);
  std::vector<std::uint8_t> mask(1000);
  std::vector<Index> starts;
  const std::function<void()> reads[] = {
      [&] { static_cast<void>(file.read_tokens(90'000, tokens)); },
      [&] { file.read_mask(90'000, mask); },
      [&] { file.document_starts(0, 150'000, starts); },
      [&] { static_cast<void>(file.has_targets()); },
      [&] { file.require_unchanged(); },
      [&] { file.verify_content(); }};
  for (const auto& read : reads) {
    BOOST_TEST(message_of<FormatError>(read) ==
               fmt::format("{} was truncated while it was in use: it had {} bytes when it was "
                           "opened and has 5000 now; put the file back as it was, and run the "
                           "same command to continue",
                           path.string(), before));
  }
}

BOOST_AUTO_TEST_CASE(
    a_file_that_is_written_over_is_seen_and_one_that_is_touched_or_renamed_is_not) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  const std::filesystem::path other = folder / "b.h5";
  write_tokens(path, {counting(1000)});
  write_tokens(other, {counting(1000, 251, 7)});  // of the same length
  BOOST_TEST(std::filesystem::file_size(path) == std::filesystem::file_size(other));
  const TokenFile file(path);
  const auto touch = [&] {
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  };
  touch();
  BOOST_CHECK_NO_THROW(file.require_unchanged());
  // replaced by renaming: the old file is read on
  std::filesystem::rename(other, folder / "c.h5");
  write_tokens(other, {counting(5000)});
  std::filesystem::copy_file(path, folder / "d.h5");
  std::filesystem::rename(other, path);
  BOOST_CHECK_NO_THROW(file.require_unchanged());
  BOOST_TEST(all_tokens(file).size() == 1000U);
  // written over in place, and grown
  std::filesystem::rename(folder / "d.h5", path);
  const TokenFile again(path);
  const auto write_over = [&](const std::filesystem::path& from) {
    std::ifstream in(from, std::ios::binary);
    std::ofstream(path, std::ios::binary | std::ios::in) << in.rdbuf();
    touch();
  };
  write_over(folder / "c.h5");
  BOOST_TEST(contains(message_of<FormatError>([&] { again.require_unchanged(); }),
                      path.string() + " was replaced or changed while it was in use"));
  const TokenFile grown(path);
  std::ofstream(path, std::ios::app) << "more";
  touch();
  BOOST_TEST(contains(message_of<FormatError>([&] { grown.require_unchanged(); }),
                      path.string() + " was replaced or changed while it was in use"));
}

BOOST_AUTO_TEST_CASE(starts_of_documents_are_found_across_the_blocks_of_the_index) {
  const TempFolder folder;
  Documents documents;
  std::vector<Index> expected;
  Index at = 0;
  for (std::size_t i = 0; i < 2000; ++i) {  // the index has every 512th
    const std::size_t length = 1 + i * 7919 % 5;
    documents.push_back(counting(length));
    expected.push_back(at);
    at += static_cast<Index>(length);
  }
  write_tokens(folder / "a.h5", documents);
  const TokenFile file(folder / "a.h5");
  std::vector<Index> found;
  for (const Index length : {Index{0}, Index{1}, Index{4}, Index{700}, at}) {
    for (Index begin = 0; begin <= at; begin += 1 + length / 3) {
      file.document_starts(begin, begin + length, found);
      const auto first = std::lower_bound(expected.begin(), expected.end(), begin);
      const auto last = std::lower_bound(expected.begin(), expected.end(), begin + length);
      BOOST_REQUIRE(std::equal(found.begin(), found.end(), first, last));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_file_has_targets_where_a_token_behind_another_of_its_document_counts) {
  const TempFolder folder;
  const auto has = [&](const Documents& documents, const std::vector<std::uint8_t>& mask) {
    write_tokens(folder / "a.h5", documents, 256, mask);
    return TokenFile(folder / "a.h5").has_targets();
  };
  BOOST_TEST(has({{1, 2}}, {}));
  BOOST_TEST(has({{1}, {2, 3}}, {}));
  BOOST_TEST(!has({{1}, {2}, {3}}, {}));
  BOOST_TEST(!has({{1, 2, 3}}, {0, 0, 0}));
  BOOST_TEST(!has({{1, 2}, {3, 4}}, {1, 0, 1, 0}));  // first tokens alone
  BOOST_TEST(has({{1, 2}, {3, 4}}, {0, 0, 0, 1}));
  std::vector<std::uint8_t> late(200'000);  // beyond a block
  BOOST_TEST(!has({counting(late.size())}, late));
  late[150'000] = 1;
  BOOST_TEST(has({counting(late.size())}, late));
}

BOOST_AUTO_TEST_CASE(places_that_cannot_be_written_are_named) {
  const TempFolder folder;
  const auto error_of = [&](const std::filesystem::path& path) {
    return message_of<WriteError>([&] { write_tokens(path, {{1, 2}}); });
  };
  BOOST_TEST(message_of<ConfigError>([&] {
               write_tokens(folder.path(), {{1, 2}});
             }) == folder.path().string() + " is a folder: give the name of a file");
  BOOST_TEST(error_of(folder / "no/a.h5") ==
             "cannot write " + (folder / "no/a.h5").string() + ": No such file or directory");
  BOOST_TEST(contains(error_of("/proc/a.h5"), "cannot write /proc/a.h5: "));
}

BOOST_AUTO_TEST_CASE(a_full_disk_is_an_error_and_leaves_nothing) {
  if (!std::filesystem::is_directory("/dev/shm") || ::geteuid() != 0) {
    BOOST_TEST_MESSAGE("needs root for a small file system");
    return;
  }
  const TempFolder folder;
  const std::string mount = fmt::format("mount -t tmpfs -o size=2M tessera-test '{}' 2>/dev/null",
                                        folder.path().string());
  if (std::system(mount.c_str()) != 0) {  // NOLINT(cert-env33-c): a test
    BOOST_TEST_MESSAGE("cannot mount a small file system here");
    return;
  }
  const std::string message =
      message_of<WriteError>([&] { write_tokens(folder / "a.h5", {counting(1'500'000)}); });
  BOOST_TEST(contains(message, "no space left on the device"), message);
  BOOST_TEST(files_in(folder.path()) == 0U);
  BOOST_TEST(std::system(("umount '" + folder.path().string() + "'").c_str()) == 0);  // NOLINT
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
