// What a rank owns of each unit, and which of it decays.
#include "optim/shard_state.h"

#include <algorithm>
#include <cmath>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "model/model_config.h"

namespace tessera {
namespace {

ModelConfig tiny_config() {
  ModelConfig c = preset("tiny");
  c.vocab_size = 61;
  c.num_layers = 1;
  return c;
}

ShardStateOptions options(int rank, int world, std::size_t page_bytes) {
  ShardStateOptions o;
  o.rank = rank;
  o.world_size = world;
  o.paging.page_bytes = page_bytes;
  o.paging.page_all = page_bytes < 100'000;
  return o;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(shard_state)

BOOST_AUTO_TEST_CASE(more_ranks_than_a_unit_has_elements_leave_empty_slices) {
  ModelConfig config = tiny_config();
  config.hidden_size = 8;
  const ParamLayout layout(config);
  Index owned = 0;
  for (int rank = 0; rank < 8; ++rank) {
    Arena arena({}, ArenaMode::dry_run);
    const ShardState state(layout, options(rank, 8, std::size_t{24} << 10U), arena);
    owned += state.real_count(layout.head());
  }
  BOOST_CHECK_EQUAL(owned, 8);
}

BOOST_AUTO_TEST_CASE(gradient_sums_leave_the_device_in_blocks_that_lie_apart) {
  const std::vector<std::size_t> bytes = {100, 10, 10, 10, 10, 5};
  const auto on_host = [&bytes](std::size_t host_bytes) {
    std::string units;
    for (const bool is_on_host : units_on_host(bytes, host_bytes)) {
      units += is_on_host ? 'h' : 'd';
    }
    return units;
  };
  BOOST_TEST(on_host(0) == "dddddd");
  BOOST_TEST(on_host(1) == "ddddhd");
  BOOST_TEST(on_host(20) == "ddhdhd");
  BOOST_TEST(on_host(21) == "ddhhhd");
  BOOST_TEST(on_host(40) == "dhhhhd");
  BOOST_TEST(on_host(41) == "hhhhhd");
  BOOST_TEST(on_host(kAllGrads) == "hhhhhh");
}

BOOST_AUTO_TEST_CASE(norm_gains_do_not_decay_and_matrices_do) {
  const ParamLayout layout(tiny_config());
  Arena arena({}, ArenaMode::dry_run);
  ShardState state(layout, options(0, 1, std::size_t{24} << 10U), arena);
  Index decaying = 0;
  Index all = 0;
  for (const StatePage& page : state.pages()) {
    for (const DecayRun& run : page.decay_runs) {
      decaying += run.decays ? run.count : 0;
      all += run.count;
    }
  }
  Index matrices = 0;
  for (const ParamUnit& unit : layout.units()) {
    for (const ParamTensor& tensor : unit.tensors) {
      matrices += tensor.shape.rank() > 1 ? tensor.count() : 0;
    }
  }
  BOOST_CHECK_EQUAL(decaying, matrices);
  BOOST_CHECK_GE(all, layout.total_count());
}

// One page of 24 KiB holds 2048 elements; three buffers stream what is not resident.
BOOST_AUTO_TEST_CASE(parameters_are_resident_with_the_pages_that_hold_them) {
  constexpr std::size_t kPage = std::size_t{24} << 10U;
  const ParamLayout layout(tiny_config());
  for (const int world : {1, 3}) {
    for (int rank = 0; rank < world; ++rank) {
      const auto state_with = [&](const PagingOptions& paging, Arena& arena) {
        ShardStateOptions o = options(rank, world, kPage);
        o.paging = paging;
        return ShardState(layout, o, arena);
      };
      Arena arena({}, ArenaMode::dry_run);
      const ShardState none = state_with({.page_bytes = kPage, .page_all = true}, arena);
      const ShardState all = state_with({.page_bytes = kPage}, arena);
      const ShardState half = state_with({.page_bytes = kPage,
                                          .max_device_bytes = none.state_bytes() / 2 + 3 * kPage,
                                          .buffers = 3},
                                         arena);
      Index stored = 0;
      Index resident = 0;
      for (const ParamUnit& unit : layout.units()) {
        for (const ParamTensor& tensor : unit.tensors) {
          const OptimizerShard own = all.range(static_cast<UnitId>(&unit - layout.units().data()));
          const bool stores =
              own.param_start < tensor.offset + tensor.count() && tensor.offset < own.param_end;
          BOOST_TEST(all.stores(tensor) == stores);
          BOOST_TEST(!none.is_resident(tensor));
          BOOST_TEST(all.is_resident(tensor) == stores);
          stored += stores ? 1 : 0;
          // element by element
          bool whole = stores;
          for (const StatePage& page : half.pages()) {
            const OptimizerShard range = half.range(page.unit);
            for (Index i = 0; i < page.count && &layout.unit(page.unit) == &unit; ++i) {
              const Index element = range.param_start + page.begin + i;
              const bool inside =
                  element >= tensor.offset && element < tensor.offset + tensor.count();
              whole = whole && (!inside || page.resident);
            }
          }
          BOOST_TEST(half.is_resident(tensor) == whole, tensor.name);
          resident += whole ? 1 : 0;
        }
      }
      BOOST_TEST(none.resident_count() == 0);
      BOOST_TEST(all.resident_count() == stored);
      BOOST_TEST(half.resident_count() == resident);
      BOOST_TEST(resident > 0);
      BOOST_TEST(resident < stored);
    }
  }
}

namespace {

// An element's number of an array: one that bf16 holds, or 8 bits in their blocks, of both signs.
float number_at(StateArray array, Index element) {
  const auto size = static_cast<float>(element % 8 + 8) / 8 *
                    std::exp2(-static_cast<float>(element / 300 % 4 + element % 3));
  if (array == StateArray::master) {
    return size * (1 + static_cast<float>(element % 1000) * 0x1p-20F);  // all of an f32
  }
  return element % 7 == 0 ? 0 : array == StateArray::exp_avg && element % 2 == 0 ? -size : size;
}

}  // namespace

BOOST_AUTO_TEST_CASE(numbers_come_back_from_every_storage) {
  constexpr std::size_t kPage = std::size_t{12} << 10U;
  const ParamLayout layout(tiny_config());
  for (const bool packs : {false, true}) {
    for (const MomentType moments : {MomentType::f32, MomentType::bf16, MomentType::bits8}) {
      BOOST_TEST_CONTEXT(moment_name(moments) << (packs ? ", packed masters" : "")) {
        Arena arena({}, ArenaMode::allocate);
        std::vector<std::vector<float>> params;
        for (const ParamUnit& unit : layout.units()) {
          params.emplace_back(static_cast<std::size_t>(padded_count(unit.count, 2) / 2));
        }
        const auto params_of = [&params](UnitId unit) {
          std::vector<float>& of_unit = params.at(static_cast<std::size_t>(unit));
          return TensorView{of_unit.data(), DType::f32, Shape{std::ssize(of_unit)}, Device{}};
        };
        ShardStateOptions o = options(1, 2, kPage);
        o.layout = state_layout(OptimizerOptions{.param_values = packs ? DType::bf16 : DType::f32,
                                                 .packs_masters = packs,
                                                 .adamw = {.moments = moments},
                                                 .sgd = {}});
        o.params = params_of;
        ShardState state(layout, o, arena);
        BOOST_TEST((state.numbers() == state_layout(OptimizerKind::adamw)));
        const std::size_t bits = (packs ? 2U : 4U) + 2 * std::vector<std::size_t>{4, 2, 1}.at(
                                                             static_cast<std::size_t>(moments));
        BOOST_TEST(o.layout.bytes(kShardAlignment) / kShardAlignment == bits);
        state.initialize([](UnitId, Index begin, std::span<float> values) {
          for (std::size_t i = 0; i < values.size(); ++i) {
            values[i] = number_at(StateArray::master, begin + static_cast<Index>(i));
          }
        });
        for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
          const Index count = state.range(unit).shard_size();
          const Index start = state.range(unit).param_start;
          std::vector<float> numbers(static_cast<std::size_t>(count));
          const TensorView view = {numbers.data(), DType::f32, Shape{count}, Device{}};
          const auto expect = [&](StateArray array) {
            for (Index i = 0; i < count; ++i) {
              numbers[static_cast<std::size_t>(i)] = number_at(array, start + i);
            }
            return numbers;
          };
          const std::vector<float> masters = expect(StateArray::master);
          state.read(unit, StateArray::master, 0, view);
          BOOST_TEST((numbers == masters));
          for (const StateArray array : {StateArray::exp_avg, StateArray::exp_avg_sq}) {
            state.read(unit, array, 0, view);
            BOOST_TEST((numbers == std::vector<float>(numbers.size())));
            const std::vector<float> written = expect(array);
            state.write(unit, array, 0, view);
            std::ranges::fill(numbers, -1.0F);
            state.read(unit, array, 0, view);
            BOOST_TEST((numbers == written), array_name(array));
          }
          state.read(unit, StateArray::master, 0, view);
          BOOST_TEST((numbers == masters));  // untouched by the others
          if (moments == MomentType::bits8) {
            const float one = 1;
            BOOST_CHECK_THROW(
                state.write(unit, StateArray::exp_avg, 0, {&one, DType::f32, Shape{1}, Device{}}),
                ContractError);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(packed_masters_without_their_parameters_are_refused) {
  const ParamLayout layout(tiny_config());
  Arena arena({}, ArenaMode::dry_run);
  ShardStateOptions o = options(0, 1, std::size_t{24} << 10U);
  o.layout = state_layout(
      OptimizerOptions{.param_values = DType::bf16, .packs_masters = true, .adamw = {}, .sgd = {}});
  BOOST_CHECK_THROW(ShardState(layout, o, arena), ContractError);
  BOOST_CHECK_THROW(
      (void)state_layout(OptimizerOptions{.packs_masters = true, .adamw = {}, .sgd = {}}),
      ContractError);
}

BOOST_AUTO_TEST_CASE(a_parameter_of_another_layout_is_refused) {
  const ParamLayout layout(tiny_config());
  const ParamLayout other(tiny_config());
  Arena arena({}, ArenaMode::dry_run);
  const ShardState state(layout, options(0, 1, std::size_t{24} << 10U), arena);
  BOOST_CHECK_THROW((void)state.is_resident(other.unit(0).tensors[0]), ContractError);
}

// Where hidden matrices are orthogonalised, pages of theirs have two arrays; those 1024 elements that
// hold one of another tensor have three.
BOOST_AUTO_TEST_CASE(pages_of_hidden_matrices_have_the_arrays_of_matrices) {
  const OptimizerOptions muon = {.kind = OptimizerKind::muon, .adamw = {}, .sgd = {}};
  ModelConfig config = tiny_config();
  config.attention_bias = true;
  const ParamLayout layout(config);
  for (const int world : {1, 2, 3, 8}) {
    std::size_t largest = 0;
    for (int rank = 0; rank < world; ++rank) {
      ShardStateOptions o = options(rank, world, std::size_t{24} << 10U);
      o.layout = state_layout(muon);
      o.matrix_layout = matrix_state_layout(muon);
      Arena arena({}, ArenaMode::dry_run);
      const ShardState state(layout, o, arena);
      for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
        const OptimizerShard range = state.range(unit);
        Index at = 0;  // pages cover the slice in their order
        for (const StatePage& page : state.pages()) {
          if (page.unit != unit) {
            continue;
          }
          BOOST_TEST(page.begin == at);
          BOOST_TEST(page.count % kShardAlignment == 0);
          BOOST_TEST(page.layout.bytes(page.count) <= std::size_t{24} << 10U);
          at += page.count;
          const bool of_matrices = page.layout == o.matrix_layout;
          for (Index block = 0; block < page.count; block += kShardAlignment) {
            Index others = 0;
            const Index begin = range.param_start + page.begin + block;
            for_each_tensor(layout.unit(unit), begin, begin + kShardAlignment,
                            [&](const ParamTensor& tensor, Index first, Index last) {
                              others += tensor.matrix_rows.empty() ? last - first : 0;
                            });
            const bool has_matrices = !hidden_matrices(layout.unit(unit)).empty();
            BOOST_TEST(of_matrices == (has_matrices && others == 0));
          }
        }
        BOOST_TEST(at == range.shard_size());
      }
      BOOST_TEST(state.state_bytes() ==
                 shard_state_bytes(layout, o.layout, o.matrix_layout, rank, world));
      largest = std::max(largest, state.state_bytes());
    }
    BOOST_TEST(largest_state_bytes(layout, state_layout(muon), matrix_state_layout(muon), world) ==
               largest);
  }
}

BOOST_AUTO_TEST_CASE(an_array_that_a_page_does_not_have_reads_as_zeros_and_takes_no_others) {
  const OptimizerOptions muon = {.kind = OptimizerKind::muon, .adamw = {}, .sgd = {}};
  const ParamLayout layout(tiny_config());
  ShardStateOptions o = options(0, 1, std::size_t{24} << 10U);
  o.layout = state_layout(muon);
  o.matrix_layout = matrix_state_layout(muon);
  Arena arena({}, ArenaMode::allocate);
  ShardState state(layout, o, arena);
  const HiddenMatrix matrix = hidden_matrices(layout.unit(1))[6];
  const Index inside = matrix.offset + 2 * kShardAlignment;
  float number = 3;
  const TensorView one = {&number, DType::f32, Shape{1}, Device{}};
  state.write(1, StateArray::exp_avg, inside, one);
  BOOST_CHECK_THROW(state.write(1, StateArray::exp_avg_sq, inside, one), FormatError);
  state.read(1, StateArray::exp_avg_sq, inside, one);
  BOOST_TEST(number == 0);
  state.write(1, StateArray::exp_avg_sq, inside, one);
  state.read(1, StateArray::exp_avg, inside, one);
  BOOST_TEST(number == 3);
  state.write(1, StateArray::exp_avg_sq, 0, one);  // of a norm
  number = 0;
  state.read(1, StateArray::exp_avg_sq, 0, one);
  BOOST_TEST(number == 3);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera
