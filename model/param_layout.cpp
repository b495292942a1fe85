#include "model/param_layout.h"

#include <numeric>

#include "kernels/base/error.h"
#include "model/model_config.h"

namespace tessera {
namespace {

class UnitBuilder {
 public:
  UnitBuilder(std::string name, GradPlace place) : unit_{std::move(name), {}, 0, place} {}

  // Matrices decay; vectors (norm gains, biases) do not.
  void add(const std::string& suffix, const Shape& shape) {
    unit_.tensors.push_back({unit_.name + "." + suffix, shape, unit_.count, shape.rank() > 1});
    unit_.count += shape.count();
  }
  // Hidden matrices of these rows, one behind the other.
  void add_matrices(const std::string& suffix, const std::vector<Index>& rows, Index columns) {
    add(suffix, {std::accumulate(rows.begin(), rows.end(), Index{0}), columns});
    unit_.tensors.back().matrix_rows = rows;
  }
  [[nodiscard]] ParamUnit take() { return std::move(unit_); }

 private:
  ParamUnit unit_;
};

ParamUnit block_unit(const ModelConfig& c, Index layer) {
  UnitBuilder unit("block." + std::to_string(layer), GradPlace::block_slot);
  unit.add("attention.norm", {c.hidden_size});
  const Index kv_width = c.num_kv_heads * c.head_dim;
  unit.add_matrices("attention.qkv", {c.query_width(), kv_width, kv_width}, c.hidden_size);
  if (c.attention_bias) {
    unit.add("attention.qkv_bias", {c.qkv_width()});
  }
  if (c.qk_norm) {
    unit.add("attention.q_norm", {c.head_dim});
    unit.add("attention.k_norm", {c.head_dim});
  }
  unit.add_matrices("attention.out", {c.hidden_size}, c.query_width());
  if (c.attention_out_bias) {
    unit.add("attention.out_bias", {c.hidden_size});
  }
  unit.add("mlp.norm", {c.hidden_size});
  unit.add_matrices("mlp.gate_up", {c.intermediate_size, c.intermediate_size}, c.hidden_size);
  if (c.mlp_bias) {
    unit.add("mlp.gate_up_bias", {2 * c.intermediate_size});
  }
  unit.add_matrices("mlp.down", {c.hidden_size}, c.intermediate_size);
  if (c.mlp_bias) {
    unit.add("mlp.down_bias", {c.hidden_size});
  }
  return unit.take();
}

}  // namespace

ParamLayout::ParamLayout(const ModelConfig& config) {
  check(config);
  UnitBuilder embedding("embedding", GradPlace::vocabulary);
  embedding.add("weight", {config.vocab_size, config.hidden_size});
  units_.push_back(embedding.take());
  for (Index layer = 0; layer < config.num_layers; ++layer) {
    units_.push_back(block_unit(config, layer));
  }
  UnitBuilder head("head", config.tie_embeddings ? GradPlace::block_slot : GradPlace::vocabulary);
  if (config.tie_embeddings) {
    aliases_.push_back({"head.weight", "embedding.weight"});
  } else {
    head.add("weight", {config.vocab_size, config.hidden_size});
  }
  head.add("norm", {config.hidden_size});
  units_.push_back(head.take());
}

Index ParamLayout::total_count() const noexcept {
  Index total = 0;
  for (const ParamUnit& unit : units_) {
    total += unit.count;
  }
  return total;
}

Index ParamLayout::unit_begin(UnitId id) const {
  Index begin = 0;
  for (UnitId before = 0; before < id; ++before) {
    begin += unit(before).count;
  }
  return begin;
}

const ParamTensor& ParamLayout::find(std::string_view tensor_name) const {
  std::string_view wanted = tensor_name;
  for (const ParamAlias& alias : aliases_) {
    if (wanted == alias.name) {
      wanted = alias.alias_of;
    }
  }
  for (const ParamUnit& unit : units_) {
    for (const ParamTensor& tensor : unit.tensors) {
      if (tensor.name == wanted) {
        return tensor;
      }
    }
  }
  throw ConfigError("there is no parameter '" + std::string(tensor_name) + "'", TESSERA_HERE);
}

std::vector<HiddenMatrix> hidden_matrices(const ParamUnit& unit) {
  std::vector<HiddenMatrix> matrices;
  for (const ParamTensor& tensor : unit.tensors) {
    Index offset = tensor.offset;
    for (const Index rows : tensor.matrix_rows) {
      matrices.push_back({offset, rows, tensor.shape[1]});
      offset += matrices.back().count();
    }
  }
  return matrices;
}

const ParamTensor& part(const ParamUnit& unit, std::string_view suffix) {
  for (const ParamTensor& tensor : unit.tensors) {
    if (std::string_view(tensor.name).substr(unit.name.size() + 1) == suffix) {
      return tensor;
    }
  }
  throw ContractError("unit " + unit.name + " has no tensor " + std::string(suffix), TESSERA_HERE);
}

}  // namespace tessera
