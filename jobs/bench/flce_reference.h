// What bench flce compares with: the loss and its gradients in f64, over samples, on the host.
//
// Two questions are asked of a gradient. How well was it accumulated: against f64 sums of the very
// gradients of the logits that were used, rounded as they were. And how far is it from the truth:
// against f64 sums of gradients of the logits that were never rounded. For the latter a row's sum
// of exponentials is taken from f32 products where not all of its logits are computed in f64: that
// leaves about 1e-6 of a gradient. Bias, soft cap and weights per token are part of both.
#pragma once

#include <vector>

#include "kernels/kernel_table.h"

namespace tessera::bench {

class FlceReference {
 public:
  struct Inputs {
    ConstTensorView hidden;                    // [N, C]
    ConstTensorView weight;                    // [V, C]
    ConstTensorView bias;                      // [V]; data null: none
    const std::vector<std::int32_t>& targets;  // [N]
    const std::vector<float>& weights;         // [N] per token; empty: all 1
    float soft_cap;                            // 0: none
    float scale;
    TensorView workspace;  // of GEMMs
  };
  /// Samples of one variant's results.
  struct Result {
    std::vector<float> loss;                 // [N]
    std::vector<float> d_hidden;             // [tokens, C]
    std::vector<float> d_weight;             // [columns, C]
    std::vector<float> d_bias;               // [columns]; empty without a bias
    std::vector<float> gradient_of_tokens;   // [tokens, V] of the logits, as the variant made it
    std::vector<float> gradient_of_columns;  // [N, columns]
  };
  /// Relative errors: of the mean loss, else in the Frobenius norm over the samples.
  struct Errors {
    double loss;
    double d_hidden;
    double d_hidden_true;
    double d_weight;
    double d_weight_true;
    double d_bias;  // 0 without a bias, so the next
    double d_bias_true;
  };

  /// Random targets, some of which are in the columns that are sampled.
  [[nodiscard]] static std::vector<std::int32_t> targets_for(Index tokens, Index vocab);

  /// Computes the true values. Takes f32 copies of hidden and weight on the device meanwhile.
  FlceReference(const Inputs& inputs, const KernelTable& kernels, Stream& stream);

  /// `loss` [N] f32; `d_hidden` [N, C], `d_weight` [V, C] and `d_bias` [V] (data null: none) of any
  /// float type.
  [[nodiscard]] Result read(const ConstTensorView& loss, const ConstTensorView& d_hidden,
                            const ConstTensorView& d_weight, const ConstTensorView& d_bias);
  /// Takes samples of rows [begin, begin + count) from `logits` [count, stride], their gradient.
  void read_logits_gradient(Index begin, Index count, const ConstTensorView& logits,
                            Result& result);
  [[nodiscard]] Errors compare(const Result& result) const;

 private:
  [[nodiscard]] std::vector<float> read_rows(const ConstTensorView& from, Index rows, Index columns,
                                             Index stride);
  void find_sums();
  [[nodiscard]] std::vector<double> hidden_gradient(const std::vector<double>& of_tokens) const;
  [[nodiscard]] std::vector<double> weight_gradient(const std::vector<double>& of_columns) const;
  [[nodiscard]] std::vector<double> bias_gradient(const std::vector<double>& of_columns) const;
  [[nodiscard]] double logit(Index token, Index column) const;  // z'
  [[nodiscard]] double weight_of(Index token) const;
  [[nodiscard]] std::vector<double> gradients_of_tokens();
  [[nodiscard]] double gradient(Index token, Index column, double z) const;

  Inputs inputs_;
  const KernelTable& kernels_;
  Stream& stream_;
  Index tokens_;
  Index vocab_;
  Index width_;
  Index first_column_;
  Index columns_;
  std::vector<Index> token_samples_;
  std::vector<float> hidden_;     // [N, C]
  std::vector<float> weight_;     // [V, C]
  std::vector<float> bias_;       // [V] or empty
  std::vector<double> log_sums_;  // [N] of exponentials of the true logits
  double loss_ = 0;               // mean
  std::vector<double> d_hidden_;  // [samples, C] true
  std::vector<double> d_weight_;  // [columns, C] true
  std::vector<double> d_bias_;    // [columns] true, or empty
};

}  // namespace tessera::bench
