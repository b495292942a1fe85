#include "kernels/precision.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace tessera {
namespace {

constexpr int kAda = 89;
constexpr int kHopper = 90;

constexpr std::array kRecipes = {
    RecipeRow{.name = "tensor",
              .recipe = QuantizationRecipe::tensor,
              .inputs = DType::e4m3,
              .gradients = DType::e5m2,
              .scales = ScaleMode::tensor,
              .forward = Accumulation::fast,
              .oldest_card = kAda,
              .missing = {}},
    RecipeRow{.name = "row",
              .recipe = QuantizationRecipe::row,
              .inputs = DType::e4m3,
              .gradients = DType::e5m2,
              .scales = ScaleMode::row,
              .forward = Accumulation::fast,
              .oldest_card = kHopper,
              .missing = "a scale for each row needs a pass over the columns for the transposed "
                         "operands, and its GEMMs were measured 3 to 14% slower on an H200"},
    RecipeRow{.name = "block",
              .recipe = QuantizationRecipe::block,
              .inputs = DType::e4m3,
              .gradients = DType::e4m3,
              .scales = ScaleMode::none,
              .forward = Accumulation::full,
              .oldest_card = kHopper,
              .missing =
                  "GEMMs with a scale for each block of a row were measured 14 to 28% slower "
                  "on an H200"},
};

}  // namespace

std::span<const RecipeRow> recipe_table() {
  return kRecipes;
}

const RecipeRow& row_of(QuantizationRecipe recipe) {
  const auto* const found =
      std::find_if(kRecipes.begin(), kRecipes.end(),
                   [recipe](const RecipeRow& row) { return row.recipe == recipe; });
  TESSERA_REQUIRE(found != kRecipes.end(), "a recipe that quantises");
  return *found;
}

PrecisionPolicy precision_of(DType dtype) {
  return {.params = dtype,
          .param_values = dtype,
          .activations = dtype,
          .gemm_inputs = dtype,
          .grads = dtype,
          .grad_travel = dtype};
}

PrecisionPolicy precision_of(Precision precision) {
  TESSERA_REQUIRE(precision != Precision::fp8, "the type that fp8 has beside its GEMMs");
  PrecisionPolicy policy = precision_of(precision == Precision::bf16 ? DType::bf16 : DType::f32);
  if (precision == Precision::bf16_params) {
    policy.param_values = DType::bf16;
  }
  return policy;
}

PrecisionPolicy quantized(PrecisionPolicy precision, QuantizationRecipe recipe,
                          std::vector<LayerRange> not_quantized) {
  precision.recipe = recipe;
  precision.not_quantized = std::move(not_quantized);
  return precision;
}

bool quantizes(const PrecisionPolicy& precision, Index layer) {
  return precision.recipe != QuantizationRecipe::none &&
         std::none_of(precision.not_quantized.begin(), precision.not_quantized.end(),
                      [layer](const LayerRange& range) {
                        return range.first <= layer && layer <= range.last;
                      });
}

void require_supported(const PrecisionPolicy& precision) {
  const PrecisionPolicy plain = quantized(precision, QuantizationRecipe::none, {});
  if (plain != precision_of(Precision::f32) && plain != precision_of(Precision::bf16) &&
      plain != precision_of(Precision::bf16_params)) {
    throw ConfigError(
        fmt::format("no kernel computes with parameters in {} that hold {}, activations in {}, "
                    "GEMM inputs in "
                    "{}, gradients in {} that are sent in {}: all of them are f32, or all bf16",
                    dtype_name(precision.params), dtype_name(precision.param_values),
                    dtype_name(precision.activations), dtype_name(precision.gemm_inputs),
                    dtype_name(precision.grads), dtype_name(precision.grad_travel)),
        TESSERA_HERE);
  }
  if (precision.recipe == QuantizationRecipe::none) {
    return;
  }
  const RecipeRow& row = row_of(precision.recipe);
  if (!row.missing.empty()) {
    throw ConfigError(fmt::format("--fp8-recipe {} is not in this version: {}; take tensor",
                                  row.name, row.missing),
                      TESSERA_HERE);
  }
}

std::string card_refusal(QuantizationRecipe recipe, int capability, std::string_view card) {
  const RecipeRow& row = row_of(recipe);
  if (capability == kHopper || (capability == kAda && row.oldest_card <= kAda)) {
    return {};
  }
  return fmt::format("--precision fp8 with --fp8-recipe {} runs on cards of compute capability "
                     "{}9.0, and {} has {}.{}: take --precision bf16",
                     row.name, row.oldest_card <= kAda ? "8.9 and " : "", card, capability / 10,
                     capability % 10);
}

}  // namespace tessera
