#include "jobs/convert/resized_vocab.h"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace tessera {

ResizedVocab::ResizedVocab(const HuggingFaceFolder& model, Index vocab_size)
    : model_(model), config_(model.config()) {
  if (vocab_size < config_.vocab_size) {
    throw ConfigError(fmt::format("--resize-vocab {} is less than the model's vocabulary of {}: "
                                  "rows are added, not taken away",
                                  vocab_size, config_.vocab_size),
                      TESSERA_HERE);
  }
  if (vocab_size == config_.vocab_size) {
    return;
  }
  config_.vocab_size = vocab_size;
  new_rows_["embedding.weight"] = mean_row("embedding.weight");
  if (!config_.tie_embeddings) {
    new_rows_["head.weight"] = mean_row("head.weight");
  }
}

std::vector<float> ResizedVocab::mean_row(std::string_view tensor) const {
  const auto width = static_cast<std::size_t>(config_.hidden_size);
  const Index rows = model_.config().vocab_size;
  constexpr Index kRowsAtOnce = 256;
  std::vector<double> sums(width);
  std::vector<float> values;
  for (Index row = 0; row < rows; row += kRowsAtOnce) {
    values.resize(static_cast<std::size_t>(std::min(kRowsAtOnce, rows - row)) * width);
    model_.read(tensor, row * config_.hidden_size, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      sums[i % width] += static_cast<double>(values[i]);
    }
  }
  std::vector<float> mean(width);
  std::transform(sums.begin(), sums.end(), mean.begin(), [rows](double sum) {
    return static_cast<float>(sum / static_cast<double>(rows));
  });
  return mean;
}

void ResizedVocab::read(std::string_view tensor, Index begin, std::span<float> values) const {
  const auto row = new_rows_.find(tensor);
  if (row == new_rows_.end()) {
    model_.read(tensor, begin, values);
    return;
  }
  const Index there = model_.config().vocab_size * config_.hidden_size;
  const auto old =
      static_cast<std::size_t>(std::clamp<Index>(there - begin, 0, std::ssize(values)));
  if (old > 0) {
    model_.read(tensor, begin, values.first(old));
  }
  for (std::size_t i = old; i < values.size(); ++i) {
    const Index element = begin + static_cast<Index>(i);
    values[i] = row->second[static_cast<std::size_t>(element % config_.hidden_size)];
  }
}

}  // namespace tessera
