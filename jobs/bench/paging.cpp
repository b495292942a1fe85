// `bench paging`: the optimizer's sweep over state in pinned host memory, alone, beside what the
// link gives: copies of the same chunks in both directions at once, in the same run, on all ranks
// at the same time.
#include <algorithm>
#include <chrono>
#include <vector>

#include <fmt/format.h>

#include "collectives/mpi_session.h"
#include "jobs/bench/bench.h"
#include "jobs/bench/measure.h"
#include "kernels/base/quantity.h"
#include "kernels/device/cpu/threads.h"
#include "kernels/device/device_backend.h"
#include "kernels/kernel_table.h"
#include "optim/adamw_rule.h"
#include "optim/page_sweep.h"
#include "runtime/launch/agree.h"
#include "runtime/run/command_words.h"
#include "runtime/run/training_run.h"

namespace tessera::bench {
namespace {

constexpr double kGiga = 1e9;
constexpr double kNanosecond = 1e-9;

struct Settings {
  Device device;
  int repetitions;
  std::size_t copy_bytes;  // of one round of bare copies, each way
};

// Calls `work` on all ranks at once; the median over the repetitions of the slowest rank's seconds.
template <typename Work>
double slowest_median(Communicator& comm, int repetitions, const Work& work) {
  using Clock = std::chrono::steady_clock;
  const auto rank = static_cast<std::size_t>(comm.rank());
  std::vector<std::int64_t> slowest;
  for (int repetition = -1; repetition < repetitions; ++repetition) {
    comm.barrier();
    const Clock::time_point start = Clock::now();
    work();
    std::vector<std::int64_t> all(static_cast<std::size_t>(comm.world_size()));
    all[rank] = std::chrono::nanoseconds(Clock::now() - start).count();
    comm.sum(all);
    if (repetition >= 0) {
      slowest.push_back(*std::max_element(all.begin(), all.end()));
    }
  }
  std::sort(slowest.begin(), slowest.end());
  return static_cast<double>(slowest[slowest.size() / 2]) * kNanosecond;
}

// Bytes a second, each way, of copies of `chunk` bytes in both directions at once.
double both_ways(const Settings& settings, Communicator& comm, std::size_t chunk) {
  const Shape shape = {static_cast<Index>(std::max(settings.copy_bytes, chunk))};
  const auto bytes = static_cast<Index>(chunk);
  const auto make = [&](MemoryKind kind, const Shape& size) {
    return DeviceBuffer(settings.device, kind, DType::u8, size, "bench paging");
  };
  DeviceBuffer from = make(MemoryKind::pinned, shape);
  DeviceBuffer to = make(MemoryKind::pinned, shape);
  DeviceBuffer in = make(MemoryKind::device, {bytes});
  DeviceBuffer out = make(MemoryKind::device, {bytes});
  Stream down(settings.device, StreamPriority::normal, "down");
  Stream up(settings.device, StreamPriority::normal, "up");
  const Index chunks = shape.count() / bytes;
  const double seconds = slowest_median(comm, settings.repetitions, [&] {
    for (Index i = 0; i < chunks; ++i) {
      copy_async(from.view().slice(i * bytes, (i + 1) * bytes), in.view(), down);
      copy_async(out.view(), to.view().slice(i * bytes, (i + 1) * bytes), up);
    }
    down.synchronize();
    up.synchronize();
  });
  return static_cast<double>(chunks * bytes) / seconds;
}

struct SweepResult {
  double seconds;
  double bytes_per_second;  // each way
  double allocation_seconds;
};

// Sweeps of a model's whole state: page in, AdamW, page out, parameters written; no gather.
SweepResult sweep(const Settings& settings, Communicator& comm, const ParamLayout& layout,
                  std::size_t page_bytes, int buffers) {
  using Clock = std::chrono::steady_clock;
  const KernelTable& kernels = kernel_table(settings.device.kind);
  const DType dtype = settings.device.kind == DeviceKind::cpu ? DType::f32 : DType::bf16;
  const Clock::time_point start = Clock::now();
  Arena arena(settings.device, ArenaMode::allocate);
  ShardState shard(layout,
                   {.rank = comm.rank(),
                    .world_size = comm.world_size(),
                    .paging = {.page_bytes = page_bytes,
                               .max_device_bytes = 0,
                               .buffers = buffers,
                               .page_all = true}},
                   arena);
  Stream page_in(settings.device, StreamPriority::normal, "page in");
  Stream update(settings.device, StreamPriority::normal, "update");
  Stream page_out(settings.device, StreamPriority::normal, "page out");
  const AdamWRule rule(kernels, {});
  PageSweep optimizer(rule, shard, {page_in, update, page_out}, arena);
  Index largest = 0;
  for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
    largest = std::max(largest, shard.range(unit).shard_size());
    zero_async(shard.grad(unit), update);
  }
  DeviceBuffer params =
      arena.allocate(MemoryKind::device, dtype, {largest}, "parameters of one unit");
  const double allocation = std::chrono::duration<double>(Clock::now() - start).count();
  for (StatePage& page : shard.pages()) {
    zero_async(page.state, update);
  }
  update.synchronize();

  std::int64_t updates = 0;
  const double seconds = slowest_median(comm, settings.repetitions, [&] {
    ++updates;
    optimizer.begin_sweep();
    for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
      optimizer.update(unit, {.updates = updates, .lr = 1e-4, .grad_scale = 1},
                       params.view().slice(0, shard.range(unit).shard_size()));
    }
    optimizer.synchronize();
  });
  return {.seconds = seconds,
          .bytes_per_second = static_cast<double>(optimizer.report().bytes_in) / seconds,
          .allocation_seconds = allocation};
}

int run_paging(MpiSession& session, const Arguments& arguments) {
  namespace po = boost::program_options;
  std::string device_name = "cpu";
  std::string model = "d12";
  std::string page_list = "1MiB,4MiB,8MiB,16MiB,64MiB";
  std::string buffer_list = "2,3,4,12";
  std::string copy_size = "1GiB";
  int repetitions = 7;
  po::options_description options = option_group("bench paging");
  options.add_options()("device", po::value(&device_name)->default_value(device_name),
                        "cpu or cuda: one GPU a rank")(
      "model", po::value(&model)->default_value(model),
      "whose state is passed over, 12 bytes per element")(
      "page-bytes", po::value(&page_list)->default_value(page_list), "sizes of a page")(
      "buffers", po::value(&buffer_list)->default_value(buffer_list), "device pages in flight")(
      "copy-bytes", po::value(&copy_size)->default_value(copy_size),
      "moved each way by one round of bare copies")(
      "repetitions", count_value(repetitions, {1, kMostRepetitions}, "repetitions"),
      "whose median is taken");
  if (!agree(session, [&] {
        return read_options(arguments, "mpirun -np N bench paging [options]", options);
      })) {
    return 0;
  }
  Settings settings{};
  ModelConfig config;
  std::vector<std::size_t> pages;
  std::vector<int> buffers;
  agree(session, [&] {
    DeviceOptions chosen;
    chosen.device =
        device_name == "cuda" ? fmt::format("cuda:{}", session.local_rank()) : device_name;
    settings = {.device = chosen.use(),
                .repetitions = repetitions,
                .copy_bytes = parse_bytes(copy_size, {1, kMostBytes}, "--copy-bytes")};
    config = find_model(model);
    config.vocab_size = std::max<Index>(config.vocab_size, 256);
    for (const std::string& text : split_list(page_list, "--page-bytes")) {
      pages.push_back(parse_bytes(text, {1, kMostBytes}, "--page-bytes"));
    }
    for (const std::string& text : split_list(buffer_list, "--buffers")) {
      buffers.push_back(static_cast<int>(parse_count(text, {2, kMostPieces}, "--buffers")));
    }
  });
  const auto comm = make_communicator(session, settings.device);
  const ParamLayout layout(config);
  const bool speaks = comm->rank() == 0;
  if (speaks) {
    fmt::print("{} ranks of {}, state of {}: {}\n", comm->world_size(), describe(settings.device),
               model, format_bytes(static_cast<std::size_t>(layout.total_count()) * 12));
    fmt::print("\ncopies both ways at once, GB/s each way\n");
  }
  double best = 0;
  for (const std::size_t page : pages) {
    const double rate = both_ways(settings, *comm, page);
    best = std::max(best, rate);
    if (speaks) {
      fmt::print("  {:>10}  {:6.2f}\n", format_bytes(page), rate / kGiga);
    }
  }
  if (speaks) {
    fmt::print("\nsweep{:>12}{:>9}{:>11}{:>11}{:>10}{:>12}\n", "page", "buffers", "seconds", "GB/s",
               "of best", "allocated");
  }
  for (const std::size_t page : pages) {
    for (const int count : buffers) {
      const SweepResult result = sweep(settings, *comm, layout, page, count);
      if (speaks) {
        fmt::print("     {:>12}{:>9}{:>11.4f}{:>11.2f}{:>9.1f}%{:>10.2f} s\n", format_bytes(page),
                   count, result.seconds, result.bytes_per_second / kGiga,
                   100 * result.bytes_per_second / best, result.allocation_seconds);
        (void)std::fflush(stdout);
      }
    }
  }
  return 0;
}

const Benchmark kBenchmark("paging", "the optimizer pass over paged state, beside bare copies",
                           &run_paging);

}  // namespace
}  // namespace tessera::bench
