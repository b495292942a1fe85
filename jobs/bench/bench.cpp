// main of the benchmarks: finds the one that is named and runs it in its frame.
#include "jobs/bench/bench.h"

#include <algorithm>
#include <cstring>
#include <iostream>
#include <span>

#include <fmt/format.h>

#include "collectives/mpi_session.h"
#include "jobs/command_line.h"
#include "jobs/program.h"
#include "kernels/base/error.h"
#include "kernels/base/quantity.h"
#include "kernels/base/terminal.h"
#include "kernels/device/cpu/threads.h"
#include "kernels/device/device_backend.h"
#include "runtime/launch/run_job.h"

namespace tessera::bench {
namespace {

constexpr double kStartSeconds = 600;  // as in train

// Last registered first.
const Benchmark*& registered() noexcept {
  static const Benchmark* list = nullptr;
  return list;
}

void print_names(std::ostream& out) {
  out << "bench NAME [options]; options of each: bench NAME --help\n\n";
  for (const Benchmark* benchmark : all_benchmarks()) {
    out << fmt::format("  {:<12} {}{}\n", benchmark->name(), benchmark->summary(),
                       benchmark->run_on_ranks() != nullptr ? " (mpirun)" : "");
  }
}

int run_named(int argc, char** argv) {
  const std::span<char*> words(argv, static_cast<std::size_t>(argc));
  if (words.size() < 2) {
    return run_program("bench", []() -> int {
      print_names(std::cout);
      throw ConfigError("no benchmark is named", TESSERA_HERE);
    });
  }
  const std::string name = words[1];
  if (name == "--help" || name == "-h" || name == "--version") {
    return run_program("bench", [&name] {
      if (name == "--version") {
        std::cout << version_line("bench");
      } else {
        print_names(std::cout);
      }
      return 0;
    });
  }
  const Arguments arguments(words.begin() + 2, words.end());
  const std::vector<const Benchmark*> all = all_benchmarks();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Benchmark* b) { return b->name() == name; });
  if (found == all.end()) {
    return run_program("bench", [&]() -> int {
      throw ConfigError("there is no benchmark '" + name + "'; bench --help lists them",
                        TESSERA_HERE);
    });
  }
  if ((*found)->run_on_ranks() != nullptr) {
    return run_job(argc, argv, kStartSeconds, [&](MpiSession& session, StartGuard& start) {
      start.end();
      return (*found)->run_on_ranks()(session, arguments);
    });
  }
  return run_program("bench " + name, [&] { return (*found)->run()(arguments); });
}

}  // namespace

Benchmark::Benchmark(const char* name, const char* summary, Run* body) noexcept
    : name_(name), summary_(summary), run_(body), run_on_ranks_(nullptr), next_(registered()) {
  registered() = this;
}

Benchmark::Benchmark(const char* name, const char* summary, RunOnRanks* body) noexcept
    : name_(name), summary_(summary), run_(nullptr), run_on_ranks_(body), next_(registered()) {
  registered() = this;
}

std::vector<const Benchmark*> all_benchmarks() {
  std::vector<const Benchmark*> all;
  for (const Benchmark* b = registered(); b != nullptr; b = b->next_) {
    all.push_back(b);
  }
  std::sort(all.begin(), all.end(), [](const Benchmark* a, const Benchmark* b) {
    return std::strcmp(a->name(), b->name()) < 0;
  });
  return all;
}

bool read_options(const Arguments& arguments, const std::string& usage,
                  boost::program_options::options_description& options) {
  namespace po = boost::program_options;
  options.add_options()("help,h", "this text");
  po::variables_map values;
  try {
    values = read_words(arguments, options, {}, "--help", Abbreviations::taken);
    po::notify(values);
  } catch (const po::error& error) {
    throw ConfigError(fmt::format("{}; see --help", error.what()), TESSERA_HERE);
  }
  if (values.contains("help")) {
    std::cout << wrapped(usage + "\n\n", help_width(), 0) << options;
    return false;
  }
  return true;
}

void DeviceOptions::add_to(boost::program_options::options_description& options) {
  namespace po = boost::program_options;
  options.add_options()("device", po::value(&device)->default_value(device),
                        "cpu, cuda, or cuda:N for GPU number N")(
      "threads", count_value(threads, {1, kMostThreads}, "threads"),
      "threads of the CPU's kernels");
}

Device DeviceOptions::use() const {
  if (device == "cpu") {
    cpu::set_threads(threads);
    return {};
  }
  constexpr std::string_view kCuda = "cuda";
  const std::string_view name = device;
  if (name.substr(0, kCuda.size()) != kCuda ||
      (name.size() > kCuda.size() && name[kCuda.size()] != ':')) {
    throw ConfigError("--device is '" + device + "': give cpu, cuda or cuda:N", TESSERA_HERE);
  }
  const Index ordinal =
      name.size() == kCuda.size()
          ? 0
          : parse_count(name.substr(kCuda.size() + 1), {0, kMostRanks}, "--device cuda:");
  const int devices = device_count(DeviceKind::cuda);
  if (ordinal >= devices) {
    throw DeviceError(
        fmt::format("--device {}: CUDA can use {} GPUs of this machine", device, devices),
        TESSERA_HERE);
  }
  const Device chosen = {DeviceKind::cuda, static_cast<int>(ordinal)};
  use_device(chosen);
  return chosen;
}

std::vector<std::string> split_list(const std::string& text, const char* what) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (end == begin) {
      throw ConfigError(fmt::format("{} is '{}': give a list like a,b,c", what, text),
                        TESSERA_HERE);
    }
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace tessera::bench

int main(int argc, char** argv) {
  return tessera::bench::run_named(argc, argv);
}
