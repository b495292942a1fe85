// Which type of number stands where in a run. One struct, so that a number format is a row of
// `precision_of`, or of the table of recipes, and what reads these fields, not a search through the
// code.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/gemm.h"

namespace tessera {

/// How operands of the blocks' GEMMs are quantised to 8 bits: not at all, or with one scale for a
/// tensor, for a row, for a block of a row.
enum class QuantizationRecipe : std::uint8_t { none, tensor, row, block };

/// A row of the table of recipes: what a recipe quantises to, and how its GEMMs add.
struct RecipeRow {
  std::string_view name;  // of --fp8-recipe
  QuantizationRecipe recipe;
  DType inputs;     // of activations and weights
  DType gradients;  // of a layer's output
  ScaleMode scales;
  Accumulation forward;      // of forward GEMMs; those of the backward pass add in full f32
  int oldest_card;           // compute capability, 89: all of 8.9 and 9.0 from there on
  std::string_view missing;  // why there is no such recipe here; empty: there is
};
/// All but `none`.
[[nodiscard]] std::span<const RecipeRow> recipe_table();
/// Requires: not `none`.
[[nodiscard]] const RecipeRow& row_of(QuantizationRecipe recipe);

/// Blocks FIRST to LAST of a model, counted from 0.
struct LayerRange {
  Index first = 0;
  Index last = 0;
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

struct PrecisionPolicy {
  DType params = DType::f32;  // of the weights that the model computes with: what is all-gathered
  DType param_values = DType::f32;  // what they are rounded to: params, or bf16 stored in f32
  DType activations = DType::f32;   // between kernels, kept for the backward pass, and of logits
  DType gemm_inputs = DType::f32;   // of the operands of GEMMs where they are not quantised
  DType grads = DType::f32;         // of a block's gradients as the backward pass writes them
  DType grad_travel = DType::f32;   // of what a reduce-scatter of them carries
  /// Of the blocks' GEMMs while training: of all three of each linear layer. Evaluation and
  /// generation do not quantise.
  QuantizationRecipe recipe = QuantizationRecipe::none;
  std::vector<LayerRange> not_quantized = {};  // blocks that are left out of the recipe
  friend bool operator==(const PrecisionPolicy&, const PrecisionPolicy&) = default;
};

/// f32 or bf16 for everything. Parameters are the master weights rounded half away from zero. Master
/// weights, optimizer state, sums of gradients and the gradients of embedding and LM head are f32 in
/// either.
[[nodiscard]] PrecisionPolicy precision_of(DType dtype);

/// What --precision names.
enum class Precision : std::uint8_t {
  f32,
  bf16,
  bf16_params,  // f32 with parameters that hold values of bf16, for the CPU: the state of a bf16 run
  fp8           // the blocks' GEMMs in 8 bits (`quantized`), and all else in the device's own type
};
/// Requires: not fp8, which is that of another type, quantised.
[[nodiscard]] PrecisionPolicy precision_of(Precision precision);

/// The same with the blocks' GEMMs quantised.
[[nodiscard]] PrecisionPolicy quantized(PrecisionPolicy precision, QuantizationRecipe recipe,
                                        std::vector<LayerRange> not_quantized);
/// Whether the GEMMs of block `layer` are quantised.
[[nodiscard]] bool quantizes(const PrecisionPolicy& precision, Index layer);

/// Throws ConfigError for a combination that the kernels do not compute with: all types but those
/// of `precision_of`, and a recipe that the table has and this version does not.
void require_supported(const PrecisionPolicy& precision);

/// Why a card of this compute capability (90: 9.0) cannot multiply as the recipe says, with what to
/// do; empty if it can. `card` is its name.
[[nodiscard]] std::string card_refusal(QuantizationRecipe recipe, int capability,
                                       std::string_view card);

}  // namespace tessera
