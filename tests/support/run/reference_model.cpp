#include "tests/support/run/reference_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "runtime/data/batch_source.h"

namespace tessera::test {
namespace {

using Values = std::vector<double>;

std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// y[n, o] = sum_c x[n, c] w[o, c]
Values linear(const Values& x, std::span<const double> w, Index in) {
  const auto rows = static_cast<Index>(x.size()) / in;
  const auto out = static_cast<Index>(w.size()) / in;
  Values y(at(rows * out));
  for (Index n = 0; n < rows; ++n) {
    for (Index o = 0; o < out; ++o) {
      double sum = 0;
      for (Index c = 0; c < in; ++c) {
        sum += x[at(n * in + c)] * w[at(o * in + c)];
      }
      y[at(n * out + o)] = sum;
    }
  }
  return y;
}

void normalize(std::span<double> row, std::span<const double> gain, double eps) {
  double squares = 0;
  for (const double value : row) {
    squares += value * value;
  }
  const double r = 1 / std::sqrt(squares / static_cast<double>(row.size()) + eps);
  for (std::size_t i = 0; i < row.size(); ++i) {
    row[i] *= r * gain[i];
  }
}

Values normalized(Values x, std::span<const double> gain, double eps) {
  for (std::size_t begin = 0; begin < x.size(); begin += gain.size()) {
    normalize(std::span(x).subspan(begin, gain.size()), gain, eps);
  }
  return x;
}

// What stretches the angles of pair i, per position; written down apart from the product's.
double frequency(const ModelConfig& c, Index i, Index length) {
  const auto dim = static_cast<double>(c.head_dim);
  const RopeScaling& r = c.rope;
  double theta = c.rope_theta;
  if (r.type == RopeType::dynamic && length > c.max_position) {
    const double longer = static_cast<double>(length) / static_cast<double>(c.max_position);
    theta *= std::pow(r.factor * longer - r.factor + 1, dim / (dim - 2));
  }
  const double plain = std::pow(theta, -2.0 * static_cast<double>(i) / dim);
  const double turns =
      static_cast<double>(r.original_max_position) * plain / (2 * std::numbers::pi);
  double kept = 1;  // of the frequency; the rest of it is divided
  if (r.type == RopeType::linear) {
    kept = 0;
  } else if (r.type == RopeType::llama3) {
    kept = std::clamp((turns - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor), 0.0,
                      1.0);
  } else if (r.type == RopeType::yarn) {
    const auto pair_of = [&](double wanted) {
      return dim / 2 *
             std::log(static_cast<double>(r.original_max_position) / wanted / 2 /
                      std::numbers::pi) /
             std::log(theta);
    };
    const double begin = std::max(0.0, std::floor(pair_of(r.beta_fast)));
    const double end = std::min(dim - 1, std::ceil(pair_of(r.beta_slow)));
    kept = 1 - std::clamp((static_cast<double>(i) - begin) / (end - begin), 0.0, 1.0);
  }
  return (1 - kept) * plain / r.factor + kept * plain;
}

// Of queries and keys, each.
double rotary_scale(const ModelConfig& c) {
  return c.rope.type == RopeType::yarn ? 1 + std::log(c.rope.factor) / 10 : 1;
}

void rotate(std::span<double> head, const ModelConfig& c, Index position, Index length) {
  const Index half = c.head_dim / 2;
  const double scale = rotary_scale(c);
  for (Index i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * frequency(c, i, length);
    const double a = head[at(i)];
    const double b = head[at(i + half)];
    head[at(i)] = scale * (a * std::cos(angle) - b * std::sin(angle));
    head[at(i + half)] = scale * (b * std::cos(angle) + a * std::sin(angle));
  }
}

// qkv [N, (Hq + 2 Hkv) D], already rotated -> [N, Hq D]
Values attention(const Values& qkv, const ModelConfig& c, Index length) {
  const Index d = c.head_dim;
  const Index width = c.qkv_width();
  const auto rows = static_cast<Index>(qkv.size()) / width;
  Values out(at(rows * c.query_width()), 0.0);
  for (Index n = 0; n < rows; ++n) {
    const Index first = n - n % length;
    for (Index h = 0; h < c.num_heads; ++h) {
      const Index kv = h / (c.num_heads / c.num_kv_heads);
      const double* q = &qkv[at(n * width + h * d)];
      Values weights;
      for (Index m = first; m <= n; ++m) {
        const double* k = &qkv[at(m * width + (c.num_heads + kv) * d)];
        double score = 0;
        for (Index i = 0; i < d; ++i) {
          score += q[i] * k[i];
        }
        weights.push_back(score / std::sqrt(static_cast<double>(d)));
      }
      const double largest = *std::max_element(weights.begin(), weights.end());
      double sum = 0;
      for (double& weight : weights) {
        weight = std::exp(weight - largest);
        sum += weight;
      }
      for (Index m = first; m <= n; ++m) {
        const double* v = &qkv[at(m * width + (c.num_heads + c.num_kv_heads + kv) * d)];
        for (Index i = 0; i < d; ++i) {
          out[at(n * c.query_width() + h * d + i)] += weights[at(m - first)] / sum * v[i];
        }
      }
    }
  }
  return out;
}

class Unit {
 public:
  Unit(const ParamUnit& unit, const Values& values) : unit_(unit), values_(values) {}
  [[nodiscard]] std::span<const double> operator[](std::string_view suffix) const {
    const ParamTensor& tensor = part(unit_, suffix);
    return std::span(values_).subspan(at(tensor.offset), at(tensor.count()));
  }

 private:
  const ParamUnit& unit_;
  const Values& values_;
};

void add(Values& x, const Values& y) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] += y[i];
  }
}

// Each row of `x` plus the bias of this name, where the model has one.
void add_bias(Values& x, const Unit& w, bool there, std::string_view name) {
  if (!there) {
    return;
  }
  const std::span<const double> bias = w[name];
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] += bias[i % bias.size()];
  }
}

void run_block(Values& x, const Unit& w, const ModelConfig& c, Index length) {
  const Index d = c.head_dim;
  const Index hidden = c.hidden_size;
  Values qkv =
      linear(normalized(x, w["attention.norm"], c.rms_norm_eps), w["attention.qkv"], hidden);
  const Index rows = static_cast<Index>(x.size()) / hidden;
  for (Index n = 0; n < rows; ++n) {
    const std::span<double> row = std::span(qkv).subspan(at(n * c.qkv_width()), at(c.qkv_width()));
    if (c.attention_bias) {
      const std::span<const double> bias = w["attention.qkv_bias"];
      for (std::size_t i = 0; i < row.size(); ++i) {
        row[i] += bias[i];
      }
    }
    for (Index h = 0; h < c.num_heads + c.num_kv_heads; ++h) {
      const std::span<double> head = row.subspan(at(h * d), at(d));
      if (c.qk_norm) {
        normalize(head, w[h < c.num_heads ? "attention.q_norm" : "attention.k_norm"],
                  c.rms_norm_eps);
      }
      rotate(head, c, n % length, length);
    }
  }
  Values out = linear(attention(qkv, c, length), w["attention.out"], c.query_width());
  add_bias(out, w, c.attention_out_bias, "attention.out_bias");
  add(x, out);
  Values gate_up = linear(normalized(x, w["mlp.norm"], c.rms_norm_eps), w["mlp.gate_up"], hidden);
  add_bias(gate_up, w, c.mlp_bias, "mlp.gate_up_bias");
  const Index f = c.intermediate_size;
  Values product(at(rows * f));
  for (Index n = 0; n < rows; ++n) {
    for (Index i = 0; i < f; ++i) {
      const double gate = gate_up[at(n * 2 * f + i)];
      product[at(n * f + i)] = gate / (1 + std::exp(-gate)) * gate_up[at(n * 2 * f + f + i)];
    }
  }
  Values down = linear(product, w["mlp.down"], f);
  add_bias(down, w, c.mlp_bias, "mlp.down_bias");
  add(x, down);
}

}  // namespace

std::vector<double> reference_block(const ModelConfig& config, const ParamUnit& unit,
                                    const std::vector<double>& weights, std::vector<double> x,
                                    Index length) {
  run_block(x, Unit(unit, weights), config, length);
  return x;
}

ReferenceLoss reference_loss(const ModelConfig& config, const ParamLayout& layout,
                             const ReferenceWeights& weights, std::span<const std::int32_t> tokens,
                             std::span<const std::int32_t> targets, Index length,
                             const CrossEntropyTerms& terms) {
  const auto unit = [&](UnitId id) { return Unit(layout.unit(id), weights[at(id)]); };
  const std::span<const double> embedding = unit(0)["weight"];
  const Index hidden = config.hidden_size;
  Values x;
  for (const std::int32_t token : tokens) {
    const auto row = embedding.subspan(at(token * hidden), at(hidden));
    x.insert(x.end(), row.begin(), row.end());
  }
  for (UnitId id = 1; id < layout.head(); ++id) {
    run_block(x, unit(id), config, length);
  }
  const Unit head = unit(layout.head());
  const Values logits = linear(normalized(std::move(x), head["norm"], config.rms_norm_eps),
                               layout.is_tied() ? embedding : head["weight"], hidden);
  const auto smoothing = static_cast<double>(terms.label_smoothing);
  const auto z_loss = static_cast<double>(terms.z_loss);
  ReferenceLoss all = {};
  for (std::size_t n = 0; n < targets.size(); ++n) {
    if (targets[n] == kIgnoreTarget) {
      continue;
    }
    const auto row = std::span(logits).subspan(n * at(config.vocab_size), at(config.vocab_size));
    const double largest = *std::max_element(row.begin(), row.end());
    double sum = 0;
    double spread = 0;  // cross entropy against all tokens alike
    for (const double z : row) {
      sum += std::exp(z - largest);
    }
    const double lse = std::log(sum) + largest;
    for (const double z : row) {
      spread += (lse - z) / static_cast<double>(row.size());
    }
    const double own = lse - row[at(targets[n])];
    all.cross_entropy += own;
    all.objective += (1 - smoothing) * own + smoothing * spread + z_loss * lse * lse;
    all.correct += row[at(targets[n])] == largest ? 1 : 0;
    ++all.targets;
  }
  all.cross_entropy /= static_cast<double>(all.targets);
  all.objective /= static_cast<double>(all.targets);
  return all;
}

}  // namespace tessera::test
