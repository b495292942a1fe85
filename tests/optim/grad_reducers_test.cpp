// Each route of a gradient to its owner's sum, stage by stage as optim/grad_reducer.h builds them,
// against plain loops: over any ranks, with poisoned slots, in random orders of the streams' work.
#define BOOST_TEST_MODULE grad_reducers
#include <cmath>
#include <numeric>
#include <optional>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/base/fixed_point.h"
#include "kernels/base/random.h"
#include "kernels/device/cpu/deferred.h"
#include "model/model_config.h"
#include "optim/grad_reducer.h"
#include "optim/grad_slots.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

constexpr int kOrders = 2;
constexpr Index kSmallTile = 1024;  // elements: several a shard
constexpr Index kLargeStaging = Index{1} << 20;

enum class Route { ordered, hierarchical, native, local };

struct Case {
  Route route = Route::ordered;
  DType dtype = DType::f32;  // of the slots and of what travels
  Index reduce_group = 1;
  std::size_t host_grad_bytes = 0;
  bool in_pieces = false;  // staging holds no more than a block
};

// A vocabulary larger than a block.
ModelConfig config() {
  ModelConfig c;
  c.vocab_size = 330;
  c.hidden_size = 32;
  c.intermediate_size = 48;
  c.num_layers = 2;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 8;
  c.tie_embeddings = false;
  return c;
}

float rounded(float value, DType dtype) {
  return dtype == DType::bf16 ? to_float(to_bfloat16(value)) : value;
}

// What every rank computes: the gradient of each unit for micro-batch `number` of step `step`, of
// magnitudes that make the order of additions show.
class Gradients {
 public:
  Gradients(const ParamLayout& layout, Index most) : most_(most) {
    for (Index n = 0; n < kSteps * most; ++n) {
      for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
        std::vector<float>& values =
            values_.emplace_back(static_cast<std::size_t>(layout.unit(unit).count));
        for (std::size_t i = 0; i < values.size(); ++i) {
          const auto words =
              philox(static_cast<std::uint64_t>(n), static_cast<std::uint64_t>(unit), i);
          values[i] = static_cast<float>(
              std::ldexp(uniform_from(words[0]) - 0.5, static_cast<int>(words[1] % 8)));
        }
      }
    }
    units_ = layout.unit_count();
  }
  static constexpr int kSteps = 3;
  [[nodiscard]] const std::vector<float>& of(int step, Index number, UnitId unit) const {
    return values_.at(static_cast<std::size_t>((step * most_ + number) * units_ + unit));
  }

 private:
  Index most_;
  Index units_ = 0;
  std::vector<std::vector<float>> values_;
};

// Sums of f32, left to right.
float fold(const std::vector<float>& terms, Index first, Index count) {
  return std::accumulate(terms.begin() + first + 1, terms.begin() + first + count,
                         terms[static_cast<std::size_t>(first)]);
}

// The f32 sum that the route promises for one element, of its value in each micro-batch.
float promised(const Case& c, const std::vector<float>& terms, Index ranks) {
  const Index total = std::ssize(terms);
  std::vector<float> parts;
  if (c.route == Route::local) {
    for (Index rank = 0; rank < std::min(ranks, total); ++rank) {
      std::vector<float> own;
      for (Index number = rank; number < total; number += ranks) {
        own.push_back(terms[static_cast<std::size_t>(number)]);
      }
      parts.push_back(fold(own, 0, std::ssize(own)));
    }
  } else {
    for (Index first = 0; first < total; first += c.reduce_group) {
      parts.push_back(fold(terms, first, std::min(c.reduce_group, total - first)));
    }
  }
  return fold(parts, 0, std::ssize(parts));
}

struct Ranks {
  Ranks()
      : comm(make_communicator(session(), Device{})),
        W(comm->world_size()),
        gradients(layout, 2 * W) {}

  // Three steps: full micro-steps, a last one that some ranks sit out, one that all but rank 0 do.
  void check(const Case& c) {
    const std::vector<Index> micro_batches = {2 * W, W + 1, 1};
    for (int order = 0; order < kOrders; ++order) {
      const cpu::DeferredMode deferred(static_cast<std::uint64_t>(order * 1000 + comm->rank()));
      run(c, micro_batches);
    }
  }

  void run(const Case& c, const std::vector<Index>& micro_batches) {
    Stream compute(Device{}, StreamPriority::normal, "compute");
    Stream communication(Device{}, StreamPriority::high, "communication");
    Arena arena(Device{}, ArenaMode::allocate);
    ShardState shard(layout,
                     {.rank = comm->rank(),
                      .world_size = comm->world_size(),
                      .paging = {},
                      .group_sums = true,
                      .host_grad_bytes = c.host_grad_bytes},
                     arena);
    GradSlots slots(layout,
                    {.grad_dtype = c.dtype,
                     .world_size = comm->world_size(),
                     .on_acquire = SlotContents::poison},
                    arena);
    DeviceBuffer words(Device{}, MemoryKind::device, DType::i64, {kFixedPointWords}, "norm");
    const ReduceContext context = {kernel_table(DeviceKind::cpu), *comm, shard, communication};
    const DType travel = c.route == Route::local ? DType::f32 : c.dtype;
    GradStaging staging(
        c.in_pieces ? std::max(slots.slot_count(), least_staging(W, travel)) : kLargeStaging,
        travel, arena);
    const auto on_device = [&] { return make_device_sums(context, words.view()); };
    const auto on_host = [&] {
      return make_host_sums(context, words.view(), c.dtype, kSmallTile, arena);
    };
    const int hosted = shard.units_with_host_grads();
    const auto sums = hosted == 0 ? on_device()
                      : hosted == layout.unit_count()
                          ? on_host()
                          : make_split_sums(shard, on_device(), on_host());
    const auto route = c.route == Route::native ? make_native_reducer(context, staging, *sums)
                       : c.route == Route::hierarchical
                           ? make_hierarchical_reducer(context, staging, travel, *sums)
                           : make_ordered_reducer(context, staging, travel, *sums);
    const auto local = c.route == Route::local ? make_local_sums(context, arena, *route) : nullptr;
    GradReducer& first = local ? *local : *route;

    for (int step = 0; step < Gradients::kSteps; ++step) {
      const Index total = micro_batches[static_cast<std::size_t>(step)];
      std::vector<std::vector<BFloat16>> kept;  // what is copied from, until the step is done
      zero_async(words.view(), communication);
      for (Index begin = 0; begin < total; begin += W) {
        const MicroBatches of = {begin, std::min(W, total - begin), total, c.reduce_group};
        for (UnitId unit = layout.head(); unit >= 0; --unit) {
          const TensorView storage = slots.acquire(unit, compute);
          if (comm->rank() < of.count) {
            fill(gradients.of(step, begin + comm->rank(), unit), storage, kept, compute);
          }
          const TensorView filled = slots.commit(unit, compute, communication);
          first.reduce({unit, filled.reshaped({W, filled.count() / W}), 0, of});
          slots.release(unit, compute, communication);
          if (of.is_last()) {
            sums->add_squares(unit);
          }
        }
      }
      communication.synchronize();
      compute.synchronize();
      compare(c, step, total, shard, data_as<std::int64_t>(words.view()));
    }
  }

  static void fill(const std::vector<float>& values, const TensorView& storage,
                   std::vector<std::vector<BFloat16>>& kept, Stream& stream) {
    const TensorView to = storage.slice(0, std::ssize(values));
    if (storage.dtype == DType::f32) {
      copy_async({values.data(), DType::f32, to.shape, Device{}}, to, stream);
      return;
    }
    std::vector<BFloat16>& narrow = kept.emplace_back();
    for (const float value : values) {
      narrow.push_back(to_bfloat16(value));
    }
    copy_async({narrow.data(), DType::bf16, to.shape, Device{}}, to, stream);
  }

  void compare(const Case& c, int step, Index total, ShardState& shard,
               const std::int64_t* words) const {
    double squares = 0;
    std::vector<float> terms(static_cast<std::size_t>(total));
    for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
      // The embedding's f32 buffer is rounded where it travels as bf16: not by the library, nor
      // where local sums travel.
      const bool in_slot = layout.unit(unit).place == GradPlace::block_slot;
      const DType made = in_slot || c.route == Route::ordered || c.route == Route::hierarchical
                             ? c.dtype
                             : DType::f32;
      const OptimizerShard range = shard.range(unit);
      const auto* sums = data_as<float>(shard.grad(unit));
      for (Index i = 0; i < range.shard_size(); ++i) {
        const Index at = range.param_start + i;
        std::fill(terms.begin(), terms.end(), 0.0F);
        double exact = 0;
        double sizes = 0;
        for (Index number = 0; number < total && at < layout.unit(unit).count; ++number) {
          const float value =
              rounded(gradients.of(step, number, unit)[static_cast<std::size_t>(at)], made);
          terms[static_cast<std::size_t>(number)] = value;
          exact += static_cast<double>(value);
          sizes += std::abs(static_cast<double>(value));
        }
        const float sum = sums[i];
        // every addition rounds; the library also rounds what it gives, once a micro-step
        const double unit_error =
            c.route == Route::native && made == DType::bf16 ? 0x1p-8 : 0x1p-24;
        const double bound = static_cast<double>(total) * unit_error * sizes;
        const bool is_near = std::abs(static_cast<double>(sum) - exact) <= bound;
        const bool is_promised = c.route == Route::native || sum == promised(c, terms, W);
        if (!is_near || !is_promised) {
          BOOST_FAIL("rank " << comm->rank() << " step " << step << " " << layout.unit(unit).name
                             << " element " << at << ": " << sum << " for " << promised(c, terms, W)
                             << ", exactly " << exact << " within " << bound);
        }
        squares += static_cast<double>(sum) * static_cast<double>(sum);
      }
    }
    BOOST_TEST(fixed_point_value(words) == squares, boost::test_tools::tolerance(1e-12));
  }

  ParamLayout layout{config()};
  std::unique_ptr<Communicator> comm;
  Index W;
  Gradients gradients;
};

const auto kTypes = {DType::f32, DType::bf16};
const auto kHostBytes = {std::size_t{0}, std::size_t{1}, kAllGrads};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(grad_reducers, Ranks)

BOOST_AUTO_TEST_CASE(ordered_sums_are_left_folds_of_groups_on_any_number_of_ranks) {
  for (const DType dtype : kTypes) {
    for (const Index group : {Index{1}, Index{2}, Index{3}, W}) {
      for (const bool in_pieces : {false, true}) {
        check({Route::ordered, dtype, group, 0, in_pieces});
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(hierarchical_sums_have_the_bits_of_ordered_ones) {
  for (Index group = 1; group <= W; ++group) {
    if (W % group != 0) {
      continue;
    }
    for (const DType dtype : kTypes) {
      for (const std::size_t sums : kHostBytes) {
        // bf16 of as many groups as ranks would need the staging of their f32 sums
        if (dtype == DType::f32 || group > 1) {
          check({Route::hierarchical, dtype, group, sums, true});
          check({Route::hierarchical, dtype, group, sums, false});
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_librarys_sums_are_near_and_take_nothing_from_idle_ranks) {
  for (const DType dtype : kTypes) {
    for (const std::size_t sums : kHostBytes) {
      for (const bool in_pieces : {false, true}) {
        check({Route::native, dtype, 1, sums, in_pieces});
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(local_sums_are_added_in_the_order_of_the_ranks) {
  for (const DType dtype : kTypes) {
    for (const bool in_pieces : {false, true}) {
      check({Route::local, dtype, 1, 0, in_pieces});
    }
  }
}

BOOST_AUTO_TEST_CASE(sums_on_the_host_have_the_bits_of_those_on_the_device) {
  for (const DType dtype : kTypes) {
    for (const Index group : {Index{1}, W}) {
      for (const bool in_pieces : {false, true}) {
        check({Route::ordered, dtype, group, 1, in_pieces});  // one unit
        check({Route::ordered, dtype, group, kAllGrads, in_pieces});
      }
    }
  }
}

// What a stage hands on: rows of the right micro-batches, columns of the shard without gaps.
BOOST_AUTO_TEST_CASE(stages_hand_on_all_columns_once_and_count_what_they_added_as_one) {
  struct Recorder final : GradReducer {
    void reduce(const GradPiece& piece) override {
      BOOST_TEST(piece.begin == columns);
      BOOST_TEST(piece.rows.shape[0] == rows);
      columns += piece.rows.shape[1];
      of = piece.of;
    }
    Index rows = 1;
    Index columns = 0;
    MicroBatches of;
  };
  Stream stream(Device{}, StreamPriority::normal, "test");
  Arena arena(Device{}, ArenaMode::allocate);
  ShardState shard(layout, {.rank = comm->rank(), .world_size = comm->world_size(), .paging = {}},
                   arena);
  GradSlots slots(layout, {.world_size = comm->world_size()}, arena);
  GradStaging staging(2 * W * kShardAlignment, DType::f32, arena);
  const ReduceContext context = {kernel_table(DeviceKind::cpu), *comm, shard, stream};
  const TensorView storage = slots.acquire(0, stream);
  const TensorView rows = storage.reshaped({W, storage.count() / W});
  zero_async(rows, stream);
  const auto record = [&](GradReducer& stage, Recorder& next, const MicroBatches& of, Index count) {
    next = {};
    next.rows = count;
    stage.reduce({0, rows, 0, of});
    return next.of;
  };
  Recorder next;
  const MicroBatches last = {W, 1, W + 1, W};  // the second of two micro-steps
  BOOST_TEST(last.is_last());

  const auto ordered = make_ordered_reducer(context, staging, DType::f32, next);
  MicroBatches of = record(*ordered, next, last, W);
  BOOST_TEST((of.first == W && of.count == 1 && of.total == W + 1 && of.reduce_group == W));
  BOOST_TEST(next.columns == rows.shape[1]);

  const auto hierarchical = make_hierarchical_reducer(context, staging, DType::f32, next);
  of = record(*hierarchical, next, last, 1);
  BOOST_TEST((of.first == 1 && of.count == 1 && of.total == 2 && of.reduce_group == 1));
  BOOST_TEST((next.columns == rows.shape[1] && of.is_last()));

  const auto native = make_native_reducer(context, staging, next);
  of = record(*native, next, last, 1);
  BOOST_TEST((of.first == 1 && of.count == 1 && of.total == 2 && of.reduce_group == 1));
  BOOST_TEST((next.columns == rows.shape[1] && of.is_last()));

  const auto local = make_local_sums(context, arena, next);
  (void)record(*local, next, {0, W, W + 1, 1}, W);
  BOOST_TEST(next.columns == 0);  // nothing before the last micro-step
  of = record(*local, next, {W, 1, W + 1, 1}, W);
  BOOST_TEST((of.first == 0 && of.count == W && of.total == W && of.reduce_group == 1));
  BOOST_TEST(next.columns == rows.shape[1]);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
