#include "jobs/bench/breakdown.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "jobs/bench/attention_run.h"
#include "kernels/base/error.h"
#include "kernels/gemm_tuning.h"

namespace tessera::bench {
namespace {

constexpr std::int64_t kPhase = -2;    // ranges that only say where the step is
constexpr std::int64_t kIgnored = -1;  // and those that say nothing here
constexpr double kShareOfCopy = 0.9;   // what a kernel bound by memory is expected to reach

bool same_product(const GemmArgs& a, const GemmArgs& b) {
  const auto key = [](const GemmArgs& args) {
    const bool reads_c = args.beta != 0.0F;
    return std::array<Index, 16>{args.m,
                                 args.n,
                                 args.k,
                                 static_cast<Index>(args.transpose_a),
                                 static_cast<Index>(args.transpose_b),
                                 args.lda,
                                 args.ldb,
                                 args.ldd,
                                 static_cast<Index>(args.a.dtype),
                                 static_cast<Index>(args.b.dtype),
                                 static_cast<Index>(args.a.scale_mode),
                                 static_cast<Index>(args.b.scale_mode),
                                 static_cast<Index>(args.accumulation),
                                 static_cast<Index>(args.d.dtype),
                                 reads_c ? 1 : 0,
                                 args.bias.data != nullptr ? 1 : 0};
  };
  const auto in_place = [](const GemmArgs& args) {
    return args.beta != 0.0F && args.c.data == args.d.data;
  };
  return key(a) == key(b) && in_place(a) == in_place(b);
}

// All operands of 8 bits lie along k; those of the backward pass add in full f32.
bool is_forward(const KernelCall& call) {
  if (call.gemm == nullptr) {
    return std::string_view(call.name).ends_with("_forward");
  }
  return is_scaled(*call.gemm)
             ? call.gemm->a.dtype == call.gemm->b.dtype
             : call.gemm->transpose_a == Transpose::no && call.gemm->transpose_b == Transpose::yes;
}

// The layers of these sizes, "a or b"; empty for none.
std::string layers_of(const ModelConfig& config, Index in, Index out) {
  struct Layer {
    const char* name;
    Index in;
    Index out;
  };
  const std::array layers = {Layer{"qkv", config.hidden_size, config.qkv_width()},
                             Layer{"attention output", config.query_width(), config.hidden_size},
                             Layer{"gate/up", config.hidden_size, 2 * config.intermediate_size},
                             Layer{"down", config.intermediate_size, config.hidden_size},
                             Layer{"head", config.hidden_size, config.vocab_size}};
  std::string roles;
  for (const Layer& layer : layers) {
    if (layer.in == in && layer.out == out) {
      roles += (roles.empty() ? "" : " or ") + std::string(layer.name);
    }
  }
  return roles;
}

// Products are called by their layer and which of its three they are.
std::string product_name(const ModelConfig& config, Index tokens, const GemmArgs& args) {
  Index in = args.n;
  Index out = args.k;
  const char* which = "input gradient";
  const bool is_weight_gradient =
      is_scaled(args) ? args.a.dtype != args.b.dtype && args.k == tokens && args.m != tokens
                      : args.transpose_a == Transpose::yes;
  if (is_weight_gradient) {
    out = args.m;
    which = "weight gradient";
  } else if (is_forward({.name = "gemm", .cost = {}, .gemm = &args})) {
    in = args.k;
    out = args.n;
    which = is_scaled(args) ? "forward, fast accumulation" : "forward";
  }
  const std::string roles = layers_of(config, in, out);
  const bool adds = args.beta != 0.0F && args.c.data == args.d.data;
  return fmt::format("{} {}{}{}", roles.empty() ? "product" : roles, which, adds ? ", added" : "",
                     is_scaled(args) ? ", 8 bits" : "");
}

std::string product_shape(const GemmArgs& args) {
  return fmt::format("{} x {} x {}", args.m, args.n, args.k);
}

std::string attention_shape(const AttentionShape& shape) {
  return fmt::format("{} x {}/{} x {} x {}", shape.batch, shape.query_heads, shape.kv_heads,
                     shape.sequence, shape.head_dim);
}

// Median seconds of one run of `work`, several of them between two events, after so long of it that
// the card is as warm as in a step.
double seconds_alone(Stream& stream, const std::function<void()>& work) {
  const bool on_gpu = stream.device().kind == DeviceKind::cuda;
  const double warm_seconds = on_gpu ? 0.2 : 0.005;
  const double piece_seconds = on_gpu ? 2e-3 : 0;  // much longer than an event
  constexpr int kMostTogether = 16;
  constexpr double kShortest = 1e-6;
  const double once =
      time_work(stream, {.warm_up = 1, .timed = 3}, {}, [&](int) { work(); }).median_seconds;
  const auto warm_ups = static_cast<int>(std::ceil(warm_seconds / std::max(once, kShortest)));
  for (int i = 0; i < warm_ups; ++i) {
    work();
  }
  const int together = std::clamp(
      static_cast<int>(std::lround(piece_seconds / std::max(once, kShortest))), 1, kMostTogether);
  const Timing timing = time_work(stream, {.warm_up = 1, .timed = on_gpu ? 15 : 5}, {}, [&](int) {
    for (int i = 0; i < together; ++i) {
      work();
    }
  });
  return timing.median_seconds / together;
}

struct Alone {
  double used;
  double best;
};

// As many as `like` has, from the beginning of `scales`.
ConstTensorView scales_of(const GemmOperand& like, const DeviceBuffer& scales) {
  return like.scale_mode == ScaleMode::none ? ConstTensorView{}
                                            : scales.view().slice(0, like.scales.count());
}

Alone product_alone(const GemmArgs& like, Stream& stream) {
  const Device device = stream.device();
  const KernelTable& kernels = kernel_table(device.kind);
  const bool plain_a = like.transpose_a == Transpose::no;
  const bool plain_b = like.transpose_b == Transpose::no;
  const DeviceBuffer a =
      random_buffer(stream, like.a.dtype, {(plain_a ? like.m : like.k) * like.lda});
  const DeviceBuffer b =
      random_buffer(stream, like.b.dtype, {(plain_b ? like.k : like.n) * like.ldb});
  DeviceBuffer d = random_buffer(stream, like.d.dtype, {like.m * like.ldd});
  const bool reads_c = like.beta != 0.0F;
  const bool apart = reads_c && like.c.data != like.d.data;
  const DeviceBuffer c =
      apart ? random_buffer(stream, like.d.dtype, {like.m * like.ldd}) : DeviceBuffer();
  const DeviceBuffer bias =
      like.bias.data != nullptr ? random_buffer(stream, like.bias.dtype, {like.n}) : DeviceBuffer();
  const DeviceBuffer scales = random_buffer(stream, DType::f32, {std::max(like.m, like.n)});
  DeviceBuffer workspace(
      device, MemoryKind::device, DType::u8,
      {static_cast<Index>(is_scaled(like)
                              ? scaled_gemm_workspace_bytes(device.kind, like.m, like.n, like.k)
                              : gemm_workspace_bytes(device.kind))},
      "bench workspace");
  GemmArgs args = like;
  args.a = {a.view(), like.a.scale_mode, scales_of(like.a, scales)};
  args.b = {b.view(), like.b.scale_mode, scales_of(like.b, scales)};
  args.d = d.view();
  args.c = ConstTensorView{};
  if (reads_c) {
    args.c = apart ? c.view() : ConstTensorView(d.view());
  }
  args.bias = bias.empty() ? ConstTensorView{} : bias.view();
  args.workspace = workspace.view();
  const auto seconds = [&] { return seconds_alone(stream, [&] { kernels.gemm(args, stream); }); };
  const double used = seconds();
  if (device.kind == DeviceKind::cpu) {
    return {used, used};
  }
  set_gemm_tuning(device, GemmTuning::on);
  kernels.gemm(args, stream);  // chooses
  set_gemm_tuning(device, GemmTuning::off);
  return {used, std::min(used, seconds())};
}

enum class AttentionPass : std::uint8_t { forward, backward };

// `args` of either pass: operands of their own lie as these do.
template <typename Args>
double attention_alone(const Args& args, const AttentionOptions& options, AttentionPass pass,
                       DType dtype, Stream& stream) {
  const QkPlace place = args.rotated_qk.data == nullptr ? QkPlace::fused : QkPlace::apart;
  AttentionRun run(args.shape, dtype, place,
                   attention_workspace_bytes(stream.device().kind, args.shape, dtype, options),
                   stream);
  if (pass == AttentionPass::forward) {
    return seconds_alone(stream, [&] { run.forward(options); });
  }
  run.forward(options);
  return seconds_alone(stream, [&] { run.backward(options); });
}

double empty_pair_seconds(Stream& stream) {
  return time_work(stream, {.warm_up = 8, .timed = 64}, {}, [](int) {}).median_seconds;
}

}  // namespace

StepRecorder::StepRecorder(const ModelConfig& config, const Communicator& comm, Stream& compute)
    : config_(config), comm_(comm), compute_(compute), pair_seconds_(empty_pair_seconds(compute)) {}

StepRecorder::~StepRecorder() {
  TraceSink* self = this;
  trace::sink().compare_exchange_strong(self, nullptr);
}

std::size_t StepRecorder::record(Stream& stream) {
  if (used_ == events_.size()) {
    events_.emplace_back(stream.device(), "breakdown");
  }
  events_[used_].record(stream);
  return used_++;
}

std::size_t StepRecorder::group_of(const KernelCall& call, const Stream& stream) {
  const bool again = backward_ && is_forward(call);
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const Group& group) {
    return group.is_kernel && group.name == call.name && group.again == again &&
           group.stream == stream.name() &&
           (call.gemm == nullptr || same_product(*group.gemm, *call.gemm)) &&
           (call.attention_forward == nullptr ||
            group.attention_forward->shape == call.attention_forward->shape) &&
           (call.attention_backward == nullptr ||
            group.attention_backward->shape == call.attention_backward->shape);
  });
  if (found != groups_.end()) {
    return static_cast<std::size_t>(found - groups_.begin());
  }
  Group& group = groups_.emplace_back();
  group.stream = stream.name();
  group.name = call.name;
  group.is_kernel = true;
  group.again = again;
  if (call.gemm != nullptr) {
    group.gemm = *call.gemm;
  }
  if (call.attention_forward != nullptr) {
    group.attention_forward = *call.attention_forward;
  }
  if (call.attention_backward != nullptr) {
    group.attention_backward = *call.attention_backward;
  }
  return groups_.size() - 1;
}

std::size_t StepRecorder::group_of(const TraceLabel& label, const Stream& stream) {
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const Group& group) {
    return !group.is_kernel && group.name == label.name && group.stream == stream.name();
  });
  if (found != groups_.end()) {
    return static_cast<std::size_t>(found - groups_.begin());
  }
  Group& group = groups_.emplace_back();
  group.stream = stream.name();
  group.name = label.name;
  return groups_.size() - 1;
}

void StepRecorder::begin(const KernelCall& call, Stream& stream) {
  const std::size_t group = group_of(call, stream);
  groups_[group].calls += 1;
  groups_[group].flops += call.cost.flops;
  groups_[group].bytes += call.cost.bytes;
  call_ = marks_.size();
  const std::size_t from = record(stream);
  marks_.push_back({.group = group, .from = from, .to = from, .traffic = 0, .ended = false});
}

void StepRecorder::end(Stream& stream) {
  TESSERA_REQUIRE(call_.has_value(), "a kernel has begun");
  marks_[*call_].to = record(stream);
  marks_[*call_].ended = true;
  call_.reset();
}

std::int64_t StepRecorder::begin(const TraceLabel& label, Stream& stream) {
  const std::string_view name = label.name;
  if (label.category == TraceCategory::compute) {
    if (&stream != &compute_) {
      return kIgnored;
    }
    backward_ = name == "backward";
    return kPhase;
  }
  // Those that hold others say nothing that theirs do not.
  const bool holds_others = &stream != &compute_ && (name == "reduce-scatter" || name == "sum");
  if (holds_others) {
    return kIgnored;
  }
  const std::size_t group = group_of(label, stream);
  groups_[group].calls += 1;
  const std::size_t from = record(stream);
  marks_.push_back(
      {.group = group, .from = from, .to = from, .traffic = comm_.traffic().bytes, .ended = false});
  return std::ssize(marks_) - 1;
}

std::int64_t StepRecorder::begin(const TraceLabel&, const char*) {
  return kIgnored;
}

void StepRecorder::end(std::int64_t number, Stream* stream) noexcept {
  if (number == kPhase) {
    backward_ = false;
  }
  if (number < 0 || number >= std::ssize(marks_) || stream == nullptr) {
    return;
  }
  // What cannot be recorded is left out; the device's error shows where the step waits for it.
  try {
    Mark& mark = marks_[static_cast<std::size_t>(number)];
    mark.to = record(*stream);
    mark.ended = true;
    if (stream != &compute_) {
      groups_[mark.group].bytes += static_cast<double>(comm_.traffic().bytes - mark.traffic);
    }
  } catch (const std::exception&) {
    return;
  }
}

void StepRecorder::begin_step() {
  marks_.clear();
  used_ = 0;
  begun_ = record(compute_);
  trace::sink().store(this, std::memory_order_release);
}

void StepRecorder::end_step(double seconds, double paged_in, double paged_out) {
  trace::sink().store(nullptr, std::memory_order_release);
  const std::size_t ended = record(compute_);
  for (std::size_t i = 0; i < used_; ++i) {
    events_[i].synchronize();
  }
  if (++steps_ == 0) {
    for (Group& group : groups_) {
      group.calls = group.flops = group.bytes = 0;
    }
    return;
  }
  step_seconds_ += seconds;
  stream_seconds_ += events_[ended].seconds_since(events_[begun_]);
  marks_.push_back(
      {.group = groups_.size(), .from = ended, .to = ended, .traffic = 0, .ended = true});
  fold_step(paged_in, paged_out);
}

void StepRecorder::fold_step(double paged_in, double paged_out) {
  const Event& start = events_[begun_];
  std::vector<std::pair<double, double>> busy;  // of the compute stream, since the step began
  for (const Mark& mark : marks_) {
    if (!mark.ended) {
      continue;
    }
    const bool is_end = mark.group == groups_.size();
    const double from = events_[mark.from].seconds_since(start);
    const double to = events_[mark.to].seconds_since(start);
    if (is_end || groups_[mark.group].stream == compute_.name()) {
      busy.emplace_back(from, to);
    }
    if (!is_end) {
      groups_[mark.group].seconds += std::max(0.0, to - from - pair_seconds_);
    }
  }
  for (Group& group : groups_) {
    if (!group.is_kernel && group.name == "page in" && group.stream != compute_.name()) {
      group.bytes += paged_in;
    } else if (!group.is_kernel && group.name == "page out") {
      group.bytes += paged_out;
    }
  }
  std::sort(busy.begin(), busy.end());
  double last = 0;
  for (const auto& [from, to] : busy) {
    if (from > last) {
      gaps_ += 1;
      gap_seconds_ += from - last;
      largest_gap_ = std::max(largest_gap_, from - last);
    }
    last = std::max(last, to);
  }
}

std::string StepRecorder::name_of(const Group& group) const {
  std::string name;
  if (group.gemm) {
    const auto first = std::find_if(groups_.begin(), groups_.end(),
                                    [](const Group& other) { return other.gemm.has_value(); });
    name = product_name(config_, first->gemm->m, *group.gemm);  // a step's first is forward
  } else {
    name = group.name;
    std::replace(name.begin(), name.end(), '_', ' ');
  }
  return name + (group.again ? ", again" : "");
}

std::vector<BudgetRow> StepRecorder::rows() const {
  TESSERA_REQUIRE(steps_ > 0, "steps were recorded");
  std::vector<BudgetRow> rows;
  for (const Group& group : groups_) {
    BudgetRow row;
    row.stream = group.stream;
    row.name = name_of(group);
    row.kernel = group.is_kernel ? std::string(group.name) : std::string();
    if (group.gemm) {
      row.shape = product_shape(*group.gemm);
    } else if (group.attention_forward) {
      row.shape = attention_shape(group.attention_forward->shape);
    } else if (group.attention_backward) {
      row.shape = attention_shape(group.attention_backward->shape);
    }
    row.calls = group.calls / steps_;
    row.flops = group.flops / steps_;
    row.bytes = group.bytes / steps_;
    row.seconds = group.seconds / steps_;
    rows.push_back(row);
  }
  return rows;
}

BudgetWaits StepRecorder::waits() const {
  BudgetWaits waits;
  for (const Group& group : groups_) {
    if (!group.is_kernel && group.stream == compute_.name()) {
      waits.named.push_back(
          {std::string(group.name), group.calls / steps_, group.seconds / steps_});
    }
  }
  waits.gaps = gaps_ / steps_;
  waits.gap_seconds = gap_seconds_ / steps_;
  waits.largest_gap_seconds = largest_gap_;
  return waits;
}

double StepRecorder::step_seconds() const {
  return step_seconds_ / steps_;
}

double StepRecorder::stream_seconds() const {
  return stream_seconds_ / steps_;
}

void StepRecorder::measure_floors(std::vector<BudgetRow>& rows, DType dtype, Device device,
                                  double copy_bytes_per_second) const {
  Stream stream(device, StreamPriority::normal, "floors");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Group& group = groups_.at(i);
    BudgetRow& row = rows[i];
    if (group.gemm) {
      const Alone alone = product_alone(*group.gemm, stream);
      row.alone_seconds = row.calls * alone.used;
      row.best_seconds = row.calls * alone.best;
      row.floor_seconds = row.best_seconds;
    } else if (group.attention_forward) {
      const AttentionForwardArgs& args = *group.attention_forward;
      row.alone_seconds =
          row.calls * attention_alone(args, args.options, AttentionPass::forward, dtype, stream);
      row.best_seconds = row.alone_seconds;
      row.floor_seconds = row.alone_seconds;
    } else if (group.attention_backward) {
      const AttentionBackwardArgs& args = *group.attention_backward;
      const auto seconds = [&](AttentionOrder order) {
        AttentionOptions options = args.options;
        options.order = order;
        return row.calls * attention_alone(args, options, AttentionPass::backward, dtype, stream);
      };
      row.alone_seconds = seconds(args.options.order);
      row.best_seconds =
          device.kind == DeviceKind::cpu ? row.alone_seconds : seconds(AttentionOrder::fast);
      row.floor_seconds = row.alone_seconds;  // the bits are to be the same every time
    } else if (group.is_kernel && group.name != "abs_max") {
      row.floor_seconds = row.bytes / (kShareOfCopy * copy_bytes_per_second);
    }
  }
}

}  // namespace tessera::bench
