// The reader against sound files, against files of other writers (tests/golden) and against every
// kind of damage; the writer against the reader.
#include "model/safetensors.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_folder.h"

namespace tessera {
namespace {

void write_file(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream out(file, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  BOOST_REQUIRE(out.good());
}

std::string length_bytes(std::uint64_t length) {
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes;
}

// A file with this header and so many bytes of data.
std::string file_bytes(const std::string& header, std::size_t data_bytes) {
  return length_bytes(header.size()) + header + std::string(data_bytes, 'x');
}

std::string complaint_about(const std::string& bytes) {
  const test::TempFolder folder;
  write_file(folder / "a.safetensors", bytes);
  try {
    const SafetensorsFile file(folder / "a.safetensors");
  } catch (const FormatError& error) {
    BOOST_TEST(error.exit_status() == 3);
    const std::string start =
        (folder / "a.safetensors").string() + " is not a sound safetensors file: ";
    BOOST_TEST(error.message().starts_with(start), error.message());
    // One sentence: nothing of the file can break the line.
    BOOST_TEST(error.message().find('\n') == std::string::npos);
    return error.message().substr(start.size());
  }
  return "nothing";
}

struct Damage {
  const char* what;
  std::string bytes;
  const char* complaint;
};

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}

std::string header(const std::string& members) {
  return "{" + members + "}";
}

std::vector<Damage> damages() {
  const std::string sound = tensor("a", "F32", "[2]", "[0,8]");
  return {
      {"0 bytes", "", "it has 0 bytes"},
      {"7 bytes", "1234567", "it has 7 bytes"},
      {"length 2^63", length_bytes(std::uint64_t{1} << 63U) + "{}",
       "its header would have 9223372036854775808 bytes, more than 100000000"},
      {"length 2^64 - 1", length_bytes(~std::uint64_t{0}) + "{}", "more than 100000000"},
      {"header above 100 MB", length_bytes(100'000'001) + "{}", "more than 100000000"},
      {"length beyond the file", length_bytes(3) + "{}",
       "its header would have 3 bytes, and the file has 10"},
      {"empty header", file_bytes("", 0), "is not JSON"},
      {"not JSON", file_bytes("{\"a\":", 0), "is not JSON"},
      {"not UTF-8", file_bytes("{\"a\xff\":1}", 0), "is not JSON"},
      {"text behind the object", file_bytes("{}x", 0), "is not JSON"},
      {"an array", file_bytes("[]", 0), "is not a JSON object"},
      {"deep nesting", file_bytes(std::string(100'000, '['), 0), "is not a JSON object"},
      {"deep nesting inside", file_bytes("{\"a\":" + std::string(100'000, '{'), 0), "is not JSON"},
      {"tensor that is a number", file_bytes("{\"a\":1}", 0), "a number stands"},
      {"tensor that is null", file_bytes("{\"a\":null}", 0), "null stands"},
      {"metadata that is not text", file_bytes(R"({"__metadata__":{"a":1}})", 0),
       "a number stands"},
      {"metadata twice", file_bytes(R"({"__metadata__":{},"__metadata__":{}})", 0),
       "__metadata__ stands twice"},
      {"unknown key", file_bytes(header(R"("a":{"strides":[1]})"), 0),
       "unknown or second key 'strides'"},
      {"key twice", file_bytes(header(R"("a":{"dtype":"F32","dtype":"F32"})"), 0),
       "unknown or second key 'dtype'"},
      {"key missing", file_bytes(header(R"("a":{"dtype":"F32","shape":[2]})"), 8), "lacks one of"},
      {"one offset", file_bytes(header(tensor("a", "F32", "[2]", "[0]")), 8),
       "are not two numbers"},
      {"three offsets", file_bytes(header(tensor("a", "F32", "[2]", "[0,8,8]")), 8),
       "more than 2 numbers"},
      {"offset that is text", file_bytes(header(tensor("a", "F32", "[2]", "[\"0\",8]")), 8),
       "a string stands"},
      {"negative offset", file_bytes(header(tensor("a", "F32", "[2]", "[-8,0]")), 8),
       "a negative number"},
      {"offset of a fraction", file_bytes(header(tensor("a", "F32", "[2]", "[0.0,8]")), 8),
       "not an integer"},
      {"offset 2^63", file_bytes(header(tensor("a", "F32", "[2]", "[0,9223372036854775808]")), 8),
       "9223372036854775808 in the data_offsets of tensor 'a' is beyond any file"},
      {"offset 2^64", file_bytes(header(tensor("a", "F32", "[2]", "[0,18446744073709551616]")), 8),
       "not an integer"},
      {"inverted offsets", file_bytes(header(tensor("a", "F32", "[2]", "[8,0]")), 8),
       "is at bytes 8 to 0 of 8"},
      {"offsets beyond the file", file_bytes(header(tensor("a", "F32", "[4]", "[0,16]")), 8),
       "is at bytes 0 to 16 of 8"},
      {"short range", file_bytes(header(tensor("a", "F32", "[2]", "[0,4]")), 4),
       "has 4 bytes, but F32 of shape [2] takes 8"},
      {"long range", file_bytes(header(tensor("a", "F32", "[2]", "[0,12]")), 12),
       "has 12 bytes, but F32 of shape [2] takes 8"},
      {"overlap", file_bytes(header(sound + "," + tensor("b", "F32", "[2]", "[4,12]")), 12),
       "tensors 'a' and 'b' overlap"},
      {"the same range twice",
       file_bytes(header(sound + "," + tensor("b", "F32", "[2]", "[0,8]")), 8), "overlap"},
      {"hole", file_bytes(header(sound + "," + tensor("b", "F32", "[2]", "[12,20]")), 20),
       "the 4 bytes before tensor 'b' belong to no tensor"},
      {"hole in front", file_bytes(header(tensor("a", "F32", "[2]", "[4,12]")), 12),
       "the 4 bytes before tensor 'a' belong to no tensor"},
      {"shape product 2^64",
       file_bytes(header(tensor("a", "F32", "[4294967296,4294967296]", "[0,8]")), 8),
       "the shape [4294967296, 4294967296] of tensor 'a' is beyond any file"},
      {"shape bytes 2^64",
       file_bytes(header(tensor("a", "F32", "[4611686018427387904]", "[0,0]")), 0),
       "is beyond any file"},
      {"shape product overflows to 0 by an empty axis",
       file_bytes(
           header(tensor("a", "F32", "[9223372036854775807,9223372036854775807,0]", "[0,0]")), 0),
       "is beyond any file"},
      {"negative extent", file_bytes(header(tensor("a", "F32", "[-2]", "[0,8]")), 8),
       "a negative number"},
      {"nine extents", file_bytes(header(tensor("a", "F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]")), 8),
       "more than 8 numbers"},
      {"shape of shapes", file_bytes(header(tensor("a", "F32", "[[2]]", "[0,8]")), 8),
       "an array stands"},
      {"unknown dtype", file_bytes(header(tensor("a", "F33", "[2]", "[0,8]")), 8),
       "dtype 'F33' of tensor 'a' is unknown"},
      {"dtype of control characters",
       file_bytes(header(tensor("a", "\\n\\u001b[2J", "[2]", "[0,8]")), 8),
       "dtype '\\x0a\\x1b[2J' of tensor 'a' is unknown"},
      {"endless dtype", file_bytes(header(tensor("a", std::string(5000, 'F'), "[2]", "[0,8]")), 8),
       "FFF...' of tensor 'a' is unknown"},
      {"name twice", file_bytes(header(sound + "," + tensor("a", "F32", "[2]", "[8,16]")), 16),
       "tensor 'a' stands in it twice"},
      {"trailing bytes", file_bytes(header(sound), 9), "1 bytes follow the last tensor"},
      {"bytes without tensors", file_bytes("{}", 3), "3 bytes follow the last tensor"},
      {"data cut off", file_bytes(header(sound), 7), "is at bytes 0 to 8 of 7"},
  };
}

}  // namespace

BOOST_AUTO_TEST_SUITE(safetensors)

BOOST_AUTO_TEST_CASE(every_kind_of_damage_is_one_clear_sentence) {
  for (const Damage& damage : damages()) {
    const std::string complaint = complaint_about(damage.bytes);
    BOOST_TEST(complaint.find(damage.complaint) != std::string::npos,
               damage.what << ": expected '" << damage.complaint << "', got '" << complaint << "'");
    BOOST_TEST(complaint.size() < 250, damage.what << ": " << complaint);
  }
}

BOOST_AUTO_TEST_CASE(every_prefix_of_a_sound_file_is_refused) {
  const std::string sound = file_bytes(
      header(tensor("a", "F32", "[2]", "[0,8]") + "," + tensor("b", "U8", "[3]", "[8,11]")), 11);
  BOOST_TEST(complaint_about(sound) == "nothing");
  for (std::size_t length = 0; length < sound.size(); ++length) {
    BOOST_TEST(complaint_about(sound.substr(0, length)) != "nothing", length << " bytes");
  }
}

BOOST_AUTO_TEST_CASE(what_is_no_regular_file_is_refused) {
  const test::TempFolder folder;
  BOOST_CHECK_THROW(SafetensorsFile(folder / "missing.safetensors"), FormatError);
  BOOST_CHECK_THROW(SafetensorsFile(folder.path()), FormatError);
  BOOST_CHECK_THROW(SafetensorsFile("/dev/zero"), FormatError);
}

BOOST_AUTO_TEST_CASE(empty_tensors_scalars_and_padding_are_sound) {
  const test::TempFolder folder;
  write_file(folder / "a", file_bytes(header(R"("__metadata__":{"format":"pt"},)" +
                                             tensor("one", "F32", "[]", "[0,4]") + "," +
                                             tensor("none", "F32", "[0,3]", "[0,0]") + "," +
                                             tensor("last", "I32", "[1]", "[4,8]")) +
                                          "   \n",
                                      8));
  const SafetensorsFile file(folder / "a");
  BOOST_TEST(file.tensors().size() == 3U);
  BOOST_TEST(file.find("one")->count == 1);
  BOOST_TEST(file.find("none")->count == 0);
  BOOST_TEST(file.find("absent") == nullptr);
  BOOST_TEST(file.metadata().at("format") == "pt");
}

BOOST_AUTO_TEST_CASE(written_files_read_back_the_same) {
  const test::TempFolder folder;
  const std::vector<SafetensorsSpec> specs = {{"b", SafetensorsType::f32, {2, 3}},
                                              {"a \"quoted\" \xc3\xa9", SafetensorsType::i64, {2}},
                                              {"scalar", SafetensorsType::u8, {}}};
  const std::vector<float> floats = {0, -1.5F, 3e38F, 1e-45F, INFINITY, 7};
  const std::vector<std::int64_t> integers = {-1, std::numeric_limits<std::int64_t>::max()};
  const std::byte last{200};
  {
    SafetensorsWriter writer(folder / "a", specs, {{"format", "pt"}});
    // In any order.
    writer.write(40, std::span(&last, 1));
    writer.write(24, std::as_bytes(std::span(integers)));
    writer.write(5, std::as_bytes(std::span(floats)).subspan(5));
    writer.write(0, std::as_bytes(std::span(floats)).first(5));
    writer.close();
  }
  const SafetensorsFile file(folder / "a");
  BOOST_TEST(file.metadata().at("format") == "pt");
  BOOST_REQUIRE(file.tensors().size() == 3U);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    BOOST_TEST(file.tensors()[i].name == specs[i].name);
    BOOST_TEST(file.tensors()[i].shape == specs[i].shape, boost::test_tools::per_element());
  }
  BOOST_TEST(file.tensors()[0].offset % 8 == 0);
  std::vector<float> read_floats(4);
  file.read(*file.find("b"), 2, read_floats);
  const std::vector<float> last_floats(floats.begin() + 2, floats.end());
  BOOST_TEST(read_floats == last_floats, boost::test_tools::per_element());
  std::vector<std::int64_t> read_integers(2);
  file.read(*file.find(specs[1].name), 0, read_integers);
  BOOST_TEST(read_integers == integers, boost::test_tools::per_element());
  file.read(*file.find("scalar"), 0, std::span(read_integers).first(1));
  BOOST_TEST(read_integers[0] == 200);
}

BOOST_AUTO_TEST_CASE(writing_needs_exactly_the_announced_bytes_and_a_new_file) {
  const test::TempFolder folder;
  const std::vector<SafetensorsSpec> specs = {{"a", SafetensorsType::u8, {2}}};
  const std::vector<std::byte> bytes(3);
  SafetensorsWriter writer(folder / "a", specs, {});
  BOOST_CHECK_THROW(writer.write(0, bytes), ContractError);
  BOOST_CHECK_THROW(writer.write(2, std::span(bytes).first(1)), ContractError);
  writer.write(1, std::span(bytes).first(1));
  BOOST_CHECK_THROW(writer.close(), ContractError);
  BOOST_CHECK_THROW(SafetensorsWriter(folder / "a", specs, {}), WriteError);
  BOOST_CHECK_THROW(SafetensorsWriter(folder / "absent/a", specs, {}), WriteError);
}

BOOST_AUTO_TEST_CASE(a_write_that_fails_names_the_file) {
  const test::TempFolder folder;
  const std::vector<SafetensorsSpec> specs = {{"a", SafetensorsType::u8, {4096}}};
  SafetensorsWriter writer(folder / "a", specs, {});
  const std::vector<std::byte> bytes(4096);
  const test::FileSizeLimit small(1024);
  BOOST_CHECK_EXCEPTION(writer.write(0, bytes), WriteError, [&](const WriteError& error) {
    return error.message().starts_with("cannot write " + (folder / "a").string());
  });
}

BOOST_AUTO_TEST_CASE(all_half_numbers_are_converted_exactly) {
  const test::TempFolder folder;
  constexpr int kHalves = 65536;
  std::vector<std::uint16_t> halves(kHalves);
  for (int i = 0; i < kHalves; ++i) {
    halves[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(i);
  }
  for (const SafetensorsType type : {SafetensorsType::f16, SafetensorsType::bf16}) {
    const bool is_f16 = type == SafetensorsType::f16;
    const std::filesystem::path file_path = folder / (is_f16 ? "f16" : "bf16");
    const std::vector<SafetensorsSpec> specs = {{"a", type, {kHalves}}};
    SafetensorsWriter writer(file_path, specs, {});
    writer.write(0, std::as_bytes(std::span(halves)));
    writer.close();
    const SafetensorsFile file(file_path);
    std::vector<float> values(kHalves);
    file.read(file.tensors()[0], 0, values);
    for (int i = 0; i < kHalves; ++i) {
      const float got = values[static_cast<std::size_t>(i)];
      const int mantissa_bits = is_f16 ? 10 : 7;
      const int exponent_mask = is_f16 ? 31 : 255;
      const int bias = is_f16 ? 15 : 127;
      const int exponent = (i >> mantissa_bits) & exponent_mask;
      const int mantissa = i & ((1 << mantissa_bits) - 1);
      const bool negative = i >= kHalves / 2;
      BOOST_TEST_REQUIRE(std::signbit(got) == negative, "number " << i);
      if (exponent == exponent_mask) {
        BOOST_TEST_REQUIRE((mantissa == 0 ? std::isinf(got) : std::isnan(got)), "number " << i);
        continue;
      }
      const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                             : std::ldexp(mantissa + (1 << mantissa_bits),
                                                          exponent - bias - mantissa_bits);
      BOOST_TEST_REQUIRE(static_cast<double>(got) == (negative ? -magnitude : magnitude),
                         "number " << i);
    }
  }
}

BOOST_AUTO_TEST_CASE(other_types_and_ranges_beyond_the_tensor_are_refused) {
  const test::TempFolder folder;
  write_file(folder / "a", file_bytes(header(tensor("a", "F32", "[2]", "[0,8]") + "," +
                                             tensor("b", "F8_E4M3", "[4]", "[8,12]")),
                                      12));
  const SafetensorsFile file(folder / "a");
  std::vector<float> floats(2);
  std::vector<std::int64_t> integers(2);
  BOOST_CHECK_THROW(file.read(*file.find("b"), 0, floats), FormatError);
  BOOST_CHECK_THROW(file.read(*file.find("a"), 0, integers), FormatError);
  BOOST_CHECK_THROW(file.read(*file.find("a"), 1, floats), ContractError);
  BOOST_CHECK_THROW(file.read(*file.find("a"), -1, floats), ContractError);
}

BOOST_AUTO_TEST_CASE(a_file_cut_off_while_open_is_an_error) {
  const test::TempFolder folder;
  write_file(folder / "a", file_bytes(header(tensor("a", "F32", "[2]", "[0,8]")), 8));
  const SafetensorsFile file(folder / "a");
  std::filesystem::resize_file(folder / "a", std::filesystem::file_size(folder / "a") - 1);
  std::vector<float> floats(2);
  BOOST_CHECK_THROW(file.read(file.tensors()[0], 0, floats), FormatError);
}

BOOST_AUTO_TEST_CASE(files_of_the_reference_library_are_read) {
  const char* golden = std::getenv("TESSERA_GOLDEN");
  BOOST_REQUIRE_MESSAGE(golden != nullptr, "TESSERA_GOLDEN names the folder of golden files");
  const SafetensorsFile file(std::filesystem::path(golden) / "tied/golden.safetensors");
  const SafetensorsTensor* tokens = file.find("tokens");
  BOOST_REQUIRE(tokens != nullptr);
  BOOST_TEST(tokens->shape == (std::vector<Index>{2, 16}), boost::test_tools::per_element());
  std::vector<std::int64_t> ids(32);
  file.read(*tokens, 0, ids);
  // The first ids as golden.json has them.
  const std::vector<std::int64_t> first = {75, 27, 6, 125, 113, 2, 3, 67};
  BOOST_TEST(std::vector<std::int64_t>(ids.begin(), ids.begin() + 8) == first,
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera
