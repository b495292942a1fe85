#include "kernels/attention_cached.h"

#include <algorithm>
#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

struct Sizes {
  Index rows;
  Index query_heads;
  Index kv_heads;
  Index head_dim;
  Index position;
  Index window = 0;
  [[nodiscard]] Index width() const { return (query_heads + 2 * kv_heads) * head_dim; }
  [[nodiscard]] Index kept() const { return 2 * kv_heads * head_dim; }
  [[nodiscard]] Index out_width() const { return query_heads * head_dim; }
  [[nodiscard]] float scale() const {
    return static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
  }
};

std::vector<double> attended(TestBench& bench, const Sizes& s, const ConstTensorView& qkv,
                             TensorView cache) {
  TestTensor out = bench.poisoned(qkv.dtype, {s.rows, s.out_width()});
  bench.kernels().attention_cached({.rows = s.rows,
                                    .query_heads = s.query_heads,
                                    .kv_heads = s.kv_heads,
                                    .head_dim = s.head_dim,
                                    .position = s.position,
                                    .scale = s.scale(),
                                    .qkv = qkv,
                                    .cache = cache,
                                    .out = out.view(),
                                    .window = s.window},
                                   bench.stream());
  return bench.read(out.view());
}

std::size_t at(Index row, Index width, Index column) {
  return static_cast<std::size_t>(row * width + column);
}

// In f64, from the definition.
std::vector<double> expected(const Sizes& s, const std::vector<double>& qkv,
                             const std::vector<double>& before) {
  std::vector<double> cache(before.begin(),
                            before.begin() + static_cast<std::ptrdiff_t>(s.position * s.kept()));
  for (Index row = 0; row < s.rows; ++row) {
    for (Index i = 0; i < s.kept(); ++i) {
      cache.push_back(qkv[at(row, s.width(), s.out_width() + i)]);
    }
  }
  std::vector<double> out(static_cast<std::size_t>(s.rows * s.out_width()), 0.0);
  for (Index row = 0; row < s.rows; ++row) {
    for (Index h = 0; h < s.query_heads; ++h) {
      const Index kv = h / (s.query_heads / s.kv_heads);
      std::vector<double> scores;
      const Index seen = s.window == 0 ? 0 : std::max(Index{0}, s.position + row - s.window + 1);
      for (Index key = seen; key <= s.position + row; ++key) {
        double score = 0;
        for (Index i = 0; i < s.head_dim; ++i) {
          score += qkv[at(row, s.width(), h * s.head_dim + i)] *
                   cache[at(key, s.kept(), kv * s.head_dim + i)];
        }
        scores.push_back(score * static_cast<double>(s.scale()));
      }
      const double largest = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& score : scores) {
        score = std::exp(score - largest);
        sum += score;
      }
      for (Index key = seen; key <= s.position + row; ++key) {
        for (Index i = 0; i < s.head_dim; ++i) {
          out[at(row, s.out_width(), h * s.head_dim + i)] +=
              scores[static_cast<std::size_t>(key - seen)] / sum *
              cache[at(key, s.kept(), (s.kv_heads + kv) * s.head_dim + i)];
        }
      }
    }
  }
  return out;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(attention_cached)

BOOST_AUTO_TEST_CASE(it_is_attention_over_all_keys_so_far) {
  TestBench bench(test_device());
  for (const DType dtype : bench.float_types()) {
    for (const Sizes& s :
         {Sizes{1, 1, 1, 8, 0}, Sizes{16, 4, 2, 16, 0}, Sizes{5, 6, 2, 64, 131},
          Sizes{16, 8, 1, 128, 240}, Sizes{3, 2, 2, 256, 70}, Sizes{5, 6, 2, 64, 131, 1},
          Sizes{16, 4, 2, 16, 200, 70}, Sizes{16, 8, 1, 128, 240, 130}, Sizes{4, 2, 2, 16, 3, 5}}) {
      TestTensor qkv = bench.normal(dtype, {s.rows, s.width()});
      TestTensor cache = bench.normal(dtype, {s.position + s.rows, s.kept()});
      const std::vector<double> wanted = expected(s, qkv.values, cache.values);
      const std::vector<double> found = attended(bench, s, qkv.view(), cache.view());
      // results are within the largest value, about 4; bf16 rounds them to 2^-9 of themselves
      const double bound = dtype == DType::f32 ? 1e-5 : 2e-2;
      double worst = 0;
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        worst = std::max(worst, std::abs(found[i] - wanted[i]));
      }
      BOOST_TEST(worst <= bound,
                 "head_dim " << s.head_dim << " position " << s.position << ": off by " << worst);
      const std::vector<double> kept = bench.read(cache.view());
      for (Index row = 0; row < s.rows; ++row) {
        for (Index i = 0; i < s.kept(); ++i) {
          BOOST_REQUIRE_EQUAL(kept[at(s.position + row, s.kept(), i)],
                              qkv.values[at(row, s.width(), s.out_width() + i)]);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(rows_that_come_one_by_one_give_the_bits_of_rows_together) {
  TestBench bench(test_device());
  for (const auto& [dtype, window] : {std::pair{bench.float_types().front(), Index{0}},
                                      {bench.float_types().back(), Index{0}},
                                      {bench.float_types().front(), Index{70}},
                                      {bench.float_types().back(), Index{70}}}) {
    const Sizes together = {20, 4, 2, 32, 120, window};
    TestTensor qkv = bench.normal(dtype, {together.rows, together.width()});
    TestTensor cache = bench.normal(dtype, {together.position + together.rows, together.kept()});
    const std::vector<double> wanted = attended(bench, together, qkv.view(), cache.view());
    poison_async(cache.view().slice(together.position * together.kept(), cache.view().count()),
                 bench.stream());
    for (Index row = 0; row < together.rows; ++row) {
      Sizes one = together;
      one.rows = 1;
      one.position += row;
      const std::vector<double> found = attended(
          bench, one, qkv.view().slice(row * one.width(), (row + 1) * one.width()), cache.view());
      BOOST_REQUIRE(
          std::equal(found.begin(), found.end(),
                     wanted.begin() + static_cast<std::ptrdiff_t>(row * one.out_width())));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
