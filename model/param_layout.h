// Where each parameter is stored. A unit is the group of tensors whose gradients are complete at
// the same moment of the backward pass, and so are reduced, updated and gathered together: the
// embedding, each block, the head.
//
//   unit 0        "embedding"  embedding.weight [V, C]
//   unit 1 .. L   "block.i"    attention.norm [C], attention.qkv [(Hq + 2 Hkv) D, C],
//                              attention.qkv_bias, attention.q_norm [D], attention.k_norm [D],
//                              attention.out [C, Hq D], attention.out_bias [C], mlp.norm [C],
//                              mlp.gate_up [2 F, C], mlp.gate_up_bias [2 F], mlp.down [C, F],
//                              mlp.down_bias [C]
//   unit L + 1    "head"       head.norm [C], and head.weight [V, C] unless tied
//
// A linear layer's weight is [out, in], y = x W^T, as in Hugging Face's files; q, k and v are
// stored one behind the other in one tensor, gate before up in another, so that both are single
// GEMMs.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/device/tensor_view.h"

namespace tessera {

struct ModelConfig;

/// Position of a unit in forward order: 0 is the embedding, the last is the head.
using UnitId = int;

struct ParamTensor {
  std::string name;  // "block.3.attention.qkv"; also its name in a checkpoint
  Shape shape;
  Index offset;  // first element within the unit
  bool decays;   // weight decay applies (matrices), or not (norm gains, biases)
  /// Rows of the hidden matrices that are stored in it one behind the other: of q, k and v, of gate
  /// and up, of itself. None: it is not a hidden matrix (embedding, head, norm gains, biases).
  std::vector<Index> matrix_rows = {};
  [[nodiscard]] Index count() const noexcept { return shape.count(); }
};

/// Where a unit's gradients are collected: one of the two block slots, or the f32 buffer of the
/// vocabulary-sized matrices.
enum class GradPlace : std::uint8_t { block_slot, vocabulary };

struct ParamUnit {
  std::string name;  // "block.3"
  std::vector<ParamTensor> tensors;
  Index count;  // elements, without the padding that sharding adds
  GradPlace place;
};

/// A tensor that is another one under a second name.
struct ParamAlias {
  std::string name;      // "head.weight"
  std::string alias_of;  // "embedding.weight"
};

class ParamLayout {
 public:
  explicit ParamLayout(const ModelConfig& config);
  /// Of other units than a model's (adapter_layout.h).
  ParamLayout(std::vector<ParamUnit> units, std::vector<ParamAlias> aliases)
      : units_(std::move(units)), aliases_(std::move(aliases)) {}
  [[nodiscard]] std::span<const ParamUnit> units() const noexcept { return units_; }
  [[nodiscard]] const ParamUnit& unit(UnitId id) const {
    return units_.at(static_cast<std::size_t>(id));
  }
  [[nodiscard]] int unit_count() const noexcept { return static_cast<int>(units_.size()); }
  [[nodiscard]] std::span<const ParamAlias> aliases() const noexcept { return aliases_; }
  [[nodiscard]] bool is_tied() const noexcept { return !aliases_.empty(); }
  [[nodiscard]] UnitId head() const noexcept { return unit_count() - 1; }
  [[nodiscard]] Index total_count() const noexcept;  // elements
  /// Elements of all units before this one.
  [[nodiscard]] Index unit_begin(UnitId id) const;
  /// Throws ConfigError if there is no such tensor.
  [[nodiscard]] const ParamTensor& find(std::string_view tensor_name) const;

 private:
  std::vector<ParamUnit> units_;
  std::vector<ParamAlias> aliases_;
};

/// Elements of `unit` that `tensor` names by the end of its name: `part(unit, "mlp.down")`.
/// Throws ContractError if there is none.
[[nodiscard]] const ParamTensor& part(const ParamUnit& unit, std::string_view suffix);

/// A matrix of a unit between two hidden states: what Muon orthogonalises as a whole.
struct HiddenMatrix {
  Index offset;  // first element within the unit
  Index rows;
  Index columns;
  [[nodiscard]] Index count() const noexcept { return rows * columns; }
  friend bool operator==(const HiddenMatrix&, const HiddenMatrix&) = default;
};
/// Those of `unit`, in their order.
[[nodiscard]] std::vector<HiddenMatrix> hidden_matrices(const ParamUnit& unit);

/// Calls visit(tensor, first, last) for each tensor that has elements of [begin, end), in their
/// order: it has [first, last) of them. All count elements of the unit, whose padding no tensor has.
template <typename Visit>
void for_each_tensor(const ParamUnit& unit, Index begin, Index end, const Visit& visit) {
  for (const ParamTensor& tensor : unit.tensors) {
    const Index first = std::max(begin, tensor.offset);
    const Index last = std::min(end, tensor.offset + tensor.count());
    if (first < last) {
      visit(tensor, first, last);
    }
  }
}

}  // namespace tessera
