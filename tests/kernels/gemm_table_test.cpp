#include "kernels/gemm_table.h"

#include <string>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"

namespace tessera::test {
namespace {

const GemmTableOrigin kH200 = {.card = "NVIDIA H200", .library = "cublasLt 130100"};

GemmTableEntry entry_of(int factor, int offset, const std::string& note) {
  GemmTableEntry entry{{}, note};
  for (std::size_t i = 0; i < entry.algorithm.size(); ++i) {
    entry.algorithm.at(i) = static_cast<unsigned char>(factor * static_cast<int>(i) + offset);
  }
  return entry;
}

// A forward GEMM of bf16.
GemmKey a_key() {
  return {.m = 4096,
          .n = 3072,
          .k = 1024,
          .transpose_a = Transpose::no,
          .transpose_b = Transpose::yes,
          .lda = 1024,
          .ldb = 1024,
          .ldd = 3072,
          .in_a = DType::bf16,
          .out = DType::bf16,
          .reads_c = true,
          .in_place = false,
          .has_bias = true,
          .alignment = {16, 8, 4, 2, 16},
          .in_b = DType::bf16,
          .scale_a = ScaleMode::none,
          .scale_b = ScaleMode::none,
          .accumulation = Accumulation::full};
}

GemmTableEntries old_entries() {
  GemmKey f32 = a_key();
  f32.in_a = f32.in_b = f32.out = DType::f32;
  f32.reads_c = f32.has_bias = false;
  f32.alignment = {16, 16, 16, 16, 16};
  GemmKey gradient = f32;
  gradient.m = 96;
  gradient.n = gradient.ldb = gradient.ldd = 160;
  gradient.k = 512;
  gradient.lda = 96;
  gradient.transpose_a = Transpose::yes;
  gradient.transpose_b = Transpose::no;
  gradient.in_a = gradient.in_b = DType::bf16;
  gradient.reads_c = gradient.in_place = true;
  return {{a_key(), entry_of(7, 3, "id=66 tile=20 stages=35 split_k=1 12.5 us")},
          {f32, entry_of(7, 3, "id=1")},
          {gradient, entry_of(7, 3, "id=2")}};
}

// As programs wrote it before there was a version 3.
const std::string kAlgorithm =
    "030a11181f262d343b424950575e656c737a81888f969da4abb2b9c0c7ced5dce3eaf1f8ff060d141b222930373e45"
    "4c535a61686f767d848b9299a0a7aeb5bc";
const std::string kVersion2 =
    "tessera gemm table 2\n"
    "card NVIDIA H200\n"
    "library cublasLt 130100\n"
    "gemm m=96 n=160 k=512 a=t b=n lda=96 ldb=160 ldd=160 in=bf16 out=f32 c=d bias=0 sms=0 "
    "align=16/16/16/16/16 algo=" +
    kAlgorithm +
    " # id=2\n"
    "gemm m=4096 n=3072 k=1024 a=n b=t lda=1024 ldb=1024 ldd=3072 in=f32 out=f32 c=none bias=0 "
    "sms=0 align=16/16/16/16/16 algo=" +
    kAlgorithm +
    " # id=1\n"
    "gemm m=4096 n=3072 k=1024 a=n b=t lda=1024 ldb=1024 ldd=3072 in=bf16 out=bf16 c=other bias=1 "
    "sms=0 align=16/8/4/2/16 algo=" +
    kAlgorithm + " # id=66 tile=20 stages=35 split_k=1 12.5 us\n";
constexpr std::uint64_t kVersion2Hash = 2153803010870697069ULL;

GemmKey scaled_key() {
  GemmKey key = a_key();
  key.in_a = DType::e5m2;
  key.in_b = DType::e4m3;
  key.scale_a = ScaleMode::tensor;
  key.scale_b = ScaleMode::row;
  key.accumulation = Accumulation::fast;
  return key;
}

// The same shape in other numbers, each one a key of its own.
GemmTableEntries scaled_entries() {
  GemmTableEntries entries = old_entries();
  entries.emplace(scaled_key(), entry_of(5, 1, "id=70"));
  GemmKey other = scaled_key();
  other.accumulation = Accumulation::full;
  entries.emplace(other, entry_of(3, 1, ""));
  other.scale_b = ScaleMode::tensor;
  entries.emplace(other, entry_of(9, 4, ""));
  other.in_a = DType::e4m3;
  entries.emplace(other, entry_of(11, 4, ""));
  return entries;
}

void check_same(const GemmTableEntries& read, const GemmTableEntries& written) {
  BOOST_REQUIRE_EQUAL(read.size(), written.size());
  for (const auto& [key, entry] : written) {
    BOOST_TEST_CONTEXT(to_text(key)) {
      BOOST_REQUIRE(read.contains(key));
      BOOST_TEST(read.at(key).algorithm == entry.algorithm);
    }
  }
}

std::string replaced(std::string text, const std::string& old_words, const std::string& words) {
  const std::size_t at = text.find(old_words);
  BOOST_REQUIRE_NE(at, std::string::npos);
  return text.replace(at, old_words.size(), words);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gemm_table)

BOOST_AUTO_TEST_CASE(text_and_hash_without_scales_are_those_of_version_2) {
  BOOST_TEST(write_gemm_table(kH200, old_entries()) == kVersion2);
  BOOST_TEST(hash_of(kH200, old_entries()) == kVersion2Hash);
  check_same(read_gemm_table(kVersion2, "old.txt", kH200), old_entries());
  BOOST_TEST(hash_of(kH200, read_gemm_table(kVersion2, "old.txt", kH200)) == kVersion2Hash);
  BOOST_TEST(hash_of(kH200, {}) == 0U);
}

BOOST_AUTO_TEST_CASE(operands_with_scales_are_named_in_version_3_and_read_again) {
  const std::string text = write_gemm_table(kH200, scaled_entries());
  BOOST_TEST(text.starts_with("tessera gemm table 3\n"));
  BOOST_TEST(to_text(scaled_key()) ==
             "m=4096 n=3072 k=1024 a=n b=t lda=1024 ldb=1024 ldd=3072 in=e5m2/e4m3 "
             "scale=tensor/row accumulate=fast out=bf16 c=other bias=1 align=16/8/4/2/16");
  check_same(read_gemm_table(text, "new.txt", kH200), scaled_entries());
  BOOST_TEST(hash_of(kH200, read_gemm_table(text, "new.txt", kH200)) ==
             hash_of(kH200, scaled_entries()));
  BOOST_TEST(hash_of(kH200, scaled_entries()) != kVersion2Hash);
}

BOOST_AUTO_TEST_CASE(a_version_that_is_not_known_is_refused_by_its_name) {
  for (const std::string version : {"1", "4", "3b"}) {
    BOOST_CHECK_EXCEPTION(
        (void)read_gemm_table(replaced(kVersion2, "table 2", "table " + version), "t.txt", kH200),
        FormatError, [&](const FormatError& error) {
          return error.message().find("t.txt is of version '" + version + "'") != std::string::npos;
        });
  }
}

BOOST_AUTO_TEST_CASE(a_table_made_elsewhere_is_refused) {
  for (const GemmTableOrigin& here :
       {GemmTableOrigin{"NVIDIA H100", kH200.library}, GemmTableOrigin{kH200.card, "cublasLt 1"}}) {
    BOOST_CHECK_THROW((void)read_gemm_table(kVersion2, "t.txt", here), ConfigError);
  }
}

BOOST_AUTO_TEST_CASE(damaged_lines_are_refused_and_those_of_some_multiprocessors_left_out) {
  const std::string version_3 = write_gemm_table(kH200, scaled_entries());
  const std::string once_more = kVersion2.substr(kVersion2.rfind("gemm m="));
  for (const std::string& damaged :
       {std::string("words\n"), std::string("tessera gemm table 2\n"), kVersion2 + "gemm m=1\n",
        kVersion2 + once_more, replaced(kVersion2, "m=96", "m=0"),
        replaced(kVersion2, "in=bf16", "in=e4m3"), replaced(kVersion2, "table 2", "table 3"),
        replaced(version_3, "table 3", "table 2"), replaced(version_3, "e5m2/e4m3", "e5m2"),
        replaced(version_3, "tensor/row", "tensor/column"),
        replaced(version_3, "accumulate=fast", "accumulate=slow"),
        replaced(version_3, "algo=", "algo=0g")}) {
    BOOST_TEST_CONTEXT(damaged) {
      BOOST_CHECK_THROW((void)read_gemm_table(damaged, "t.txt", kH200), FormatError);
    }
  }
  BOOST_TEST(read_gemm_table(replaced(kVersion2, "sms=0", "sms=80"), "t.txt", kH200).size() == 2U);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
