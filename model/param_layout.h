// Where each parameter lies. A unit is the group of tensors whose gradients are complete at the
// same moment of the backward pass, and so are reduced, updated and gathered together: the
// embedding, each block, the head.
#pragma once

#include <span>
#include <string>
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
  bool decays;   // weight decay applies (matrices), or not (norm gains)
};

struct ParamUnit {
  std::string name;  // "block.3"
  std::vector<ParamTensor> tensors;
  Index count;  // elements, without the padding that sharding adds
};

class ParamLayout {
 public:
  explicit ParamLayout(const ModelConfig& config);
  [[nodiscard]] std::span<const ParamUnit> units() const noexcept { return units_; }
  [[nodiscard]] Index largest_unit_count() const noexcept;  // elements
  [[nodiscard]] Index total_count() const noexcept;         // elements
  /// Throws ConfigError if there is no such tensor.
  [[nodiscard]] const ParamTensor& find(std::string_view tensor_name) const;

 private:
  std::vector<ParamUnit> units_;
};

}  // namespace tessera
