#include "kernels/precision.h"

#include <array>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"

namespace tessera::test {
namespace {

constexpr std::array kRecipes = {QuantizationRecipe::tensor, QuantizationRecipe::row,
                                 QuantizationRecipe::block};

}  // namespace

BOOST_AUTO_TEST_SUITE(precision)

BOOST_AUTO_TEST_CASE(one_type_for_everything_is_supported) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    BOOST_CHECK_NO_THROW(require_supported(precision_of(dtype)));
    BOOST_CHECK_NO_THROW(
        require_supported(quantized(precision_of(dtype), QuantizationRecipe::tensor, {})));
  }
}

BOOST_AUTO_TEST_CASE(parameters_of_f32_may_hold_values_of_bf16) {
  PrecisionPolicy policy = precision_of(DType::f32);
  policy.param_values = DType::bf16;
  BOOST_CHECK(policy == precision_of(Precision::bf16_params));
  BOOST_CHECK_NO_THROW(require_supported(policy));
  BOOST_CHECK_THROW((void)precision_of(Precision::fp8), ContractError);  // of which type beside?
}

BOOST_AUTO_TEST_CASE(a_type_of_which_no_kernel_computes_is_refused) {
  for (const DType dtype : {DType::f64, DType::u8, DType::i32, DType::e4m3}) {
    BOOST_CHECK_THROW(require_supported(precision_of(dtype)), ConfigError);
    BOOST_CHECK_THROW(
        require_supported(quantized(precision_of(dtype), QuantizationRecipe::tensor, {})),
        ConfigError);
  }
}

// Each field counts: a policy that differs in it alone is refused.
BOOST_AUTO_TEST_CASE(every_field_that_differs_from_the_others_is_refused) {
  for (DType PrecisionPolicy::*field :
       {&PrecisionPolicy::params, &PrecisionPolicy::param_values, &PrecisionPolicy::activations,
        &PrecisionPolicy::gemm_inputs, &PrecisionPolicy::grads, &PrecisionPolicy::grad_travel}) {
    PrecisionPolicy mixed = precision_of(DType::bf16);
    mixed.*field = DType::f32;
    BOOST_CHECK_THROW(require_supported(mixed), ConfigError);
  }
}

BOOST_AUTO_TEST_CASE(the_table_has_a_row_for_each_recipe_and_refuses_what_is_missing_by_name) {
  BOOST_TEST(recipe_table().size() == kRecipes.size());
  for (const QuantizationRecipe recipe : kRecipes) {
    const RecipeRow& row = row_of(recipe);
    BOOST_TEST((row.recipe == recipe));
    const PrecisionPolicy precision = quantized(precision_of(DType::bf16), recipe, {});
    if (row.missing.empty()) {
      BOOST_CHECK_NO_THROW(require_supported(precision));
      continue;
    }
    BOOST_CHECK_EXCEPTION(
        require_supported(precision), ConfigError, [&row](const ConfigError& error) {
          return error.message().find("--fp8-recipe " + std::string(row.name)) != std::string::npos;
        });
  }
  BOOST_CHECK_THROW((void)row_of(QuantizationRecipe::none), ContractError);
}

BOOST_AUTO_TEST_CASE(blocks_that_are_left_out_are_not_quantised) {
  const PrecisionPolicy plain = precision_of(DType::f32);
  const PrecisionPolicy some = quantized(plain, QuantizationRecipe::tensor, {{0, 0}, {3, 4}});
  for (Index layer = 0; layer < 6; ++layer) {
    BOOST_TEST(!quantizes(plain, layer));
    BOOST_TEST(quantizes(quantized(plain, QuantizationRecipe::tensor, {}), layer));
    BOOST_TEST(quantizes(some, layer) == (layer == 1 || layer == 2 || layer == 5));
  }
}

BOOST_AUTO_TEST_CASE(cards_without_the_recipes_gemms_are_refused_by_name) {
  const auto refusal = [](QuantizationRecipe recipe, int capability) {
    return card_refusal(recipe, capability, "a card");
  };
  for (const QuantizationRecipe recipe : kRecipes) {
    BOOST_TEST(refusal(recipe, 90).empty());
    for (const int other : {70, 80, 86, 100, 120}) {
      BOOST_TEST(refusal(recipe, other).find("a card has") != std::string::npos);
      BOOST_TEST(refusal(recipe, other).find("--precision bf16") != std::string::npos);
    }
  }
  BOOST_TEST(refusal(QuantizationRecipe::tensor, 89).empty());
  BOOST_TEST(!refusal(QuantizationRecipe::row, 89).empty());
  BOOST_TEST(!refusal(QuantizationRecipe::block, 89).empty());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
