#include "jobs/bench/flce_reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <thread>

#include "kernels/base/parallel.h"
#include "kernels/base/random.h"
#include "model/fused_linear_cross_entropy.h"

namespace tessera::bench {
namespace {

constexpr Index kTokenSamples = 4;
constexpr Index kColumnSamples = 64;
constexpr Index kTargetsAmongSamples = 32;  // one of so many targets is in the columns sampled
constexpr Index kRowsAtATime = 512;
constexpr std::uint64_t kSeed = 5;

Index first_column_of(Index vocab, Index columns) {
  return std::min(vocab / 3, vocab - columns);
}

/// Calls work(begin, end) for parts of [0, count) on all cores.
void in_parallel(Index count, const std::function<void(Index, Index)>& work) {
  const Index parts = std::clamp<Index>(std::thread::hardware_concurrency(), 1, count);
  share_among_threads(parts, parts, [&] {
    return [&](Index part) { work(count * part / parts, count * (part + 1) / parts); };
  });
}

double dot(const float* a, const float* b, Index count) {
  constexpr Index kLanes = 8;
  std::array<double, kLanes> sums{};
  Index i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (Index lane = 0; lane < kLanes; ++lane) {
      sums[static_cast<std::size_t>(lane)] +=
          static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  for (; i < count; ++i) {
    sums[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

template <typename Number>
double relative_error(const std::vector<Number>& actual, const std::vector<double>& expected) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = static_cast<double>(actual[i]) - expected[i];
    error += difference * difference;
    norm += expected[i] * expected[i];
  }
  return norm == 0 ? 0 : std::sqrt(error / norm);
}

}  // namespace

std::vector<std::int32_t> FlceReference::targets_for(Index tokens, Index vocab) {
  const Index columns = std::min(kColumnSamples, vocab);
  const Index first = first_column_of(vocab, columns);
  std::vector<std::int32_t> targets(static_cast<std::size_t>(tokens));
  for (Index n = 0; n < tokens; ++n) {
    const auto random = static_cast<Index>(philox(kSeed, 0, static_cast<std::uint64_t>(n))[0]);
    targets[static_cast<std::size_t>(n)] = static_cast<std::int32_t>(
        n % kTargetsAmongSamples == 0 ? first + random % columns : random % vocab);
  }
  return targets;
}

FlceReference::FlceReference(const Inputs& inputs, const KernelTable& kernels, Stream& stream)
    : inputs_(inputs),
      kernels_(kernels),
      stream_(stream),
      tokens_(static_cast<Index>(inputs.targets.size())),
      vocab_(inputs.weight.shape[0]),
      width_(inputs.weight.shape[1]),
      columns_(std::min(kColumnSamples, vocab_)) {
  first_column_ = first_column_of(vocab_, columns_);
  for (Index i = 0; i < std::min(kTokenSamples, tokens_); ++i) {
    token_samples_.push_back(i * (tokens_ - 1) / std::max<Index>(1, kTokenSamples - 1));
  }
  hidden_ = read_rows(inputs.hidden, tokens_, width_, width_);
  weight_ = read_rows(inputs.weight, vocab_, width_, width_);
  if (inputs.bias.data != nullptr) {
    bias_ = read_rows(inputs.bias, 1, vocab_, vocab_);
  }
  find_sums();
  d_hidden_ = hidden_gradient(gradients_of_tokens());
  std::vector<double> of_columns(static_cast<std::size_t>(tokens_ * columns_));
  in_parallel(tokens_, [&](Index begin, Index end) {
    for (Index n = begin; n < end; ++n) {
      for (Index k = 0; k < columns_; ++k) {
        of_columns[static_cast<std::size_t>(n * columns_ + k)] =
            gradient(n, first_column_ + k, logit(n, first_column_ + k));
      }
    }
  });
  d_weight_ = weight_gradient(of_columns);
  d_bias_ = bias_gradient(of_columns);
}

// Of the sampled tokens, all columns, whose sums are taken again in f64.
std::vector<double> FlceReference::gradients_of_tokens() {
  std::vector<double> of_tokens(token_samples_.size() * static_cast<std::size_t>(vocab_));
  for (std::size_t s = 0; s < token_samples_.size(); ++s) {
    const Index token = token_samples_[s];
    double* row = of_tokens.data() + s * static_cast<std::size_t>(vocab_);
    in_parallel(vocab_, [&](Index begin, Index end) {
      for (Index v = begin; v < end; ++v) {
        row[v] = logit(token, v);
      }
    });
    double sum = 0;
    for (Index v = 0; v < vocab_; ++v) {
      sum += std::exp(row[v]);
    }
    log_sums_[static_cast<std::size_t>(token)] = std::log(sum);
    for (Index v = 0; v < vocab_; ++v) {
      row[v] = gradient(token, v, row[v]);
    }
  }
  return of_tokens;
}

// Of the logit before the cap, where it is `z` behind it.
double FlceReference::gradient(Index token, Index column, double z) const {
  const auto n = static_cast<std::size_t>(token);
  const double p = std::exp(z - log_sums_[n]);
  const double ratio = inputs_.soft_cap == 0 ? 0 : z / static_cast<double>(inputs_.soft_cap);
  return static_cast<double>(inputs_.scale) * weight_of(token) *
         (p - (inputs_.targets[n] == column ? 1.0 : 0.0)) * (1 - ratio * ratio);
}

double FlceReference::weight_of(Index token) const {
  return inputs_.weights.empty()
             ? 1
             : static_cast<double>(inputs_.weights[static_cast<std::size_t>(token)]);
}

double FlceReference::logit(Index token, Index column) const {
  const double z =
      dot(hidden_.data() + token * width_, weight_.data() + column * width_, width_) +
      (bias_.empty() ? 0 : static_cast<double>(bias_[static_cast<std::size_t>(column)]));
  const auto cap = static_cast<double>(inputs_.soft_cap);
  return cap == 0 ? z : cap * std::tanh(z / cap);
}

std::vector<float> FlceReference::read_rows(const ConstTensorView& from, Index rows, Index columns,
                                            Index stride) {
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  const Index at_a_time = std::max<Index>(1, (Index{1} << 26) / columns);
  for (Index begin = 0; begin < rows; begin += at_a_time) {
    const Index count = std::min(at_a_time, rows - begin);
    const Shape shape = {count * columns};
    DeviceBuffer device(stream_.device(), MemoryKind::device, DType::f32, shape, "bench samples");
    DeviceBuffer host({}, MemoryKind::host, DType::f32, shape, "bench samples");
    kernels_.cast_rows({.from = from.slice(begin * stride, (begin + count - 1) * stride + columns),
                        .to = device.view(),
                        .rows = count,
                        .columns = columns,
                        .from_stride = stride,
                        .to_stride = columns},
                       stream_);
    copy_async(device.view(), host.view(), stream_);
    stream_.synchronize();
    std::copy_n(data_as<float>(host.view()), count * columns, values.data() + begin * columns);
  }
  return values;
}

// The logarithms of the sums of exponentials, by f32 products and the f32 kernel: its loss is such
// a logarithm less the target's logit.
void FlceReference::find_sums() {
  const auto upload = [&](const std::vector<float>& values) {
    const Shape shape = {static_cast<Index>(values.size())};
    DeviceBuffer host({}, MemoryKind::host, DType::f32, shape, "bench reference");
    std::copy(values.begin(), values.end(), data_as<float>(host.view()));
    DeviceBuffer device(stream_.device(), MemoryKind::device, DType::f32, shape, "bench reference");
    copy_async(host.view(), device.view(), stream_);
    stream_.synchronize();
    return device;
  };
  const DeviceBuffer hidden = upload(hidden_);
  const DeviceBuffer weight = upload(weight_);
  const DeviceBuffer bias = upload(bias_);
  DeviceBuffer targets_host({}, MemoryKind::host, DType::i32, {tokens_}, "bench reference");
  std::copy(inputs_.targets.begin(), inputs_.targets.end(),
            data_as<std::int32_t>(targets_host.view()));
  DeviceBuffer targets(stream_.device(), MemoryKind::device, DType::i32, {tokens_},
                       "bench reference");
  copy_async(targets_host.view(), targets.view(), stream_);
  DeviceBuffer loss(stream_.device(), MemoryKind::device, DType::f32, {tokens_}, "bench reference");
  Arena arena(stream_.device(), ArenaMode::allocate);
  FusedLinearCrossEntropy product(kernels_, arena, DType::f32, vocab_, width_,
                                  std::min(kRowsAtATime, tokens_),
                                  {.terms = {.soft_cap = inputs_.soft_cap},
                                   .bias = bias_.empty() ? OutputBias::none : OutputBias::present});
  product.forward({.hidden = hidden.view().reshaped({tokens_, width_}),
                   .weight = weight.view().reshaped({vocab_, width_}),
                   .bias = bias_.empty() ? ConstTensorView{} : bias.view(),
                   .targets = targets.view(),
                   .weights = {},
                   .scale = {},
                   .loss = loss.view(),
                   .correct = {}},
                  inputs_.workspace, stream_);
  const std::vector<float> losses = read_rows(loss.view(), 1, tokens_, tokens_);
  log_sums_.resize(losses.size());
  loss_ = 0;
  for (std::size_t n = 0; n < losses.size(); ++n) {
    const double at_target = logit(static_cast<Index>(n), inputs_.targets[n]);
    log_sums_[n] = static_cast<double>(losses[n]) + at_target;
    loss_ += weight_of(static_cast<Index>(n)) * static_cast<double>(losses[n]) /
             static_cast<double>(tokens_);
  }
}

std::vector<double> FlceReference::hidden_gradient(const std::vector<double>& of_tokens) const {
  const std::size_t samples = token_samples_.size();
  std::vector<double> result(samples * static_cast<std::size_t>(width_));
  in_parallel(width_, [&](Index begin, Index end) {
    for (Index v = 0; v < vocab_; ++v) {
      const float* row = weight_.data() + v * width_;
      for (std::size_t s = 0; s < samples; ++s) {
        const double g =
            of_tokens[s * static_cast<std::size_t>(vocab_) + static_cast<std::size_t>(v)];
        double* sum = result.data() + s * static_cast<std::size_t>(width_);
        for (Index c = begin; c < end; ++c) {
          sum[c] += g * static_cast<double>(row[c]);
        }
      }
    }
  });
  return result;
}

std::vector<double> FlceReference::weight_gradient(const std::vector<double>& of_columns) const {
  std::vector<double> result(static_cast<std::size_t>(columns_ * width_));
  in_parallel(columns_, [&](Index begin, Index end) {
    for (Index n = 0; n < tokens_; ++n) {
      const float* row = hidden_.data() + n * width_;
      for (Index k = begin; k < end; ++k) {
        const double g = of_columns[static_cast<std::size_t>(n * columns_ + k)];
        double* sum = result.data() + k * width_;
        for (Index c = 0; c < width_; ++c) {
          sum[c] += g * static_cast<double>(row[c]);
        }
      }
    }
  });
  return result;
}

std::vector<double> FlceReference::bias_gradient(const std::vector<double>& of_columns) const {
  std::vector<double> result(bias_.empty() ? 0 : static_cast<std::size_t>(columns_));
  for (std::size_t i = 0; !result.empty() && i < of_columns.size(); ++i) {
    result[i % result.size()] += of_columns[i];
  }
  return result;
}

FlceReference::Result FlceReference::read(const ConstTensorView& loss,
                                          const ConstTensorView& d_hidden,
                                          const ConstTensorView& d_weight,
                                          const ConstTensorView& d_bias) {
  Result result;
  result.loss = read_rows(loss, 1, tokens_, tokens_);
  for (const Index token : token_samples_) {
    const std::vector<float> row =
        read_rows(d_hidden.slice(token * width_, (token + 1) * width_), 1, width_, width_);
    result.d_hidden.insert(result.d_hidden.end(), row.begin(), row.end());
  }
  result.d_weight =
      read_rows(d_weight.slice(first_column_ * width_, (first_column_ + columns_) * width_),
                columns_, width_, width_);
  if (!bias_.empty()) {
    result.d_bias =
        read_rows(d_bias.slice(first_column_, first_column_ + columns_), 1, columns_, columns_);
  }
  result.gradient_of_tokens.resize(token_samples_.size() * static_cast<std::size_t>(vocab_));
  return result;
}

void FlceReference::read_logits_gradient(Index begin, Index count, const ConstTensorView& logits,
                                         Result& result) {
  const Index stride = logits_stride(vocab_, logits.dtype);
  const std::vector<float> columns =
      read_rows(logits.slice(first_column_, (count - 1) * stride + first_column_ + columns_), count,
                columns_, stride);
  result.gradient_of_columns.insert(result.gradient_of_columns.end(), columns.begin(),
                                    columns.end());
  for (std::size_t s = 0; s < token_samples_.size(); ++s) {
    const Index row = token_samples_[s] - begin;
    if (row >= 0 && row < count) {
      const std::vector<float> values =
          read_rows(logits.slice(row * stride, row * stride + vocab_), 1, vocab_, vocab_);
      std::copy(values.begin(), values.end(),
                result.gradient_of_tokens.begin() + static_cast<std::ptrdiff_t>(s) * vocab_);
    }
  }
}

FlceReference::Errors FlceReference::compare(const Result& result) const {
  const auto widened = [](const std::vector<float>& values) {
    return std::vector<double>(values.begin(), values.end());
  };
  const double loss =
      std::accumulate(result.loss.begin(), result.loss.end(), 0.0) / static_cast<double>(tokens_);
  const std::vector<double> of_columns = widened(result.gradient_of_columns);
  return {.loss = std::abs(loss - loss_) / loss_,
          .d_hidden =
              relative_error(result.d_hidden, hidden_gradient(widened(result.gradient_of_tokens))),
          .d_hidden_true = relative_error(result.d_hidden, d_hidden_),
          .d_weight = relative_error(result.d_weight, weight_gradient(of_columns)),
          .d_weight_true = relative_error(result.d_weight, d_weight_),
          .d_bias = relative_error(result.d_bias, bias_gradient(of_columns)),
          .d_bias_true = relative_error(result.d_bias, d_bias_)};
}

}  // namespace tessera::bench
