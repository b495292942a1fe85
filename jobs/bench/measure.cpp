#include "jobs/bench/measure.h"

#include <algorithm>
#include <cmath>

#include <boost/program_options/value_semantic.hpp>
#include <fmt/format.h>

#include "jobs/bench/bench.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "kernels/device/device_backend.h"
#include "kernels/device/float8.h"

namespace tessera::bench {
namespace {

constexpr std::uint64_t kSeed = 20261127;
constexpr Index kPatternElements = Index{1} << 20;
constexpr float kOfCodes = 100;  // codes of 8 bits use their range up to 448

double uniform_of_deviation(Index at, double deviation) {
  const double u = uniform_from(philox(kSeed, 0, static_cast<std::uint64_t>(at))[0]);
  return deviation * std::sqrt(12.0) * (u - 0.5);
}

DeviceBuffer host_pattern(DType dtype, Index count, double deviation) {
  DeviceBuffer host({}, MemoryKind::host, dtype, {count}, "bench pattern");
  for (Index i = 0; i < count; ++i) {
    const auto value = static_cast<float>(uniform_of_deviation(i, deviation));
    if (dtype == DType::f32) {
      data_as<float>(host.view())[i] = value;
    } else if (dtype == DType::e4m3) {
      data_as<Float8E4M3>(host.view())[i] = to_e4m3(kOfCodes * value);
    } else if (dtype == DType::e5m2) {
      data_as<Float8E5M2>(host.view())[i] = to_e5m2(kOfCodes * value);
    } else {
      data_as<BFloat16>(host.view())[i] = to_bfloat16(value);
    }
  }
  return host;
}

}  // namespace

void add_measuring_options(boost::program_options::options_description& options, std::string& dtype,
                           Repetitions& repetitions) {
  namespace po = boost::program_options;
  options.add_options()("dtype", po::value(&dtype),
                        "f32 or bf16 (default: what the device trains in)")(
      "repetitions", count_value(repetitions.timed, {1, kMostRepetitions}, "repetitions"),
      "timed runs, of which the median is shown");
}

Timing time_work(Stream& stream, const Repetitions& repetitions,
                 const std::function<void(int)>& prepare, const std::function<void(int)>& work) {
  TESSERA_REQUIRE(repetitions.timed > 0 && repetitions.warm_up >= 0, "there is something to time");
  std::vector<Event> starts;
  std::vector<Event> ends;
  for (int i = 0; i < repetitions.warm_up + repetitions.timed; ++i) {
    if (prepare) {
      prepare(i);
    }
    starts.emplace_back(stream.device(), "bench.start");
    ends.emplace_back(stream.device(), "bench.end");
    starts.back().record(stream);
    work(i);
    ends.back().record(stream);
  }
  stream.synchronize();
  std::vector<double> seconds;
  for (auto i = static_cast<std::size_t>(repetitions.warm_up); i < ends.size(); ++i) {
    seconds.push_back(ends[i].seconds_since(starts[i]));
  }
  std::sort(seconds.begin(), seconds.end());
  return {.median_seconds = seconds[seconds.size() / 2],
          .fastest_seconds = seconds.front(),
          .slowest_seconds = seconds.back()};
}

void fill_random(const TensorView& target, double deviation, Stream& stream) {
  const Index count = target.count();
  const DeviceBuffer pattern =
      host_pattern(target.dtype, std::min(count, kPatternElements), deviation);
  for (Index begin = 0; begin < count; begin += kPatternElements) {
    const Index end = std::min(begin + kPatternElements, count);
    copy_async(pattern.view().slice(0, end - begin), target.slice(begin, end), stream);
  }
  stream.synchronize();
}

DeviceBuffer random_buffer(Stream& stream, DType dtype, const Shape& shape, double deviation) {
  DeviceBuffer buffer(stream.device(), MemoryKind::device, dtype, shape, "bench");
  fill_random(buffer.view(), deviation, stream);
  return buffer;
}

DeviceBuffer integer_buffer(Stream& stream, const std::vector<std::int32_t>& numbers) {
  const Shape shape = {static_cast<Index>(numbers.size())};
  DeviceBuffer host({}, MemoryKind::host, DType::i32, shape, "bench integers");
  std::copy(numbers.begin(), numbers.end(), data_as<std::int32_t>(host.view()));
  DeviceBuffer buffer(stream.device(), MemoryKind::device, DType::i32, shape, "bench");
  copy_async(host.view(), buffer.view(), stream);
  stream.synchronize();
  return buffer;
}

double copy_bytes_per_second(Stream& stream, std::size_t bytes, const Repetitions& repetitions) {
  const Shape shape = {static_cast<Index>(bytes / sizeof(float))};
  const DeviceBuffer from = random_buffer(stream, DType::f32, shape);
  DeviceBuffer to(stream.device(), MemoryKind::device, DType::f32, shape, "bench");
  const Timing timing =
      time_work(stream, repetitions, {}, [&](int) { copy_async(from.view(), to.view(), stream); });
  return 2.0 * static_cast<double>(from.size_bytes()) / timing.median_seconds;
}

DType element_type(const std::string& name, Device device) {
  if (name == "f32" || (name.empty() && device.kind == DeviceKind::cpu)) {
    return DType::f32;
  }
  if (name != "bf16" && !name.empty()) {
    throw ConfigError("--dtype is '" + name + "': give f32 or bf16", TESSERA_HERE);
  }
  if (device.kind == DeviceKind::cpu) {
    throw ConfigError("--dtype bf16: the CPU's kernels compute in f32 only", TESSERA_HERE);
  }
  return DType::bf16;
}

FlopUnit flop_unit(Device device) {
  constexpr FlopUnit kGiga = {.flops = 1e9, .name = "GFLOP/s"};
  constexpr FlopUnit kTera = {.flops = 1e12, .name = "TFLOP/s"};
  return device.kind == DeviceKind::cpu ? kGiga : kTera;
}

std::string describe(Device device) {
  const DeviceInfo info = device_info(device);
  return device.kind == DeviceKind::cpu ? info.name
                                        : fmt::format("cuda:{} {}", device.ordinal, info.name);
}

}  // namespace tessera::bench
