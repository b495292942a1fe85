#include "runtime/data/id_file.h"

#include <array>
#include <limits>

#include <boost/test/unit_test.hpp>

#include "tests/runtime/data/id_files.h"
#include "tests/runtime/data/token_files.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

std::vector<std::int64_t> read_ids(const std::filesystem::path& path) {
  IdFile file(path);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(file.count()));
  file.read(0, ids);
  return ids;
}

std::string error_of(const TempFolder& folder, std::string_view content) {
  write_bytes(folder / "x.npy", content);
  return message_of<FormatError>([&] { static_cast<void>(read_ids(folder / "x.npy")); });
}

BOOST_AUTO_TEST_SUITE(id_file)

BOOST_AUTO_TEST_CASE(every_integer_type_in_both_byte_orders_is_read) {
  const TempFolder folder;
  for (const std::string_view type : {"|u1", "|i1", "|b1", "<u2", ">u2", "<i2", ">i2", "<u4", ">u4",
                                      "<i4", ">i4", "<u8", ">u8", "<i8", ">i8", "=i4"}) {
    write_bytes(folder / "a.npy", npy(type, {1, 0, 1, 100, 7}));
    BOOST_TEST(read_ids(folder / "a.npy") == (std::vector<std::int64_t>{1, 0, 1, 100, 7}),
               boost::test_tools::per_element());
  }
  write_bytes(folder / "a.npy", npy("<i2", {-1, -32768, 32767}));
  BOOST_TEST(read_ids(folder / "a.npy") == (std::vector<std::int64_t>{-1, -32768, 32767}),
             boost::test_tools::per_element());
  write_bytes(folder / "a.npy", npy("<u8", {-1}));
  BOOST_TEST(read_ids(folder / "a.npy") ==
                 std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::max()},
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(npy_headers_of_all_versions_are_read) {
  const TempFolder folder;
  for (const int version : {1, 2, 3}) {
    write_bytes(folder / "a.npy", npy("<i4", {5, 6}, version));
    BOOST_TEST(read_ids(folder / "a.npy") == (std::vector<std::int64_t>{5, 6}),
               boost::test_tools::per_element());
  }
  // another order of keys, other quotes, no spaces, no last comma
  write_bytes(folder / "a.npy",
              npy_with_header(R"({"shape":(2,),"descr":"<u2","fortran_order":True})",
                              std::string("\x05\0\x06\0", 4)));
  BOOST_TEST(read_ids(folder / "a.npy") == (std::vector<std::int64_t>{5, 6}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(parts_are_read_at_their_place) {
  const TempFolder folder;
  std::vector<std::int64_t> ids(200'000);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int64_t>(i * 7 % 60'001);
  }
  write_bytes(folder / "a.npy", npy("<u2", ids));
  write_bytes(folder / "a.bin", llmc_bin(ids));
  for (const char* name : {"a.npy", "a.bin"}) {
    IdFile file(folder / name);
    BOOST_REQUIRE_EQUAL(file.count(), 200'000);
    std::vector<std::int64_t> part(150'000);
    file.read(50'000, part);
    BOOST_TEST(std::equal(part.begin(), part.end(), ids.begin() + 50'000));
    BOOST_CHECK_THROW(file.read(50'001, part), ContractError);
  }
}

BOOST_AUTO_TEST_CASE(malformed_npy_files_are_refused_in_one_sentence) {
  const TempFolder folder;
  const std::string good = npy("<i4", {1, 2, 3});
  const auto header = [](std::string_view text) {
    return npy_with_header(text, std::string(12, '\1'));
  };
  BOOST_TEST(contains(error_of(folder, ""), "is empty"));
  BOOST_TEST(contains(error_of(folder, "\x93NUMP"), "neither a .npy file nor a .bin"));
  BOOST_TEST(contains(error_of(folder, "plain text of some length"), "neither"));
  for (std::size_t cut = 6; cut < good.size(); ++cut) {
    const std::string message = error_of(folder, std::string_view(good).substr(0, cut));
    BOOST_REQUIRE_MESSAGE(contains(message, (folder / "x.npy").string()) &&
                              message.find('\n') == std::string::npos &&
                              !contains(message, "another exception"),
                          "cut at " << cut << ": " << message);
  }
  BOOST_TEST(contains(error_of(folder, good + "x"), "is damaged: it should have 3 numbers"));
  std::string version = good;
  version[6] = 4;
  BOOST_TEST(contains(error_of(folder, version), ".npy file of format 4"));
  std::string length = npy("<i4", {1}, 2);
  length.replace(8, 4, "\xFF\xFF\xFF\xFF");
  BOOST_TEST(contains(error_of(folder, length), "header of 4294967295 bytes"));
  for (const char* type :
       {"<f4", "<f8", "<c8", "|O", "|S4", "<U4", "|V2", "<i3", "<b2", "<i44", ""}) {
    BOOST_TEST(contains(error_of(folder, header(fmt::format("{{'descr': '{}', 'fortran_order': "
                                                            "False, 'shape': (3,), }}",
                                                            type))),
                        "not integers"),
               type);
  }
  for (const char* shape : {"()", "(3, 1)", "(1, 3, 1)"}) {
    BOOST_TEST(contains(error_of(folder, header(fmt::format("{{'descr': '<i4', 'fortran_order': "
                                                            "False, 'shape': {}, }}",
                                                            shape))),
                        "dimensions, not 1"),
               shape);
  }
  for (const char* shape : {"(18446744073709551615,)", "(4611686018427387904,)", "(4,)"}) {
    BOOST_TEST(contains(error_of(folder, header(fmt::format("{{'descr': '<i4', 'fortran_order': "
                                                            "False, 'shape': {}, }}",
                                                            shape))),
                        "is truncated"),
               shape);
  }
  for (const char* text :
       {"", "{", "}", "{}", "[]", "{'descr': '<i4'}", "{'descr': '<i4', 'shape': (3,)",
        "{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<i4', 'fortran_order': 0, 'shape': (3,), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (-3,), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': 3, }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), 'more': 1}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), } more"}) {
    BOOST_TEST(contains(error_of(folder, header(text)), "no simple type and shape"), text);
  }
}

BOOST_AUTO_TEST_CASE(malformed_bin_files_are_refused_in_one_sentence) {
  const TempFolder folder;
  const std::string good = llmc_bin({1, 2, 3});
  BOOST_TEST(error_of(folder, good) == "no exception");
  BOOST_TEST(contains(error_of(folder, good.substr(0, 500)), "is truncated: a .bin header"));
  BOOST_TEST(contains(error_of(folder, good.substr(0, good.size() - 1)),
                      "is truncated: it should have 3 tokens of 2 bytes and has 5 bytes"));
  BOOST_TEST(contains(error_of(folder, good + "x"), "is damaged: it should have 3 tokens"));
  std::string version = good;
  version[4] = 2;
  BOOST_TEST(contains(error_of(folder, version), ".bin file of magic 20240520 and version 2"));
  std::string count = good;
  count.replace(8, 4, "\xFF\xFF\xFF\xFF");
  BOOST_TEST(contains(error_of(folder, count), "should have 4294967295 tokens"));
  std::string magic = good;
  magic[0] = 0;
  BOOST_TEST(contains(error_of(folder, magic), "magic 20240520 or 20240801"));
}

BOOST_AUTO_TEST_CASE(wide_bin_files_of_llmc_and_files_of_nothing_but_ids_are_read) {
  const TempFolder folder;
  const std::vector<std::int64_t> ids = {0, 1, 70'000, 0xFFFFFFFF};
  const auto numbers_of = [&](const std::string& content, RawIds raw) {
    write_bytes(folder / "a.bin", content);
    IdFile file(folder / "a.bin", raw);
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(file.count()));
    file.read(0, numbers);
    return numbers;
  };
  const std::string wide = llmc_bin(ids, 20240801);
  BOOST_TEST(numbers_of(wide, RawIds::none) == ids);
  const std::string headerless = wide.substr(1024);
  BOOST_TEST(numbers_of(headerless, RawIds::uint32) == ids);
  BOOST_TEST(numbers_of(headerless.substr(0, 12), RawIds::uint16) ==
             (std::vector<std::int64_t>{0, 0, 1, 0, 70'000 - 65'536, 1}));
  const auto refusal = [&](const std::string& content, RawIds raw) {
    try {
      numbers_of(content, raw);
    } catch (const FormatError& error) {
      return error.message();
    }
    return std::string();
  };
  BOOST_TEST(contains(refusal(headerless, RawIds::none), "give --raw uint16 or --raw uint32"));
  BOOST_TEST(contains(refusal(wide, RawIds::uint32), "leave --raw out"));
  BOOST_TEST(contains(refusal(headerless + "x", RawIds::uint16), "not a whole number of ids"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
