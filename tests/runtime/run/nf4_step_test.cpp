// Adapters beside a base in 4 bits: bit-identical to adapters beside its dequantised weights in whole
// precision, on any number of ranks, for every place of the base, page size and recompute level.
#define BOOST_TEST_MODULE nf4_step
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/device/device_backend.h"
#include "kernels/nf4.h"
#include "model/initialization.h"
#include "tests/support/compare.h"
#include "tests/support/run/check_bits.h"
#include "tests/support/test_bench.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

struct DeviceIsPresent {
  DeviceIsPresent() { skip_without(TESSERA_TEST_DEVICE); }
};
BOOST_TEST_GLOBAL_FIXTURE(DeviceIsPresent);

constexpr std::size_t kSmallPage = std::size_t{12} << 10U;  // 1024 elements

SmallRunOptions options_here(bool tied = true, bool trains_embeddings = false) {
  SmallRunOptions options = small_options(tied);
  options.device = own_device();
  options.steps = 3;
  options.settings.adapters =
      AdapterSettings{.config = {.rank = 3,
                                 .alpha = 6,
                                 .rank_stabilized = false,
                                 .targets = parse_projections("all", "--lora-targets"),
                                 .trains_embeddings = trains_embeddings},
                      .base = BaseStorage::nf4};
  return options;
}

std::unique_ptr<Communicator> all_ranks() {
  return make_communicator(session(), own_device());
}

using Weights = std::vector<std::vector<float>>;  // by unit

Weights weights_of(const ParamLayout& layout, const UnitValues& values) {
  Weights all;
  for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
    all.emplace_back(static_cast<std::size_t>(layout.unit(unit).count));
    values(unit, 0, all.back());
  }
  return all;
}

UnitValues reading(const Weights& weights) {
  return [&weights](UnitId unit, Index begin, std::span<float> values) {
    const std::vector<float>& all = weights[static_cast<std::size_t>(unit)];
    const Index count = std::clamp<Index>(std::ssize(all) - begin, 0, std::ssize(values));
    std::copy_n(all.begin() + begin, count, values.begin());
  };
}

// The matrices of blocks as they are behind quantising, in the run's type.
Weights dequantised(const SmallRunOptions& options, Weights weights) {
  const ParamLayout layout(options.config);
  const DType type = options.settings.scratch.precision.params;
  const PackedLayout packed(options.config, layout, type);
  Stream stream(Device{}, StreamPriority::normal, "test");
  for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
    for (const PackedPart& part : packed.parts(unit)) {
      if (!part.is_nf4) {
        continue;
      }
      const std::span<float> values =
          std::span(weights[static_cast<std::size_t>(unit)])
              .subspan(static_cast<std::size_t>(part.first), static_cast<std::size_t>(part.count));
      DeviceBuffer bytes(Device{}, MemoryKind::host, DType::u8, {part.bytes}, "codes");
      quantize_nf4(
          part.name, values,
          {static_cast<std::byte*>(bytes.view().data), static_cast<std::size_t>(part.bytes)}, 1);
      DeviceBuffer wide(Device{}, MemoryKind::host, type, {part.count}, "widened");
      cpu::widen_nf4({.packed = bytes.view(), .out = wide.view()}, stream);
      stream.synchronize();
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = type == DType::bf16 ? to_float(data_as<BFloat16>(wide.view())[i])
                                        : data_as<float>(wide.view())[i];
      }
    }
  }
  return weights;
}

RunBits of_dequantised(SmallRunOptions options, const Weights& weights, Communicator& comm) {
  options.settings.adapters->base = BaseStorage::params;
  options.before = [&](TrainingRun& run) {
    run.write_base(reading(weights));
    run.gather_base();
    run.initialize_adapters(reading(weights));
    run.trainer().gather_parameters();
  };
  return run_small(options, comm);
}

UnitValues fresh_values(const SmallRunOptions& options, const ParamLayout& layout) {
  return [&options, &layout](UnitId unit, Index begin, std::span<float> values) {
    initial_values(options.config, layout, unit, options.settings.seed, begin, values);
  };
}

}  // namespace

BOOST_AUTO_TEST_SUITE(nf4_step)

BOOST_AUTO_TEST_CASE(a_base_in_nf4_is_its_dequantised_weights) {
  const auto comm = all_ranks();
  Alone one;
  for (const bool tied : {true, false}) {
    for (const bool trains_embeddings : {false, true}) {
      const SmallRunOptions options = options_here(tied, trains_embeddings);
      const ParamLayout layout(options.config);
      const Weights weights = weights_of(layout, fresh_values(options, layout));
      const Weights widened = dequantised(options, weights);
      BOOST_CHECK(widened != weights);
      const RunBits expected = of_dequantised(options, widened, one);
      BOOST_CHECK(std::isfinite(expected.losses.back()));
      check_same(run_small(options, *comm), expected, tied ? "tied" : "untied");
      BOOST_CHECK(!(of_dequantised(options, weights, one) == expected));
    }
  }
}

BOOST_AUTO_TEST_CASE(places_of_the_base_pages_and_levels_change_no_bit) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here(comm->world_size() % 2 == 0);
  options.config.num_layers = 5;  // more than the ring of a sharded base has places
  const RunBits expected = alone(options);
  int turn = 0;
  for (const char* level : {"none", "attention", "mlp", "block", "block:2,mlp"}) {
    options.settings.scratch.recompute = parse_recompute(level, "--recompute");
    options.settings.paging = {
        .page_bytes = kSmallPage, .max_device_bytes = 0, .buffers = 3, .page_all = turn % 2 == 0};
    options.settings.trainer.batched_forward = turn % 3 == 2 ? 3 : 1;
    options.settings.zero = turn % 3 == 0 ? ZeroStage::two : ZeroStage::three;
    options.settings.params = turn % 3 == 1 ? ParamPlacement::host : ParamPlacement::device;
    options.settings.param_blocks = 3 + turn % 3;
    ++turn;
    check_same(run_small(options, *comm), expected, level);
  }
}

BOOST_AUTO_TEST_CASE(the_hash_of_the_base_is_that_of_its_values) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here();
  options.steps = 0;
  const ParamLayout layout(options.config);
  const std::uint64_t hash = content_hash(layout, fresh_values(options, layout), 1);
  options.before = [&](TrainingRun& run) { BOOST_CHECK_EQUAL(run.base_hash(), hash); };
  (void)run_small(options, *comm);
  options.settings.adapters->base = BaseStorage::params;
  (void)run_small(options, *comm);
}

BOOST_AUTO_TEST_CASE(blocks_that_were_packed_before_are_read_as_they_were_made) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here();
  const ParamLayout layout(options.config);
  const UnitValues values = fresh_values(options, layout);
  const RunBits expected = alone(options);
  std::map<UnitId, std::vector<std::byte>> made;
  std::uint64_t hash = 0;
  options.before = [&](TrainingRun& run) {
    run.write_base({.values = values, .look = [&](UnitId unit, std::span<const std::byte> bytes) {
                      made[unit].assign(bytes.begin(), bytes.end());
                    }});
    run.gather_base();
    hash = run.base_hash();
  };
  Alone one;
  check_same(run_small(options, one), expected, "once more");
  BOOST_REQUIRE_EQUAL(std::ssize(made), options.config.num_layers);
  options.before = [&](TrainingRun& run) {
    run.write_base({.values = values,
                    .slices =
                        [&](UnitId unit, Index begin, std::span<std::byte> bytes) {
                          const std::vector<std::byte>& all = made.at(unit);
                          const Index count =
                              std::clamp<Index>(std::ssize(all) - begin, 0, std::ssize(bytes));
                          std::copy_n(all.begin() + begin, count, bytes.begin());
                        },
                    .hash = hash});
    run.gather_base();
    BOOST_CHECK_EQUAL(run.base_hash(), hash);
  };
  check_same(run_small(options, *comm), expected, "by slices");
  options.before = [&](TrainingRun& run) {
    run.write_base(
        {.values = values, .matrices = [&](const PackedPart& matrix, std::span<std::byte> bytes) {
           for (UnitId unit = 1; unit < layout.head(); ++unit) {
             for (const PackedPart& part : run.packed_base()->parts(unit)) {
               if (part.name == matrix.name && part.is_nf4) {
                 std::copy_n(made.at(unit).begin() + part.byte, part.bytes, bytes.begin());
               }
             }
           }
         }});
    run.gather_base();
  };
  check_same(run_small(options, *comm), expected, "by matrices");
}

BOOST_AUTO_TEST_CASE(a_random_base_is_the_same_on_any_number_of_ranks) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here();
  options.settings.adapters->random_base = true;
  std::uint64_t hash = 0;
  options.before = [&](TrainingRun& run) { hash = run.base_hash(); };
  const RunBits expected = alone(options);
  BOOST_CHECK(std::isfinite(expected.losses.back()));
  const std::uint64_t of_one = hash;
  check_same(run_small(options, *comm), expected, "random");
  BOOST_CHECK_EQUAL(hash, of_one);
  options.settings.seed += 1;
  BOOST_CHECK(!(alone(options) == expected));
  BOOST_CHECK_NE(hash, of_one);
}

// As fresh weights are, so that a model of this shape computes with numbers of the usual size.
BOOST_AUTO_TEST_CASE(a_random_base_has_the_deviation_of_fresh_weights) {
  const ModelConfig config = small_config();
  const ParamLayout layout(config);
  const PackedLayout packed(config, layout, DType::f32);
  const BaseSource source = random_base(config, layout, packed, kSeed);
  Stream stream(Device{}, StreamPriority::normal, "test");
  for (const PackedPart& part : packed.parts(1)) {
    if (!part.is_nf4) {
      continue;
    }
    DeviceBuffer bytes(Device{}, MemoryKind::host, DType::u8, {part.bytes}, "codes");
    source.slices(
        1, part.byte,
        {static_cast<std::byte*>(bytes.view().data), static_cast<std::size_t>(part.bytes)});
    DeviceBuffer wide(Device{}, MemoryKind::host, DType::f32, {part.count}, "widened");
    cpu::widen_nf4({.packed = bytes.view(), .out = wide.view()}, stream);
    stream.synchronize();
    std::vector<float> fresh(static_cast<std::size_t>(part.count));
    initial_values(config, layout, 1, kSeed, part.first, fresh);
    const auto deviation = [&](const float* values) {
      double sum = 0;
      for (Index i = 0; i < part.count; ++i) {
        sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
      }
      return std::sqrt(sum / static_cast<double>(part.count));
    };
    BOOST_CHECK_CLOSE(deviation(data_as<float>(wide.view())), deviation(fresh.data()), 20);
  }
}

BOOST_AUTO_TEST_CASE(values_that_are_not_finite_are_refused_on_every_rank) {
  const auto comm = all_ranks();
  SmallRunOptions options = options_here();
  const ParamLayout layout(options.config);
  const UnitValues values = fresh_values(options, layout);
  options.before = [&](TrainingRun& run) {
    run.write_base([&](UnitId unit, Index begin, std::span<float> into) {
      values(unit, begin, into);
      for (std::size_t i = 0; i < into.size(); ++i) {
        const bool is_hit = unit == 2 && begin + static_cast<Index>(i) == 100;
        into[i] = is_hit ? std::numeric_limits<float>::infinity() : into[i];
      }
    });
  };
  BOOST_CHECK_THROW((void)run_small(options, *comm), FormatError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
