// `bench NAME [options]`: one program, one file a benchmark. A file registers its benchmark with
// one object at namespace scope; nothing else needs to know of it:
//
//   int run(const Arguments& arguments);
//   const Benchmark kBenchmark("gemm", "GEMMs of the models", &run);
#pragma once

#include <string>
#include <vector>

#include <boost/program_options.hpp>

#include "kernels/device/stream.h"
#include "runtime/run/command_words.h"

namespace tessera {
class MpiSession;
}  // namespace tessera

namespace tessera::bench {

// The largest numbers that benchmarks take, beside those of kernels/base/quantity.h.
inline constexpr Index kMostRepetitions = 1'000'000;
inline constexpr Index kMostMegabytes = Index{1} << 20;
inline constexpr Index kMostExtent = Index{1} << 20;  // of a matrix or a tensor
inline constexpr Index kMostPieces = 1024;

/// What follows the benchmark's name on the command line.
using Arguments = std::vector<std::string>;

/// A benchmark of one process, or of the ranks that mpirun started. `body` returns the exit status
/// and throws as every program's body does (jobs/program.h, runtime/launch/run_job.h). Lives as
/// long as the program.
class Benchmark {
 public:
  using Run = int(const Arguments& arguments);
  using RunOnRanks = int(MpiSession& session, const Arguments& arguments);

  /// Registers. `name` and `summary` are literals; the summary is one line of the list of names.
  Benchmark(const char* name, const char* summary, Run* body) noexcept;
  Benchmark(const char* name, const char* summary, RunOnRanks* body) noexcept;
  ~Benchmark() = default;
  Benchmark(const Benchmark&) = delete;
  Benchmark& operator=(const Benchmark&) = delete;

  [[nodiscard]] const char* name() const noexcept { return name_; }
  [[nodiscard]] const char* summary() const noexcept { return summary_; }
  /// One of the two is null.
  [[nodiscard]] Run* run() const noexcept { return run_; }
  [[nodiscard]] RunOnRanks* run_on_ranks() const noexcept { return run_on_ranks_; }

 private:
  friend std::vector<const Benchmark*> all_benchmarks();

  const char* name_;
  const char* summary_;
  Run* run_;
  RunOnRanks* run_on_ranks_;
  const Benchmark* next_;
};

/// Sorted by name.
[[nodiscard]] std::vector<const Benchmark*> all_benchmarks();

/// Reads `arguments` into the variables that `options` names, to which --help is added. Returns
/// false, after printing `usage` and the options, where --help is given. Throws ConfigError.
[[nodiscard]] bool read_options(const Arguments& arguments, const std::string& usage,
                                boost::program_options::options_description& options);

/// Where a benchmark of one process runs: --device cpu|cuda|cuda:N and --threads.
struct DeviceOptions {
  std::string device = "cpu";
  int threads = 1;  // of the CPU's kernels

  void add_to(boost::program_options::options_description& options);
  /// Makes the device current. Throws ConfigError for a name that is none, or in a build without
  /// CUDA, DeviceError where there is no such GPU.
  [[nodiscard]] Device use() const;
};

/// "--tokens 8192,16384": parts between commas. Throws ConfigError naming `what` for an empty one.
[[nodiscard]] std::vector<std::string> split_list(const std::string& text, const char* what);

}  // namespace tessera::bench
