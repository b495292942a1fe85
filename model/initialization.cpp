#include "model/initialization.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/random.h"

namespace tessera {
namespace {

// Stream number of weights, so that they share no random numbers with the data order.
constexpr std::uint64_t kWeightStream = 1;

struct Rule {
  double deviation;  // of a normal distribution; 0: the constant
  float constant;
};

Rule rule_of(const ModelConfig& config, const ParamTensor& tensor) {
  if (!tensor.decays) {
    return {0, tensor.name.ends_with("norm") ? 1.0F : 0.0F};
  }
  const bool writes_residual =
      tensor.name.ends_with("attention.out") || tensor.name.ends_with("mlp.down");
  const double scale =
      writes_residual ? 1 / std::sqrt(2.0 * static_cast<double>(config.num_layers)) : 1.0;
  return {config.initializer_range * scale, 0.0F};
}

}  // namespace

void initial_values(const ModelConfig& config, const ParamLayout& layout, UnitId unit,
                    std::uint64_t seed, Index begin, std::span<float> values) {
  const Index end = begin + static_cast<Index>(values.size());
  const Index unit_begin = layout.unit_begin(unit);
  std::fill(values.begin(), values.end(), 0.0F);
  const auto fill = [&](const ParamTensor& tensor, Index first, Index last) {
    const Rule rule = rule_of(config, tensor);
    for (Index element = first; element < last; ++element) {
      values[static_cast<std::size_t>(element - begin)] =
          rule.deviation == 0
              ? rule.constant
              : static_cast<float>(
                    rule.deviation *
                    normal(seed, kWeightStream, static_cast<std::uint64_t>(unit_begin + element)));
    }
  };
  for_each_tensor(layout.unit(unit), begin, end, fill);
}

}  // namespace tessera
