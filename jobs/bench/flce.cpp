// bench flce: the fused output layer and loss, forward and backward, beside the three bare matrix
// products of the same shape, which are its floor.
//
// All variants (chunk sizes) and the floor are timed in turn, round after round, so that
// a change of the clock meets all alike. Memory is what the variant's buffers take, and what the
// card has less while only they exist. Errors are taken over samples: all losses, a few tokens of
// d_hidden, a block of columns of d_weight and d_bias that has its share of targets.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "jobs/bench/bench.h"
#include "jobs/bench/flce_reference.h"
#include "jobs/bench/measure.h"
#include "kernels/base/error.h"
#include "kernels/base/quantity.h"
#include "kernels/base/random.h"
#include "kernels/device/device_backend.h"
#include "kernels/gemm_tuning.h"
#include "model/fused_linear_cross_entropy.h"
#include "runtime/run/command_words.h"

namespace tessera::bench {
namespace {

constexpr double kMilli = 1e3;
constexpr double kGiga = 1e9;
constexpr double kProducts = 3;
constexpr int kTimedOfRound = 2;
constexpr float kSoftCap = 4;  // the logits' standard deviation is 1: felt, and not everywhere
constexpr std::uint64_t kSeedOfWeights = 6;

struct Options {
  DeviceOptions device;
  std::string dtype;
  std::string tokens;
  std::string vocab;
  std::string hidden;
  std::string chunks = "512,1024,2048,4096,8192";
  std::string accumulate = "f32";
  std::string terms = "none";
  std::string tuning;
  std::string check = "on";
  std::string parts = "off";
  std::string floor = "on";
  std::string table = "off";
  int rounds = 5;
};

double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers[numbers.size() / 2];
}

std::size_t free_bytes(Device device) {
  return device.kind == DeviceKind::cuda ? device_info(device).free_bytes : 0;
}

/// --terms: what is added to the plain product and cross entropy.
struct Terms {
  bool bias = false;
  bool soft_cap = false;
  bool weights = false;
};

Terms parse_terms(const std::string& text) {
  Terms terms;
  if (text == "none") {
    return terms;
  }
  for (const std::string& word : split_list(text, "--terms")) {
    const bool all = word == "all";
    if (!all && word != "bias" && word != "soft-cap" && word != "weights") {
      throw ConfigError(
          fmt::format("--terms '{}': choose none, all, or some of bias, soft-cap, weights", word),
          TESSERA_HERE);
    }
    terms.bias = terms.bias || all || word == "bias";
    terms.soft_cap = terms.soft_cap || all || word == "soft-cap";
    terms.weights = terms.weights || all || word == "weights";
  }
  return terms;
}

struct Sizes {
  Index tokens;
  Index vocab;
  Index hidden;
};

/// One way to compute it, with what it allocates by itself.
struct Variant {
  Index chunk = 0;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<FusedLinearCrossEntropy> loss;
  std::size_t own_bytes = 0;
  std::size_t card_bytes = 0;
  std::vector<double> seconds;
  std::string failure;
};

class FlceBench {
 public:
  FlceBench(const Options& options, Device device, DType dtype, const Sizes& sizes)
      : options_(options),
        terms_(parse_terms(options.terms)),
        device_(device),
        dtype_(dtype),
        sizes_(sizes),
        stream_(device, StreamPriority::normal, "bench"),
        kernels_(kernel_table(device.kind)) {}

  void run() {
    const double flops = kProducts * 2.0 * static_cast<double>(sizes_.tokens) *
                         static_cast<double>(sizes_.vocab) * static_cast<double>(sizes_.hidden);
    fmt::print(
        "{} tokens, vocabulary {}, hidden {}, {}, d_weight accumulated in {}, tuning {}, terms "
        "{}\n",
        sizes_.tokens, sizes_.vocab, sizes_.hidden, dtype_name(dtype_),
        dtype_name(weight_gradient_type()), options_.tuning, options_.terms);
    make_inputs();
    make_variants();
    make_floor();
    time_all();
    print_floor(flops);
    if (options_.check == "on") {
      reference_.emplace(FlceReference::Inputs{.hidden = hidden_.view(),
                                               .weight = weight_.view(),
                                               .bias = optional(bias_),
                                               .targets = targets_host_,
                                               .weights = weights_host_,
                                               .soft_cap = loss_options().terms.soft_cap,
                                               .scale = scale_value(),
                                               .workspace = workspace_.view()},
                         kernels_, stream_);
    }
    print_variants();
    if (options_.parts == "on") {
      floor_.reset();
      print_parts();
    }
    fmt::print("\n");
  }

 private:
  struct Floor {
    DeviceBuffer logits;    // [N, stride]
    DeviceBuffer d_weight;  // [V, C] dtype of the inputs
    std::vector<double> logits_seconds;
    std::vector<double> hidden_seconds;
    std::vector<double> weight_seconds;
    std::vector<double> all_seconds;
  };

  [[nodiscard]] DType weight_gradient_type() const {
    return options_.accumulate == "f32" ? DType::f32 : dtype_;
  }
  [[nodiscard]] float scale_value() const { return 1.0F / static_cast<float>(sizes_.tokens); }

  [[nodiscard]] LossOptions loss_options() const {
    return {.terms = {.soft_cap = terms_.soft_cap ? kSoftCap : 0},
            .bias = terms_.bias ? OutputBias::present : OutputBias::none};
  }
  // Data null where there is no such thing.
  static TensorView optional(DeviceBuffer& buffer) {
    return buffer.empty() ? TensorView{} : buffer.view();
  }

  // Bias and weights per token, as far as --terms names them.
  void make_terms() {
    if (terms_.bias) {
      bias_ = random_buffer(stream_, dtype_, {sizes_.vocab});
      d_bias_ = empty(weight_gradient_type(), {sizes_.vocab});
    }
    if (terms_.weights) {  // from 0 to 2
      DeviceBuffer host({}, MemoryKind::host, DType::f32, {sizes_.tokens}, "bench flce");
      for (Index n = 0; n < sizes_.tokens; ++n) {
        weights_host_.push_back(static_cast<float>(
            philox(kSeedOfWeights, 0, static_cast<std::uint64_t>(n))[0] / 0x1p31));
      }
      std::copy(weights_host_.begin(), weights_host_.end(), data_as<float>(host.view()));
      weights_ = empty(DType::f32, {sizes_.tokens});
      copy_async(host.view(), weights_.view(), stream_);
      stream_.synchronize();
    }
  }

  DeviceBuffer empty(DType dtype, const Shape& shape) {
    return {device_, MemoryKind::device, dtype, shape, "bench flce"};
  }

  void make_inputs() {
    const std::size_t before = free_bytes(device_);
    hidden_ = random_buffer(stream_, dtype_, {sizes_.tokens, sizes_.hidden});
    weight_ = random_buffer(stream_, dtype_, {sizes_.vocab, sizes_.hidden},
                            1.0 / std::sqrt(static_cast<double>(sizes_.hidden)));
    targets_host_ = FlceReference::targets_for(sizes_.tokens, sizes_.vocab);
    targets_ = integer_buffer(stream_, targets_host_);
    DeviceBuffer host({}, MemoryKind::host, DType::f32, {1}, "bench flce");
    *data_as<float>(host.view()) = scale_value();
    scale_ = empty(DType::f32, {1});
    copy_async(host.view(), scale_.view(), stream_);
    loss_ = empty(DType::f32, {sizes_.tokens});
    d_hidden_ = empty(dtype_, {sizes_.tokens, sizes_.hidden});
    d_weight_ = empty(weight_gradient_type(), {sizes_.vocab, sizes_.hidden});
    make_terms();
    stream_.synchronize();
    base_bytes_ = hidden_.size_bytes() + weight_.size_bytes() + targets_.size_bytes() +
                  scale_.size_bytes() + loss_.size_bytes() + d_hidden_.size_bytes() +
                  d_weight_.size_bytes() + bias_.size_bytes() + d_bias_.size_bytes() +
                  weights_.size_bytes();
    base_card_bytes_ = before - free_bytes(device_);
    workspace_ = empty(DType::u8, {static_cast<Index>(gemm_workspace_bytes(device_.kind))});
  }

  void run_variant(Variant& variant, Index begin, Index count) {
    const auto rows = [&](const auto& view, Index width) {
      return view.slice(begin * width, (begin + count) * width);
    };
    variant.loss->forward_backward(
        {.hidden = rows(std::as_const(hidden_).view(), sizes_.hidden),
         .weight = weight_.view(),
         .bias = optional(bias_),
         .targets = rows(std::as_const(targets_).view(), 1),
         .weights = terms_.weights ? rows(std::as_const(weights_).view(), 1) : ConstTensorView{},
         .scale = scale_.view(),
         .loss = rows(loss_.view(), 1),
         .correct = {}},
        {.d_hidden = rows(d_hidden_.view(), sizes_.hidden),
         .d_weight = d_weight_.view(),
         .d_bias = optional(d_bias_)},
        workspace_.view(), stream_);
  }

  // Each runs once while nothing else of its kind exists, which also chooses the algorithms.
  void make_variants() {
    std::vector<Index> chunks;
    for (const std::string& text : split_list(options_.chunks, "--chunk")) {
      const Index chunk = std::min(parse_count(text, {1, kMostTokens}, "--chunk"), sizes_.tokens);
      if (std::find(chunks.begin(), chunks.end(), chunk) == chunks.end()) {
        chunks.push_back(chunk);
      }
    }
    for (const Index chunk : chunks) {
      Variant variant;
      variant.chunk = chunk;
      try {
        const std::size_t before = free_bytes(device_);
        variant.arena = std::make_unique<Arena>(device_, ArenaMode::allocate);
        variant.loss = std::make_unique<FusedLinearCrossEntropy>(
            kernels_, *variant.arena, dtype_, sizes_.vocab, sizes_.hidden, chunk, loss_options());
        variant.own_bytes =
            variant.arena->total_bytes(MemoryKind::device) + workspace_.size_bytes();
        variant.card_bytes = before - free_bytes(device_) + workspace_.size_bytes();
        run_variant(variant, 0, sizes_.tokens);
        stream_.synchronize();
      } catch (const DeviceError& error) {
        variant.failure = error.what();
        variant.loss.reset();
      }
      variants_.push_back(std::move(variant));
    }
  }

  void make_floor() {
    if (options_.floor != "on") {
      return;
    }
    const Index stride = logits_stride(sizes_.vocab, dtype_);
    const std::size_t wanted =
        static_cast<std::size_t>(sizes_.tokens * stride + sizes_.vocab * sizes_.hidden) *
        size_in_bytes(dtype_);
    if (device_.kind == DeviceKind::cuda && wanted + wanted / 10 > free_bytes(device_)) {
      fmt::print("no room for the logits of the three products: no floor\n");
      return;
    }
    floor_.emplace();
    floor_->logits = empty(dtype_, {sizes_.tokens, stride});
    floor_->d_weight = empty(dtype_, {sizes_.vocab, sizes_.hidden});
    time_floor(1);
    *floor_ = {.logits = std::move(floor_->logits),
               .d_weight = std::move(floor_->d_weight),
               .logits_seconds = {},
               .hidden_seconds = {},
               .weight_seconds = {},
               .all_seconds = {}};
  }

  struct Product {
    Index m;
    Index n;
    Index k;
    Transpose transpose_a;
    Transpose transpose_b;
    ConstTensorView a;
    ConstTensorView b;
    TensorView d;
    float beta = 0;
  };
  void multiply(const Product& p) {
    const Index stride = logits_stride(sizes_.vocab, dtype_);
    const auto ld = [&](Index columns) { return columns == sizes_.vocab ? stride : columns; };
    kernels_.gemm({.m = p.m,
                   .n = p.n,
                   .k = p.k,
                   .transpose_a = p.transpose_a,
                   .transpose_b = p.transpose_b,
                   .a = p.a,
                   .lda = ld(p.transpose_a == Transpose::no ? p.k : p.m),
                   .b = p.b,
                   .ldb = p.transpose_b == Transpose::no ? p.n : p.k,
                   .beta = p.beta,
                   .c = p.beta == 0 ? ConstTensorView{} : ConstTensorView{p.d},
                   .bias = {},
                   .d = p.d,
                   .ldd = ld(p.n),
                   .workspace = workspace_.view()},
                  stream_);
  }
  void multiply_logits(Index rows, TensorView logits) {
    multiply({.m = rows,
              .n = sizes_.vocab,
              .k = sizes_.hidden,
              .transpose_a = Transpose::no,
              .transpose_b = Transpose::yes,
              .a = hidden_.view().slice(0, rows * sizes_.hidden),
              .b = weight_.view(),
              .d = logits});
  }
  void multiply_hidden(Index rows, const ConstTensorView& logits) {
    multiply({.m = rows,
              .n = sizes_.hidden,
              .k = sizes_.vocab,
              .transpose_a = Transpose::no,
              .transpose_b = Transpose::no,
              .a = logits,
              .b = weight_.view(),
              .d = d_hidden_.view().slice(0, rows * sizes_.hidden)});
  }
  void multiply_weight(Index rows, const ConstTensorView& logits, TensorView d_weight, float beta) {
    multiply({.m = sizes_.vocab,
              .n = sizes_.hidden,
              .k = rows,
              .transpose_a = Transpose::yes,
              .transpose_b = Transpose::no,
              .a = logits,
              .b = hidden_.view().slice(0, rows * sizes_.hidden),
              .d = d_weight,
              .beta = beta});
  }

  // Events around each product.
  void time_floor(int times) {
    Floor& floor = *floor_;
    for (int i = 0; i < times; ++i) {
      std::vector<Event> marks;
      marks.reserve(4);
      for (int k = 0; k < 4; ++k) {
        marks.emplace_back(device_, "bench.mark");
      }
      marks[0].record(stream_);
      multiply_logits(sizes_.tokens, floor.logits.view());
      marks[1].record(stream_);
      multiply_hidden(sizes_.tokens, floor.logits.view());
      marks[2].record(stream_);
      multiply_weight(sizes_.tokens, floor.logits.view(), floor.d_weight.view(), 0);
      marks[3].record(stream_);
      stream_.synchronize();
      floor.logits_seconds.push_back(marks[1].seconds_since(marks[0]));
      floor.hidden_seconds.push_back(marks[2].seconds_since(marks[1]));
      floor.weight_seconds.push_back(marks[3].seconds_since(marks[2]));
      floor.all_seconds.push_back(marks[3].seconds_since(marks[0]));
    }
  }

  void time_all() {
    for (int round = 0; round <= options_.rounds; ++round) {  // the first only warms up
      if (floor_) {
        time_floor(kTimedOfRound);
        if (round == 0) {
          floor_->logits_seconds.clear();
          floor_->hidden_seconds.clear();
          floor_->weight_seconds.clear();
          floor_->all_seconds.clear();
        }
      }
      for (Variant& variant : variants_) {
        if (!variant.loss) {
          continue;
        }
        for (int i = 0; i < kTimedOfRound; ++i) {
          Event start(device_, "bench.start");
          Event end(device_, "bench.end");
          start.record(stream_);
          run_variant(variant, 0, sizes_.tokens);
          end.record(stream_);
          stream_.synchronize();
          if (round > 0) {
            variant.seconds.push_back(end.seconds_since(start));
          }
        }
      }
    }
  }

  void print_floor(double flops) {
    if (!floor_) {
      return;
    }
    const FlopUnit unit = flop_unit(device_);
    floor_seconds_ = median(floor_->all_seconds);
    fmt::print(
        "three products: {:.2f} ms (fastest {:.2f}; logits {:.2f}, d_hidden {:.2f}, d_weight "
        "{:.2f}), {:.1f} {}\n",
        floor_seconds_ * kMilli,
        *std::min_element(floor_->all_seconds.begin(), floor_->all_seconds.end()) * kMilli,
        median(floor_->logits_seconds) * kMilli, median(floor_->hidden_seconds) * kMilli,
        median(floor_->weight_seconds) * kMilli, flops / floor_seconds_ / unit.flops, unit.name);
  }

  void print_variants() {
    fmt::print("{:>6}{:>10}{:>10}{:>8}{:>8}{:>8}{:>10}", "chunk", "ms", "fastest", "floors", "GB",
               "on card", "beyond");
    if (reference_) {
      fmt::print("{:>10}{:>10}{:>10}{:>10}{:>10}", "loss", "d_hidden", "true", "d_weight", "true");
      if (terms_.bias) {
        fmt::print("{:>10}{:>10}", "d_bias", "true");
      }
    }
    fmt::print("\n");
    for (Variant& variant : variants_) {
      if (!variant.loss) {
        fmt::print("{:>6} {}\n", variant.chunk, variant.failure);
        continue;
      }
      const double seconds = median(variant.seconds);
      fmt::print(
          "{:>6}{:>10.2f}{:>10.2f}{:>8}{:>8.3f}{:>8}{:>10.3f}", variant.chunk, seconds * kMilli,
          *std::min_element(variant.seconds.begin(), variant.seconds.end()) * kMilli,
          floor_ ? fmt::format("{:.3f}", seconds / floor_seconds_) : "-",
          static_cast<double>(base_bytes_ + variant.own_bytes) / kGiga,
          device_.kind == DeviceKind::cpu
              ? "-"
              : fmt::format("{:.3f}",
                            static_cast<double>(base_card_bytes_ + variant.card_bytes) / kGiga),
          static_cast<double>(variant.own_bytes) / kGiga);
      if (reference_) {
        print_errors(variant);
      }
      fmt::print("\n");
      (void)std::fflush(stdout);
    }
  }

  void print_errors(Variant& variant) {
    run_variant(variant, 0, sizes_.tokens);
    FlceReference::Result result =
        reference_->read(loss_.view(), d_hidden_.view(), d_weight_.view(), optional(d_bias_));
    // The gradients of the logits as this variant made them, chunk after chunk: each call leaves
    // its chunk's in the buffer, and writes over d_weight, which has been read.
    for (Index begin = 0; begin < sizes_.tokens; begin += variant.chunk) {
      const Index count = std::min(variant.chunk, sizes_.tokens - begin);
      run_variant(variant, begin, count);
      reference_->read_logits_gradient(begin, count, variant.loss->chunk_logits(), result);
    }
    const FlceReference::Errors errors = reference_->compare(result);
    fmt::print("{:>10.1e}{:>10.1e}{:>10.1e}{:>10.1e}{:>10.1e}", errors.loss, errors.d_hidden,
               errors.d_hidden_true, errors.d_weight, errors.d_weight_true);
    if (terms_.bias) {
      fmt::print("{:>10.1e}{:>10.1e}", errors.d_bias, errors.d_bias_true);
    }
  }

  // What each part of a chunk costs, times the number of chunks.
  void print_parts() {
    fmt::print("\nparts alone, ms times the number of chunks\n");
    fmt::print("{:>6}{:>10}{:>10}{:>10}{:>12}{:>12}{:>12}\n", "chunk", "logits", "softmax",
               "d_hidden", "d_weight =", "d_weight +=", "same type");
    const Index stride = logits_stride(sizes_.vocab, dtype_);
    Index last = 0;
    DeviceBuffer same_type = empty(dtype_, {sizes_.vocab, sizes_.hidden});
    zero_async(same_type.view(), stream_);
    for (Variant& variant : variants_) {
      const Index rows = variant.chunk;
      if (rows == last || !variant.loss) {
        continue;
      }
      last = rows;
      const TensorView logits = variant.loss->chunk_logits();
      const double chunks = static_cast<double>(sizes_.tokens) / static_cast<double>(rows) * kMilli;
      const auto timed = [&](const std::function<void(int)>& work) {
        const Timing timing = time_work(stream_, {.warm_up = 2, .timed = 7}, {}, work);
        return timing.median_seconds * chunks;
      };
      const double logits_ms = timed([&](int) { multiply_logits(rows, logits); });
      const double softmax_ms = timed([&](int) {
        kernels_.softmax_cross_entropy(
            {.logits = logits.slice(0, rows * stride).reshaped({rows, stride}),
             .vocab = sizes_.vocab,
             .ld = stride,
             .targets = targets_.view().slice(0, rows),
             .ignore_target = -1,
             .weights =
                 terms_.weights ? std::as_const(weights_).view().slice(0, rows) : ConstTensorView{},
             .terms = loss_options().terms,
             .gradient = LogitsGradient::write,
             .loss = loss_.view().slice(0, rows),
             .correct = {},
             .scale = scale_.view()},
            stream_);
      });
      const double hidden_ms = timed([&](int) { multiply_hidden(rows, logits); });
      const double written_ms =
          timed([&](int) { multiply_weight(rows, logits, d_weight_.view(), 0); });
      const double added_ms =
          timed([&](int) { multiply_weight(rows, logits, d_weight_.view(), 1); });
      const double same_ms =
          timed([&](int) { multiply_weight(rows, logits, same_type.view(), 1); });
      fmt::print("{:>6}{:>10.2f}{:>10.2f}{:>10.2f}{:>12.2f}{:>12.2f}{:>12.2f}\n", rows, logits_ms,
                 softmax_ms, hidden_ms, written_ms, added_ms, same_ms);
      (void)std::fflush(stdout);
    }
  }

  const Options& options_;
  Terms terms_;
  Device device_;
  DType dtype_;
  Sizes sizes_;
  Stream stream_;
  const KernelTable& kernels_;
  std::vector<std::int32_t> targets_host_;
  std::vector<float> weights_host_;  // empty: all 1
  DeviceBuffer workspace_;
  DeviceBuffer hidden_;
  DeviceBuffer weight_;
  DeviceBuffer targets_;
  DeviceBuffer scale_;
  DeviceBuffer loss_;
  DeviceBuffer d_hidden_;
  DeviceBuffer d_weight_;
  DeviceBuffer bias_;  // these three only where --terms names them
  DeviceBuffer d_bias_;
  DeviceBuffer weights_;             // per token
  std::size_t base_bytes_ = 0;       // of inputs, weight, gradients
  std::size_t base_card_bytes_ = 0;  // that the card has less for them
  std::vector<Variant> variants_;
  std::optional<Floor> floor_;
  double floor_seconds_ = 0;
  std::optional<FlceReference> reference_;
};

void require_word(const std::string& value, const char* name, const char* one, const char* two) {
  if (value != one && value != two) {
    throw ConfigError(fmt::format("{} is '{}': give {} or {}", name, value, one, two),
                      TESSERA_HERE);
  }
}

int run(const Arguments& arguments) {
  namespace po = boost::program_options;
  Options options;
  po::options_description description = option_group("Options");
  options.device.add_to(description);
  const auto text = [](std::string& value) { return po::value(&value)->default_value(value); };
  description.add_options()("dtype", po::value(&options.dtype),
                            "f32 or bf16 (default: what the device trains in)")(
      "tokens", po::value(&options.tokens),
      "rows, a,b,c (default: 8192 on a GPU, 2048 on the CPU)")(
      "vocab", po::value(&options.vocab), "a,b,c (default: 128256 on a GPU, 32000 on the CPU)")(
      "hidden", po::value(&options.hidden), "a,b,c (default: 4096 on a GPU, 512 on the CPU)")(
      "chunk", text(options.chunks), "rows of logits that exist at a time, a,b,c")(
      "accumulate", text(options.accumulate), "d_weight in f32, or input: in the inputs' type")(
      "terms", text(options.terms),
      "none, all, or some of bias,soft-cap,weights: a bias on the logits, their soft cap, and a "
      "weight for each token")(
      "tuning", po::value(&options.tuning),
      "on: time cuBLASLt's algorithms and take the fastest, for the floor too (default: on with a "
      "GPU, where it can be turned off)")("check", text(options.check), "on: errors against f64")(
      "parts", text(options.parts), "on: what each part of a chunk costs alone")(
      "floor", text(options.floor), "off: without the three products, whose logits need room")(
      "gemm-table", text(options.table), "on: print the algorithms that were chosen")(
      "rounds", count_value(options.rounds, {1, kMostRepetitions}, "rounds"),
      "over the floor and all variants, two timed runs of each");
  if (!read_options(arguments,
                    "bench flce [options]\n\nTimes the fused output layer and cross entropy, "
                    "forward and backward, for chunk sizes,\nbeside its three bare "
                    "GEMMs.",
                    description)) {
    return 0;
  }
  const Device device = options.device.use();
  const bool on_gpu = device.kind == DeviceKind::cuda;
  const auto or_default = [on_gpu](std::string& value, const char* gpu, const char* cpu) {
    if (value.empty()) {
      value = on_gpu ? gpu : cpu;
    }
  };
  or_default(options.tokens, "8192", "2048");
  or_default(options.vocab, "128256", "32000");
  or_default(options.hidden, "4096", "512");
  or_default(options.tuning, "on", "off");
  require_word(options.accumulate, "--accumulate", "f32", "input");
  require_word(options.tuning, "--tuning", "on", "off");
  require_word(options.check, "--check", "on", "off");
  require_word(options.parts, "--parts", "on", "off");
  require_word(options.floor, "--floor", "on", "off");
  require_word(options.table, "--gemm-table", "on", "off");
  if (options.tuning == "on") {
    set_gemm_tuning(device, GemmTuning::on);
  }
  fmt::print("{}\n\n", describe(device));
  for (const std::string& hidden : split_list(options.hidden, "--hidden")) {
    for (const std::string& vocab : split_list(options.vocab, "--vocab")) {
      for (const std::string& tokens : split_list(options.tokens, "--tokens")) {
        FlceBench(options, device, element_type(options.dtype, device),
                  {.tokens = parse_count(tokens, {1, kMostTokens}, "--tokens"),
                   .vocab = parse_count(vocab, {2, kMostTokens}, "--vocab"),
                   .hidden = parse_count(hidden, {1, kMostExtent}, "--hidden")})
            .run();
      }
    }
  }
  if (options.table == "on") {
    fmt::print("{}", gemm_table(device));
  }
  return 0;
}

const Benchmark kBenchmark("flce", "output layer and cross entropy, fused, beside its products",
                           &run);

}  // namespace
}  // namespace tessera::bench
