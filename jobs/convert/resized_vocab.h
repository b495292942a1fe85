// A Hugging Face model with more rows in its embedding and head, for tokens that it gets.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/huggingface.h"

namespace tessera {

/// Reads as HuggingFaceFolder::read does, and beyond the model's own rows of `embedding.weight` and
/// `head.weight` the mean of all of these (summed in f64 in their order). Safe from several threads.
class ResizedVocab {
 public:
  /// `model` must outlive it. Throws ConfigError where the model has more than `vocab_size` rows.
  ResizedVocab(const HuggingFaceFolder& model, Index vocab_size);

  [[nodiscard]] const ModelConfig& config() const noexcept { return config_; }
  void read(std::string_view tensor, Index begin, std::span<float> values) const;

 private:
  [[nodiscard]] std::vector<float> mean_row(std::string_view tensor) const;

  const HuggingFaceFolder& model_;
  ModelConfig config_;
  std::map<std::string, std::vector<float>, std::less<>> new_rows_;  // by tensor
};

}  // namespace tessera
