// `bench step`: the whole training step on random tokens, on the ranks that mpirun started:
// tokens/s, its share of the GEMMs' rate measured in the same run, and with --breakdown
// where its time goes, kernel by kernel.
#include <algorithm>
#include <array>
#include <ctime>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "collectives/mpi_session.h"
#include "jobs/bench/bench.h"
#include "jobs/bench/breakdown.h"
#include "jobs/bench/measure.h"
#include "jobs/bench/null_communicator.h"
#include "jobs/bench/profiled_steps.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/hash.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/quantity.h"
#include "kernels/base/random.h"
#include "kernels/device/cpu/threads.h"
#include "kernels/device/device_backend.h"
#include "kernels/gemm.h"
#include "kernels/kernel_table.h"
#include "model/json_text.h"
#include "runtime/launch/agree.h"
#include "runtime/plan/memory_plan.h"
#include "runtime/plan/product_rate.h"
#include "runtime/run/command_words.h"
#include "runtime/run/gemm_choice.h"
#include "runtime/run/option_table.h"
#include "runtime/run/options.h"
#include "runtime/run/rank_setup.h"
#include "runtime/run/training_run.h"

namespace tessera::bench {
namespace {

constexpr Index kDefaultVocabulary = 32000;  // of models that take theirs from the data

// Batches of random tokens, the same at every step: no input pipeline is measured.
class RandomBatches final : public BatchSource {
 public:
  RandomBatches(Index tokens, Index rounds, Index vocab, int rank)
      : tokens_(tokens), rounds_(rounds) {
    constexpr std::uint64_t kStream = 5;
    for (Index i = 0; i < 2 * tokens; ++i) {
      numbers_.push_back(static_cast<std::int32_t>(
          philox(static_cast<std::uint64_t>(rank), kStream, static_cast<std::uint64_t>(i))[0] %
          static_cast<std::uint32_t>(vocab)));
    }
    std::vector<std::int32_t> order(static_cast<std::size_t>(tokens));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [this](std::int32_t a, std::int32_t b) {
      return numbers_[static_cast<std::size_t>(a)] < numbers_[static_cast<std::size_t>(b)];
    });
    numbers_.insert(numbers_.end(), order.begin(), order.end());
  }
  void prefetch(Index) override {}
  [[nodiscard]] Index prefetched_targets() override { return rounds_ * tokens_; }
  void take() override {}
  void set_rounds(Index rounds) { rounds_ = rounds; }
  [[nodiscard]] Batch batch(Index) override {
    const auto view = [this](Index array) {
      return ConstTensorView(numbers_.data() + array * tokens_, DType::i32, {tokens_}, Device{});
    };
    return {view(0), view(1), view(2), tokens_};
  }

 private:
  Index tokens_;
  Index rounds_;
  std::vector<std::int32_t> numbers_;  // inputs, targets, order
};

// Every rank's, on every rank.
std::vector<double> of_all(Communicator& comm, double seconds) {
  std::vector<double> all;
  for (const std::string& text : comm.gather_text(fmt::format("{}", seconds))) {
    all.push_back(parse_real(text, {0, kMostSeconds}, "seconds"));
  }
  return all;
}

double slowest(Communicator& comm, double seconds) {
  const std::vector<double> all = of_all(comm, seconds);
  return *std::max_element(all.begin(), all.end());
}

// What the measured steps report of memory that moves and of waits, on this rank, as means.
class StepMeans {
 public:
  void add(const StepReport& report) {
    ++steps_;
    last_ = report;
    sweep_seconds_ += report.paging.seconds;
    update_ += report.exposed_update_seconds;
    exchange_ += report.exposed_exchange_seconds;
  }
  void print(double step_seconds) const {
    const auto of_step = [&](double seconds) { return 100 * seconds / steps_ / step_seconds; };
    const PagingReport& paging = last_.paging;
    fmt::print("state          {} of {} pages resident, {} on the device\n", paging.resident_pages,
               paging.pages, format_bytes(paging.device_bytes));
    if (paging.seconds > 0) {
      fmt::print("optimizer pass {:.4f} s, {} in and {} out, {:.2f} GB/s each way\n",
                 sweep_seconds_ / steps_, format_bytes(paging.bytes_in),
                 format_bytes(paging.bytes_out), paging.bytes_per_second() / 1e9);
    }
    fmt::print("exposed        update {:.4f} s ({:.2f}%), exchange {:.4f} s ({:.2f}%)\n",
               update_ / steps_, of_step(update_), exchange_ / steps_, of_step(exchange_));
  }

 private:
  int steps_ = 0;
  StepReport last_;
  double sweep_seconds_ = 0;
  double update_ = 0;
  double exchange_ = 0;
};

// "global-batch=32,batched-forward=8,update=none": other trainer options for the same run;
// "metrics=on,trace=on": the same ones, and what train writes down of a step.
struct Variant {
  TrainerOptions options;
  Profiling profiling;
  bool no_collectives;  // no data is exchanged or gathered
};

Variant parse_variant(TrainerOptions options, const std::string& text) {
  Profiling profiling;
  bool no_collectives = false;
  for (const std::string& part : split_list(text, "--variants")) {
    const std::size_t equals = std::min(part.find('='), part.size());
    const std::string name = current_name(part.substr(0, equals));
    const std::string value = part.substr(std::min(equals + 1, part.size()));
    if (name == "update" && (value == "none" || value == "adamw")) {
      options.update = value == "none" ? UpdateMode::none : UpdateMode::all;
    } else if (name == "collectives" && value == "none") {
      no_collectives = true;
    } else if (name == "metrics" && value == "on") {
      profiling.metrics = true;
    } else if (name == "trace" && value == "on") {
      profiling.trace = true;
    } else if (name == "global-batch") {
      options.global_batch = parse_count(value, {1, kMostSequences}, "--variants global-batch");
    } else if (name == "batched-forward") {
      const Index wanted = parse_count(value, {1, kMostSequences}, "--variants batched-forward");
      if (wanted > options.batched_forward) {
        throw ConfigError(fmt::format("--variants batched-forward={}: the run itself keeps {}",
                                      wanted, options.batched_forward),
                          TESSERA_HERE);
      }
      options.batched_forward = wanted;
    } else {
      throw ConfigError(fmt::format("--variants: '{}' is none of update=none, update=adamw, "
                                    "collectives=none, global-batch=N, batched-forward=N, "
                                    "metrics=on, trace=on",
                                    part),
                        TESSERA_HERE);
    }
  }
  return {options, profiling, no_collectives};
}

double median_of(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

struct StepOptions {
  std::string model = "small";
  Index vocab = 0;
  int steps = 10;
  int warm_up = 4;
  std::vector<std::string> variants;
  int breakdown = 0;  // steps to record
  std::string json;
  std::vector<std::string> of_train;
};

// False where --help was given.
bool read_step_options(const Arguments& arguments, StepOptions& o) {
  namespace po = boost::program_options;
  constexpr const char* kRecordedSteps = "3";
  po::options_description described = option_group("bench step");
  described.add_options()("model", po::value(&o.model)->default_value(o.model),
                          "preset or config.json")(
      "vocab", count_value(o.vocab, {1, kMostTokens}, "vocab"),
      "vocabulary, for models that take theirs from the data")(
      "measured-steps", count_value(o.steps, {1, kMostRepetitions}, "measured-steps"),
      "steps whose median is taken")(
      "warm-up", count_value(o.warm_up, {0, kMostRepetitions}, "warm-up"), "steps before them")(
      "breakdown",
      count_value(o.breakdown, {0, kMostRepetitions}, "breakdown")->implicit_value(kRecordedSteps),
      "then record so many steps (3 where no number follows) and print the budget of one: each "
      "kernel's calls, flops, bytes, floor by rates measured in the same run, and time")(
      "json", po::value(&o.json), "write the budget to this file too")(
      "variants", po::value(&o.variants)->multitoken(),
      "then measure the same run with other trainer options: update=none (the optimizer pass "
      "and the gather are left out: what they cost), collectives=none (nothing is exchanged or "
      "gathered, so the numbers mean nothing: what communication costs), global-batch=N, "
      "batched-forward=N (at most the first's), metrics=on, trace=on (what train writes down, in "
      "turn with steps without it: what "
      "it costs), joined by commas")(
      "options", po::value(&o.of_train)->multitoken(),
      "options of train, without their --: seq=512 micro-batch=4 device=cuda ...");
  if (!read_options(arguments, "mpirun -np N bench step [options]", described)) {
    return false;
  }
  if (!o.json.empty() && o.breakdown == 0) {
    throw ConfigError("--json writes the budget: it needs --breakdown", TESSERA_HERE);
  }
  if (!o.json.empty()) {
    static_cast<void>(find_output_place(o.json, budget_file_rules()));  // before it is measured
  }
  return true;
}

RunConfig train_options(const StepOptions& o) {
  std::vector<std::string> settings = {"model=" + o.model};
  settings.insert(settings.end(), o.of_train.begin(), o.of_train.end());
  RunConfig config = config_of_settings(settings, "--options");
  if (config.data.documents == DocumentMode::separate) {
    throw ConfigError("--options documents=separate: a step is measured on random tokens, which "
                      "have no documents; leave it out",
                      TESSERA_HERE);
  }
  return config;
}

Device take_device(MpiSession& session, const RunConfig& train) {
  if (train.compute.device == DeviceKind::cpu) {
    cpu::set_threads(train.compute.threads);
    return {};
  }
  const Device mine = {DeviceKind::cuda,
                       session.local_rank() % std::max(1, device_count(DeviceKind::cuda))};
  use_device(mine);
  return mine;
}

// Micro-batches of this rank.
Index rounds_of(const TrainerOptions& options, const Communicator& comm) {
  return micro_batches_of(comm.rank(), options.global_batch / options.micro_batch,
                          comm.world_size());
}

// One run, and everything that is measured of it.
class StepBench {
 public:
  StepBench(MpiSession& session, const StepOptions& options, const RunConfig& train,
            const ModelConfig& config, Device device)
      : session_(session),
        options_(options),
        train_(train),
        config_(config),
        device_(device),
        dtype_(compute_dtype(train)),
        comm_(std::make_unique<NullCommunicator>(
            make_communicator(session, device, {.peer_copies = train.parallel.peer_copies}))),
        plan_(agreed_plan(session, train, config, device, node_ranks_of(session, train))),
        kernels_(kernel_table(device.kind)),
        batches_(train.batch.micro_batch * train.batch.seq,
                 rounds_of(plan_.settings().trainer, *comm_), config.vocab_size, comm_->rank()),
        arena_(device, ArenaMode::allocate) {}

  void run() {
    if (!train_.compute.tune_gemm.empty()) {
      (void)choose_gemm(session_, train_.compute.tune_gemm, config_, plan_.settings().scratch,
                        device_);
    }
    const double rate_before = measure_product_rate(*comm_, device_, dtype_);
    free_before_ = device_info(device_).free_bytes;
    peak_is_known_ = device_.kind == DeviceKind::cpu && restart_peak_of_resident_memory();
    const double allocation_start = host_seconds();
    run_ = std::make_unique<TrainingRun>(config_, plan_.settings(), *comm_, batches_, arena_,
                                         kernels_);
    allocation_seconds_ = host_seconds() - allocation_start;
    run_->initialize_weights();
    run_->trainer().gather_parameters();
    arena_.freeze();

    StepMeans means;
    median_ = measure(options_.warm_up, means);
    run_->trainer().synchronize();
    info_ = device_info(device_);
    peak_bytes_ = resident_memory().peak_bytes;
    const double rate = measure_product_rate(*comm_, device_, dtype_);
    slow_product_ = 1 / slowest(*comm_, 1 / std::min(rate, rate_before));
    if (comm_->rank() == 0) {
      print(means);
    }
    std::optional<StepRecorder> recorder;
    if (options_.breakdown > 0) {
      recorder.emplace(config_, *comm_, run_->compute());
      record(*recorder);
    }
    for (const std::string& variant : options_.variants) {
      measure_variant(variant);
    }
    comm_->set_null(false);
    if (recorder) {
      show_budget(*recorder);
    }
  }

 private:
  double measure(int before, StepMeans& means) {
    std::vector<double> seconds;
    double last = host_seconds();
    for (int step = 0; step < before + options_.steps; ++step) {
      const StepReport report = run_->trainer().step();
      const double now = host_seconds();
      if (step >= before) {
        seconds.push_back(now - last);
        means.add(report);
      }
      last = now;
    }
    return slowest(*comm_, median_of(seconds));
  }

  void print(const StepMeans& means) const {
    const double tokens =
        static_cast<double>(train_.batch.global_batch * train_.batch.seq) / median_;
    const double flops = tokens * trained_flops_per_token(train_, config_) / comm_->world_size();
    fmt::print("{} of {}, model {}, {}\n", counted(comm_->world_size(), "rank"), describe(device_),
               options_.model, precision_name(precision_choice(train_)));
    fmt::print("seq {}, micro-batch {}, global batch {}, vocabulary {}\n", train_.batch.seq,
               train_.batch.micro_batch, train_.batch.global_batch, config_.vocab_size);
    fmt::print("step           {:.4f} s, median of {}\n", median_, options_.steps);
    fmt::print("tokens/s       {:.0f}\n", tokens);
    fmt::print("model          {:.2f} TFLOP/s a rank\n", flops / 1e12);
    fmt::print("product        {:.2f} TFLOP/s a rank, in {}, all ranks at once\n",
               slow_product_ / 1e12, dtype_name(dtype_));
    fmt::print("share          {:.1f}% of the product's rate\n", 100 * flops / slow_product_);
    means.print(median_);
    fmt::print("planned        {} device, {} pinned ({} bytes), allocated in {:.1f} s\n",
               format_bytes(arena_.total_bytes(MemoryKind::device)),
               format_bytes(arena_.total_bytes(MemoryKind::pinned)),
               arena_.total_bytes(MemoryKind::device), allocation_seconds_);
    if (device_.kind == DeviceKind::cuda) {
      // what the arena planned beside what the driver gave; the rest is the context's and NCCL's
      fmt::print("driver         {} more used than before the run ({} bytes), {} before it\n",
                 format_bytes(free_before_ - info_.free_bytes), free_before_ - info_.free_bytes,
                 format_bytes(info_.total_bytes - free_before_));
    } else if (peak_is_known_) {
      const std::size_t planned = plan_.total(MemoryKind::device) +
                                  plan_.total(MemoryKind::pinned) + plan_.total(MemoryKind::host);
      fmt::print("resident       {} at most ({} bytes), planned with the program {} ({} bytes)\n",
                 format_bytes(peak_bytes_), peak_bytes_, format_bytes(planned), planned);
    }
    (void)std::fflush(stdout);
  }

  // Steps whose kernels are instrumented; the others run the backend's own table.
  void record(StepRecorder& recorder) {
    const KernelTable& own = kernel_table(device_.kind);
    kernels_ = instrumented(own, recorder);
    for (int step = 0; step <= options_.breakdown; ++step) {
      recorder.begin_step();
      const double start = host_seconds();
      const StepReport report = run_->trainer().step();
      recorder.end_step(host_seconds() - start, static_cast<double>(report.paging.bytes_in),
                        static_cast<double>(report.paging.bytes_out));
    }
    kernels_ = own;
  }

  void show_budget(const StepRecorder& recorder) {
    std::vector<BudgetRow> rows = recorder.rows();
    const BudgetWaits waits = recorder.waits();
    run_->trainer().synchronize();
    comm_->barrier();
    run_.reset();  // its memory is what the kernels alone work in
    Stream stream(device_, StreamPriority::normal, "copies");
    constexpr std::size_t kOnGpu = std::size_t{1} << 30U;
    constexpr std::size_t kOnCpu = std::size_t{64} << 20U;
    const double copy = copy_bytes_per_second(
        stream, device_.kind == DeviceKind::cuda ? kOnGpu : kOnCpu, {.warm_up = 3, .timed = 10});
    recorder.measure_floors(rows, dtype_, device_, copy);
    const std::vector<double> kernels_of_ranks = of_all(*comm_, kernel_seconds(rows));
    const std::vector<double> floors_of_ranks = of_all(*comm_, floor_seconds(rows));
    const double fast_floor = slowest(*comm_, fast_floor_seconds(rows));
    if (comm_->rank() != 0) {
      return;
    }
    const BudgetFacts facts = {.device = describe(device_),
                               .model = options_.model,
                               .unit = flop_unit(device_),
                               .ranks = comm_->world_size(),
                               .seq = train_.batch.seq,
                               .micro_batch = train_.batch.micro_batch,
                               .global_batch = train_.batch.global_batch,
                               .plain_step_seconds = median_,
                               .recorded_step_seconds = recorder.step_seconds(),
                               .stream_seconds = recorder.stream_seconds(),
                               .event_pair_seconds = recorder.event_pair_seconds(),
                               .copy_bytes_per_second = copy,
                               .steps = recorder.steps(),
                               .rank_kernel_seconds = kernels_of_ranks,
                               .rank_floor_seconds = floors_of_ranks,
                               .fast_floor_seconds = fast_floor};
    print_budget(facts, rows, waits);
    if (!options_.json.empty()) {
      const std::string text = shown_json(budget_json(facts, rows, waits), 1) + "\n";
      write_output(options_.json, budget_file_rules(), text);
    }
  }

  void measure_variant(const std::string& text) {
    const Variant variant =
        agree(session_, [&] { return parse_variant(plan_.settings().trainer, text); });
    batches_.set_rounds(rounds_of(variant.options, *comm_));
    run_->trainer().set_options(variant.options);
    run_->trainer().synchronize();
    comm_->set_null(variant.no_collectives);
    if (variant.profiling.metrics || variant.profiling.trace) {
      measure_watching(text, variant);
      return;
    }
    StepMeans means;
    const double seconds = measure(1, means);
    if (comm_->rank() == 0) {
      fmt::print(
          "\nvariant        {}\nstep           {:.4f} s, median of {}\ntokens/s       {:.0f}\n",
          text, seconds, options_.steps,
          static_cast<double>(variant.options.global_batch * train_.batch.seq) / seconds);
      means.print(seconds);
      (void)std::fflush(stdout);
    }
  }

  // Steps with and without in turn, so that both see the same machine.
  void measure_watching(const std::string& text, const Variant& variant) {
    ProfiledSteps steps(variant.profiling, session_, *comm_, run_->trainer(), device_,
                        variant.options.global_batch * train_.batch.seq);
    struct Taken {
      std::vector<double> seconds;
      std::vector<double> processor;  // this process's
    };
    Taken without;
    Taken with;
    const auto take = [](Taken& taken, const auto& step) {
      const double start = host_seconds();
      const std::clock_t processor = std::clock();
      step();
      taken.processor.push_back(static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC);
      taken.seconds.push_back(host_seconds() - start);
    };
    (void)run_->trainer().step();
    (void)steps.profiled_step();
    for (int i = 0; i < options_.steps; ++i) {
      take(without, [&] { (void)run_->trainer().step(); });
      take(with, [&] { (void)steps.profiled_step(); });
    }
    steps.finish();
    const auto range = [](std::vector<double> seconds) {
      std::sort(seconds.begin(), seconds.end());
      return fmt::format("{:.6f} to {:.6f} s", seconds.front(), seconds.back());
    };
    const double plain = slowest(*comm_, median_of(without.seconds));
    const double profiled = slowest(*comm_, median_of(with.seconds));
    if (comm_->rank() == 0) {
      fmt::print("\nvariant        {}, in turn with steps without\n", text);
      fmt::print("without        {:.6f} s, median of {}, {}\n", plain, options_.steps,
                 range(without.seconds));
      fmt::print("with           {:.6f} s, median of {}, {}\n", profiled, options_.steps,
                 range(with.seconds));
      fmt::print("costs          {:+.2f}% of a step\n", 100 * (profiled / plain - 1));
      if (device_.kind == DeviceKind::cpu) {  // what other programs on the machine disturb less
        fmt::print("processor time {:+.2f}%\n",
                   100 * (median_of(with.processor) / median_of(without.processor) - 1));
      }
      if (variant.profiling.metrics) {
        fmt::print("metrics        {:.1f} us a line\n", 1e6 * median_of(steps.metrics_seconds()));
      }
      (void)std::fflush(stdout);
    }
  }

  MpiSession& session_;
  const StepOptions& options_;
  const RunConfig& train_;
  const ModelConfig& config_;
  Device device_;
  DType dtype_;
  std::unique_ptr<NullCommunicator> comm_;
  MemoryPlan plan_;
  KernelTable kernels_;  // the run's: the backend's own, or an instrumented one
  RandomBatches batches_;
  Arena arena_;
  std::unique_ptr<TrainingRun> run_;
  std::size_t free_before_ = 0;  // of the device
  bool peak_is_known_ = false;   // of the host
  std::size_t peak_bytes_ = 0;
  double allocation_seconds_ = 0;
  double median_ = 0;  // seconds of a step
  double slow_product_ = 0;
  DeviceInfo info_{};
};

int run_step(MpiSession& session, const Arguments& arguments) {
  StepOptions options;
  if (!agree(session, [&] { return read_step_options(arguments, options); })) {
    return 0;
  }
  const RunConfig train = agree(session, [&] { return train_options(options); });
  if (session.rank() == 0) {
    warn_of_old_names(train);
  }
  ModelConfig config = agree(session, [&] { return find_model(options.model); });
  if (config.vocab_size == 0) {
    config.vocab_size = options.vocab == 0 ? kDefaultVocabulary : options.vocab;
  }
  const Device device = agree(session, [&] { return take_device(session, train); });
  StepBench(session, options, train, config, device).run();
  return 0;
}

const Benchmark kBenchmark("step", "the whole training step on random tokens", &run_step);

}  // namespace
}  // namespace tessera::bench
