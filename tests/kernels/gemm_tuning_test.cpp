#include "kernels/gemm_tuning.h"

#include <algorithm>
#include <string>

#include "kernels/base/error.h"
#include "kernels/gemm.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

// One shape of product, whose result is an accumulator in place: what tuning must not change.
class TunedProduct {
 public:
  explicit TunedProduct(TestBench& bench)
      : bench_(&bench),
        a_(bench.normal(DType::bf16, {kDepth, kRows})),
        b_(bench.normal(DType::bf16, {kDepth, kColumns})),
        start_(bench.normal(DType::f32, {kRows, kColumns})),
        workspace_(bench.poisoned(
            DType::u8, {static_cast<Index>(gemm_workspace_bytes(bench.device().kind))})) {}

  // start + a^T b
  std::vector<double> run() {
    TestTensor d = bench_->of(start_.values, DType::f32, {kRows, kColumns});
    bench_->kernels().gemm({.m = kRows,
                            .n = kColumns,
                            .k = kDepth,
                            .transpose_a = Transpose::yes,
                            .transpose_b = Transpose::no,
                            .a = a_.view(),
                            .lda = kRows,
                            .b = b_.view(),
                            .ldb = kColumns,
                            .beta = 1,
                            .c = d.view(),
                            .bias = {},
                            .d = d.view(),
                            .ldd = kColumns,
                            .workspace = workspace_.optional()},
                           bench_->stream());
    return bench_->read(d.view());
  }

  [[nodiscard]] std::vector<double> expected() const {
    std::vector<double> d = start_.values;
    for (Index i = 0; i < kRows; ++i) {
      for (Index l = 0; l < kDepth; ++l) {
        for (Index j = 0; j < kColumns; ++j) {
          d[static_cast<std::size_t>(i * kColumns + j)] +=
              a_.values[static_cast<std::size_t>(l * kRows + i)] *
              b_.values[static_cast<std::size_t>(l * kColumns + j)];
        }
      }
    }
    return d;
  }

  static constexpr Index kRows = 96;
  static constexpr Index kColumns = 160;
  static constexpr Index kDepth = 512;

 private:
  TestBench* bench_;
  TestTensor a_;
  TestTensor b_;
  TestTensor start_;
  TestTensor workspace_;
};

constexpr bool kIsCuda = TESSERA_TEST_DEVICE == DeviceKind::cuda;

std::string replaced(std::string text, const std::string& old_words, const std::string& words) {
  const std::size_t at = text.find(old_words);
  BOOST_REQUIRE_NE(at, std::string::npos);
  return text.replace(at, old_words.size(), words);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gemm_tuning)

BOOST_AUTO_TEST_CASE(the_cpu_has_an_empty_table_and_takes_none,
                     *boost::unit_test::enable_if<!kIsCuda>()) {
  set_gemm_tuning(test_device(), GemmTuning::off);
  BOOST_CHECK_THROW(set_gemm_tuning(test_device(), GemmTuning::on), ConfigError);
  BOOST_CHECK_EQUAL(gemm_table(test_device()), "");
  BOOST_CHECK_EQUAL(gemm_table_hash(test_device()), 0U);
  use_gemm_table(test_device(), "", "none");
  BOOST_CHECK_THROW(use_gemm_table(test_device(), "tessera gemm table 2\n", "some.txt"),
                    ConfigError);
}

BOOST_AUTO_TEST_CASE(a_shape_is_timed_once_and_its_entry_gives_the_same_bits,
                     *boost::unit_test::enable_if<kIsCuda>()) {
  TestBench bench(test_device());
  TunedProduct product(bench);
  (void)product.run();  // with the first proposal: no entry
  BOOST_CHECK_EQUAL(gemm_table_hash(test_device()), 0U);

  set_gemm_tuning(test_device(), GemmTuning::on);
  const std::vector<double> tuned = product.run();
  set_gemm_tuning(test_device(), GemmTuning::off);
  constexpr double kBound = 1e-2;  // sums of 512 products of normal numbers, in f32
  check_close(tuned, product.expected(), {kBound}, "the tuned product");

  const std::string table = gemm_table(test_device());
  const std::uint64_t hash = gemm_table_hash(test_device());
  BOOST_CHECK_EQUAL(std::count(table.begin(), table.end(), '\n'), 4);
  BOOST_CHECK_NE(hash, 0U);
  check_equal(product.run(), tuned, "the product, again");

  use_gemm_table(test_device(), table, "the exported table");
  check_equal(product.run(), tuned, "the product with the table given");
  BOOST_CHECK_EQUAL(gemm_table_hash(test_device()), hash);
}

BOOST_AUTO_TEST_CASE(a_table_of_another_card_or_a_damaged_one_is_refused,
                     *boost::unit_test::enable_if<kIsCuda>()) {
  const std::string table = gemm_table(test_device());  // at least the lines of card and library
  BOOST_CHECK_THROW(use_gemm_table(test_device(), replaced(table, "card ", "card X"), "other.txt"),
                    ConfigError);
  BOOST_CHECK_THROW(
      use_gemm_table(test_device(), replaced(table, "library ", "library X"), "other.txt"),
      ConfigError);
  for (const std::string& damaged :
       {replaced(table, "table 2", "table 4"), std::string("tessera gemm table 2\n"),
        table + "gemm m=1\n", table + "gemm m=0 n\n", table + "words\n"}) {
    BOOST_CHECK_THROW(use_gemm_table(test_device(), damaged, "damaged.txt"), FormatError);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
