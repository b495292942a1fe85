// What the benchmarks of one process share: random content, and times by events.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <boost/program_options/options_description.hpp>

#include "kernels/device/device_buffer.h"

namespace tessera::bench {

struct Timing {
  double median_seconds;
  double fastest_seconds;
  double slowest_seconds;
};

struct Repetitions {
  int warm_up = 3;
  int timed = 20;
};

/// --dtype, for element_type, and --repetitions, 1 or more.
void add_measuring_options(boost::program_options::options_description& options, std::string& dtype,
                           Repetitions& repetitions);

/// Times `work` by events on either side of it. All repetitions are queued before the host waits,
/// so that a GPU never waits for the host. `prepare`, which may be empty, is queued before each and
/// not timed. Both get the repetition's number, by which they may choose among buffers.
[[nodiscard]] Timing time_work(Stream& stream, const Repetitions& repetitions,
                               const std::function<void(int)>& prepare,
                               const std::function<void(int)>& work);

/// Random numbers of this standard deviation, f32 or bf16; as codes of 8 bits a hundred times as
/// large. Timing zeros flatters. What a large tensor holds repeats after a million elements. Waits
/// for the stream.
void fill_random(const TensorView& target, double deviation, Stream& stream);

/// Device memory with such content.
[[nodiscard]] DeviceBuffer random_buffer(Stream& stream, DType dtype, const Shape& shape,
                                         double deviation = 1);
/// Device memory with these numbers.
[[nodiscard]] DeviceBuffer integer_buffer(Stream& stream, const std::vector<std::int32_t>& numbers);

/// Device to device, bytes read plus bytes written a second: what a kernel that is bound by memory
/// is measured against.
[[nodiscard]] double copy_bytes_per_second(Stream& stream, std::size_t bytes,
                                           const Repetitions& repetitions);

/// "f32" or "bf16", "" for what `device` trains in. Throws ConfigError for another name, or bf16 on
/// the CPU.
[[nodiscard]] DType element_type(const std::string& name, Device device);

/// What rates of arithmetic are shown in on this device.
struct FlopUnit {
  double flops;
  const char* name;
};
[[nodiscard]] FlopUnit flop_unit(Device device);

/// Name of the device and of what runs there, for the head of a table.
[[nodiscard]] std::string describe(Device device);

}  // namespace tessera::bench
