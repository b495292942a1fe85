// bench collectives: what a step does with gradients and parameters, beside the library's own
// collectives on the same buffers.
//
// * exchange + sum: all_to_all and kernels/accumulate: a reduce-scatter in a fixed order, f32
// * reduce-scatter: MPI_Reduce_scatter_block in f32; ncclReduceScatter in bf16, then to f32
// * all-gather: all_gather, out of place
// * its peer: MPI_Allgather, ncclAllGather
//
// Rates are bytes of the whole buffer a second. A repetition takes as long as its slowest rank;
// what stands in the table is the median.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <mpi.h>

#include "collectives/comm_check.h"
#include "collectives/communicator.h"
#include "collectives/mpi_control.h"
#include "collectives/mpi_session.h"
#include "jobs/bench/bench.h"
#include "kernels/base/progress.h"
#include "kernels/base/quantity.h"
#include "kernels/device/device_backend.h"
#include "kernels/device/device_buffer.h"
#include "kernels/kernel_table.h"
#include "runtime/launch/agree.h"
#include "runtime/run/command_words.h"

namespace tessera::bench {
namespace {

constexpr Index kMegabyte = 1'000'000;
// Buffers of the presets: a slot of `tiny` up to the vocabulary of Qwen3-4B in bf16.
constexpr const char* kSizesMegabytes = "1,8,16,31,100,128,202,780";
constexpr int kWarmUps = 2;

struct Settings {
  Device device;
  std::vector<Index> megabytes;
  Index max_megabytes;
  int repetitions;
  bool peer_copies;
};

// Seconds of one repetition of each of `operations`, in turn, as the slowest rank sees them; the
// median.
std::vector<double> median_seconds(Communicator& comm, Stream& stream, int repetitions,
                                   const std::vector<std::function<void()>>& operations) {
  using Clock = std::chrono::steady_clock;
  const auto W = static_cast<std::size_t>(comm.world_size());
  const auto own = static_cast<std::size_t>(comm.rank());
  std::vector<std::vector<std::int64_t>> slowest(operations.size());
  for (int repetition = -kWarmUps; repetition < repetitions; ++repetition) {
    for (std::size_t o = 0; o < operations.size(); ++o) {
      operations[o]();  // each finds the caches as it left them itself, not as the one before did
      stream.synchronize();
      comm.barrier();
      const Clock::time_point start = Clock::now();
      operations[o]();
      stream.synchronize();
      std::vector<std::int64_t> nanoseconds(W);
      nanoseconds[own] = std::chrono::nanoseconds(Clock::now() - start).count();
      comm.sum(nanoseconds);
      if (repetition >= 0) {
        slowest[o].push_back(*std::max_element(nanoseconds.begin(), nanoseconds.end()));
      }
    }
  }
  std::vector<double> medians;
  for (std::vector<std::int64_t>& times : slowest) {
    const auto middle = times.begin() + std::ssize(times) / 2;
    std::nth_element(times.begin(), middle, times.end());
    constexpr double kNanosecond = 1e-9;
    medians.push_back(static_cast<double>(*middle) * kNanosecond);
  }
  return medians;
}

// Small integers, whose sums are exact in every order; through a buffer of a few megabytes.
void fill(const TensorView& target, int rank, Stream& stream) {
  constexpr Index kPiece = Index{1} << 21U;
  DeviceBuffer host(Device{}, MemoryKind::host, target.dtype, {kPiece}, "bench.host");
  for (Index begin = 0; begin < target.count(); begin += kPiece) {
    const TensorView values = host.view().slice(0, std::min(kPiece, target.count() - begin));
    for (Index i = 0; i < values.count(); ++i) {
      const auto value = static_cast<float>((begin + i + rank) % 5);
      if (values.dtype == DType::bf16) {
        data_as<BFloat16>(values)[i] = to_bfloat16(value);
      } else {
        data_as<float>(values)[i] = value;
      }
    }
    copy_async(values, target.slice(begin, begin + values.count()), stream);
    stream.synchronize();
  }
}

std::vector<float> read(const ConstTensorView& values, Stream& stream) {
  DeviceBuffer host(Device{}, MemoryKind::host, values.dtype, values.shape, "bench.host");
  copy_async(values, host.view(), stream);
  stream.synchronize();
  const auto* begin = data_as<float>(host.view());
  return {begin, begin + values.count()};
}

// `library`: on CUDA a communicator whose data operations are all NCCL's.
void measure(Communicator& comm, Communicator& library, Stream& stream, Index megabytes,
             int repetitions) {
  const Device device = stream.device();
  const bool on_cpu = device.kind == DeviceKind::cpu;
  const KernelTable& kernels = kernel_table(device.kind);
  const DType dtype = on_cpu ? DType::f32 : DType::bf16;  // what gradients travel in
  const auto width = static_cast<Index>(size_in_bytes(dtype));
  const Index W = comm.world_size();
  const Index S = megabytes * kMegabyte / width / W;
  DeviceBuffer send(device, MemoryKind::device, dtype, {W * S}, "bench.send");
  DeviceBuffer recv(device, MemoryKind::device, dtype, {W * S}, "bench.recv");
  DeviceBuffer part(device, MemoryKind::device, dtype, {S}, "bench.part");
  DeviceBuffer sum(device, MemoryKind::device, DType::f32, {S}, "bench.sum");
  DeviceBuffer native(device, MemoryKind::device, DType::f32, {S}, "bench.native");
  fill(send.view(), comm.rank(), stream);

  const auto add = [&](const ConstTensorView& slices, const TensorView& to, Index count) {
    kernels.accumulate({.slices = slices.reshaped({count, S}),
                        .sum = to,
                        .partial = {},
                        .first = 0,
                        .count = count,
                        .total = count,
                        .reduce_group = 1},
                       stream);
  };
  std::vector<std::function<void()>> operations = {
      [&] {
        comm.all_to_all(send.view(), recv.view(), stream);
        add(recv.view(), sum.view(), W);
      },
      [&] {
        if (on_cpu) {
          library.reduce_scatter(send.view(), native.view(), stream);
        } else {
          library.reduce_scatter(send.view(), part.view(), stream);
          add(part.view(), native.view(), 1);
        }
      },
      [&] { comm.all_gather(part.view(), recv.view(), stream); }};
  if (!on_cpu) {
    operations.emplace_back([&] { library.all_gather(part.view(), recv.view(), stream); });
  } else {
    operations.emplace_back([&] {
      const auto bytes = static_cast<int>(S * width);
      TESSERA_CHECK_MPI(MPI_Allgather(part.view().data, bytes, MPI_BYTE, recv.view().data, bytes,
                                      MPI_BYTE, MPI_COMM_WORLD));
    });
  }
  const std::vector<double> seconds = median_seconds(comm, stream, repetitions, operations);
  const bool right = read(sum.view(), stream) == read(native.view(), stream);
  TESSERA_REQUIRE(comm.all_agree(right), "the ordered sum of integers differs from the library's");

  if (comm.rank() == 0) {
    constexpr double kGigabyte = 1e9;
    const auto rate = [&](double time) {
      return static_cast<double>(W * S * width) / time / kGigabyte;
    };
    fmt::print("{:>6} {:>14.3f} {:>15.3f} {:>7.2f} {:>13.3f} {:>13.3f} {:>7.2f}\n", megabytes,
               rate(seconds[0]), rate(seconds[1]), seconds[0] / seconds[1], rate(seconds[2]),
               rate(seconds[3]), seconds[2] / seconds[3]);
    (void)std::fflush(stdout);
  }
}

// Empty where --help was given.
std::optional<Settings> parse(const Arguments& arguments, const MpiSession& session) {
  namespace po = boost::program_options;
  std::string device;
  std::string sizes;
  std::string peer_copies;
  Settings settings{};
  settings.max_megabytes = 128;
  settings.repetitions = 21;
  po::options_description options = option_group("Options");
  options.add_options()("device", po::value(&device)->default_value("cpu"),
                        "cpu, or cuda with a GPU for every rank")(
      "mb", po::value(&sizes)->default_value(kSizesMegabytes), "buffers, in MB (10^6 bytes)")(
      "max-mb", count_value(settings.max_megabytes, {1, kMostMegabytes}, "max-mb"),
      "leave larger ones out; a rank allocates two of them and some")(
      "repetitions", count_value(settings.repetitions, {1, kMostRepetitions}, "repetitions"),
      "the median is shown")(
      "peer-copies", po::value(&peer_copies)->default_value("auto"),
      "as train's: auto or off, where our exchange and gather go by NCCL, too");
  constexpr std::array<std::string_view, 2> kHelp = {"--help", "-h"};
  const bool wants_help = std::find_first_of(arguments.begin(), arguments.end(), kHelp.begin(),
                                             kHelp.end()) != arguments.end();
  if (wants_help && session.rank() != 0) {
    return std::nullopt;
  }
  if (!read_options(arguments, "mpirun -np N bench collectives [options]", options)) {
    return std::nullopt;
  }
  for (const std::string& size : split_list(sizes, "--mb")) {
    settings.megabytes.push_back(parse_count(size, {1, kMostMegabytes}, "--mb"));
  }
  if (peer_copies != "auto" && peer_copies != "off") {
    throw ConfigError("--peer-copies is '" + peer_copies + "': give auto or off", TESSERA_HERE);
  }
  settings.peer_copies = peer_copies == "auto";
  if (device == "cuda") {
    settings.device = {DeviceKind::cuda, session.local_rank()};
    const int devices = device_count(DeviceKind::cuda);
    if (session.local_rank() >= devices) {
      throw ConfigError(
          fmt::format("{} has {} GPUs: every rank needs one of its own", session.host(), devices),
          TESSERA_HERE);
    }
  } else if (device != "cpu") {
    throw ConfigError("--device is '" + device + "': give cpu or cuda", TESSERA_HERE);
  }
  return settings;
}

int run(MpiSession& session, const Arguments& arguments) {
  const std::optional<Settings> settings =
      agree(session, [&] { return parse(arguments, session); });
  if (!settings) {
    return 0;
  }
  use_device(settings->device);
  const std::unique_ptr<Communicator> comm =
      make_communicator(session, settings->device, {.peer_copies = settings->peer_copies});
  const std::unique_ptr<Communicator> library =
      make_communicator(session, settings->device, {.peer_copies = false});
  Stream stream(settings->device, StreamPriority::high, "bench");
  if (session.rank() == 0) {
    const bool on_cpu = settings->device.kind == DeviceKind::cpu;
    fmt::print("collectives of {} ranks, {}, ours by {}; GB/s of the whole buffer, median of {}; "
               "times: our "
               "time by the library's\n{:>6} {:>14} {:>15} {:>7} {:>13} {:>13} {:>7}\n",
               session.world_size(), on_cpu ? "cpu, f32" : "cuda, bf16", comm->data_path(),
               settings->repetitions, "MB", "exchange + sum", "reduce-scatter", "times",
               "all-gather", on_cpu ? "MPI_Allgather" : "ncclAllGather", "times");
  }
  for (const Index megabytes : settings->megabytes) {
    if (megabytes <= settings->max_megabytes) {
      enter_phase("bench collectives");
      measure(*comm, *library, stream, megabytes, settings->repetitions);
    }
  }
  return 0;
}

const Benchmark kBenchmark("collectives",
                           "exchange + ordered sum and all-gather, beside MPI or NCCL", &run);

}  // namespace
}  // namespace tessera::bench
