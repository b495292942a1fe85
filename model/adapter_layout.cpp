#include "model/adapter_layout.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "model/model_config.h"

namespace tessera {
namespace {

// Stream number of adapters, so that they share no random numbers with weights and data order.
constexpr std::uint64_t kAdapterStream = 21;

void add(ParamUnit& unit, const std::string& suffix, const Shape& shape) {
  unit.tensors.push_back({unit.name + "." + suffix, shape, unit.count, true});
  unit.count += shape.count();
}

ParamUnit block_unit(const ModelConfig& model, const AdapterConfig& adapters, Index layer) {
  ParamUnit unit{fmt::format("block.{}", layer), {}, 0, GradPlace::block_slot};
  const auto& targets = adapters.targets;
  for (auto first = targets.begin(); first != targets.end();) {
    const std::string_view fused = row_of(*first).fused;
    const auto last = std::find_if(first, targets.end(), [fused](Projection projection) {
      return row_of(projection).fused != fused;
    });
    for (auto target = first; target != last; ++target) {
      add(unit, fmt::format("{}.lora_a", row_of(*target).suffix),
          {adapters.rank, projection_sizes(model, *target).in});
    }
    for (auto target = first; target != last; ++target) {
      add(unit, fmt::format("{}.lora_b", row_of(*target).suffix),
          {projection_sizes(model, *target).out, adapters.rank});
    }
    first = last;
  }
  return unit;
}

ParamLayout make_layout(const ModelConfig& model, const AdapterConfig& adapters) {
  check(model);
  if (adapters.rank < 1 || adapters.rank > kMostAdapterRank) {
    throw ConfigError(
        fmt::format("--lora {}: the rank is from 1 to {}", adapters.rank, kMostAdapterRank),
        TESSERA_HERE);
  }
  if (adapters.targets.empty()) {
    throw ConfigError("--lora-targets: name at least one linear layer", TESSERA_HERE);
  }
  std::vector<ParamUnit> units;
  std::vector<ParamAlias> aliases;
  const Shape table = {model.vocab_size, model.hidden_size};
  const auto add_table = [&](const char* name) {
    add(units.emplace_back(ParamUnit{name, {}, 0, GradPlace::vocabulary}), "weight", table);
  };
  if (adapters.trains_embeddings) {
    add_table("embedding");
  }
  for (Index layer = 0; layer < model.num_layers; ++layer) {
    units.push_back(block_unit(model, adapters, layer));
  }
  if (adapters.trains_embeddings && model.tie_embeddings) {
    aliases.push_back({"head.weight", "embedding.weight"});
  } else if (adapters.trains_embeddings) {
    add_table("head");
  }
  return {std::move(units), std::move(aliases)};
}

Index widest_of(const AdapterConfig& adapters) {
  Index widest = 0;
  for (const Projection target : adapters.targets) {
    widest = std::max<Index>(
        widest,
        std::count_if(adapters.targets.begin(), adapters.targets.end(), [target](Projection other) {
          return row_of(other).fused == row_of(target).fused;
        }));
  }
  return widest * adapters.rank;
}

}  // namespace

AdapterLayout::AdapterLayout(const ModelConfig& config, const AdapterConfig& adapters)
    : config_(adapters),
      is_tied_(config.tie_embeddings),
      params_(make_layout(config, adapters)),
      widest_(widest_of(adapters)) {}

double flops_per_token(const ModelConfig& config, const AdapterLayout& adapters, Index sequence) {
  double frozen = 0;  // weights whose gradients are left out
  double added = 0;   // elements of A and B, each in three GEMMs
  for (const ProjectionRow& row : projection_table()) {
    const ProjectionSizes sizes = projection_sizes(config, row.projection);
    frozen += static_cast<double>(sizes.in * sizes.out);
    if (adapters.config().has(row.projection)) {
      added += static_cast<double>(adapters.config().rank * (sizes.in + sizes.out));
    }
  }
  const auto layers = static_cast<double>(config.num_layers);
  const double head = adapters.config().trains_embeddings
                          ? 0
                          : static_cast<double>(config.vocab_size * config.hidden_size);
  return flops_per_token(config, sequence) - 2 * (layers * frozen + head) + 6 * layers * added;
}

void initial_adapters(const AdapterLayout& layout, UnitId unit, AdapterInit init,
                      std::uint64_t seed, Index begin, std::span<float> values) {
  const ParamLayout& params = layout.params();
  const Index unit_begin = params.unit_begin(unit);
  const double deviation = 1 / static_cast<double>(layout.config().rank);
  for_each_tensor(params.unit(unit), begin, begin + static_cast<Index>(values.size()),
                  [&](const ParamTensor& tensor, Index first, Index last) {
                    const bool is_a = tensor.name.ends_with("lora_a");
                    TESSERA_REQUIRE(is_a || tensor.name.ends_with("lora_b"), "an adapter's tensor");
                    const double bound = 1 / std::sqrt(static_cast<double>(tensor.shape[1]));
                    for (Index element = first; element < last; ++element) {
                      const auto number = static_cast<std::uint64_t>(unit_begin + element);
                      double value = 0;
                      if (is_a && init == AdapterInit::gaussian) {
                        value = deviation * normal(seed, kAdapterStream, number);
                      } else if (is_a) {
                        value =
                            bound * (2 * uniform_from(philox(seed, kAdapterStream, number)[0]) - 1);
                      }
                      values[static_cast<std::size_t>(element - begin)] = static_cast<float>(value);
                    }
                  });
}

}  // namespace tessera
