// The golden files of tests/golden: a tiny Qwen3 of Hugging Face transformers with its loss,
// gradients and AdamW steps, in our layout.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "model/model_config.h"
#include "model/param_layout.h"
#include "model/safetensors.h"

namespace tessera::test {

class Golden {
 public:
  /// `variant`: "tied" or "untied". Throws FormatError.
  explicit Golden(const std::string& variant);
  /// The weights of `variant` in another configuration with tensors of the same shapes.
  Golden(const std::string& variant, ModelConfig config);

  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }
  [[nodiscard]] const ModelConfig& config() const noexcept { return config_; }
  [[nodiscard]] const ParamLayout& layout() const noexcept { return layout_; }
  /// The weights before the first step, all elements of `unit`.
  [[nodiscard]] std::vector<float> weights(UnitId unit) const;
  /// "grad.", "final.", "exp_avg." or "exp_avg_sq." of `unit`.
  [[nodiscard]] std::vector<float> state(const std::string& prefix, UnitId unit) const;
  /// The numbers of golden.json: "losses", "grad_norms".
  [[nodiscard]] std::vector<double> numbers(const std::string& key) const;
  /// [2, 16] tokens; targets with -100 where ignored.
  [[nodiscard]] std::vector<std::int32_t> tokens() const;
  [[nodiscard]] std::vector<std::int32_t> targets() const;

 private:
  [[nodiscard]] std::vector<std::int32_t> integers(const std::string& name) const;
  [[nodiscard]] std::vector<float> unit_values(const SafetensorsFile& file,
                                               const std::string& prefix, UnitId unit) const;

  std::filesystem::path folder_;
  ModelConfig config_;
  ParamLayout layout_;
  SafetensorsFile weights_;
  SafetensorsFile golden_;
};

}  // namespace tessera::test
