#include "kernels/rotary.h"

#include <array>
#include <cmath>
#include <numeric>

#include "tests/support/kernel_test.h"

namespace tessera::test {
namespace {

constexpr float kEps = 1e-6F;

constexpr std::array<RotaryShape, 9> kShapes = {{
    {.tokens = 1, .sequence = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 2},
    {.tokens = 6, .sequence = 3, .query_heads = 3, .kv_heads = 1, .head_dim = 6},
    {.tokens = 70, .sequence = 35, .query_heads = 4, .kv_heads = 2, .head_dim = 64},
    {.tokens = 33, .sequence = 33, .query_heads = 2, .kv_heads = 2, .head_dim = 128},
    {.tokens = 600, .sequence = 20, .query_heads = 5, .kv_heads = 1, .head_dim = 10},
    {.tokens = 9, .sequence = 3, .query_heads = 14, .kv_heads = 2, .head_dim = 80},
    {.tokens = 9, .sequence = 9, .query_heads = 3, .kv_heads = 1, .head_dim = 256},
    {.tokens = 5, .sequence = 5, .query_heads = 2, .kv_heads = 1, .head_dim = 1024},
    {.tokens = 2600, .sequence = 20, .query_heads = 5, .kv_heads = 1, .head_dim = 32},
}};

Index row_width(const RotaryShape& shape) {
  return (shape.query_heads + 2 * shape.kv_heads) * shape.head_dim;
}

Index rotated_heads(const RotaryShape& shape) {
  return shape.query_heads + shape.kv_heads;
}

// The q and k heads of fused rows, without what is between them.
std::vector<double> q_and_k(const RotaryShape& shape, const std::vector<double>& rows) {
  std::vector<double> heads;
  for (Index n = 0; n < shape.tokens; ++n) {
    const auto row = rows.begin() + n * row_width(shape);
    heads.insert(heads.end(), row, row + rotated_heads(shape) * shape.head_dim);
  }
  return heads;
}

// What both passes read beside the rows.
struct Inputs {
  RotaryShape shape;
  std::vector<double> cosine;  // [T, D/2]
  std::vector<double> sine;
  std::vector<double> q_gain;  // [D]; empty: no QK-norm
  std::vector<double> k_gain;
  std::vector<double> positions = {};  // [N]; empty: n % T
};

Index position_of(const Inputs& in, Index n) {
  return in.positions.empty() ? n % in.shape.sequence
                              : static_cast<Index>(in.positions[static_cast<std::size_t>(n)]);
}

const std::vector<double>& gain_of(const Inputs& in, Index head) {
  return head < in.shape.query_heads ? in.q_gain : in.k_gain;
}

double reciprocal_rms(const double* x, Index dim) {
  const double squares = std::inner_product(x, x + dim, x, 0.0);
  return 1 / std::sqrt(squares / static_cast<double>(dim) + static_cast<double>(kEps));
}

// The fused rows after the forward pass, and the magnitudes of what each element adds up.
struct Rows {
  std::vector<double> values;
  std::vector<double> terms;
};

Rows reference(const Inputs& in, const std::vector<double>& qkv) {
  Rows out{qkv, std::vector<double>(qkv.size())};
  const Index dim = in.shape.head_dim;
  const Index half = dim / 2;
  for (Index n = 0; n < in.shape.tokens; ++n) {
    const Index t = position_of(in, n);
    for (Index h = 0; h < rotated_heads(in.shape); ++h) {
      const auto at = static_cast<std::size_t>(n * row_width(in.shape) + h * dim);
      const std::vector<double>& gain = gain_of(in, h);
      std::vector<double> x(qkv.begin() + static_cast<std::ptrdiff_t>(at),
                            qkv.begin() + static_cast<std::ptrdiff_t>(at) + dim);
      if (!gain.empty()) {
        const double r = reciprocal_rms(x.data(), dim);
        for (std::size_t i = 0; i < x.size(); ++i) {
          x[i] *= r * gain[i];
        }
      }
      for (Index i = 0; i < half; ++i) {
        const auto low = static_cast<std::size_t>(i);
        const auto high = static_cast<std::size_t>(i + half);
        const double c = in.cosine[static_cast<std::size_t>(t * half + i)];
        const double s = in.sine[static_cast<std::size_t>(t * half + i)];
        out.values[at + low] = x[low] * c - x[high] * s;
        out.values[at + high] = x[high] * c + x[low] * s;
        out.terms[at + low] = std::abs(x[low] * c) + std::abs(x[high] * s);
        out.terms[at + high] = std::abs(x[high] * c) + std::abs(x[low] * s);
      }
    }
  }
  return out;
}

struct Gradients {
  Rows d_qkv;
  Rows d_q_gain;
  Rows d_k_gain;
};

Gradients reference_gradients(const Inputs& in, const std::vector<double>& qkv,
                              const std::vector<double>& d_out) {
  const Index dim = in.shape.head_dim;
  const Index half = dim / 2;
  const auto width = static_cast<std::size_t>(dim);
  const std::vector<double> zeros(width);
  Gradients g{{d_out, std::vector<double>(d_out.size())}, {zeros, zeros}, {zeros, zeros}};
  for (Index n = 0; n < in.shape.tokens; ++n) {
    const Index t = position_of(in, n);
    for (Index h = 0; h < rotated_heads(in.shape); ++h) {
      const auto at = static_cast<std::size_t>(n * row_width(in.shape) + h * dim);
      std::vector<double> d(width);
      std::vector<double> terms(width);
      for (Index i = 0; i < half; ++i) {
        const auto low = static_cast<std::size_t>(i);
        const auto high = static_cast<std::size_t>(i + half);
        const double c = in.cosine[static_cast<std::size_t>(t * half + i)];
        const double s = in.sine[static_cast<std::size_t>(t * half + i)];
        d[low] = d_out[at + low] * c + d_out[at + high] * s;
        d[high] = d_out[at + high] * c - d_out[at + low] * s;
        terms[low] = std::abs(d_out[at + low] * c) + std::abs(d_out[at + high] * s);
        terms[high] = std::abs(d_out[at + high] * c) + std::abs(d_out[at + low] * s);
      }
      const std::vector<double>& gain = gain_of(in, h);
      if (!gain.empty()) {
        Rows& d_gain = h < in.shape.query_heads ? g.d_q_gain : g.d_k_gain;
        const double* x = qkv.data() + at;
        const double r = reciprocal_rms(x, dim);
        double mean = 0;
        double mean_terms = 0;
        for (std::size_t i = 0; i < width; ++i) {
          mean += gain[i] * d[i] * x[i] * r / static_cast<double>(dim);
          mean_terms += std::abs(gain[i] * x[i]) * terms[i] * r / static_cast<double>(dim);
        }
        for (std::size_t i = 0; i < width; ++i) {
          const double normalised = x[i] * r;
          d_gain.values[i] += d[i] * normalised;
          d_gain.terms[i] += terms[i] * std::abs(normalised);
          d[i] = r * (gain[i] * d[i] - normalised * mean);
          terms[i] = r * (std::abs(gain[i]) * terms[i] + std::abs(normalised) * mean_terms);
        }
      }
      std::copy(d.begin(), d.end(), g.d_qkv.values.begin() + static_cast<std::ptrdiff_t>(at));
      std::copy(terms.begin(), terms.end(),
                g.d_qkv.terms.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  return g;
}

// One rounding to `dtype`, and `roundings` in f32 of terms of this size.
std::vector<double> bounds_of(const Rows& rows, DType dtype, Index roundings) {
  std::vector<double> bounds;
  for (std::size_t i = 0; i < rows.values.size(); ++i) {
    bounds.push_back(std::abs(rows.values[i]) * unit_roundoff(dtype) +
                     rows.terms[i] * static_cast<double>(roundings) * unit_roundoff(DType::f32));
  }
  return bounds;
}

// The angles of base 10000, as the model fills its tables.
std::vector<double> table(const RotaryShape& shape, double (*function)(double)) {
  constexpr double kBase = 10000;
  std::vector<double> values;
  for (Index t = 0; t < shape.sequence; ++t) {
    for (Index i = 0; i < shape.head_dim / 2; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(shape.head_dim);
      values.push_back(function(static_cast<double>(t) * std::pow(kBase, exponent)));
    }
  }
  return values;
}

double cosine_of(double angle) {
  return std::cos(angle);
}
double sine_of(double angle) {
  return std::sin(angle);
}

// The tensors of one shape on the device.
struct Case {
  Case(TestBench& bench, DType dtype, const RotaryShape& of_shape, bool is_normed)
      : shape(of_shape),
        normed(is_normed),
        qkv(bench.normal(dtype, {shape.tokens, row_width(shape)}, 2)),
        cosine(bench.of(table(shape, cosine_of), DType::f32, {shape.sequence, shape.head_dim / 2})),
        sine(bench.of(table(shape, sine_of), DType::f32, {shape.sequence, shape.head_dim / 2})),
        q_gain(bench.normal(dtype, gain_shape(), 0.2, 1)),
        k_gain(bench.normal(dtype, gain_shape(), 0.2, 1)) {}

  [[nodiscard]] Shape gain_shape() const { return normed ? Shape{shape.head_dim} : Shape{0}; }
  [[nodiscard]] Inputs inputs() const {
    return {shape, cosine.values, sine.values, q_gain.values, k_gain.values, positions.values};
  }
  // Positions in documents of 3, 1, 2, 3, 1, 2, ... tokens.
  void separate(TestBench& bench) {
    constexpr std::array<Index, 3> kLengths = {3, 1, 2};
    std::vector<double> values;
    for (std::size_t i = 0; std::ssize(values) < shape.tokens; ++i) {
      const Index length = std::min(kLengths[i % kLengths.size()], shape.sequence);
      for (Index t = 0; t < length && std::ssize(values) < shape.tokens; ++t) {
        values.push_back(static_cast<double>(t));
      }
    }
    positions = bench.of(values, DType::i32, {shape.tokens});
  }
  void forward(TestBench& bench, TensorView rotated_qk) {
    bench.kernels().rotary_forward({.shape = shape,
                                    .qkv = qkv.view(),
                                    .cos = cosine.view(),
                                    .sin = sine.view(),
                                    .q_gain = q_gain.optional(),
                                    .k_gain = k_gain.optional(),
                                    .rotated_qk = rotated_qk,
                                    .eps = kEps,
                                    .positions = positions.optional()},
                                   bench.stream());
  }

  RotaryShape shape;
  bool normed;
  TestTensor qkv;
  TestTensor cosine;
  TestTensor sine;
  TestTensor q_gain;
  TestTensor k_gain;
  TestTensor positions;  // empty: n % T
};

// Calls check(case) for every type and shape, normed or not, with positions or without.
template <typename Check>
void for_each_case(TestBench& bench, const Check& check) {
  for (const DType dtype : bench.float_types()) {
    for (const RotaryShape& shape : kShapes) {
      for (const bool normed : {false, true}) {
        for (const bool separate : {false, true}) {
          BOOST_TEST_CONTEXT(shape.tokens << " tokens, head_dim " << shape.head_dim << " normed "
                                          << normed << " positions " << separate) {
            Case c(bench, dtype, shape, normed);
            if (separate) {
              c.separate(bench);
            }
            check(c, dtype);
          }
        }
      }
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(rotary)

BOOST_AUTO_TEST_CASE(forward_equals_f64_in_place_and_apart) {
  TestBench bench(test_device());
  for_each_case(bench, [&](Case& c, DType dtype) {
    const RotaryShape& shape = c.shape;
    TestTensor rotated =
        bench.poisoned(dtype, {shape.tokens, rotated_heads(shape) * shape.head_dim});
    c.forward(bench, rotated.view());
    check_equal(bench.read(c.qkv.view()), c.qkv.values, "qkv that is only read");
    c.forward(bench, {});
    const std::vector<double> in_place = bench.read(c.qkv.view());
    const Rows expected = reference(c.inputs(), c.qkv.values);
    check_close(in_place, expected.values, bounds_of(expected, dtype, shape.head_dim / 2 + 8),
                "qkv");
    check_equal(bench.read(rotated.view()), q_and_k(shape, in_place), "rotated_qk");
  });
}

BOOST_AUTO_TEST_CASE(backward_equals_f64) {
  TestBench bench(test_device());
  for_each_case(bench, [&](Case& c, DType dtype) {
    const RotaryShape& shape = c.shape;
    TestTensor d_qkv = bench.normal(dtype, {shape.tokens, row_width(shape)});
    TestTensor frozen = bench.of(d_qkv.values, dtype, {shape.tokens, row_width(shape)});
    TestTensor d_q_gain = bench.poisoned(dtype, c.gain_shape());
    TestTensor d_k_gain = bench.poisoned(dtype, c.gain_shape());
    TestTensor workspace = bench.poisoned(DType::f32, {rotary_workspace(shape)});
    bench.kernels().rotary_backward({.shape = shape,
                                     .d_qkv = d_qkv.view(),
                                     .cos = c.cosine.view(),
                                     .sin = c.sine.view(),
                                     .q_gain = c.q_gain.optional(),
                                     .k_gain = c.k_gain.optional(),
                                     .qkv = c.normed ? c.qkv.view() : TensorView{},
                                     .d_q_gain = d_q_gain.optional(),
                                     .d_k_gain = d_k_gain.optional(),
                                     .workspace = workspace.view(),
                                     .eps = kEps,
                                     .positions = c.positions.optional()},
                                    bench.stream());
    bench.kernels().rotary_backward({.shape = shape,
                                     .d_qkv = frozen.view(),
                                     .cos = c.cosine.view(),
                                     .sin = c.sine.view(),
                                     .q_gain = c.q_gain.optional(),
                                     .k_gain = c.k_gain.optional(),
                                     .qkv = c.normed ? c.qkv.view() : TensorView{},
                                     .d_q_gain = {},
                                     .d_k_gain = {},
                                     .workspace = workspace.view(),
                                     .eps = kEps,
                                     .positions = c.positions.optional()},
                                    bench.stream());
    check_equal(bench.read(frozen.view()), bench.read(d_qkv.view()), "d_qkv with frozen gains");
    const Gradients expected = reference_gradients(c.inputs(), c.qkv.values, d_qkv.values);
    check_close(bench.read(d_qkv.view()), expected.d_qkv.values,
                bounds_of(expected.d_qkv, dtype, 3 * shape.head_dim + 16), "d_qkv");
    if (c.normed) {
      const Index additions = shape.tokens * shape.query_heads + shape.head_dim / 2 + 10;
      check_close(bench.read(d_q_gain.view()), expected.d_q_gain.values,
                  bounds_of(expected.d_q_gain, dtype, additions), "d_q_gain");
      check_close(bench.read(d_k_gain.view()), expected.d_k_gain.values,
                  bounds_of(expected.d_k_gain, dtype, additions), "d_k_gain");
    }
  });
}

BOOST_AUTO_TEST_CASE(reference_gradients_equal_central_differences) {
  TestBench bench(test_device());
  constexpr RotaryShape kShape = {
      .tokens = 4, .sequence = 2, .query_heads = 2, .kv_heads = 1, .head_dim = 4};
  const Case c(bench, DType::f32, kShape, true);
  const Inputs inputs = c.inputs();
  const std::vector<double> weights =
      bench.normal(DType::f32, {kShape.tokens, row_width(kShape)}).values;
  const auto loss = [&](const Inputs& with, const std::vector<double>& qkv) {
    const std::vector<double> out = reference(with, qkv).values;
    return std::inner_product(out.begin(), out.end(), weights.begin(), 0.0);
  };
  const Gradients expected = reference_gradients(inputs, c.qkv.values, weights);
  check_close(expected.d_qkv.values,
              central_differences([&](const std::vector<double>& qkv) { return loss(inputs, qkv); },
                                  c.qkv.values),
              {1e-7}, "d_qkv of the reference");
  const auto with_q_gain = [&](const std::vector<double>& gain) {
    Inputs changed = inputs;
    changed.q_gain = gain;
    return loss(changed, c.qkv.values);
  };
  check_close(expected.d_q_gain.values, central_differences(with_q_gain, inputs.q_gain), {1e-8},
              "d_q_gain of the reference");
  const auto with_k_gain = [&](const std::vector<double>& gain) {
    Inputs changed = inputs;
    changed.k_gain = gain;
    return loss(changed, c.qkv.values);
  };
  check_close(expected.d_k_gain.values, central_differences(with_k_gain, inputs.k_gain), {1e-8},
              "d_k_gain of the reference");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
