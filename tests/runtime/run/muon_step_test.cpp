// Whole steps with Muon: bit-identical on any number of ranks and for every way to store and move
// state; and beside a plain implementation in f64 on the golden model.
#define BOOST_TEST_MODULE muon_step
#include <algorithm>
#include <cmath>
#include <cstring>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_session.h"
#include "kernels/device/device_backend.h"
#include "kernels/newton_schulz.h"
#include "tests/support/run/check_bits.h"
#include "tests/support/run/golden.h"
#include "tests/support/test_bench.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

struct DeviceIsPresent {
  DeviceIsPresent() { skip_without(TESSERA_TEST_DEVICE); }
};
BOOST_TEST_GLOBAL_FIXTURE(DeviceIsPresent);

SmallRunOptions muon_options(bool tied = true) {
  SmallRunOptions options = small_options(tied);
  options.device = own_device();
  options.settings.optimizer.kind = OptimizerKind::muon;
  options.settings.schedule.matrix_lr = 2e-2;
  options.steps = 3;
  return options;
}

std::unique_ptr<Communicator> all_ranks() {
  return make_communicator(session(), own_device());
}

constexpr std::size_t kSmallPage = std::size_t{12} << 10U;  // 1024 elements of AdamW, 1536 of Muon

std::vector<PagingOptions> some_pages() {
  return {{.page_bytes = kSmallPage, .buffers = 2, .page_all = true},
          {.page_bytes = kSmallPage, .buffers = 64, .page_all = true},
          {.page_bytes = std::size_t{64} << 10U, .page_all = true},
          {.page_bytes = kSmallPage, .max_device_bytes = 8 * kSmallPage, .buffers = 3}};
}

// Bytes of master weights that move twice: of pages with elements of other tensors too.
std::size_t twice_moved(const ShardState& shard) {
  std::size_t bytes = 0;
  for (const StatePage& page : shard.pages()) {
    if (!page.resident && !page.matrix_runs.empty() && page.layout == shard.state_layout()) {
      bytes += page.layout.offset(1, page.count);
    }
  }
  return bytes;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(muon_step)

BOOST_AUTO_TEST_CASE(any_number_of_ranks_gives_the_bits_of_one) {
  const auto comm = all_ranks();
  for (const bool tied : {true, false}) {
    const SmallRunOptions options = muon_options(tied);
    const RunBits expected = alone(options);
    BOOST_CHECK(std::isfinite(expected.losses.back()));
    BOOST_CHECK_LT(expected.losses.back(), expected.losses.front());
    check_same(run_small(options, *comm), expected, tied ? "tied" : "untied");
    check_same(run_small(options, *comm), expected, "a second run");
  }
}

BOOST_AUTO_TEST_CASE(every_option_of_muon_counts) {
  Alone comm;
  const RunBits usual = run_small(muon_options(), comm);
  const auto differs = [&](const char* what, const auto& change) {
    SmallRunOptions options = muon_options();
    change(options.settings);
    BOOST_CHECK_MESSAGE(!(run_small(options, comm) == usual), what);
  };
  differs("scale", [](RunSettings& s) { s.optimizer.muon.scale = MuonScale::spectral; });
  differs("steps", [](RunSettings& s) { s.optimizer.muon.steps = 4; });
  differs("momentum", [](RunSettings& s) { s.optimizer.muon.momentum = 0.9; });
  differs("rate of matrices", [](RunSettings& s) { s.schedule.matrix_lr = 1e-2; });
  differs("rate of the others", [](RunSettings& s) { s.schedule.lr = 2e-2; });
  differs("beta2", [](RunSettings& s) { s.optimizer.adamw.beta2 = 0.9; });
  differs("decay", [](RunSettings& s) { s.optimizer.decay = 0; });
  differs("optimizer", [](RunSettings& s) { s.optimizer.kind = OptimizerKind::adamw; });
}

BOOST_AUTO_TEST_CASE(pages_change_no_bit_and_move_what_is_not_resident) {
  const auto comm = all_ranks();
  const RunBits expected = alone(muon_options());
  const RunBits own = run_small(muon_options(), *comm);  // of the same ranks: state is compared
  for (const PagingOptions& paging : some_pages()) {
    for (const std::size_t host_grads : {std::size_t{0}, kAllGrads}) {
      SmallRunOptions options = muon_options();
      options.settings.paging = paging;
      options.settings.host_grad_bytes = host_grads;
      options.after_step = [](TrainingRun& run, const StepReport&) {
        run.trainer().synchronize();
        const PagingReport report = run.optimizer().report();
        const ShardState& shard = run.shard();
        const std::size_t moving =
            shard.state_bytes() - shard.resident_bytes() + twice_moved(shard);
        BOOST_CHECK_EQUAL(report.bytes_in, moving);
        BOOST_CHECK_EQUAL(report.bytes_out, moving);
        if (run.settings().paging.max_device_bytes != 0) {
          BOOST_CHECK_LE(report.device_bytes, run.settings().paging.max_device_bytes);
        }
      };
      const RunBits bits = run_small(options, *comm);
      check_same(bits, expected, std::to_string(paging.page_bytes) + " bytes a page");
      BOOST_CHECK(bits.state == own.state);
    }
  }
}

BOOST_AUTO_TEST_CASE(packed_masters_change_no_bit) {
  const auto comm = all_ranks();
  SmallRunOptions options = muon_options();
  options.settings.scratch.precision =
      precision_of(own_device().kind == DeviceKind::cpu ? Precision::bf16_params : Precision::bf16);
  options.settings.masters = MasterStorage::f32;
  const RunBits expected = alone(options);
  const RunBits own = run_small(options, *comm);
  check_same(own, expected, "whole");
  options.settings.masters = MasterStorage::packed;
  std::vector<PagingOptions> ways = some_pages();
  ways.push_back({});
  for (const PagingOptions& paging : ways) {
    options.settings.paging = paging;
    const RunBits bits = run_small(options, *comm);
    check_same(bits, expected, "packed");
    BOOST_CHECK(bits.state == own.state);
  }
}

BOOST_AUTO_TEST_CASE(recomputation_groups_and_passes_side_by_side_change_no_bit) {
  const auto comm = all_ranks();
  SmallRunOptions options = muon_options();
  options.settings.reduce_group = 2;
  const RunBits expected = alone(options);
  options.settings.scratch.recompute = Recompute::block;
  options.settings.trainer.batched_forward = 3;
  options.settings.paging = some_pages().front();
  check_same(run_small(options, *comm), expected, "all together");
}

BOOST_AUTO_TEST_CASE(stage_one_with_one_micro_step_gives_the_bits_of_stage_two) {
  const auto comm = all_ranks();
  SmallRunOptions options = muon_options();
  options.settings.trainer.global_batch = Index{2} * comm->world_size();
  const RunBits expected = run_small(options, *comm);
  options.settings.zero = ZeroStage::one;
  check_same(run_small(options, *comm), expected, "one micro-step");
}

BOOST_AUTO_TEST_CASE(matrices_keep_8_bytes_an_element_and_others_12) {
  const auto comm = all_ranks();
  SmallRunOptions options = muon_options(false);
  options.steps = 1;
  options.before = [](TrainingRun& run) {
    const ShardState& shard = run.shard();
    std::size_t bytes = 0;
    for (const StatePage& page : shard.pages()) {
      Index in_matrices = 0;
      for (const MatrixRun& run_of : page.matrix_runs) {
        in_matrices += run_of.end - run_of.begin;
      }
      const bool has_others = page.layout == shard.state_layout();
      BOOST_CHECK_EQUAL(page.layout.bytes(page.count),
                        static_cast<std::size_t>((has_others ? 12 : 8) * page.count));
      // a page with a norm is cut to the 1024 elements around it
      BOOST_CHECK(!has_others || page.count > in_matrices);
      bytes += page.layout.bytes(page.count);
    }
    BOOST_CHECK_EQUAL(bytes, shard.state_bytes());
    BOOST_CHECK_EQUAL(bytes, shard_state_bytes(shard.layout(), shard.state_layout(),
                                               matrix_state_layout(run.settings().optimizer),
                                               shard.rank(), shard.world_size()));
  };
  (void)run_small(options, *comm);
}

BOOST_AUTO_TEST_CASE(a_step_that_is_not_finite_leaves_momentum_and_weights) {
  const auto comm = all_ranks();
  SmallRunOptions options = muon_options();
  std::vector<float> before;
  const auto state_of = [](TrainingRun& run) {
    std::vector<float> all;
    run.trainer().synchronize();
    for (const StateArray array : {StateArray::master, StateArray::exp_avg}) {
      std::vector<float> values(static_cast<std::size_t>(run.shard().real_count(1)));
      run.shard().read(1, array, 0,
                       {values.data(), DType::f32, Shape{std::ssize(values)}, Device{}});
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  // token 0 of every sequence finds NaN after the first step
  for (std::size_t i = 0; i < options.tokens.size(); i += 16) {
    options.tokens[i] = 0;
  }
  options.after_step = [&](TrainingRun& run, const StepReport& report) {
    BOOST_CHECK_EQUAL(report.skipped, report.step > 1);
    if (report.step == 1) {
      run.trainer().synchronize();
      const float nan = std::nanf("");
      const ParamLease lease = run.params().acquire(0, run.compute());
      const ConstTensorView& table = lease.params();
      // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the run lets nobody write here
      const TensorView first = {const_cast<void*>(table.data), table.dtype, Shape{1}, table.device};
      if (table.dtype == DType::f32) {
        copy_async({&nan, DType::f32, Shape{1}, Device{}}, first, run.compute());
      }
      run.compute().synchronize();
      before = state_of(run);
    }
    BOOST_CHECK(state_of(run) == before);
    BOOST_CHECK_EQUAL(run.trainer().position().updates, 1);
  };
  (void)run_small(options, *comm);
}

// ---- beside f64 -------------------------------------------------------------------------------

namespace {

// Muon and AdamW as their papers have them, on whole units in f64.
class PlainMuon {
 public:
  PlainMuon(const Golden& golden, const OptimizerOptions& options, double lr, double matrix_lr)
      : layout_(golden.layout()), options_(options), lr_(lr), matrix_lr_(matrix_lr) {
    for (UnitId unit = 0; unit < layout_.unit_count(); ++unit) {
      const std::vector<float> weights = golden.weights(unit);
      weights_.emplace_back(weights.begin(), weights.end());
      first_.emplace_back(weights.size(), 0.0);
      second_.emplace_back(weights.size(), 0.0);
    }
  }

  // grads: of every unit, clipped.
  void step(const std::vector<std::vector<double>>& grads) {
    ++updates_;
    for (std::size_t unit = 0; unit < weights_.size(); ++unit) {
      for (const ParamTensor& tensor : layout_.units()[unit].tensors) {
        Index offset = tensor.offset;
        if (tensor.matrix_rows.empty()) {
          adamw(unit, tensor, grads[unit]);
        }
        for (const Index rows : tensor.matrix_rows) {
          muon(unit, offset, rows, tensor.shape[1], grads[unit]);
          offset += rows * tensor.shape[1];
        }
      }
    }
  }

  [[nodiscard]] const std::vector<double>& weights(UnitId unit) const {
    return weights_[static_cast<std::size_t>(unit)];
  }

 private:
  void adamw(std::size_t unit, const ParamTensor& tensor, const std::vector<double>& grad) {
    const AdamWOptions& o = options_.adamw;
    for (Index e = tensor.offset; e < tensor.offset + tensor.count(); ++e) {
      const auto i = static_cast<std::size_t>(e);
      double& m = first_[unit][i];
      double& v = second_[unit][i];
      m = o.beta1 * m + (1 - o.beta1) * grad[i];
      v = o.beta2 * v + (1 - o.beta2) * grad[i] * grad[i];
      double& weight = weights_[unit][i];
      weight *= 1 - lr_ * (tensor.decays ? options_.decay : 0);
      weight -= lr_ * (m / (1 - std::pow(o.beta1, updates_))) /
                (std::sqrt(v / (1 - std::pow(o.beta2, updates_))) + o.eps);
    }
  }

  // With the sum of gradients that Jordan has in place of our average.
  void muon(std::size_t unit, Index offset, Index rows, Index columns,
            const std::vector<double>& grad) {
    const double mu = options_.muon.momentum;
    std::vector<double> x(static_cast<std::size_t>(rows * columns));
    double squares = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(offset) + i;
      double& m = first_[unit][at];
      m = mu * m + grad[at];
      x[i] = grad[at] + mu * m;
      squares += x[i] * x[i];
    }
    for (double& value : x) {
      value /= std::sqrt(squares);
    }
    const auto [a, b, c] = std::array<double, 3>{3.4445, -4.7750, 2.0315};
    for (int step = 0; step < options_.muon.steps; ++step) {
      const std::vector<double> gram = product(x, x, rows, columns, rows, true);
      const std::vector<double> gram_squared = product(gram, gram, rows, rows, rows, false);
      std::vector<double> polynomial(gram.size());
      for (std::size_t i = 0; i < gram.size(); ++i) {
        polynomial[i] = b * gram[i] + c * gram_squared[i];
      }
      const std::vector<double> turned = product(polynomial, x, rows, rows, columns, false);
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = a * x[i] + turned[i];
      }
    }
    const double scale =
        options_.muon.scale == MuonScale::rms
            ? 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)))
            : std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
    for (std::size_t i = 0; i < x.size(); ++i) {
      double& weight = weights_[unit][static_cast<std::size_t>(offset) + i];
      weight = weight * (1 - matrix_lr_ * options_.decay) - matrix_lr_ * scale * x[i];
    }
  }

  // [m, k] times [k, n], or times the transposed of [n, k].
  static std::vector<double> product(const std::vector<double>& left,
                                     const std::vector<double>& right, Index m, Index k, Index n,
                                     bool transposed) {
    std::vector<double> result(static_cast<std::size_t>(m * n), 0.0);
    for (Index i = 0; i < m; ++i) {
      for (Index l = 0; l < k; ++l) {
        const double factor = left[static_cast<std::size_t>(i * k + l)];
        for (Index j = 0; j < n; ++j) {
          result[static_cast<std::size_t>(i * n + j)] +=
              factor * right[static_cast<std::size_t>(transposed ? j * k + l : l * n + j)];
        }
      }
    }
    return result;
  }

  const ParamLayout& layout_;
  OptimizerOptions options_;
  double lr_;
  double matrix_lr_;
  int updates_ = 0;
  std::vector<std::vector<double>> weights_;
  std::vector<std::vector<double>> first_;
  std::vector<std::vector<double>> second_;
};

// A unit's elements from the slices of all ranks.
std::vector<double> whole(Communicator& comm, const std::vector<float>& local, Index count) {
  const auto bytes = std::as_bytes(std::span(local));
  std::vector<double> all;
  for (const std::string& part :
       comm.gather_text(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()))) {
    std::vector<float> values(part.size() / sizeof(float));
    std::memcpy(values.data(), part.data(), part.size());
    all.insert(all.end(), values.begin(), values.end());
  }
  all.resize(static_cast<std::size_t>(count));
  return all;
}

void steps_equal_f64(const std::string& variant, MuonScale scale) {
  constexpr Index kLength = 16;
  const Golden golden(variant);
  Arena arena(own_device(), ArenaMode::allocate);
  const auto comm = all_ranks();
  MemoryBatches batches({.tokens = golden.tokens(),
                         .targets = golden.targets(),
                         .length = kLength,
                         .micro_batch = 1,
                         .global_batch = 2,
                         .rank = comm->rank(),
                         .world_size = comm->world_size()});
  RunSettings s;
  s.trainer = {.global_batch = 2, .micro_batch = 1, .clip_norm = 0.5};
  s.scratch.batch = {1, kLength};
  s.scratch.attention.method = AttentionMethod::builtin;
  s.schedule = {.kind = ScheduleKind::constant, .lr = 1e-3, .matrix_lr = 5e-3};
  s.optimizer.kind = OptimizerKind::muon;
  s.optimizer.muon.scale = scale;
  s.paging = some_pages().front();
  TrainingRun run(golden.config(), s, *comm, batches, arena);
  run.shard().initialize([&](UnitId unit, Index begin, std::span<float> values) {
    const std::vector<float> all = golden.weights(unit);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(begin) + i;
      values[i] = at < all.size() ? all[at] : 0.0F;
    }
  });
  run.trainer().gather_parameters();
  PlainMuon plain(golden, s.optimizer, s.schedule.lr, s.schedule.matrix_lr);
  constexpr int kSteps = 3;
  for (int step = 1; step <= kSteps; ++step) {
    const StepReport report = run.trainer().step();
    BOOST_CHECK(!report.skipped);
    BOOST_CHECK_GT(report.grad_norm, s.trainer.clip_norm);
    run.trainer().synchronize();
    std::vector<std::vector<double>> grads;
    for (UnitId unit = 0; unit < golden.layout().unit_count(); ++unit) {
      const TensorView grad = run.shard().grad(unit);
      std::vector<float> local(static_cast<std::size_t>(grad.count()));
      copy_async(grad, {local.data(), DType::f32, Shape{grad.count()}, Device{}}, run.compute());
      run.compute().synchronize();
      const Index count = golden.layout().unit(unit).count;
      grads.push_back(whole(*comm, local, count));
      if (step == 1) {  // transformers' own
        const std::vector<float> expected = golden.state("grad.", unit);
        grads.back().assign(expected.begin(), expected.end());
      }
      for (double& number : grads.back()) {
        number *= s.trainer.clip_norm / report.grad_norm;
      }
    }
    plain.step(grads);
    for (UnitId unit = 0; unit < golden.layout().unit_count(); ++unit) {
      std::vector<float> local(static_cast<std::size_t>(run.shard().real_count(unit)));
      run.shard().read(unit, StateArray::master, 0,
                       {local.data(), DType::f32, Shape{std::ssize(local)}, Device{}});
      const std::vector<double>& expected = plain.weights(unit);
      const auto begin = static_cast<std::size_t>(run.shard().range(unit).param_start);
      for (const ParamTensor& tensor : golden.layout().unit(unit).tensors) {
        // AdamW divides by the size of each gradient: where that is rounding alone, so is the step.
        // Orthogonalisation raises small singular values, and their rounding with them, up to
        // 3.4445^5 = 485 times.
        const double bound = tensor.matrix_rows.empty() ? 2.1 * s.schedule.lr : 2e-5;
        Index outside = 0;
        double squares = 0;
        Index compared = 0;
        for (Index e = tensor.offset; e < tensor.offset + tensor.count(); ++e) {
          const auto at = static_cast<std::size_t>(e);
          if (at < begin || at >= begin + local.size()) {
            continue;
          }
          const double difference = static_cast<double>(local[at - begin]) - expected[at];
          outside += std::abs(difference) > bound * step ? 1 : 0;
          squares += difference * difference;
          ++compared;
        }
        BOOST_TEST_CONTEXT(variant << " step " << step << " " << tensor.name) {
          BOOST_CHECK_EQUAL(outside, 0);
          if (compared > 0) {
            BOOST_CHECK_SMALL(std::sqrt(squares / static_cast<double>(compared)), 2e-5 * step);
          }
        }
      }
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(steps_of_the_tied_model_equal_f64) {
  steps_equal_f64("tied", MuonScale::rms);
}

BOOST_AUTO_TEST_CASE(steps_of_the_untied_model_equal_f64) {
  steps_equal_f64("untied", MuonScale::spectral);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
