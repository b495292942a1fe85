// Where the arrays of an optimizer are stored in a page, with scales and without.
#include "optim/state_layout.h"

#include <set>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "optim/update_rule.h"

namespace tessera {

BOOST_AUTO_TEST_SUITE(state_layouts)

BOOST_AUTO_TEST_CASE(optimizers_are_found_by_name_and_their_arrays_have_one_each) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd, OptimizerKind::muon}) {
    BOOST_TEST((find_optimizer(optimizer_name(kind)) == kind));
    std::set<std::string_view> names;
    for (const StateArraySpec& spec : state_layout(kind).arrays()) {
      BOOST_TEST(names.insert(array_name(spec.array)).second);
    }
    BOOST_TEST(state_layout(kind).number_of(StateArray::master) == 0U);
  }
  BOOST_TEST(!find_optimizer("lion"));
  BOOST_TEST(optimizer_names() == "adamw, sgd, muon");
  BOOST_TEST(state_layout(OptimizerKind::sgd).bytes(1024) == 8U * 1024);
}

BOOST_AUTO_TEST_CASE(adamw_keeps_three_f32_arrays_one_after_the_other) {
  const StateLayout& layout = state_layout(OptimizerKind::adamw);
  constexpr Index kCount = 2048;
  std::vector<std::uint8_t> memory(layout.bytes(kCount));
  BOOST_TEST(memory.size() == 12U * kCount);
  const TensorView page = {memory.data(), DType::u8, Shape{std::ssize(memory)}, Device{}};
  std::size_t begin = 0;
  for (const StateArray array : {StateArray::master, StateArray::exp_avg, StateArray::exp_avg_sq}) {
    const TensorView values = layout.values(page, kCount, array);
    BOOST_TEST(values.data == memory.data() + begin);
    BOOST_TEST((values.dtype == DType::f32));
    BOOST_TEST(values.count() == kCount);
    begin += sizeof(float) * static_cast<std::size_t>(kCount);
  }
}

BOOST_AUTO_TEST_CASE(scales_follow_the_values_of_their_array) {
  const StateLayout layout = {
      {.array = StateArray::master},
      {.array = StateArray::exp_avg, .dtype = DType::u8, .block_elements = 256},
      {.array = StateArray::exp_avg_sq, .dtype = DType::bf16}};
  constexpr Index kCount = 1024;
  BOOST_TEST(layout.offset(1, kCount) == 4096U);
  BOOST_TEST(layout.offset(2, kCount) == 4096U + 1024U + 4U * sizeof(float));
  BOOST_TEST(layout.bytes(kCount) == 4096U + 1024U + 16U + 2048U);
  BOOST_TEST(layout.arrays()[1].scales(kCount) == 4);
  BOOST_TEST(layout.arrays()[0].scales(kCount) == 0);
}

BOOST_AUTO_TEST_CASE(an_array_that_is_not_kept_is_refused_and_a_planned_page_has_no_data) {
  const StateLayout layout = {{.array = StateArray::master}};
  const TensorView planned = {nullptr, DType::u8, Shape{4096}, Device{}};
  BOOST_TEST(layout.values(planned, 1024, StateArray::master).data == nullptr);
  BOOST_CHECK_THROW(static_cast<void>(layout.values(planned, 1024, StateArray::exp_avg)),
                    ContractError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera
