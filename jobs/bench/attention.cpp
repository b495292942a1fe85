// bench attention: causal attention, forward and backward, with the backward pass in both orders.
#include <algorithm>
#include <cstdio>
#include <iterator>

#include <fmt/format.h>

#include "jobs/bench/attention_run.h"
#include "jobs/bench/bench.h"
#include "jobs/bench/measure.h"
#include "kernels/base/error.h"
#include "kernels/base/quantity.h"
#include "runtime/run/command_words.h"
#include "runtime/run/option_table.h"

namespace tessera::bench {
namespace {

constexpr double kMilli = 1e3;
constexpr double kMebi = 1048576;

struct Options {
  DeviceOptions device;
  std::string dtype;
  std::string method;
  std::string shapes;
  std::string slice_bytes = kAttentionSlices;
  bool apart = false;
  Repetitions repetitions;
};

// "8x16/8x4096x128": sequences, query heads / key-value heads, tokens, head size.
AttentionShape parse_shape(const std::string& text) {
  const auto refuse = [&text]() {
    throw ConfigError("--shape '" + text + "': give BxHq/HkvxTxD, as 8x16/8x4096x128",
                      TESSERA_HERE);
  };
  std::vector<std::string> numbers(1);
  std::string separators;
  for (const char c : text) {
    if (c == 'x' || c == '/') {
      separators += c;
      numbers.emplace_back();
    } else {
      numbers.back() += c;
    }
  }
  if (separators != "x/xx") {
    refuse();
  }
  std::vector<Index> sizes;
  std::transform(numbers.begin(), numbers.end(), std::back_inserter(sizes),
                 [](const std::string& number) {
                   return parse_count(number, {1, kMostExtent}, "--shape");
                 });
  return {.batch = sizes[0],
          .sequence = sizes[3],
          .query_heads = sizes[1],
          .kv_heads = sizes[2],
          .head_dim = sizes[4]};
}

class AttentionBench {
 public:
  AttentionBench(const Options& options, Device device)
      : options_(options),
        device_(device),
        dtype_(element_type(options.dtype, device)),
        stream_(device, StreamPriority::normal, "bench") {}

  void run() {
    std::vector<AttentionShape> shapes;
    const std::vector<std::string> texts = split_list(options_.shapes, "--shape");
    std::transform(texts.begin(), texts.end(), std::back_inserter(shapes), parse_shape);
    fmt::print("{}, {}, {}{}\n\n", describe(device_), dtype_name(dtype_), options_.method,
               options_.apart ? ", q and k apart" : "");
    fmt::print("{:<22} {:>24} {:>24} {:>32} {:>14}\n", "B x Hq/Hkv x T x D", "forward", "backward",
               "deterministic backward", "workspace MiB");
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      measure(texts[i], shapes[i]);
    }
  }

 private:
  [[nodiscard]] AttentionOptions options_of(AttentionOrder order) const {
    return {.method =
                options_.method == "library" ? AttentionMethod::library : AttentionMethod::builtin,
            .order = order,
            .slice_bytes = parse_bytes(options_.slice_bytes, {1, kMostBytes}, "--slice-bytes")};
  }

  void measure(const std::string& text, const AttentionShape& shape) {
    std::size_t workspace_bytes = 0;
    for (const AttentionOrder order : {AttentionOrder::deterministic, AttentionOrder::fast}) {
      workspace_bytes =
          std::max(workspace_bytes,
                   attention_workspace_bytes(device_.kind, shape, dtype_, options_of(order)));
    }
    AttentionRun run(shape, dtype_, options_.apart ? QkPlace::apart : QkPlace::fused,
                     workspace_bytes, stream_);
    // two products of T x T x D a query head, half of them masked; backward has five
    const double products =
        static_cast<double>(shape.batch * shape.query_heads) * static_cast<double>(shape.sequence) *
        static_cast<double>(shape.sequence) * static_cast<double>(shape.head_dim);
    const double forward_flops = 2 * products;
    constexpr double kBackwardFlops = 2.5;  // of forward's
    const Timing forward = time_work(stream_, options_.repetitions, {}, [&](int) {
      run.forward(options_of(AttentionOrder::deterministic));
    });
    const auto backward = [&](AttentionOrder order) {
      return time_work(stream_, options_.repetitions, {},
                       [&](int) { run.backward(options_of(order)); });
    };
    const Timing fast = backward(AttentionOrder::fast);
    const Timing deterministic = backward(AttentionOrder::deterministic);
    const FlopUnit unit = flop_unit(device_);
    const auto cell = [&unit](const Timing& timing, double flops) {
      return fmt::format("{:.3f} ms, {:.0f} {}", timing.median_seconds * kMilli,
                         flops / timing.median_seconds / unit.flops, unit.name);
    };
    fmt::print("{:<22} {:>24} {:>24} {:>32} {:>14.0f}\n", text, cell(forward, forward_flops),
               cell(fast, kBackwardFlops * forward_flops),
               fmt::format("{} ({:+.0f}%)", cell(deterministic, kBackwardFlops * forward_flops),
                           100 * (deterministic.median_seconds / fast.median_seconds - 1)),
               static_cast<double>(workspace_bytes) / kMebi);
    (void)std::fflush(stdout);
  }

  const Options& options_;
  Device device_;
  DType dtype_;
  Stream stream_;
};

int run(const Arguments& arguments) {
  namespace po = boost::program_options;
  Options options;
  po::options_description description = option_group("Options");
  options.device.add_to(description);
  add_measuring_options(description, options.dtype, options.repetitions);
  description.add_options()("method", po::value(&options.method),
                            "library (cuDNN; the default with bf16 on a GPU) or builtin")(
      "shape", po::value(&options.shapes),
      "shapes, a,b,c, each BxHq/HkvxTxD (default: those of the models)")(
      "slice-bytes", po::value(&options.slice_bytes)->default_value(options.slice_bytes),
      "upper bound of the deterministic backward pass's workspace; the default is train's")(
      "apart", switch_value(options.apart, "apart"),
      "q and k in rows of their own, as models with QK-norm have them");
  if (!read_options(arguments, "bench attention [options]\n\nTimes causal attention.",
                    description)) {
    return 0;
  }
  const Device device = options.device.use();
  const bool on_gpu = device.kind == DeviceKind::cuda;
  if (options.method.empty()) {
    options.method =
        on_gpu && element_type(options.dtype, device) == DType::bf16 ? "library" : "builtin";
  }
  if (options.method != "library" && options.method != "builtin") {
    throw ConfigError("--method is '" + options.method + "': give library or builtin",
                      TESSERA_HERE);
  }
  if (options.shapes.empty()) {
    options.shapes = on_gpu ? "8x16/8x4096x128,4x16/8x4096x128,2x32/8x4096x128,1x32/8x4096x128,"
                              "1x32/8x16384x128,32x12/12x1024x64"
                            : "1x4/2x256x64";
  }
  AttentionBench(options, device).run();
  return 0;
}

const Benchmark kBenchmark("attention", "causal attention, forward and backward", &run);

}  // namespace
}  // namespace tessera::bench
