// Where the parts of a frozen base in 4 bits are stored. A packed unit is one array of bytes:
//
//   embedding, head   as their ParamUnit has them, in the type of parameters
//   block             each matrix of Hugging Face's (q, k, v, o, gate, up, down: rows of ours) as nf4
//                     (kernels/nf4.h); the norm gains and biases between them in the type of parameters
//
// Each part of a block begins at a multiple of kPackedAlignment bytes.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/device/tensor_view.h"
#include "model/param_layout.h"

namespace tessera {

inline constexpr Index kPackedAlignment = 16;  // bytes: of the widest access

/// Elements of a unit that follow one another, and their bytes in the packed one.
struct PackedPart {
  std::string name;  // of a matrix: Hugging Face's, "model.layers.3.self_attn.q_proj.weight"
  bool is_nf4;
  Index first;  // element of the unit
  Index count;  // elements
  Index byte;   // where it begins
  Index bytes;
};

class PackedLayout {
 public:
  /// `params`: the type of what is not packed.
  PackedLayout(const ModelConfig& config, const ParamLayout& model, DType params);

  /// Units of bytes, for a store of u8.
  [[nodiscard]] const ParamLayout& bytes() const noexcept { return bytes_; }
  /// Of a unit, in order; all of its elements.
  [[nodiscard]] std::span<const PackedPart> parts(UnitId unit) const {
    return parts_.at(static_cast<std::size_t>(unit));
  }
  /// Whether it has matrices in nf4: it is a block.
  [[nodiscard]] bool is_packed(UnitId unit) const { return parts(unit).size() > 1; }
  [[nodiscard]] DType params() const noexcept { return params_; }

 private:
  std::vector<std::vector<PackedPart>> parts_;
  ParamLayout bytes_;
  DType params_;
};

/// A view of bytes [part.byte, part.byte + part.bytes) of a packed unit.
[[nodiscard]] inline ConstTensorView bytes_of(const PackedPart& part, const ConstTensorView& unit) {
  return unit.slice(part.byte, part.byte + part.bytes);
}

}  // namespace tessera
