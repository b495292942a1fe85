// bench gemm: GEMMs, the square one that rates are quoted for and those of the models'
// linear layers, forward and backward.
#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>

#include <fmt/format.h>

#include "jobs/bench/bench.h"
#include "jobs/bench/measure.h"
#include "kernels/base/error.h"
#include "kernels/base/quantity.h"
#include "kernels/device/device_backend.h"
#include "kernels/gemm_tuning.h"
#include "kernels/kernel_table.h"
#include "kernels/precision.h"
#include "model/linear.h"
#include "model/model_config.h"
#include "runtime/run/command_words.h"

namespace tessera::bench {
namespace {

constexpr double kMicro = 1e6;

struct Options {
  DeviceOptions device;
  std::string dtype;
  std::string models;
  std::string tokens;
  std::string tuning = "off";
  Index square = 0;
  double warm_up_seconds = 0;
  Repetitions repetitions;
};

struct Layer {
  std::string name;
  Index in;
  Index out;
};

std::vector<Layer> layers_of(const ModelConfig& config) {
  return {{"qkv", config.hidden_size, config.qkv_width()},
          {"out", config.query_width(), config.hidden_size},
          {"gate_up", config.hidden_size, 2 * config.intermediate_size},
          {"down", config.intermediate_size, config.hidden_size}};
}

class GemmBench {
 public:
  GemmBench(const Options& options, Device device)
      : options_(options),
        device_(device),
        is_fp8_(options.dtype == "fp8"),
        dtype_(is_fp8_ ? row_of(QuantizationRecipe::tensor).inputs
                       : element_type(options.dtype, device)),
        unit_(flop_unit(device)),
        stream_(device, StreamPriority::normal, "bench"),
        kernels_(kernel_table(device.kind)),
        workspace_(device, MemoryKind::device, DType::u8,
                   {static_cast<Index>(gemm_workspace_bytes(device.kind))}, "bench workspace"),
        one_(random_buffer(stream_, DType::f32, {1})) {}

  void run() {
    std::vector<Index> rows;
    for (const std::string& text : split_list(options_.tokens, "--tokens")) {
      rows.push_back(parse_count(text, {1, kMostTokens}, "--tokens"));
    }
    const std::vector<std::string> names = split_list(options_.models, "--model");
    std::vector<ModelConfig> configs;
    std::transform(names.begin(), names.end(), std::back_inserter(configs), find_model);
    fmt::print("{}, {}\n", describe(device_), is_fp8_ ? "fp8" : dtype_name(dtype_));
    if (is_fp8_) {
      require_card();
      fmt::print(
          "one scale a tensor, as --precision fp8: forward e4m3 x e4m3 with fast accumulation, "
          "d_input and d_weight e5m2 x e4m3 with full; codes are given\n");
    }
    fmt::print("\n");
    square();
    for (std::size_t i = 0; i < names.size(); ++i) {
      model(names[i], configs[i], rows);
    }
  }

 private:
  void require_card() const {
    const DeviceInfo info = device_info(device_);
    const std::string refusal =
        device_.kind == DeviceKind::cpu
            ? "--dtype fp8 needs --device cuda: the CPU multiplies 8 bits in f32"
            : card_refusal(QuantizationRecipe::tensor, info.compute_capability, info.name);
    if (!refusal.empty()) {
      throw ConfigError(refusal, TESSERA_HERE);
    }
  }

  // d [m, n] = a [m, k] (b [n, k])^T of codes.
  void multiply_codes(const DeviceBuffer& a, const DeviceBuffer& b, DeviceBuffer& d, Index m,
                      Index n, Index k, Accumulation accumulation) {
    const ConstTensorView scale = one_.view();
    kernels_.gemm({.m = m,
                   .n = n,
                   .k = k,
                   .transpose_a = Transpose::no,
                   .transpose_b = Transpose::yes,
                   .a = {a.view(), ScaleMode::tensor, scale},
                   .lda = k,
                   .b = {b.view(), ScaleMode::tensor, scale},
                   .ldb = k,
                   .beta = 0,
                   .c = {},
                   .bias = {},
                   .d = d.view(),
                   .ldd = n,
                   .workspace = workspace_.view(),
                   .accumulation = accumulation},
                  stream_);
  }

  void square() {
    const Index n = options_.square;
    const DeviceBuffer a = random_buffer(stream_, dtype_, {n, n});
    const DeviceBuffer b = random_buffer(stream_, dtype_, {n, n});
    DeviceBuffer d = random_buffer(stream_, is_fp8_ ? DType::bf16 : dtype_, {n, n});
    const auto work = [&](int) {
      if (is_fp8_) {
        multiply_codes(a, b, d, n, n, n, Accumulation::fast);
        return;
      }
      kernels_.gemm({.m = n,
                     .n = n,
                     .k = n,
                     .transpose_a = Transpose::no,
                     .transpose_b = Transpose::yes,
                     .a = a.view(),
                     .lda = n,
                     .b = b.view(),
                     .ldb = n,
                     .beta = 0,
                     .c = {},
                     .bias = {},
                     .d = d.view(),
                     .ldd = n,
                     .workspace = workspace_.view()},
                    stream_);
    };
    const double flops =
        2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    const Timing burst = time_work(stream_, options_.repetitions, {}, work);
    fmt::print("{0} x {0} x {0}: {1:.1f} {4}, {2:.1f} us (fastest {3:.1f})\n", n,
               flops / burst.median_seconds / unit_.flops, burst.median_seconds * kMicro,
               burst.fastest_seconds * kMicro, unit_.name);
    if (options_.warm_up_seconds > 0) {
      warm_up(burst.median_seconds, work);
      const Timing sustained = time_work(stream_, options_.repetitions, {}, work);
      fmt::print("  after {:.1f} s of it: {:.1f} {}\n", options_.warm_up_seconds,
                 flops / sustained.median_seconds / unit_.flops, unit_.name);
    }
    fmt::print("\n");
  }

  void warm_up(double seconds_of_one, const std::function<void(int)>& work) {
    const auto times = static_cast<int>(options_.warm_up_seconds / seconds_of_one) + 1;
    for (int i = 0; i < times; ++i) {
      work(i);
    }
    stream_.synchronize();
  }

  void model(const std::string& name, const ModelConfig& config,
             const std::vector<Index>& rows_to_try) {
    for (const Index rows : rows_to_try) {
      fmt::print("{}, {} tokens\n", name, rows);
      fmt::print("  {:<8} {:>6} {:>6} {:>12} {:>12} {:>12}   {}\n", "layer", "in", "out", "forward",
                 "d_input", "d_weight", unit_.name);
      double flops = 0;
      double seconds = 0;
      for (const Layer& layer : layers_of(config)) {
        seconds += time_layer(layer, rows);
        constexpr double kProducts = 3;
        flops += kProducts * 2.0 * static_cast<double>(rows) * static_cast<double>(layer.in) *
                 static_cast<double>(layer.out);
      }
      fmt::print("  all of a block: {:.1f} {}\n\n", flops / seconds / unit_.flops, unit_.name);
    }
  }

  // Seconds of the three products together.
  double time_layer(const Layer& layer, Index rows) {
    if (is_fp8_) {
      return time_fp8_layer(layer, rows);
    }
    const Linear linear = {.kernels = kernels_,
                           .rows = rows,
                           .in = layer.in,
                           .out = layer.out,
                           .workspace = workspace_.view()};
    DeviceBuffer x = random_buffer(stream_, dtype_, {rows, layer.in});
    DeviceBuffer weight = random_buffer(stream_, dtype_, {layer.out, layer.in});
    DeviceBuffer y = random_buffer(stream_, dtype_, {rows, layer.out});
    DeviceBuffer d_x = random_buffer(stream_, dtype_, {rows, layer.in});
    DeviceBuffer d_weight = random_buffer(stream_, dtype_, {layer.out, layer.in});
    DeviceBuffer forward_y = random_buffer(stream_, dtype_, {rows, layer.out});
    const std::array<std::function<void(int)>, 3> products = {
        [&](int) { linear.forward(x.view(), weight.view(), {}, {}, forward_y.view(), stream_); },
        [&](int) { linear.backward_input(y.view(), weight.view(), d_x.view(), stream_); },
        [&](int) { linear.backward_weight(y.view(), x.view(), d_weight.view(), stream_); }};
    return time_products(layer, rows, products);
  }

  // The same of codes that are given, each operand in the layout of its product.
  double time_fp8_layer(const Layer& layer, Index rows) {
    const DType of_gradients = row_of(QuantizationRecipe::tensor).gradients;
    const DeviceBuffer x = random_buffer(stream_, dtype_, {rows, layer.in});
    const DeviceBuffer weight = random_buffer(stream_, dtype_, {layer.out, layer.in});
    const DeviceBuffer d_y = random_buffer(stream_, of_gradients, {rows, layer.out});
    DeviceBuffer y = random_buffer(stream_, DType::bf16, {rows, layer.out});
    DeviceBuffer d_x = random_buffer(stream_, DType::bf16, {rows, layer.in});
    DeviceBuffer d_weight = random_buffer(stream_, DType::bf16, {layer.out, layer.in});
    return time_products(
        layer, rows,
        {[&](int) { multiply_codes(x, weight, y, rows, layer.out, layer.in, Accumulation::fast); },
         [&](int) {
           multiply_codes(d_y, weight, d_x, rows, layer.in, layer.out, Accumulation::full);
         },
         [&](int) {
           multiply_codes(d_y, x, d_weight, layer.out, layer.in, rows, Accumulation::full);
         }});
  }

  double time_products(const Layer& layer, Index rows,
                       const std::array<std::function<void(int)>, 3>& products) {
    const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(layer.in) *
                         static_cast<double>(layer.out);
    double seconds = 0;
    std::string line = fmt::format("  {:<8} {:>6} {:>6}", layer.name, layer.in, layer.out);
    for (const auto& product : products) {
      const Timing timing = time_work(stream_, options_.repetitions, {}, product);
      seconds += timing.median_seconds;
      line += fmt::format(" {:>12.1f}", flops / timing.median_seconds / unit_.flops);
    }
    fmt::print("{}\n", line);
    (void)std::fflush(stdout);
    return seconds;
  }

  const Options& options_;
  Device device_;
  bool is_fp8_;
  DType dtype_;
  FlopUnit unit_;
  Stream stream_;
  const KernelTable& kernels_;
  DeviceBuffer workspace_;
  DeviceBuffer one_;  // [1] f32: a scale
};

int run(const Arguments& arguments) {
  namespace po = boost::program_options;
  Options options;
  po::options_description description = option_group("Options");
  options.device.add_to(description);
  add_measuring_options(description, options.dtype, options.repetitions);
  description.add_options()("square", count_value(options.square, {1, kMostExtent}, "square"),
                            "size of the square product (default: 8192 on a GPU, 1024 on the CPU)")(
      "sustained", real_value(options.warm_up_seconds, {0, kMostSeconds}, "sustained"),
      "time the square product again after so many seconds of it")(
      "model", po::value(&options.models),
      "presets, a,b,c (default: qwen3-0.6b,1.7b,4b,8b on a GPU, d12 on the CPU)")(
      "tokens", po::value(&options.tokens),
      "rows, a,b,c (default: 8192,16384,32768 on a GPU, 512 on the CPU)")(
      "tuning", po::value(&options.tuning)->default_value("off"),
      "on: time the library's algorithms and take the fastest");
  if (!read_options(arguments,
                    "bench gemm [options]\n\nTimes GEMMs. --dtype fp8 times those of "
                    "--precision fp8.",
                    description)) {
    return 0;
  }
  const Device device = options.device.use();
  const bool on_gpu = device.kind == DeviceKind::cuda;
  if (options.square == 0) {
    options.square = on_gpu ? 8192 : 1024;
  }
  if (options.models.empty()) {
    options.models = on_gpu ? "qwen3-0.6b,qwen3-1.7b,qwen3-4b,qwen3-8b" : "d12";
  }
  if (options.tokens.empty()) {
    options.tokens = on_gpu ? "8192,16384,32768" : "512";
  }
  if (options.tuning != "on" && options.tuning != "off") {
    throw ConfigError("--tuning is '" + options.tuning + "': give on or off", TESSERA_HERE);
  }
  if (options.tuning == "on") {
    set_gemm_tuning(device, GemmTuning::on);
  }
  GemmBench(options, device).run();
  return 0;
}

const Benchmark kBenchmark("gemm", "GEMMs: square, and those of the models", &run);

}  // namespace
}  // namespace tessera::bench
