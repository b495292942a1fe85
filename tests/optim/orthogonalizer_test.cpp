// Matrices that are cut over ranks come back orthogonalised as one rank would do it.
#define BOOST_TEST_MODULE orthogonalizer
#include "optim/orthogonalizer.h"

#include <algorithm>
#include <numeric>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "kernels/newton_schulz.h"
#include "model/model_config.h"
#include "optim/optimizer_shard.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

constexpr std::uint64_t kSeed = 20261130;

ModelConfig a_config(bool biased = false) {
  ModelConfig config = preset("tiny");
  config.vocab_size = 61;
  config.num_layers = 2;
  config.attention_bias = biased;
  return config;
}

// Of every element of a unit.
std::vector<float> directions_of(const ParamLayout& layout, UnitId unit) {
  std::vector<float> values(static_cast<std::size_t>(layout.unit(unit).count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(normal(kSeed, static_cast<std::uint64_t>(unit), i));
  }
  return values;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(orthogonalizer)

BOOST_AUTO_TEST_CASE(fused_tensors_hold_their_matrices_one_behind_the_other) {
  const ModelConfig config = a_config(true);
  const ParamLayout layout(config);
  const ParamUnit& block = layout.unit(1);
  const std::vector<HiddenMatrix> matrices = hidden_matrices(block);
  BOOST_REQUIRE_EQUAL(matrices.size(), 7U);  // q, k, v, out, gate, up, down
  const Index kv = config.num_kv_heads * config.head_dim;
  const Index qkv = part(block, "attention.qkv").offset;
  const Index C = config.hidden_size;
  const Index F = config.intermediate_size;
  const Index gate_up = part(block, "mlp.gate_up").offset;
  BOOST_CHECK((matrices[0] == HiddenMatrix{qkv, config.query_width(), C}));
  BOOST_CHECK((matrices[1] == HiddenMatrix{qkv + config.query_width() * C, kv, C}));
  BOOST_CHECK((matrices[2] == HiddenMatrix{matrices[1].offset + kv * C, kv, C}));
  BOOST_CHECK(
      (matrices[3] == HiddenMatrix{part(block, "attention.out").offset, C, config.query_width()}));
  BOOST_CHECK((matrices[4] == HiddenMatrix{gate_up, F, C}));
  BOOST_CHECK((matrices[5] == HiddenMatrix{gate_up + F * C, F, C}));
  BOOST_CHECK((matrices[6] == HiddenMatrix{part(block, "mlp.down").offset, C, F}));
  BOOST_CHECK(hidden_matrices(layout.unit(0)).empty());
  BOOST_CHECK(hidden_matrices(layout.unit(layout.head())).empty());
  // with norms and biases they are all of the unit
  Index others = 0;
  for (const ParamTensor& tensor : block.tensors) {
    others += tensor.matrix_rows.empty() ? tensor.count() : 0;
  }
  for (const HiddenMatrix& matrix : matrices) {
    others += matrix.count();
  }
  BOOST_CHECK_EQUAL(others, block.count);
}

BOOST_AUTO_TEST_CASE(owners_share_the_cost) {
  const std::vector<HiddenMatrix> matrices = {
      {0, 10, 10}, {100, 40, 40}, {1700, 10, 10}, {1800, 40, 40}, {3400, 20, 20}};
  BOOST_CHECK((owners_of(matrices, 1) == std::vector<int>{0, 0, 0, 0, 0}));
  BOOST_CHECK((owners_of(matrices, 2) == std::vector<int>{1, 0, 1, 1, 0}));
  BOOST_CHECK((owners_of(matrices, 8) == std::vector<int>{3, 0, 4, 1, 2}));
  BOOST_CHECK(owners_of({}, 3).empty());
  // no rank has more than the costliest matrix and an equal share
  const ParamLayout layout(preset("qwen3-8b"));
  const std::vector<HiddenMatrix> block = hidden_matrices(layout.unit(1));
  for (const int ranks : {2, 3, 4, 8}) {
    std::vector<double> load(static_cast<std::size_t>(ranks), 0.0);
    double largest = 0;
    for (std::size_t i = 0; i < block.size(); ++i) {
      const double flops = newton_schulz_flops(block[i].rows, block[i].columns, 1);
      load[static_cast<std::size_t>(owners_of(block, ranks)[i])] += flops;
      largest = std::max(largest, flops);
    }
    const double share = std::accumulate(load.begin(), load.end(), 0.0) / ranks;
    BOOST_CHECK_LE(std::ranges::max(load), share + largest);
  }
}

BOOST_AUTO_TEST_CASE(every_rank_gets_its_slices_of_whole_matrices_back) {
  const auto comm = make_communicator(session(), {});
  for (const bool biased : {false, true}) {
    const ParamLayout layout(a_config(biased));
    Arena arena({}, ArenaMode::allocate);
    Stream update({}, StreamPriority::normal, "update");
    Stream communication({}, StreamPriority::normal, "communication");
    const KernelTable& kernels = kernel_table(DeviceKind::cpu);
    Orthogonalizer orthogonalizer(kernels, layout, {.steps = 5}, *comm, communication, arena);
    BOOST_CHECK(!orthogonalizer.has_matrices(0));
    BOOST_CHECK(!orthogonalizer.has_matrices(layout.head()));
    for (const UnitId unit : {1, 2, 1}) {
      BOOST_CHECK(orthogonalizer.has_matrices(unit));
      const std::vector<float> directions = directions_of(layout, unit);
      const OptimizerShard shard =
          OptimizerShard::for_rank(comm->rank(), comm->world_size(),
                                   padded_count(layout.unit(unit).count, comm->world_size()));
      const auto for_each_run = [&](const auto& visit) {
        for (const HiddenMatrix& matrix : hidden_matrices(layout.unit(unit))) {
          // in runs, as pages cut them
          constexpr Index kRun = 1500;
          const Index end = std::min(shard.param_end, matrix.offset + matrix.count());
          for (Index begin = std::max(shard.param_start, matrix.offset); begin < end;
               begin += kRun) {
            visit(matrix, begin, std::min(end, begin + kRun));
          }
        }
      };
      for_each_run([&](const HiddenMatrix&, Index begin, Index end) {
        const TensorView run = orthogonalizer.direction(unit, begin, end);
        BOOST_REQUIRE_EQUAL(run.count(), end - begin);
        std::copy(directions.begin() + begin, directions.begin() + end, data_as<float>(run));
      });
      orthogonalizer.orthogonalize(unit, update);
      update.synchronize();
      std::vector<float> expected = directions;
      for (const HiddenMatrix& matrix : hidden_matrices(layout.unit(unit))) {
        DeviceBuffer workspace({}, MemoryKind::host, DType::u8,
                               {static_cast<Index>(newton_schulz_workspace_bytes(
                                   DeviceKind::cpu, DType::f32, matrix.rows, matrix.columns))},
                               "workspace");
        DeviceBuffer whole({}, MemoryKind::host, DType::f32, {matrix.rows, matrix.columns},
                           "matrix");
        std::copy_n(expected.begin() + matrix.offset, matrix.count(), data_as<float>(whole.view()));
        newton_schulz(kernels, {.matrix = whole.view(), .steps = 5, .workspace = workspace.view()},
                      update);
        update.synchronize();
        std::copy_n(data_as<float>(whole.view()), matrix.count(), expected.begin() + matrix.offset);
      }
      Index differing = 0;
      for_each_run([&](const HiddenMatrix&, Index begin, Index end) {
        const auto* run = data_as<float>(orthogonalizer.orthogonal(unit, begin, end));
        for (Index i = begin; i < end; ++i) {
          differing += run[i - begin] == expected[static_cast<std::size_t>(i)] ? 0 : 1;
        }
      });
      BOOST_CHECK_EQUAL(differing, 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_a_run_of_one_matrix_is_refused) {
  const auto comm = make_communicator(session(), {});
  const ParamLayout layout(a_config());
  Arena arena({}, ArenaMode::dry_run);
  Stream communication({}, StreamPriority::normal, "communication");
  Orthogonalizer orthogonalizer(kernel_table(DeviceKind::cpu), layout, {}, *comm, communication,
                                arena);
  const HiddenMatrix first = hidden_matrices(layout.unit(1)).front();
  BOOST_CHECK_THROW((void)orthogonalizer.direction(1, 0, 1), ContractError);  // a norm
  BOOST_CHECK_THROW((void)orthogonalizer.direction(0, 0, 1), ContractError);  // the embedding
  BOOST_CHECK_THROW((void)orthogonalizer.direction(1, first.offset + first.count() - 1,
                                                   first.offset + first.count() + 1),
                    ContractError);
  BOOST_CHECK_THROW((void)orthogonalizer.orthogonal(1, first.offset, first.offset), ContractError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
