#include "kernels/attention.h"

#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/attention_slices.h"
#include "kernels/base/error.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

constexpr bool kIsCuda = TESSERA_TEST_DEVICE == DeviceKind::cuda;

constexpr std::array<AttentionShape, 10> kShapes = {{
    {.batch = 1, .sequence = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 8},
    {.batch = 2, .sequence = 5, .query_heads = 3, .kv_heads = 1, .head_dim = 8},
    {.batch = 1, .sequence = 130, .query_heads = 2, .kv_heads = 2, .head_dim = 16},
    {.batch = 1, .sequence = 300, .query_heads = 4, .kv_heads = 2, .head_dim = 8},
    {.batch = 2, .sequence = 65, .query_heads = 4, .kv_heads = 2, .head_dim = 64},
    {.batch = 1, .sequence = 257, .query_heads = 1, .kv_heads = 1, .head_dim = 128},
    // Windows of one token, of a part of a block, across blocks of keys, and as long as the
    // sequence but for one.
    {.batch = 2, .sequence = 130, .query_heads = 2, .kv_heads = 1, .head_dim = 64, .window = 1},
    {.batch = 1, .sequence = 300, .query_heads = 4, .kv_heads = 2, .head_dim = 64, .window = 37},
    {.batch = 1, .sequence = 600, .query_heads = 2, .kv_heads = 1, .head_dim = 64, .window = 256},
    {.batch = 1, .sequence = 257, .query_heads = 1, .kv_heads = 1, .head_dim = 128, .window = 256},
}};
// Head dimensions that only the CPU takes.
constexpr std::array<AttentionShape, 4> kOddShapes = {{
    {.batch = 1, .sequence = 129, .query_heads = 2, .kv_heads = 1, .head_dim = 1},
    {.batch = 2, .sequence = 257, .query_heads = 2, .kv_heads = 1, .head_dim = 6},
    {.batch = 1, .sequence = 700, .query_heads = 2, .kv_heads = 1, .head_dim = 10},
    {.batch = 1, .sequence = 700, .query_heads = 2, .kv_heads = 1, .head_dim = 10, .window = 100},
}};

Index row_width(const AttentionShape& s) {
  return (s.query_heads + 2 * s.kv_heads) * s.head_dim;
}
Index out_width(const AttentionShape& s) {
  return s.query_heads * s.head_dim;
}
Index tokens_of(const AttentionShape& s) {
  return s.batch * s.sequence;
}
double scale_of(const AttentionShape& s) {
  return 1 / std::sqrt(static_cast<double>(s.head_dim));
}
std::size_t as_size(Index index) {
  return static_cast<std::size_t>(index);
}

// Where element 0 of a head of token `n` lies.
struct Places {
  std::size_t q;
  std::size_t k;
  std::size_t v;
  std::size_t out;
};

Places places_of(const AttentionShape& s, Index n, Index h) {
  const Index kv_head = h / (s.query_heads / s.kv_heads);
  const Index row = n * row_width(s);
  return {as_size(row + h * s.head_dim), as_size(row + (s.query_heads + kv_head) * s.head_dim),
          as_size(row + (s.query_heads + s.kv_heads + kv_head) * s.head_dim),
          as_size(n * out_width(s) + h * s.head_dim)};
}

double dot(const double* a, const double* b, Index count) {
  return std::inner_product(a, a + count, b, 0.0);
}

double dot_of_magnitudes(const double* a, const double* b, Index count) {
  double sum = 0;
  for (Index i = 0; i < count; ++i) {
    sum += std::abs(a[i] * b[i]);
  }
  return sum;
}

// A result in f64, and a bound of the kernel's error.
struct Bounded {
  explicit Bounded(Index count) : values(as_size(count)), bounds(as_size(count)) {}
  void add(std::size_t at, double value, double bound) {
    values[at] += value;
    bounds[at] += bound;
  }
  // one rounding at the end
  void store_as(DType dtype) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      bounds[i] += std::abs(values[i]) * unit_roundoff(dtype);
    }
  }
  std::vector<double> values;
  std::vector<double> bounds;
};

struct Forward {
  Bounded out;
  Bounded lse;
};

// The first token of its sequence that token n sees.
Index first_seen(const AttentionShape& s, Index n) {
  const Index begin = n / s.sequence * s.sequence;
  return s.window == 0 ? begin : std::max(begin, n - s.window + 1);
}

// The row of probabilities of query (n, h) over the keys that it sees, and how far scores in f32
// can be off.
struct Row {
  std::vector<double> p;
  double lse;
  double score_error;
};

Row row_of(const AttentionShape& s, const std::vector<double>& qkv, Index n, Index h) {
  const Index first = first_seen(s, n);
  const double unit = unit_roundoff(DType::f32);
  Row row{{}, 0, 0};
  std::vector<double> scores;
  double largest = -HUGE_VAL;
  for (Index key = first; key <= n; ++key) {
    const double* q = qkv.data() + places_of(s, n, h).q;
    const double* k = qkv.data() + places_of(s, key, h).k;
    const double score = scale_of(s) * dot(q, k, s.head_dim);
    const double error = scale_of(s) * dot_of_magnitudes(q, k, s.head_dim) *
                             static_cast<double>(s.head_dim + 4) * unit +
                         2 * std::abs(score) * unit;
    row.score_error = std::max(row.score_error, error);
    largest = std::max(largest, score);
    scores.push_back(score);
  }
  double sum = 0;
  for (const double score : scores) {
    sum += std::exp(score - largest);
  }
  row.lse = largest + std::log(sum);
  for (const double score : scores) {
    row.p.push_back(std::exp(score - row.lse));
  }
  return row;
}

// Relative error of a probability: scores off, an exponential, a sum over the row; in bf16 kernels
// each probability is rounded to bf16 before the product.
double probability_error(const AttentionShape& s, const Row& row, DType dtype) {
  return 2 * row.score_error + static_cast<double>(s.sequence + 16) * unit_roundoff(DType::f32) +
         (dtype == DType::bf16 ? 2 * unit_roundoff(dtype) : 0);
}

Forward reference(const AttentionShape& s, const std::vector<double>& qkv, DType dtype) {
  Forward result{Bounded(tokens_of(s) * out_width(s)), Bounded(tokens_of(s) * s.query_heads)};
  const double unit = unit_roundoff(DType::f32);
  for (Index n = 0; n < tokens_of(s); ++n) {
    const Index first = first_seen(s, n);
    for (Index h = 0; h < s.query_heads; ++h) {
      const Row row = row_of(s, qkv, n, h);
      const double error = probability_error(s, row, dtype);
      for (Index key = first; key <= n; ++key) {
        const double p = row.p[as_size(key - first)];
        for (Index i = 0; i < s.head_dim; ++i) {
          const double term = p * qkv[places_of(s, key, h).v + as_size(i)];
          result.out.add(places_of(s, n, h).out + as_size(i), term, std::abs(term) * error);
        }
      }
      const Index at = (n / s.sequence * s.query_heads + h) * s.sequence + n % s.sequence;
      result.lse.add(
          as_size(at), row.lse,
          row.score_error + (std::abs(row.lse) + static_cast<double>(s.sequence)) * 2 * unit);
    }
  }
  result.out.store_as(dtype);
  return result;
}

// d_qkv. `out` is the forward pass's result as the kernel reads it.
Bounded reference_gradient(const AttentionShape& s, const std::vector<double>& qkv,
                           const std::vector<double>& out, const std::vector<double>& d_out,
                           DType dtype) {
  Bounded d_qkv(tokens_of(s) * row_width(s));
  const double unit = unit_roundoff(DType::f32);
  for (Index n = 0; n < tokens_of(s); ++n) {
    const Index first = first_seen(s, n);
    for (Index h = 0; h < s.query_heads; ++h) {
      const Row row = row_of(s, qkv, n, h);
      const Places query = places_of(s, n, h);
      const double* d = d_out.data() + query.out;
      const double product = dot(d, out.data() + query.out, s.head_dim);
      const double product_terms = dot_of_magnitudes(d, out.data() + query.out, s.head_dim);
      // `out` was rounded to its type, d_score is too before its products; sums over keys and rows
      const double error =
          probability_error(s, row, dtype) +
          static_cast<double>(2 * s.head_dim + s.sequence * s.query_heads + 16) * unit +
          4 * (dtype == DType::bf16 ? unit_roundoff(dtype) : unit);
      for (Index key = first; key <= n; ++key) {
        const double p = row.p[as_size(key - first)];
        const Places at = places_of(s, key, h);
        const double* v = qkv.data() + at.v;
        const double d_score = p * (dot(d, v, s.head_dim) - product) * scale_of(s);
        const double d_score_error =
            p * (dot_of_magnitudes(d, v, s.head_dim) + product_terms) * scale_of(s) * error;
        for (Index i = 0; i < s.head_dim; ++i) {
          const auto e = as_size(i);
          const double q = qkv[query.q + e];
          const double k = qkv[at.k + e];
          d_qkv.add(query.q + e, d_score * k, std::abs(k) * d_score_error);
          d_qkv.add(at.k + e, d_score * q, std::abs(q) * d_score_error);
          d_qkv.add(at.v + e, p * d[i], p * std::abs(d[i]) * error);
        }
      }
    }
  }
  d_qkv.store_as(dtype);
  return d_qkv;
}

// One implementation of a backend.
struct Way {
  DType dtype;
  AttentionOptions options;
};

std::vector<Way> ways_of(Device device, const AttentionShape& shape) {
  constexpr AttentionOptions kBuiltin = {.method = AttentionMethod::builtin};
  constexpr AttentionOptions kLibrary = {.method = AttentionMethod::library};
  if (device.kind == DeviceKind::cpu) {
    return {{DType::f32, kBuiltin}, {DType::f32, kLibrary}};
  }
  std::vector<Way> ways = {{DType::f32, kBuiltin}, {DType::bf16, kBuiltin}};
  constexpr Index kLibraryDim = 64;  // head dimensions that cuDNN is used for are its multiples
  if (shape.head_dim % kLibraryDim == 0) {
    ways.push_back({DType::bf16, kLibrary});
  }
  return ways;
}

// The largest limit with which a shape is cut into tiles of at most 256 queries.
std::size_t tile_limit(const AttentionShape& shape) {
  for (std::size_t limit = std::size_t{64} << 20U; limit > 0; limit -= std::size_t{16} << 10U) {
    const AttentionOptions options = {.method = AttentionMethod::library, .slice_bytes = limit};
    if (const Index tile = attention_slices(shape, options).tile; tile > 0 && tile <= 256) {
      return limit;
    }
  }
  BOOST_FAIL("no limit makes tiles of 256 queries");
  return 0;
}

std::vector<AttentionShape> shapes_of(Device device) {
  std::vector<AttentionShape> shapes(kShapes.begin(), kShapes.end());
  if (device.kind == DeviceKind::cpu) {
    shapes.insert(shapes.end(), kOddShapes.begin(), kOddShapes.end());
  }
  return shapes;
}

// Inputs and outputs of one shape on the device.
struct Case {
  Case(TestBench& bench, const AttentionShape& of_shape, const Way& of_way, double deviation = 1)
      : shape(of_shape),
        way(of_way),
        qkv(bench.normal(way.dtype, {tokens_of(shape), row_width(shape)}, deviation)),
        values(qkv.values),
        out(bench.poisoned(way.dtype, {tokens_of(shape), out_width(shape)})),
        lse(bench.poisoned(DType::f32, {shape.batch, shape.query_heads, shape.sequence})),
        d_out(bench.normal(way.dtype, {tokens_of(shape), out_width(shape)})),
        d_qkv(bench.poisoned(way.dtype, {tokens_of(shape), row_width(shape)})),
        workspace(
            bench.poisoned(DType::u8, {static_cast<Index>(attention_workspace_bytes(
                                          bench.device().kind, shape, way.dtype, way.options))})) {}

  // From now on documents of these lengths, which cover the batch, do not see each other.
  void separate(TestBench& bench, const std::vector<Index>& lengths) {
    begins = {0};
    std::vector<double> position_values;
    for (const Index length : lengths) {
      begins.push_back(begins.back() + static_cast<std::int32_t>(length));
      for (Index t = 0; t < length; ++t) {
        position_values.push_back(static_cast<double>(t));
      }
    }
    device_begins = bench.of({begins.begin(), begins.end()}, DType::i32, {std::ssize(begins)});
    positions = bench.of(position_values, DType::i32, {tokens_of(shape)});
  }
  [[nodiscard]] DocumentBounds documents() {
    if (begins.empty()) {
      return {};
    }
    return {.begins = device_begins.view(), .positions = positions.view(), .host_begins = begins};
  }

  // Puts q and k into rows of their own from now on, and NaN where they were.
  void part(TestBench& bench) {
    const Index width = out_width(shape) + shape.kv_heads * shape.head_dim;
    std::vector<double> rest = values;
    std::vector<double> heads;
    for (Index n = 0; n < tokens_of(shape); ++n) {
      const auto row = rest.begin() + n * row_width(shape);
      heads.insert(heads.end(), row, row + width);
      std::fill_n(row, width, std::numeric_limits<double>::quiet_NaN());
    }
    qkv = bench.of(rest, way.dtype, {tokens_of(shape), row_width(shape)});
    rotated_qk = bench.of(heads, way.dtype, {tokens_of(shape), width});
    poison_async(out.view(), bench.stream());
    poison_async(lse.view(), bench.stream());
    poison_async(d_qkv.view(), bench.stream());
    poison_async(workspace.view(), bench.stream());
  }
  void forward(TestBench& bench) {
    bench.kernels().attention_forward({.shape = shape,
                                       .options = way.options,
                                       .scale = static_cast<float>(scale_of(shape)),
                                       .qkv = qkv.view(),
                                       .rotated_qk = rotated_qk.optional(),
                                       .out = out.view(),
                                       .lse = lse.view(),
                                       .workspace = workspace.view(),
                                       .documents = documents()},
                                      bench.stream());
  }
  void backward(TestBench& bench) {
    bench.kernels().attention_backward({.shape = shape,
                                        .options = way.options,
                                        .scale = static_cast<float>(scale_of(shape)),
                                        .qkv = qkv.view(),
                                        .rotated_qk = rotated_qk.optional(),
                                        .out = out.view(),
                                        .lse = lse.view(),
                                        .d_out = d_out.view(),
                                        .d_qkv = d_qkv.view(),
                                        .workspace = workspace.view(),
                                        .documents = documents()},
                                       bench.stream());
  }

  AttentionShape shape;
  Way way;
  TestTensor qkv;
  std::vector<double> values;  // of the fused rows, wherever q and k are
  TestTensor rotated_qk;       // empty: in qkv
  TestTensor out;
  TestTensor lse;
  TestTensor d_out;
  TestTensor d_qkv;
  TestTensor workspace;
  std::vector<std::int32_t> begins;  // of documents; empty: sequences are whole
  TestTensor device_begins;
  TestTensor positions;
};

// Forward, then backward, against f64.
void check_both_passes(TestBench& bench, Case& c) {
  c.forward(bench);
  const Forward expected = reference(c.shape, c.values, c.way.dtype);
  const std::vector<double> out = bench.read(c.out.view());
  check_close(out, expected.out.values, expected.out.bounds, "out");
  check_close(bench.read(c.lse.view()), expected.lse.values, expected.lse.bounds, "lse");
  c.backward(bench);
  const Bounded gradient = reference_gradient(c.shape, c.values, out, c.d_out.values, c.way.dtype);
  check_close(bench.read(c.d_qkv.view()), gradient.values, gradient.bounds, "d_qkv");
}

/// Runs `check` on every shape in every way of the device under test.
template <typename Check>
void for_each_case(TestBench& bench, Check&& check) {
  for (const AttentionShape& shape : shapes_of(test_device())) {
    for (const Way& way : ways_of(test_device(), shape)) {
      BOOST_TEST_CONTEXT("sequence " << shape.sequence << " head_dim " << shape.head_dim << " "
                                     << " window " << shape.window << " " << dtype_name(way.dtype)
                                     << " library "
                                     << (way.options.method == AttentionMethod::library)) {
        Case c(bench, shape, way);
        check(c);
      }
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(attention)

BOOST_AUTO_TEST_CASE(forward_and_backward_equal_f64) {
  TestBench bench(test_device());
  for_each_case(bench, [&](Case& c) { check_both_passes(bench, c); });
}

BOOST_AUTO_TEST_CASE(q_and_k_apart_give_the_bits_of_fused_rows) {
  TestBench bench(test_device());
  for_each_case(bench, [&](Case& c) {
    c.forward(bench);
    c.backward(bench);
    const std::vector<double> out = bench.read(c.out.view());
    const std::vector<double> lse = bench.read(c.lse.view());
    const std::vector<double> d_qkv = bench.read(c.d_qkv.view());
    c.part(bench);
    c.forward(bench);
    c.backward(bench);
    check_equal(bench.read(c.out.view()), out, "out");
    check_equal(bench.read(c.lse.view()), lse, "lse");
    check_equal(bench.read(c.d_qkv.view()), d_qkv, "d_qkv");
  });
}

// On CUDA: tiles of up to 256 queries, at their borders, for every number of query heads of a key/value
// head; of a window, in one call for each tile. Against f64, twice, fused and apart.
BOOST_AUTO_TEST_CASE(tiles_equal_f64_and_give_the_same_bits_twice,
                     *boost::unit_test::enable_if<kIsCuda>()) {
  TestBench bench(test_device());
  std::vector<AttentionShape> shapes;
  for (const Index tokens : {767, 768, 769}) {
    for (const Index window : {0, 1, 200, 300, 700}) {
      shapes.push_back({.batch = 2,
                        .sequence = tokens,
                        .query_heads = 4,
                        .kv_heads = 2,
                        .head_dim = 64,
                        .window = window});
    }
  }
  for (const Index group : {1, 2, 4, 8}) {
    for (const Index head_dim : {64, 96, 128}) {
      shapes.push_back(
          {.batch = 1, .sequence = 900, .query_heads = group, .kv_heads = 1, .head_dim = head_dim});
    }
  }
  for (const AttentionShape& shape : shapes) {
    BOOST_TEST_CONTEXT("sequence " << shape.sequence << " heads " << shape.query_heads
                                   << " head_dim " << shape.head_dim << " window "
                                   << shape.window) {
      const auto limit = tile_limit(shape);
      Case c(bench, shape,
             {DType::bf16, {.method = AttentionMethod::library, .slice_bytes = limit}});
      check_both_passes(bench, c);
      const std::vector<double> d_qkv = bench.read(c.d_qkv.view());
      c.backward(bench);
      check_equal(bench.read(c.d_qkv.view()), d_qkv, "d_qkv, again");
      c.part(bench);
      c.forward(bench);
      c.backward(bench);
      check_equal(bench.read(c.d_qkv.view()), d_qkv, "d_qkv of q and k apart");
    }
  }
}

// Not bit-identical twice, so only against f64.
BOOST_AUTO_TEST_CASE(the_fast_order_equals_f64_fused_and_apart) {
  TestBench bench(test_device());
  for (const AttentionShape& shape : shapes_of(test_device())) {
    for (Way way : ways_of(test_device(), shape)) {
      if (way.options.method == AttentionMethod::library) {
        BOOST_TEST_CONTEXT("sequence " << shape.sequence << " head_dim " << shape.head_dim) {
          way.options.order = AttentionOrder::fast;
          Case c(bench, shape, way);
          check_both_passes(bench, c);
          c.part(bench);
          check_both_passes(bench, c);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_window_of_the_whole_sequence_gives_the_bits_of_none) {
  TestBench bench(test_device());
  for (const AttentionShape& shape : shapes_of(test_device())) {
    for (const Way& way : ways_of(test_device(), shape)) {
      if (shape.window != 0 || way.options.method == AttentionMethod::library) {
        continue;  // the library has other kernels for a window
      }
      Case c(bench, shape, way);
      c.forward(bench);
      c.backward(bench);
      const std::vector<double> out = bench.read(c.out.view());
      const std::vector<double> d_qkv = bench.read(c.d_qkv.view());
      c.shape.window = shape.sequence;
      c.forward(bench);
      c.backward(bench);
      check_equal(bench.read(c.out.view()), out, "out");
      check_equal(bench.read(c.d_qkv.view()), d_qkv, "d_qkv");
    }
  }
}

BOOST_AUTO_TEST_CASE(later_tokens_do_not_change_earlier_ones) {
  TestBench bench(test_device());
  constexpr AttentionShape kShape = {
      .batch = 1, .sequence = 200, .query_heads = 2, .kv_heads = 1, .head_dim = 64};
  constexpr Index kChanged = 150;  // the tokens from here on are other ones
  for (const Way& way : ways_of(test_device(), kShape)) {
    Case c(bench, kShape, way);
    c.forward(bench);
    const std::vector<double> before = bench.read(c.out.view());
    std::vector<double> changed = c.qkv.values;
    for (std::size_t i = as_size(kChanged * row_width(kShape)); i < changed.size(); ++i) {
      changed[i] = 3 - changed[i];
    }
    c.qkv = bench.of(changed, way.dtype, {tokens_of(kShape), row_width(kShape)});
    c.forward(bench);
    const std::vector<double> after = bench.read(c.out.view());
    const auto kept = static_cast<std::ptrdiff_t>(kChanged * out_width(kShape));
    check_equal({after.begin(), after.begin() + kept}, {before.begin(), before.begin() + kept},
                "out before the change");
  }
}

// Elements [begin, end) of rows of `width`.
std::vector<double> rows_of(const std::vector<double>& values, Index begin, Index end,
                            Index width) {
  return {values.begin() + begin * width, values.begin() + end * width};
}

// lse [B, Hq, T] of tokens [begin, end) of one sequence, as [Hq, end - begin].
std::vector<double> lse_of(const AttentionShape& s, const std::vector<double>& lse, Index begin,
                           Index end) {
  std::vector<double> some;
  for (Index h = 0; h < s.query_heads; ++h) {
    const Index row = (begin / s.sequence * s.query_heads + h) * s.sequence + begin % s.sequence;
    some.insert(some.end(), lse.begin() + row, lse.begin() + row + end - begin);
  }
  return some;
}

// Each document against f64 on itself alone; with our own kernels also against the bits of a
// sequence of its own.
void check_documents(TestBench& bench, Case& c) {
  c.forward(bench);
  c.backward(bench);
  const std::vector<double> out = bench.read(c.out.view());
  const std::vector<double> lse = bench.read(c.lse.view());
  const std::vector<double> d_qkv = bench.read(c.d_qkv.view());
  for (std::size_t i = 0; i + 1 < c.begins.size(); ++i) {
    const Index begin = c.begins[i];
    const Index end = c.begins[i + 1];
    BOOST_TEST_CONTEXT("tokens " << begin << " to " << end) {
      AttentionShape alone = c.shape;
      alone.batch = 1;
      alone.sequence = end - begin;
      const std::vector<double> values = rows_of(c.values, begin, end, row_width(c.shape));
      const std::vector<double> d_out = rows_of(c.d_out.values, begin, end, out_width(c.shape));
      const std::vector<double> mine = rows_of(out, begin, end, out_width(c.shape));
      const std::vector<double> my_lse = lse_of(c.shape, lse, begin, end);
      const std::vector<double> my_d_qkv = rows_of(d_qkv, begin, end, row_width(c.shape));
      const Forward expected = reference(alone, values, c.way.dtype);
      check_close(mine, expected.out.values, expected.out.bounds, "out");
      check_close(my_lse, expected.lse.values, expected.lse.bounds, "lse");
      const Bounded gradient = reference_gradient(alone, values, mine, d_out, c.way.dtype);
      check_close(my_d_qkv, gradient.values, gradient.bounds, "d_qkv");
      if (kIsCuda && c.way.options.method == AttentionMethod::library) {
        continue;
      }
      Case one(bench, alone, c.way);
      one.qkv = bench.of(values, c.way.dtype, {alone.sequence, row_width(alone)});
      one.d_out = bench.of(d_out, c.way.dtype, {alone.sequence, out_width(alone)});
      one.forward(bench);
      one.backward(bench);
      check_equal(mine, bench.read(one.out.view()), "out");
      check_equal(my_lse, bench.read(one.lse.view()), "lse");
      check_equal(my_d_qkv, bench.read(one.d_qkv.view()), "d_qkv");
    }
  }
  c.part(bench);
  c.forward(bench);
  c.backward(bench);
  check_equal(bench.read(c.out.view()), out, "out of q and k apart");
  check_equal(bench.read(c.lse.view()), lse, "lse of q and k apart");
  check_equal(bench.read(c.d_qkv.view()), d_qkv, "d_qkv of q and k apart");
}

// Documents of one token, across blocks of queries and keys, of a whole sequence, and many of
// equal length: none reaches into the next sequence.
BOOST_AUTO_TEST_CASE(documents_see_nothing_of_each_other) {
  TestBench bench(test_device());
  const std::vector<std::vector<Index>> lengths = {
      {1, 299, 300},
      {128, 129, 43, 1, 1, 1, 257, 40},
      {17, 17, 17, 17, 17, 17, 17, 17, 17, 17, 17, 17, 17, 17, 17, 17, 17, 11, 150, 150},
  };
  for (const Index head_dim : {Index{8}, Index{64}}) {
    for (const Index window : {Index{0}, Index{30}}) {
      const AttentionShape shape = {.batch = 2,
                                    .sequence = 300,
                                    .query_heads = 4,
                                    .kv_heads = 2,
                                    .head_dim = head_dim,
                                    .window = window};
      for (Way way : ways_of(test_device(), shape)) {
        way.options.documents = true;
        for (std::size_t i = 0; i < lengths.size(); ++i) {
          BOOST_TEST_CONTEXT("head_dim " << head_dim << " window " << window << " lengths " << i
                                         << " " << dtype_name(way.dtype)) {
            Case c(bench, shape, way);
            c.separate(bench, lengths[i]);
            check_documents(bench, c);
          }
        }
      }
    }
  }
}

// The rows of `c` by document, the documents of each sequence the other way round.
std::vector<double> turned(const AttentionShape& shape, const std::vector<std::int32_t>& begins,
                           const std::vector<double>& values, Index width) {
  std::vector<double> result;
  std::size_t first = 0;
  while (first + 1 < begins.size()) {
    std::size_t last = first;
    while (begins[last] - begins[first] < shape.sequence) {
      ++last;
    }
    for (std::size_t i = last; i > first; --i) {
      const std::vector<double> rows = rows_of(values, begins[i - 1], begins[i], width);
      result.insert(result.end(), rows.begin(), rows.end());
    }
    first = last;
  }
  return result;
}

// Long ones, which the library reads where they are, and those at the end, which it does not: where
// a document stands changes no bit of it.
BOOST_AUTO_TEST_CASE(long_documents_have_the_same_bits_wherever_they_are) {
  TestBench bench(test_device());
  constexpr AttentionShape kShape = {
      .batch = 3, .sequence = 1100, .query_heads = 4, .kv_heads = 2, .head_dim = 64};
  const std::vector<Index> lengths = {600, 500, 1, 700, 399, 513, 587};
  const std::vector<Index> other_lengths = {500, 600, 399, 700, 1, 587, 513};
  for (Way way : ways_of(test_device(), kShape)) {
    way.options.documents = true;
    Case c(bench, kShape, way);
    c.separate(bench, lengths);
    check_documents(bench, c);
    Case other(bench, kShape, way);
    other.values = turned(kShape, c.begins, c.values, row_width(kShape));
    other.qkv = bench.of(other.values, way.dtype, {tokens_of(kShape), row_width(kShape)});
    other.d_out = bench.of(turned(kShape, c.begins, c.d_out.values, out_width(kShape)), way.dtype,
                           {tokens_of(kShape), out_width(kShape)});
    other.separate(bench, other_lengths);
    other.part(bench);
    other.forward(bench);
    other.backward(bench);
    check_equal(turned(kShape, c.begins, bench.read(c.out.view()), out_width(kShape)),
                bench.read(other.out.view()), "out");
    check_equal(turned(kShape, c.begins, bench.read(c.d_qkv.view()), row_width(kShape)),
                bench.read(other.d_qkv.view()), "d_qkv");
  }
}

// A token alone sees itself: out is its value, and nothing comes to its query and key.
BOOST_AUTO_TEST_CASE(a_thousand_documents_of_one_token_give_their_values) {
  TestBench bench(test_device());
  constexpr AttentionShape kShape = {
      .batch = 1, .sequence = 1000, .query_heads = 2, .kv_heads = 2, .head_dim = 64};
  for (Way way : ways_of(test_device(), kShape)) {
    way.options.documents = true;
    Case c(bench, kShape, way);
    c.separate(bench, std::vector<Index>(as_size(kShape.sequence), 1));
    c.forward(bench);
    c.backward(bench);
    const std::vector<double> out = bench.read(c.out.view());
    const std::vector<double> d_qkv = bench.read(c.d_qkv.view());
    for (Index n = 0; n < kShape.sequence; ++n) {
      for (Index h = 0; h < kShape.query_heads; ++h) {
        const Places at = places_of(kShape, n, h);
        for (std::size_t i = 0; i < as_size(kShape.head_dim); ++i) {
          BOOST_REQUIRE_EQUAL(out[at.out + i], c.values[at.v + i]);
          BOOST_REQUIRE_EQUAL(d_qkv[at.v + i], c.d_out.values[at.out + i]);
          // d_out . v - d_out . out, in two orders
          constexpr double kOrder = 1e-4;
          BOOST_REQUIRE_SMALL(d_qkv[at.q + i], way.dtype == DType::f32 ? kOrder : 100 * kOrder);
          BOOST_REQUIRE_SMALL(d_qkv[at.k + i], way.dtype == DType::f32 ? kOrder : 100 * kOrder);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(documents_that_do_not_cover_the_batch_are_refused) {
  TestBench bench(test_device());
  constexpr AttentionShape kShape = {
      .batch = 2, .sequence = 8, .query_heads = 2, .kv_heads = 1, .head_dim = 8};
  constexpr AttentionOptions kOptions = {.method = AttentionMethod::builtin, .documents = true};
  for (const std::vector<std::int32_t>& begins :
       {std::vector<std::int32_t>{0, 8}, {0, 8, 8, 16}, {0, 5, 9, 16}, {1, 8, 16}, {0, 8, 4, 16}}) {
    Case c(bench, kShape, {DType::f32, kOptions});
    c.separate(bench, {8, 8});
    c.begins = begins;
    c.device_begins = bench.of({begins.begin(), begins.end()}, DType::i32, {std::ssize(begins)});
    BOOST_CHECK_THROW(c.forward(bench), ContractError);
    BOOST_CHECK_THROW(c.backward(bench), ContractError);
  }
}

BOOST_AUTO_TEST_CASE(two_runs_give_the_same_bits) {
  TestBench bench(test_device());
  constexpr AttentionShape kShape = {
      .batch = 2, .sequence = 333, .query_heads = 4, .kv_heads = 2, .head_dim = 64};
  for (const Way& way : ways_of(test_device(), kShape)) {
    Case c(bench, kShape, way);
    c.forward(bench);
    c.backward(bench);
    const std::vector<double> out = bench.read(c.out.view());
    const std::vector<double> d_qkv = bench.read(c.d_qkv.view());
    poison_async(c.out.view(), bench.stream());
    poison_async(c.d_qkv.view(), bench.stream());
    poison_async(c.workspace.view(), bench.stream());
    c.forward(bench);
    c.backward(bench);
    check_equal(bench.read(c.out.view()), out, "out");
    check_equal(bench.read(c.d_qkv.view()), d_qkv, "d_qkv");
  }
}

BOOST_AUTO_TEST_CASE(large_scores_are_safe) {
  TestBench bench(test_device());
  constexpr AttentionShape kShape = {
      .batch = 1, .sequence = 300, .query_heads = 2, .kv_heads = 1, .head_dim = 64};
  constexpr double kDeviation = 30;  // scores of about 30^2 sqrt(64) / 8
  for (const Way& way : ways_of(test_device(), kShape)) {
    Case c(bench, kShape, way, kDeviation);
    c.forward(bench);
    c.backward(bench);
    for (const TensorView& view : {c.out.view(), c.lse.view(), c.d_qkv.view()}) {
      for (const double value : bench.read(view)) {
        BOOST_REQUIRE(std::isfinite(value));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(reference_gradient_equals_central_differences) {
  TestBench bench(test_device());
  constexpr AttentionShape kShape = {
      .batch = 2, .sequence = 4, .query_heads = 4, .kv_heads = 2, .head_dim = 3};
  const std::vector<double> qkv =
      bench.normal(DType::f32, {tokens_of(kShape), row_width(kShape)}).values;
  const std::vector<double> weights =
      bench.normal(DType::f32, {tokens_of(kShape), out_width(kShape)}).values;
  const auto loss = [&](const std::vector<double>& x) {
    const std::vector<double> out = reference(kShape, x, DType::f32).out.values;
    return std::inner_product(out.begin(), out.end(), weights.begin(), 0.0);
  };
  const std::vector<double> out = reference(kShape, qkv, DType::f32).out.values;
  check_close(reference_gradient(kShape, qkv, out, weights, DType::f32).values,
              central_differences(loss, qkv), {1e-7}, "gradient of the reference");
}

BOOST_AUTO_TEST_CASE(a_shape_that_is_none_has_no_workspace) {
  constexpr AttentionShape kShape = {
      .batch = 1, .sequence = 4, .query_heads = 3, .kv_heads = 2, .head_dim = 8};
  BOOST_CHECK_THROW(
      (void)attention_workspace_bytes(test_device().kind, kShape, DType::f32, AttentionOptions{}),
      ContractError);
}

BOOST_AUTO_TEST_CASE(slices_that_hold_no_head_group_are_refused_in_any_build) {
  constexpr AttentionShape kShape = {
      .batch = 1, .sequence = 4096, .query_heads = 32, .kv_heads = 8, .head_dim = 128};
  constexpr AttentionOptions kTooSmall = {.method = AttentionMethod::library, .slice_bytes = 1};
  BOOST_CHECK_THROW(
      (void)attention_workspace_bytes(DeviceKind::cuda, kShape, DType::bf16, kTooSmall),
      ConfigError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
