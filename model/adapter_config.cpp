#include "model/adapter_config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "model/json_text.h"
#include "model/model_config.h"

namespace tessera {
namespace {

constexpr std::array<ProjectionRow, 7> kProjections = {{
    {Projection::q, "q_proj", "self_attn.q_proj", "attention.q", "attention.qkv"},
    {Projection::k, "k_proj", "self_attn.k_proj", "attention.k", "attention.qkv"},
    {Projection::v, "v_proj", "self_attn.v_proj", "attention.v", "attention.qkv"},
    {Projection::o, "o_proj", "self_attn.o_proj", "attention.o", "attention.out"},
    {Projection::gate, "gate_proj", "mlp.gate_proj", "mlp.gate", "mlp.gate_up"},
    {Projection::up, "up_proj", "mlp.up_proj", "mlp.up", "mlp.gate_up"},
    {Projection::down, "down_proj", "mlp.down_proj", "mlp.down", "mlp.down"},
}};

// Words for several projections at once.
struct Group {
  std::string_view name;
  std::size_t first;  // in kProjections
  std::size_t count;
};
constexpr std::array<Group, 3> kGroups = {{{"all", 0, 7}, {"attention", 0, 4}, {"mlp", 4, 3}}};

std::vector<Projection> projections_of(const Group& group) {
  std::vector<Projection> all;
  for (std::size_t i = 0; i < group.count; ++i) {
    all.push_back(kProjections.at(group.first + i).projection);
  }
  return all;
}

std::string known_names() {
  std::vector<std::string_view> names;
  for (const ProjectionRow& row : kProjections) {
    names.push_back(row.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::span<const ProjectionRow> projection_table() {
  return kProjections;
}

const ProjectionRow& row_of(Projection projection) {
  return kProjections.at(static_cast<std::size_t>(projection));
}

ProjectionSizes projection_sizes(const ModelConfig& c, Projection projection) {
  const Index kv_width = c.num_kv_heads * c.head_dim;
  switch (projection) {
    case Projection::q:
      return {c.hidden_size, c.query_width(), 0};
    case Projection::k:
      return {c.hidden_size, kv_width, c.query_width()};
    case Projection::v:
      return {c.hidden_size, kv_width, c.query_width() + kv_width};
    case Projection::o:
      return {c.query_width(), c.hidden_size, 0};
    case Projection::gate:
      return {c.hidden_size, c.intermediate_size, 0};
    case Projection::up:
      return {c.hidden_size, c.intermediate_size, c.intermediate_size};
    case Projection::down:
      return {c.intermediate_size, c.hidden_size, 0};
  }
  throw ContractError("not a projection", TESSERA_HERE);
}

double AdapterConfig::scale() const noexcept {
  const auto r = static_cast<double>(rank);
  return alpha / (rank_stabilized ? std::sqrt(r) : r);
}

bool AdapterConfig::has(Projection projection) const noexcept {
  return std::find(targets.begin(), targets.end(), projection) != targets.end();
}

std::vector<Projection> parse_projections(std::string_view text, std::string_view option) {
  for (const Group& group : kGroups) {
    if (text == group.name) {
      return projections_of(group);
    }
  }
  std::vector<Projection> all;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view name = rest.substr(0, comma);
    const auto* const found = std::find_if(kProjections.begin(), kProjections.end(),
                                           [name](const auto& row) { return row.name == name; });
    if (found == kProjections.end()) {
      throw ConfigError(
          fmt::format("{} {}: there is no linear layer '{}'; give one of all, attention and mlp by "
                      "itself, or some of {} with commas between them",
                      option, text, name, known_names()),
          TESSERA_HERE);
    }
    if (std::find(all.begin(), all.end(), found->projection) != all.end()) {
      throw ConfigError(fmt::format("{} {}: {} is named twice", option, text, name), TESSERA_HERE);
    }
    all.push_back(found->projection);
    if (comma == std::string_view::npos) {
      break;
    }
    rest.remove_prefix(comma + 1);
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::string projections_text(std::span<const Projection> projections) {
  for (const Group& group : kGroups) {
    const std::vector<Projection> of_group = projections_of(group);
    if (std::equal(of_group.begin(), of_group.end(), projections.begin(), projections.end())) {
      return std::string(group.name);
    }
  }
  std::vector<std::string_view> names;
  for (const Projection projection : projections) {
    names.push_back(row_of(projection).name);
  }
  return fmt::format("{}", fmt::join(names, ","));
}

std::string adapter_text(const AdapterConfig& adapters) {
  return fmt::format("rank {}, alpha {:g}{}, beside {}{}", adapters.rank, adapters.alpha,
                     adapters.rank_stabilized ? " rank-stabilised" : "",
                     projections_text(adapters.targets) == "all"
                         ? std::string("all linear layers")
                         : projections_text(adapters.targets),
                     adapters.trains_embeddings ? ", with embedding and LM head" : "");
}

std::string to_adapter_json(const AdapterConfig& adapters) {
  const nlohmann::json json = {{"rank", adapters.rank},
                               {"alpha", adapters.alpha},
                               {"rank_stabilized", adapters.rank_stabilized},
                               {"targets", projections_text(adapters.targets)},
                               {"trains_embeddings", adapters.trains_embeddings}};
  return json_text(json);
}

AdapterConfig parse_adapter_json(const std::string& text, const std::string& name) {
  const nlohmann::json json = parse_json_line(text);
  const auto refuse = [&name](const std::string& what) -> FormatError {
    return {fmt::format("{}: adapter_json: {}", name, what), TESSERA_HERE};
  };
  constexpr std::size_t kFields = 5;
  if (!json.is_object() || json.size() != kFields) {
    throw refuse(
        "must be an object of rank, alpha, rank_stabilized, targets and trains_embeddings");
  }
  AdapterConfig adapters;
  try {
    adapters.rank = json.at("rank").get<Index>();
    adapters.alpha = json.at("alpha").get<double>();
    adapters.rank_stabilized = json.at("rank_stabilized").get<bool>();
    adapters.targets = parse_projections(json.at("targets").get<std::string>(), "targets");
    adapters.trains_embeddings = json.at("trains_embeddings").get<bool>();
  } catch (const nlohmann::json::exception&) {
    throw refuse("must have rank, alpha, rank_stabilized, targets and trains_embeddings, each of "
                 "its type");
  } catch (const ConfigError& error) {
    throw refuse(error.message());
  }
  if (adapters.rank < 1 || adapters.rank > kMostAdapterRank) {
    throw refuse(
        fmt::format("rank is {}; it must be from 1 to {}", adapters.rank, kMostAdapterRank));
  }
  if (!std::isfinite(adapters.alpha)) {
    throw refuse("alpha is not finite");
  }
  return adapters;
}

}  // namespace tessera
