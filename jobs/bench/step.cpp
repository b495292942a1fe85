// `bench step`: the whole training step on random tokens, on the ranks that mpirun started:
// tokens/s, and its share of the matrix products' rate measured in the same run.
#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "collectives/mpi_session.h"
#include "jobs/bench/bench.h"
#include "jobs/bench/measure.h"
#include "kernels/device/cpu/threads.h"
#include "kernels/device/device_backend.h"
#include "kernels/device/random.h"
#include "kernels/gemm.h"
#include "kernels/kernel_table.h"
#include "runtime/agree.h"
#include "runtime/gemm_choice.h"
#include "runtime/memory_plan.h"
#include "runtime/options.h"
#include "runtime/quantity.h"
#include "runtime/training_run.h"

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

// FLOP/s of one square product on this rank, all ranks at the same time.
double product_rate(Communicator& comm, Device device, DType dtype) {
  const Index size = device.kind == DeviceKind::cpu ? 1024 : 8192;
  Stream stream(device, StreamPriority::normal, "product");
  const DeviceBuffer a = random_buffer(stream, dtype, {size, size});
  const DeviceBuffer b = random_buffer(stream, dtype, {size, size});
  DeviceBuffer d(device, MemoryKind::device, dtype, {size, size}, "product");
  DeviceBuffer workspace(device, MemoryKind::device, DType::u8,
                         {static_cast<Index>(gemm_workspace_bytes(device.kind))}, "workspace");
  const KernelTable& kernels = kernel_table(device.kind);
  comm.barrier();
  const Timing timing = time_work(stream, {.warm_up = 3, .timed = 30}, {}, [&](int) {
    kernels.gemm({.m = size,
                  .n = size,
                  .k = size,
                  .transpose_a = Transpose::no,
                  .transpose_b = Transpose::yes,
                  .a = a.view(),
                  .lda = size,
                  .b = b.view(),
                  .ldb = size,
                  .beta = 0.0F,
                  .c = {},
                  .bias = {},
                  .d = d.view(),
                  .ldd = size,
                  .workspace = workspace.view()},
                 stream);
  });
  const auto n = static_cast<double>(size);
  return 2 * n * n * n / timing.median_seconds;
}

double host_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The largest over the ranks, in whole nanoseconds.
double slowest(Communicator& comm, double seconds) {
  const std::vector<std::string> all = comm.gather_text(fmt::format("{}", seconds));
  double worst = 0;
  for (const std::string& text : all) {
    worst = std::max(worst, parse_real(text, 0, std::numeric_limits<double>::max(), "seconds"));
  }
  return worst;
}

// What the measured steps said of memory that moves and of waits, on this rank, as means.
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
    fmt::print("sweep          {:.4f} s, {} in and {} out, {:.2f} GB/s each way\n",
               sweep_seconds_ / steps_, format_bytes(paging.bytes_in),
               format_bytes(paging.bytes_out), paging.bytes_per_second() / 1e9);
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

// "global-batch=32,breadth-first=8,update=none": other trainer options for the same run.
TrainerOptions varied(TrainerOptions options, const std::string& variant) {
  for (const std::string& part : split_list(variant, "--variants")) {
    const std::size_t equals = std::min(part.find('='), part.size());
    const std::string name = part.substr(0, equals);
    const std::string value = part.substr(std::min(equals + 1, part.size()));
    if (name == "update" && (value == "none" || value == "adamw")) {
      options.update = value == "none" ? UpdateMode::none : UpdateMode::adamw;
    } else if (name == "global-batch") {
      options.global_batch = parse_count(value, 1, "--variants global-batch");
    } else if (name == "breadth-first") {
      const Index wanted = parse_count(value, 1, "--variants breadth-first");
      if (wanted > options.breadth_first) {
        throw ConfigError(fmt::format("--variants breadth-first={}: the run itself keeps {}",
                                      wanted, options.breadth_first),
                          TESSERA_HERE);
      }
      options.breadth_first = wanted;
    } else {
      throw ConfigError(fmt::format("--variants: '{}' is none of update=none, update=adamw, "
                                    "global-batch=N, breadth-first=N",
                                    part),
                        TESSERA_HERE);
    }
  }
  return options;
}

int run_step(MpiSession& session, const Arguments& arguments) {
  namespace po = boost::program_options;
  std::string model = "small";
  Index vocab = 0;
  int steps = 10;
  int warm_up = 4;
  std::vector<std::string> variants;
  std::vector<std::string> train_options;
  po::options_description options("bench step");
  options.add_options()("model", po::value(&model)->default_value(model), "preset or config.json")(
      "vocab", po::value(&vocab), "vocabulary, for models that take theirs from the data")(
      "measured-steps", po::value(&steps)->default_value(steps), "steps whose median is taken")(
      "warm-up", po::value(&warm_up)->default_value(warm_up), "steps before them")(
      "variants", po::value(&variants)->multitoken(),
      "then measure the same run with other trainer options: update=none (the optimizer's sweep "
      "and the gather are left out: what they cost), global-batch=N, breadth-first=N (at most the "
      "first's), joined by commas")(
      "options", po::value(&train_options)->multitoken(),
      "options of train, without their --: seq=512 micro-batch=4 device=cuda ...");
  if (!agree(session, [&] {
        return read_options(arguments, "mpirun -np N bench step [options]", options);
      })) {
    return 0;
  }
  std::vector<std::string> words = {"train", "--data", "none", "--out", "none", "--model", model};
  for (const std::string& option : train_options) {
    words.push_back("--" + option);
  }
  std::vector<const char*> argv;
  for (const std::string& word : words) {
    argv.push_back(word.c_str());
  }
  const TrainOptions train = agree(
      session, [&] { return parse_options(static_cast<int>(argv.size()), argv.data()).options; });
  ModelConfig config = agree(session, [&] { return find_model(model); });
  if (config.vocab_size == 0) {
    config.vocab_size = vocab == 0 ? kDefaultVocabulary : vocab;
  }
  const Device device = agree(session, [&] {
    if (train.device == DeviceKind::cpu) {
      cpu::set_threads(train.threads);
      return Device{};
    }
    const Device mine = {DeviceKind::cuda,
                         session.local_rank() % std::max(1, device_count(DeviceKind::cuda))};
    use_device(mine);
    return mine;
  });
  const auto comm = make_communicator(session, device);
  const MemoryPlan plan = agree(session, [&] {
    return MemoryPlan(
        train, config, session.world_size(),
        {.device_bytes = device.kind == DeviceKind::cuda ? device_info(device).total_bytes : 0,
         .host_bytes = 0,
         .ranks_per_node = session.world_size()});
  });
  const Index micro_batches = train.global_batch / train.micro_batch;
  const Index rounds = (micro_batches - comm->rank() + comm->world_size() - 1) / comm->world_size();
  RandomBatches batches(train.micro_batch * train.seq, rounds, config.vocab_size, comm->rank());
  if (!train.tune_gemm.empty()) {
    (void)choose_gemm(session, train.tune_gemm, config, plan.settings().scratch, device);
  }
  const double rate_before = product_rate(*comm, device, compute_dtype(train));
  Arena arena(device, ArenaMode::allocate);
  const std::size_t free_before = device_info(device).free_bytes;
  const double allocation_start = host_seconds();
  TrainingRun run(config, plan.settings(), *comm, batches, arena);
  const double allocation_seconds = host_seconds() - allocation_start;
  run.initialize_weights();
  run.trainer().publish_parameters();
  arena.freeze();

  const auto measure = [&](int before, StepMeans& means) {
    std::vector<double> seconds;
    double last = host_seconds();
    for (int step = 0; step < before + steps; ++step) {
      const StepReport report = run.trainer().step();
      const double now = host_seconds();
      if (step >= before) {
        seconds.push_back(now - last);
        means.add(report);
      }
      last = now;
    }
    std::sort(seconds.begin(), seconds.end());
    return slowest(*comm, seconds[seconds.size() / 2]);
  };
  StepMeans means;
  const double median = measure(warm_up, means);
  run.trainer().synchronize();
  const DeviceInfo info = device_info(device);
  const double rate = product_rate(*comm, device, compute_dtype(train));
  const double slow_product = 1 / slowest(*comm, 1 / std::min(rate, rate_before));
  if (comm->rank() == 0) {
    const double tokens = static_cast<double>(train.global_batch * train.seq) / median;
    const double flops = tokens * flops_per_token(config, train.seq) / comm->world_size();
    fmt::print("{} ranks of {}, model {}, {}\n", comm->world_size(), describe(device), model,
               dtype_name(compute_dtype(train)));
    fmt::print("seq {}, micro-batch {}, global batch {}, vocabulary {}\n", train.seq,
               train.micro_batch, train.global_batch, config.vocab_size);
    fmt::print("step           {:.4f} s, median of {}\n", median, steps);
    fmt::print("tokens/s       {:.0f}\n", tokens);
    fmt::print("model          {:.2f} TFLOP/s a rank\n", flops / 1e12);
    fmt::print("product        {:.2f} TFLOP/s a rank, all ranks at once\n", slow_product / 1e12);
    fmt::print("share          {:.1f}% of the product's rate\n", 100 * flops / slow_product);
    means.print(median);
    fmt::print("planned        {} device, {} pinned ({} bytes), allocated in {:.1f} s\n",
               format_bytes(arena.total_bytes(MemoryKind::device)),
               format_bytes(arena.total_bytes(MemoryKind::pinned)),
               arena.total_bytes(MemoryKind::device), allocation_seconds);
    if (device.kind == DeviceKind::cuda) {
      // what the arena planned beside what the driver gave; the rest is the context's and NCCL's
      fmt::print("driver         {} more used than before the run ({} bytes), {} before it\n",
                 format_bytes(free_before - info.free_bytes), free_before - info.free_bytes,
                 format_bytes(info.total_bytes - free_before));
    }
  }
  for (const std::string& variant : variants) {
    const TrainerOptions options =
        agree(session, [&] { return varied(plan.settings().trainer, variant); });
    const Index of_all = options.global_batch / options.micro_batch;
    batches.set_rounds((of_all - comm->rank() + comm->world_size() - 1) / comm->world_size());
    run.trainer().set_options(options);
    StepMeans of_variant;
    const double of_step = measure(1, of_variant);
    if (comm->rank() == 0) {
      fmt::print(
          "\nvariant        {}\nstep           {:.4f} s, median of {}\ntokens/s       {:.0f}\n",
          variant, of_step, steps, static_cast<double>(options.global_batch * train.seq) / of_step);
      of_variant.print(of_step);
      (void)std::fflush(stdout);
    }
  }
  return 0;
}

const Benchmark kBenchmark("step", "the whole training step on random tokens", &run_step);

}  // namespace
}  // namespace tessera::bench
