// bench kernels: the kernels that are bound by memory, as a share of the device's own copy rate.
//
// Bytes are those that must move: each input once, each output once. Every kernel works on two sets
// of tensors in turn, each far larger than any cache.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "jobs/bench/bench.h"
#include "jobs/bench/measure.h"
#include "kernels/base/error.h"
#include "kernels/base/fixed_point.h"
#include "kernels/base/random.h"
#include "kernels/device/device_backend.h"
#include "kernels/kernel_table.h"
#include "runtime/run/command_words.h"

namespace tessera::bench {
namespace {

constexpr double kMega = 1e6;
constexpr double kGiga = 1e9;
constexpr double kMicro = 1e6;
constexpr int kSets = 2;
constexpr float kEps = 1e-6F;

struct Options {
  DeviceOptions device;
  std::string dtype;
  std::string only;
  Index megabytes = 0;
  Repetitions repetitions;
};

/// Buffers of one set; moves with its owner, does not move in memory.
using Buffers = std::vector<DeviceBuffer>;

class KernelBench {
 public:
  KernelBench(const Options& options, Device device)
      : options_(options),
        device_(device),
        dtype_(element_type(options.dtype, device)),
        element_bytes_(static_cast<Index>(size_in_bytes(dtype_))),
        stream_(device, StreamPriority::normal, "bench"),
        kernels_(kernel_table(device.kind)),
        // a card's copy rate needs far more than its cache; a CPU's is known after less
        budget_(static_cast<Index>(kMega) * (options.megabytes != 0            ? options.megabytes
                                             : device.kind == DeviceKind::cuda ? kDeviceMegabytes
                                                                               : kHostMegabytes)) {}

  void run() {
    copy_rate_ =
        copy_bytes_per_second(stream_, static_cast<std::size_t>(budget_ / 2), options_.repetitions);
    fmt::print("{}, {}, copy {:.0f} GB/s (read + write)\n\n", describe(device_), dtype_name(dtype_),
               copy_rate_ / kGiga);
    fmt::print("{:<26} {:<28} {:>8} {:>10} {:>10} {:>8}\n", "kernel", "shape", "MB", "us", "GB/s",
               "of copy");
    adamw();
    accumulate();
    casts();
    widen_nf4();
    reductions();
    for (const Index width : {1024, 2048, 2560, 4096, 8192}) {
      rms_norm(width);
    }
    for (const Index width : {3072, 9728}) {
      swiglu(width);
    }
    rotary({.query_heads = 16, .kv_heads = 8, .head_dim = 128, .normed = true});
    rotary({.query_heads = 32, .kv_heads = 8, .head_dim = 128, .normed = true});
    rotary({.query_heads = 12, .kv_heads = 12, .head_dim = 64, .normed = true});
    rotary({.query_heads = 14, .kv_heads = 2, .head_dim = 64, .normed = false});
    adapters();
    for (const Index width : {1024, 2560}) {
      embedding(width);
    }
    for (const Index vocab : {50257, 128256, 151936}) {
      cross_entropy(vocab);
    }
  }

 private:
  static constexpr Index kDeviceMegabytes = 512;
  static constexpr Index kHostMegabytes = 64;

  [[nodiscard]] bool wants(const std::string& name) const {
    return options_.only.empty() || name.find(options_.only) != std::string::npos;
  }

  [[nodiscard]] static std::string millions(Index count) {
    return fmt::format("{:.1f} M", static_cast<double>(count) / kMega);
  }

  /// Rows that move about the wanted bytes at `bytes_of_row` each.
  [[nodiscard]] Index rows_of(Index bytes_of_row) const {
    return std::max(budget_ / bytes_of_row, Index{1});
  }

  [[nodiscard]] DeviceBuffer random(DType dtype, const Shape& shape, double deviation = 1) {
    return random_buffer(stream_, dtype, shape, deviation);
  }
  [[nodiscard]] DeviceBuffer empty(DType dtype, const Shape& shape) {
    DeviceBuffer buffer(device_, MemoryKind::device, dtype, shape, "bench");
    poison_async(buffer.view(), stream_);
    return buffer;
  }
  [[nodiscard]] DeviceBuffer zeros(DType dtype, const Shape& shape) {
    DeviceBuffer buffer(device_, MemoryKind::device, dtype, shape, "bench");
    zero_async(buffer.view(), stream_);
    return buffer;
  }

  template <typename Make>
  [[nodiscard]] static std::vector<Buffers> sets_of(const Make& make) {
    std::vector<Buffers> sets;
    sets.reserve(kSets);
    for (int i = 0; i < kSets; ++i) {
      sets.push_back(make());
    }
    return sets;
  }

  void measure(const std::string& name, const std::string& shape, Index bytes,
               const std::function<void(int)>& prepare, const std::function<void(int)>& work) {
    const Timing timing =
        time_work(stream_, options_.repetitions,
                  prepare ? [&prepare](int i) { prepare(i % kSets); } : std::function<void(int)>{},
                  [&work](int i) { work(i % kSets); });
    const double rate = static_cast<double>(bytes) / timing.median_seconds;
    fmt::print("{:<26} {:<28} {:>8.1f} {:>10.1f} {:>10.0f} {:>7.1f}%\n", name, shape,
               static_cast<double>(bytes) / kMega, timing.median_seconds * kMicro, rate / kGiga,
               100.0 * rate / copy_rate_);
    (void)std::fflush(stdout);
  }

  void adamw() {
    if (!wants("adamw")) {
      return;
    }
    const Index bytes = 7 * Index{sizeof(float)} + element_bytes_;
    const Index count = rows_of(bytes);
    std::vector<Buffers> sets = sets_of([&] {
      Buffers b;
      b.push_back(random(DType::f32, {count}, 0.02));  // master
      b.push_back(random(DType::f32, {count}, 1e-3));  // m
      b.push_back(zeros(DType::f32, {count}));         // v: must not be negative
      b.push_back(random(DType::f32, {count}, 1e-3));  // gradient
      b.push_back(empty(dtype_, {count}));
      return b;
    });
    measure("adamw", millions(count), count * bytes, {}, [&](int set) {
      Buffers& b = sets[static_cast<std::size_t>(set)];
      kernels_.adamw({.master = b[0].view(),
                      .m = b[1].view(),
                      .v = b[2].view(),
                      .grad = b[3].view(),
                      .param = b[4].view(),
                      .lr = 3e-4F,
                      .beta1 = 0.9F,
                      .beta2 = 0.95F,
                      .bias_correction1 = 0.5F,
                      .bias_correction2 = 0.5F,
                      .eps = 1e-8F,
                      .decay = 0.1F,
                      .grad_scale = 0.7F},
                     stream_);
    });
  }

  void accumulate() {
    if (!wants("accumulate")) {
      return;
    }
    for (const bool is_first : {true, false}) {
      constexpr Index kSlices = 2;
      constexpr Index kShardMultiple = 1024;  // elements: slices of a unit are cut so
      const Index bytes = kSlices * element_bytes_ + Index{sizeof(float)} * (is_first ? 1 : 2);
      const Index count = rows_of(bytes) / kShardMultiple * kShardMultiple;
      std::vector<Buffers> sets = sets_of([&] {
        Buffers b;
        b.push_back(random(dtype_, {kSlices, count}));
        b.push_back(random(DType::f32, {count}));
        return b;
      });
      measure(is_first ? "accumulate, written" : "accumulate, added",
              "2 slices of " + millions(count), count * bytes, {}, [&](int set) {
                Buffers& b = sets[static_cast<std::size_t>(set)];
                kernels_.accumulate({.slices = b[0].view(),
                                     .sum = b[1].view(),
                                     .partial = {},
                                     .first = is_first ? 0 : kSlices,
                                     .count = kSlices,
                                     .total = 2 * kSlices,
                                     .reduce_group = 1},
                                    stream_);
              });
    }
  }

  void cast(DType from, DType to) {
    const auto bytes = static_cast<Index>(size_in_bytes(from) + size_in_bytes(to));
    const Index count = rows_of(bytes);
    std::vector<Buffers> sets = sets_of([&] {
      Buffers b;
      b.push_back(random(from, {count}));
      b.push_back(empty(to, {count}));
      return b;
    });
    measure(fmt::format("cast {} to {}", dtype_name(from), dtype_name(to)), millions(count),
            count * bytes, {}, [&](int set) {
              Buffers& b = sets[static_cast<std::size_t>(set)];
              kernels_.cast_rows({.from = b[0].view(),
                                  .to = b[1].view(),
                                  .rows = 1,
                                  .columns = count,
                                  .from_stride = count,
                                  .to_stride = count},
                                 stream_);
            });
  }

  void casts() {
    if (wants("cast")) {
      cast(DType::f32, DType::bf16);
      cast(DType::bf16, DType::f32);
    }
  }

  /// A matrix of normal numbers in nf4, whose million elements repeat.
  [[nodiscard]] static std::vector<std::byte> packed_matrix(Index count) {
    constexpr Index kPattern = Index{1} << 20;
    constexpr std::uint64_t kSeed = 5;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (Index i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      values[at] = i < kPattern
                       ? static_cast<float>(normal(kSeed, 0, static_cast<std::uint64_t>(i)))
                       : values[at - static_cast<std::size_t>(kPattern)];
    }
    std::vector<std::byte> packed(static_cast<std::size_t>(nf4_parts(count).bytes));
    quantize_nf4("random numbers", values, packed, std::thread::hardware_concurrency());
    return packed;
  }

  void widen_nf4() {
    if (!wants("widen_nf4")) {
      return;
    }
    const Index count = 2 * rows_of(1 + 2 * element_bytes_);  // a byte of codes for two
    const std::vector<std::byte> packed = packed_matrix(count);
    const ConstTensorView host = {packed.data(), DType::u8, {std::ssize(packed)}, {}};
    std::vector<Buffers> sets = sets_of([&] {
      Buffers b;
      b.push_back(empty(DType::u8, host.shape));
      copy_async(host, b[0].view(), stream_);
      b.push_back(empty(dtype_, {count}));
      stream_.synchronize();
      return b;
    });
    measure("widen_nf4", millions(count), std::ssize(packed) + count * element_bytes_, {},
            [&](int set) {
              Buffers& b = sets[static_cast<std::size_t>(set)];
              kernels_.widen_nf4({.packed = b[0].view(), .out = b[1].view()}, stream_);
            });
  }

  void reductions() {
    DeviceBuffer words = zeros(DType::i64, {kFixedPointWords});
    if (wants("sum_of_squares")) {
      const Index count = rows_of(sizeof(float));
      std::vector<Buffers> sets = sets_of([&] {
        Buffers b;
        b.push_back(random(DType::f32, {count}));
        return b;
      });
      measure("sum_of_squares", millions(count), count * Index{sizeof(float)}, {}, [&](int set) {
        kernels_.sum_of_squares(
            {.values = sets[static_cast<std::size_t>(set)][0].view(), .words = words.view()},
            stream_);
      });
    }
    if (wants("loss_sum")) {
      constexpr Index kLosses = 131072;
      const DeviceBuffer losses = random(DType::f32, {kLosses});
      measure("loss_sum", fmt::format("{}", kLosses), kLosses * Index{sizeof(float)}, {}, [&](int) {
        kernels_.loss_sum({.losses = losses.view(), .words = words.view()}, stream_);
      });
    }
    if (wants("column_sum")) {
      constexpr Index kColumns = 4096;
      const Index rows = rows_of(kColumns * element_bytes_);
      DeviceBuffer out = empty(dtype_, {kColumns});
      DeviceBuffer workspace = empty(DType::f32, {column_sum_workspace(rows, kColumns)});
      std::vector<Buffers> sets = sets_of([&] {
        Buffers b;
        b.push_back(random(dtype_, {rows, kColumns}));
        return b;
      });
      measure("column_sum", fmt::format("{} x {}", rows, kColumns),
              rows * kColumns * element_bytes_, {}, [&](int set) {
                kernels_.column_sum({.x = sets[static_cast<std::size_t>(set)][0].view(),
                                     .out = out.view(),
                                     .workspace = workspace.view()},
                                    stream_);
              });
    }
  }

  void rms_norm(Index width) {
    if (!wants("rms_norm")) {
      return;
    }
    const DeviceBuffer gain = random(dtype_, {width});
    DeviceBuffer d_gain = empty(dtype_, {width});
    constexpr Index kForwardTensors = 2;
    constexpr Index kBackwardTensors = 5;
    const Index rows = rows_of(kBackwardTensors * width * element_bytes_);
    const Shape shape = {rows, width};
    const Index bytes = rows * width * element_bytes_;
    DeviceBuffer workspace = empty(DType::f32, {column_sum_workspace(rows, width)});
    std::vector<Buffers> sets = sets_of([&] {
      Buffers b;
      b.push_back(random(dtype_, shape));  // x
      b.push_back(random(dtype_, shape));  // d_y
      b.push_back(random(dtype_, shape));  // residual, and d_x
      b.push_back(empty(dtype_, shape));   // y
      return b;
    });
    const std::string text = fmt::format("{} x {}", rows, width);
    measure("rms_norm forward", text, kForwardTensors * bytes, {}, [&](int set) {
      Buffers& b = sets[static_cast<std::size_t>(set)];
      kernels_.rms_norm_forward(
          {.x = b[0].view(), .gain = gain.view(), .y = b[3].view(), .eps = kEps}, stream_);
    });
    measure("rms_norm backward", text, kBackwardTensors * bytes, {}, [&](int set) {
      Buffers& b = sets[static_cast<std::size_t>(set)];
      kernels_.rms_norm_backward({.x = b[0].view(),
                                  .gain = gain.view(),
                                  .d_y = b[1].view(),
                                  .residual = b[2].view(),
                                  .d_x = b[2].view(),
                                  .y = b[3].view(),
                                  .d_gain = d_gain.view(),
                                  .workspace = workspace.view(),
                                  .eps = kEps},
                                 stream_);
    });
    constexpr Index kFewTensors = 3;
    measure("rms_norm backward, bare", text, kFewTensors * bytes, {}, [&](int set) {
      Buffers& b = sets[static_cast<std::size_t>(set)];
      kernels_.rms_norm_backward({.x = b[0].view(),
                                  .gain = gain.view(),
                                  .d_y = b[1].view(),
                                  .residual = {},
                                  .d_x = b[2].view(),
                                  .y = {},
                                  .d_gain = d_gain.view(),
                                  .workspace = workspace.view(),
                                  .eps = kEps},
                                 stream_);
    });
  }

  void swiglu(Index width) {
    if (!wants("swiglu")) {
      return;
    }
    constexpr Index kForwardTensors = 3;  // of [N, F]
    constexpr Index kBackwardTensors = 6;
    const Index rows = rows_of(kBackwardTensors * width * element_bytes_);
    const Index bytes = rows * width * element_bytes_;
    std::vector<Buffers> sets = sets_of([&] {
      Buffers b;
      b.push_back(random(dtype_, {rows, 2 * width}));
      b.push_back(random(dtype_, {rows, width}));
      b.push_back(empty(dtype_, {rows, 2 * width}));
      b.push_back(empty(dtype_, {rows, width}));
      return b;
    });
    const std::string text = fmt::format("{} x {}", rows, width);
    measure("swiglu forward", text, kForwardTensors * bytes, {}, [&](int set) {
      Buffers& b = sets[static_cast<std::size_t>(set)];
      kernels_.swiglu_forward({.gate_up = b[0].view(), .act = b[3].view()}, stream_);
    });
    measure("swiglu backward", text, kBackwardTensors * bytes, {}, [&](int set) {
      Buffers& b = sets[static_cast<std::size_t>(set)];
      kernels_.swiglu_backward({.gate_up = b[0].view(),
                                .d_act = b[1].view(),
                                .d_gate_up = b[2].view(),
                                .act = b[3].view()},
                               stream_);
    });
  }

  struct RotaryCase {
    Index query_heads;
    Index kv_heads;
    Index head_dim;
    bool normed;
  };

  void rotary(const RotaryCase& c) {
    if (!wants("rotary")) {
      return;
    }
    constexpr Index kSequence = 4096;
    const Index rotated = (c.query_heads + c.kv_heads) * c.head_dim;
    const Index row = rotated + c.kv_heads * c.head_dim;
    // read and written, in place or with the norm apart; its backward pass reads what came in
    constexpr Index kForwardTensors = 2;
    const Index backward_tensors = c.normed ? 3 : 2;
    const Index tokens = rows_of(backward_tensors * rotated * element_bytes_);
    const RotaryShape shape = {.tokens = tokens,
                               .sequence = kSequence,
                               .query_heads = c.query_heads,
                               .kv_heads = c.kv_heads,
                               .head_dim = c.head_dim};
    const DeviceBuffer cosine = random(DType::f32, {kSequence, c.head_dim / 2}, 0.7);
    const DeviceBuffer sine = random(DType::f32, {kSequence, c.head_dim / 2}, 0.7);
    DeviceBuffer q_gain = random(dtype_, {c.head_dim});
    DeviceBuffer k_gain = random(dtype_, {c.head_dim});
    DeviceBuffer d_gain = empty(dtype_, {2 * c.head_dim});
    DeviceBuffer workspace = empty(DType::f32, {rotary_workspace(shape)});
    std::vector<Buffers> sets = sets_of([&] {
      Buffers b;
      b.push_back(random(dtype_, {tokens, row}));
      b.push_back(random(dtype_, {tokens, row}));
      return b;
    });
    const auto optional = [&c](const TensorView& view) { return c.normed ? view : TensorView{}; };
    const std::string text = fmt::format("{} x {}/{} x {}{}", tokens, c.query_heads, c.kv_heads,
                                         c.head_dim, c.normed ? ", norm" : "");
    const Index bytes = tokens * rotated * element_bytes_;
    measure("rotary forward", text, kForwardTensors * bytes, {}, [&](int set) {
      Buffers& b = sets[static_cast<std::size_t>(set)];
      kernels_.rotary_forward({.shape = shape,
                               .qkv = b[0].view(),
                               .cos = cosine.view(),
                               .sin = sine.view(),
                               .q_gain = optional(q_gain.view()),
                               .k_gain = optional(k_gain.view()),
                               .rotated_qk = optional(b[1].view().slice(0, tokens * rotated)),
                               .eps = kEps},
                              stream_);
    });
    measure("rotary backward", text, backward_tensors * bytes, {}, [&](int set) {
      Buffers& b = sets[static_cast<std::size_t>(set)];
      kernels_.rotary_backward({.shape = shape,
                                .d_qkv = b[0].view(),
                                .cos = cosine.view(),
                                .sin = sine.view(),
                                .q_gain = optional(q_gain.view()),
                                .k_gain = optional(k_gain.view()),
                                .qkv = optional(b[1].view()),
                                .d_q_gain = d_gain.view().slice(0, c.head_dim),
                                .d_k_gain = d_gain.view().slice(c.head_dim, 2 * c.head_dim),
                                .workspace = workspace.view(),
                                .eps = kEps},
                               stream_);
    });
  }

  /// Gradients of low-rank adapters beside Qwen3-8B's layers, and the two products that they were.
  void adapters() {
    if (!wants("adapter")) {
      return;
    }
    struct Part {
      Index out;
      Index ld;
    };
    constexpr Index kRank = 16;
    constexpr Index kTokens = 8192;
    DeviceBuffer workspace =
        empty(DType::u8, {static_cast<Index>(gemm_workspace_bytes(device_.kind))});
    // larger than the cache, which then holds nothing of d_y, small as a part of it may be
    const auto clear = [&](int) { poison_async(workspace.view(), stream_); };
    for (const Part& part :
         {Part{1024, 6144}, Part{4096, 6144}, Part{4096, 4096}, Part{12288, 24576}}) {
      const Index tokens = device_.kind == DeviceKind::cuda
                               ? kTokens
                               : std::min(rows_of(part.ld * element_bytes_), kTokens);
      std::vector<Buffers> sets = sets_of([&] {
        Buffers b;
        b.push_back(random(dtype_, {tokens, part.ld}));
        b.push_back(random(dtype_, {part.out, kRank}));
        b.push_back(random(dtype_, {tokens, kRank}));
        b.push_back(empty(dtype_, {tokens, kRank}));
        b.push_back(empty(dtype_, {part.out, kRank}));
        return b;
      });
      const auto args_of = [&](int set) {
        Buffers& b = sets[static_cast<std::size_t>(set)];
        return AdapterGradientsArgs{.tokens = tokens,
                                    .out = part.out,
                                    .rank = kRank,
                                    .d_y = b[0].view(),
                                    .ld_y = part.ld,
                                    .b = b[1].view(),
                                    .hidden = b[2].view(),
                                    .d_hidden = b[3].view(),
                                    .ld_hidden = kRank,
                                    .d_b = b[4].view(),
                                    .workspace = workspace.view(),
                                    .scale = 2};
      };
      const Index bytes = element_bytes_ * (tokens * part.out + 2 * (tokens + part.out) * kRank);
      const std::string text = fmt::format("{} x {} of {}", tokens, part.out, part.ld);
      measure("adapter gradients", text, bytes, clear,
              [&](int set) { kernels_.adapter_gradients(args_of(set), stream_); });
      measure("adapter, two products", text, bytes, clear,
              [&](int set) { adapter_gradients_by_gemms(args_of(set), *kernels_.gemm, stream_); });
    }
  }

  /// Tokens whose frequencies fall off as those of words do: number k about as 1 / k.
  [[nodiscard]] static std::vector<std::int32_t> word_like_tokens(Index count, Index vocab) {
    constexpr std::uint64_t kSeed = 3;
    std::vector<std::int32_t> tokens;
    for (Index i = 0; i < count; ++i) {
      const double u = uniform_from(philox(kSeed, 0, static_cast<std::uint64_t>(i))[0]);
      const double rank = std::exp(u * std::log(static_cast<double>(vocab)));
      tokens.push_back(static_cast<std::int32_t>(std::min(static_cast<Index>(rank), vocab - 1)));
    }
    return tokens;
  }

  void embedding(Index width) {
    if (!wants("embedding")) {
      return;
    }
    constexpr Index kVocab = 151936;
    const Index vocab = device_.kind == DeviceKind::cuda ? kVocab : kVocab / 16;
    const Index count = rows_of(2 * width * element_bytes_);
    const std::vector<std::int32_t> tokens = word_like_tokens(count, vocab);
    std::vector<std::int32_t> order(tokens.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&tokens](std::int32_t a, std::int32_t b) {
      return tokens[static_cast<std::size_t>(a)] < tokens[static_cast<std::size_t>(b)];
    });
    const auto distinct =
        static_cast<Index>(std::set<std::int32_t>(tokens.begin(), tokens.end()).size());
    const DeviceBuffer on_device = integer_buffer(stream_, tokens);
    const DeviceBuffer order_on_device = integer_buffer(stream_, order);
    const DeviceBuffer table = random(dtype_, {vocab, width});
    DeviceBuffer d_table = zeros(DType::f32, {vocab, width});
    DeviceBuffer workspace =
        empty(DType::u8, {static_cast<Index>(embedding_workspace_bytes(count, width))});
    std::vector<Buffers> sets = sets_of([&] {
      Buffers b;
      b.push_back(random(dtype_, {count, width}));
      return b;
    });
    const Index row_bytes = width * element_bytes_;
    const std::string text = fmt::format("{} x {}, {} rows", count, width, distinct);
    measure("embedding forward", text, (count + distinct) * row_bytes, {}, [&](int set) {
      kernels_.embedding_forward({.tokens = on_device.view(),
                                  .order = order_on_device.view(),
                                  .table = table.view(),
                                  .out = sets[static_cast<std::size_t>(set)][0].view()},
                                 stream_);
    });
    measure("embedding backward", text,
            count * row_bytes + 2 * distinct * width * Index{sizeof(float)}, {}, [&](int set) {
              kernels_.embedding_backward({.tokens = on_device.view(),
                                           .order = order_on_device.view(),
                                           .d_out = sets[static_cast<std::size_t>(set)][0].view(),
                                           .d_table = d_table.view(),
                                           .workspace = workspace.view()},
                                          stream_);
            });
  }

  void cross_entropy(Index vocab) {
    if (!wants("cross_entropy")) {
      return;
    }
    constexpr Index kDeviceRows = 2048;
    const Index rows =
        device_.kind == DeviceKind::cuda ? kDeviceRows : rows_of(2 * vocab * element_bytes_);
    constexpr Index kAlign = 8;  // rows begin at multiples of 16 bytes, as the model's do
    const Index ld = (vocab + kAlign - 1) / kAlign * kAlign;
    std::vector<std::int32_t> targets = word_like_tokens(rows, vocab);
    const DeviceBuffer targets_on_device = integer_buffer(stream_, targets);
    const DeviceBuffer scale = random(DType::f32, {1});
    const DeviceBuffer logits = random(dtype_, {rows, ld}, 2);
    DeviceBuffer loss = empty(DType::f32, {rows});
    DeviceBuffer correct = empty(DType::u8, {rows});
    std::vector<Buffers> sets = sets_of([&] {
      Buffers b;
      b.push_back(empty(dtype_, {rows, ld}));
      return b;
    });
    const auto run = [&](int set, LogitsGradient gradient) {
      kernels_.softmax_cross_entropy({.logits = sets[static_cast<std::size_t>(set)][0].view(),
                                      .vocab = vocab,
                                      .ld = ld,
                                      .targets = targets_on_device.view(),
                                      .ignore_target = -1,
                                      .weights = {},
                                      .terms = {},
                                      .gradient = gradient,
                                      .loss = loss.view(),
                                      .correct = correct.view(),
                                      .scale = scale.view()},
                                     stream_);
    };
    // the logits again, then the other set's, so that the cache holds none of what is timed
    const auto restore = [&](int set) {
      copy_async(logits.view(), sets[static_cast<std::size_t>(set)][0].view(), stream_);
      copy_async(logits.view(), sets[static_cast<std::size_t>(1 - set)][0].view(), stream_);
    };
    const std::string text = fmt::format("{} x {}", rows, vocab);
    const Index bytes = rows * vocab * element_bytes_;
    measure("cross_entropy, gradient", text, 2 * bytes, restore,
            [&](int set) { run(set, LogitsGradient::write); });
    measure("cross_entropy, loss only", text, bytes, restore,
            [&](int set) { run(set, LogitsGradient::leave); });
  }

  const Options& options_;
  Device device_;
  DType dtype_;
  Index element_bytes_;
  Stream stream_;
  const KernelTable& kernels_;
  Index budget_;
  double copy_rate_ = 0;
};

int run(const Arguments& arguments) {
  namespace po = boost::program_options;
  Options options;
  po::options_description description = option_group("Options");
  options.device.add_to(description);
  add_measuring_options(description, options.dtype, options.repetitions);
  description.add_options()(
      "megabytes", count_value(options.megabytes, {1, kMostMegabytes}, "megabytes"),
      "bytes that a kernel moves, about (default: 512 on a GPU, 64 on the CPU)")(
      "only", po::value(&options.only), "kernels whose name contains this");
  if (!read_options(arguments,
                    "bench kernels [options]\n\n"
                    "Times the kernels that are bound by memory, and compares with a copy.",
                    description)) {
    return 0;
  }
  KernelBench(options, options.device.use()).run();
  return 0;
}

const Benchmark kBenchmark("kernels", "kernels that are bound by memory, beside a copy", &run);

}  // namespace
}  // namespace tessera::bench
