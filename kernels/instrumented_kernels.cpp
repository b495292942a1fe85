#include "kernels/instrumented_kernels.h"

#include <algorithm>
#include <array>

#include "kernels/base/error.h"

namespace tessera {
namespace {

template <typename Count>
double real(Count count) {
  return static_cast<double>(count);
}

double bytes_of(const ConstTensorView& view) {
  return view.data == nullptr ? 0 : real(view.count()) * real(size_in_bytes(view.dtype));
}

template <typename... Views>
double bytes_of_all(const Views&... views) {
  return (bytes_of(views) + ...);
}

double attention_product(const AttentionShape& shape) {
  return real(shape.batch * shape.query_heads) * real(shape.sequence) * real(shape.sequence) *
         real(shape.head_dim);
}

// Of q and k, also in rows that hold v too.
double rotated_bytes(const RotaryShape& shape, DType dtype) {
  return real(shape.tokens * (shape.query_heads + shape.kv_heads) * shape.head_dim) *
         real(size_in_bytes(dtype));
}

double table_rows_bytes(const ConstTensorView& tokens, const ConstTensorView& table) {
  const Index rows = std::min(tokens.count(), table.shape[0]);
  return real(rows * table.shape[1]) * real(size_in_bytes(table.dtype));
}

struct Instrumentation {
  const KernelTable* table = nullptr;
  KernelObserver* observer = nullptr;
};

// Entries of a table are plain functions, so what they work with has static lifetime.
Instrumentation& instrumentation() noexcept {
  static Instrumentation current;
  return current;
}

template <typename Args>
KernelCall call_of(const char* name, const Args& args) {
  return {.name = name, .cost = cost_of(args)};
}
KernelCall call_of(const char* name, const GemmArgs& args) {
  return {.name = name, .cost = cost_of(args), .gemm = &args};
}
KernelCall call_of(const char* name, const AttentionForwardArgs& args) {
  return {.name = name, .cost = cost_of(args), .attention_forward = &args};
}
KernelCall call_of(const char* name, const AttentionBackwardArgs& args) {
  return {.name = name, .cost = cost_of(args), .attention_backward = &args};
}

constexpr std::size_t kEntries = sizeof(KernelTable) / sizeof(void*);

// Names in the table's order; the number of one is a template argument below.
constexpr std::array<const char*, kEntries> kNames = {"accumulate",
                                                      "cast_rows",
                                                      "adamw",
                                                      "adapter_gradients",
                                                      "attention_forward",
                                                      "attention_backward",
                                                      "attention_cached",
                                                      "embedding_forward",
                                                      "embedding_backward",
                                                      "gemm",
                                                      "muon_momentum",
                                                      "muon_normalize",
                                                      "muon_update",
                                                      "abs_max",
                                                      "quantize",
                                                      "sum_of_squares",
                                                      "loss_sum",
                                                      "column_sum",
                                                      "rms_norm_forward",
                                                      "rms_norm_backward",
                                                      "rotary_forward",
                                                      "rotary_backward",
                                                      "sgd",
                                                      "softmax_cross_entropy",
                                                      "swiglu_forward",
                                                      "swiglu_backward",
                                                      "widen_nf4",
                                                      "write_params"};

template <std::size_t kNumber, typename Args, void (*KernelTable::*kEntry)(const Args&, Stream&)>
void instrumented_call(const Args& args, Stream& stream) {
  const Instrumentation now = instrumentation();
  TESSERA_REQUIRE(now.observer != nullptr, "an instrumented table");
  now.observer->begin(call_of(kNames[kNumber], args), stream);
  (now.table->*kEntry)(args, stream);
  now.observer->end(stream);
}

}  // namespace

KernelCost cost_of(const AccumulateArgs& args) {
  const double columns = bytes_of(args.sum);
  const bool reads_sum = args.first >= args.reduce_group;
  double bytes = real(args.count * args.slices.shape[1]) * real(size_in_bytes(args.slices.dtype)) +
                 columns * (reads_sum ? 2 : 1);
  if (args.partial.data != nullptr) {
    const Index end = args.first + args.count;
    bytes += columns * (args.first % args.reduce_group != 0 ? 1 : 0) +
             columns * (end % args.reduce_group != 0 && end != args.total ? 1 : 0);
  }
  return {.flops = 0, .bytes = bytes};
}

KernelCost cost_of(const CastRowsArgs& args) {
  const double elements = real(args.rows * args.columns);
  return {.flops = 0,
          .bytes = elements *
                   (real(size_in_bytes(args.from.dtype)) + real(size_in_bytes(args.to.dtype)))};
}

// Parameters are read too where they hold a half of their masters.
double param_bytes(const TensorView& master, const TensorView& param) {
  return bytes_of(param) * (master.dtype == DType::u16 ? 2 : 1);
}

KernelCost cost_of(const AdamWArgs& args) {
  return {.flops = 0,
          .bytes = 2 * bytes_of_all(args.master, args.m, args.v, args.rounding.m_scales,
                                    args.rounding.v_scales) +
                   bytes_of(args.grad) + param_bytes(args.master, args.param)};
}

KernelCost cost_of(const AdapterGradientsArgs& args) {
  const double element = real(size_in_bytes(args.d_y.dtype));
  const double y = real(args.tokens) * real(args.out);
  // of either gradient one is read and one written
  const double hidden = element * real(args.tokens) * real(args.rank);
  const double products = (has_hidden(args.needed) ? 1 : 0) + (has_b(args.needed) ? 1 : 0);
  return {.flops = 2 * y * real(args.rank) * products,
          .bytes = element * y + products * hidden +
                   (has_hidden(args.needed) ? bytes_of(args.b) : 0) +
                   (has_b(args.needed) ? bytes_of(args.d_b) : 0)};
}

KernelCost cost_of(const SgdArgs& args) {
  return {.flops = 0,
          .bytes = 2 * bytes_of_all(args.master, args.buffer) + bytes_of(args.grad) +
                   param_bytes(args.master, args.param)};
}

// Either pass of attention reads as much where q and k are apart: of qkv then only v.
KernelCost cost_of(const AttentionForwardArgs& args) {
  return {.flops = 2 * attention_product(args.shape),
          .bytes = bytes_of_all(args.qkv, args.out, args.lse)};
}

KernelCost cost_of(const AttentionBackwardArgs& args) {
  return {.flops = 5 * attention_product(args.shape),
          .bytes = bytes_of_all(args.qkv, args.out, args.lse, args.d_out, args.d_qkv)};
}

KernelCost cost_of(const AttentionCachedArgs& args) {
  const double keys = real(args.position) + (real(args.rows) + 1) / 2;  // seen by a row, on average
  const double cached = real((args.position + args.rows) * 2 * args.kv_heads * args.head_dim) *
                        real(size_in_bytes(args.cache.dtype));
  return {.flops = 4 * real(args.rows * args.query_heads * args.head_dim) * keys,
          .bytes = bytes_of_all(args.qkv, args.out) + cached};
}

KernelCost cost_of(const EmbeddingForwardArgs& args) {
  return {.flops = 0,
          .bytes = bytes_of_all(args.tokens, args.order, args.out) +
                   table_rows_bytes(args.tokens, args.table)};
}

KernelCost cost_of(const EmbeddingBackwardArgs& args) {
  return {.flops = 0,
          .bytes = bytes_of_all(args.tokens, args.order, args.d_out) +
                   2 * table_rows_bytes(args.tokens, args.d_table)};
}

KernelCost cost_of(const GemmArgs& args) {
  const double of_a = real(args.m) * real(size_in_bytes(args.a.dtype));
  const double of_b = real(args.n) * real(size_in_bytes(args.b.dtype));
  const double out = real(size_in_bytes(args.d.dtype));
  return {.flops = 2 * real(args.m) * real(args.n) * real(args.k),
          .bytes = (of_a + of_b) * real(args.k) +
                   bytes_of_all(args.bias, args.a.scales, args.b.scales) +
                   real(args.m) * real(args.n) * out * (args.beta != 0.0F ? 2 : 1)};
}

KernelCost cost_of(const MuonMomentumArgs& args) {
  return {.flops = 0, .bytes = 2 * bytes_of(args.m) + bytes_of_all(args.grad, args.direction)};
}

KernelCost cost_of(const MuonNormalizeArgs& args) {
  return {.flops = 0, .bytes = bytes_of_all(args.matrix, args.normal)};
}

KernelCost cost_of(const MuonUpdateArgs& args) {
  return {.flops = 0,
          .bytes = 2 * bytes_of(args.master) + bytes_of(args.direction) +
                   param_bytes(args.master, args.param)};
}

KernelCost cost_of(const AbsMaxArgs& args) {
  return {.flops = 0, .bytes = bytes_of(args.x)};
}

KernelCost cost_of(const QuantizeArgs& args) {
  return {.flops = 0,
          .bytes = (args.codes.data == nullptr ? 0 : bytes_of(args.x)) +
                   bytes_of_all(args.codes, args.transposed)};
}

KernelCost cost_of(const SumOfSquaresArgs& args) {
  return {.flops = 0, .bytes = bytes_of(args.values)};
}

KernelCost cost_of(const LossSumArgs& args) {
  return {.flops = 0, .bytes = bytes_of(args.losses)};
}

KernelCost cost_of(const ColumnSumArgs& args) {
  return {.flops = 0, .bytes = bytes_of_all(args.x, args.out)};
}

KernelCost cost_of(const RmsNormForwardArgs& args) {
  return {.flops = 0, .bytes = bytes_of_all(args.x, args.gain, args.y)};
}

KernelCost cost_of(const RmsNormBackwardArgs& args) {
  return {.flops = 0,
          .bytes = bytes_of_all(args.x, args.gain, args.d_y, args.residual, args.d_x, args.y,
                                args.d_gain)};
}

KernelCost cost_of(const RotaryForwardArgs& args) {
  return {.flops = 0,
          .bytes = 2 * rotated_bytes(args.shape, args.qkv.dtype) +
                   bytes_of_all(args.cos, args.sin, args.q_gain, args.k_gain)};
}

KernelCost cost_of(const RotaryBackwardArgs& args) {
  const double rotated = rotated_bytes(args.shape, args.d_qkv.dtype);
  double bytes = 2 * rotated + bytes_of_all(args.cos, args.sin);
  if (args.q_gain.data != nullptr) {
    bytes += rotated + bytes_of_all(args.q_gain, args.k_gain, args.d_q_gain, args.d_k_gain);
  }
  return {.flops = 0, .bytes = bytes};
}

KernelCost cost_of(const SoftmaxCrossEntropyArgs& args) {
  const double element = real(size_in_bytes(args.logits.dtype));
  const Index rows = args.targets.count();
  const double written =
      args.gradient == LogitsGradient::write ? real(rows) * real(args.ld) * element : 0;
  return {.flops = 0,
          .bytes = real(rows) * real(args.vocab) * element + written +
                   bytes_of_all(args.targets, args.weights, args.loss, args.correct)};
}

KernelCost cost_of(const SwigluForwardArgs& args) {
  return {.flops = 0, .bytes = bytes_of_all(args.gate_up, args.act)};
}

KernelCost cost_of(const SwigluBackwardArgs& args) {
  return {.flops = 0, .bytes = bytes_of_all(args.gate_up, args.d_act, args.d_gate_up, args.act)};
}

KernelCost cost_of(const WidenNf4Args& args) {
  return {.flops = 0, .bytes = bytes_of_all(args.packed, args.out)};
}

KernelCost cost_of(const WriteParamsArgs& args) {
  return {.flops = 0, .bytes = bytes_of_all(args.master, args.param)};
}

KernelTable instrumented(const KernelTable& table, KernelObserver& observer) {
  instrumentation() = {&table, &observer};
  return {
      .accumulate = instrumented_call<0, AccumulateArgs, &KernelTable::accumulate>,
      .cast_rows = instrumented_call<1, CastRowsArgs, &KernelTable::cast_rows>,
      .adamw = instrumented_call<2, AdamWArgs, &KernelTable::adamw>,
      .adapter_gradients =
          instrumented_call<3, AdapterGradientsArgs, &KernelTable::adapter_gradients>,
      .attention_forward =
          instrumented_call<4, AttentionForwardArgs, &KernelTable::attention_forward>,
      .attention_backward =
          instrumented_call<5, AttentionBackwardArgs, &KernelTable::attention_backward>,
      .attention_cached = instrumented_call<6, AttentionCachedArgs, &KernelTable::attention_cached>,
      .embedding_forward =
          instrumented_call<7, EmbeddingForwardArgs, &KernelTable::embedding_forward>,
      .embedding_backward =
          instrumented_call<8, EmbeddingBackwardArgs, &KernelTable::embedding_backward>,
      .gemm = instrumented_call<9, GemmArgs, &KernelTable::gemm>,
      .muon_momentum = instrumented_call<10, MuonMomentumArgs, &KernelTable::muon_momentum>,
      .muon_normalize = instrumented_call<11, MuonNormalizeArgs, &KernelTable::muon_normalize>,
      .muon_update = instrumented_call<12, MuonUpdateArgs, &KernelTable::muon_update>,
      .abs_max = instrumented_call<13, AbsMaxArgs, &KernelTable::abs_max>,
      .quantize = instrumented_call<14, QuantizeArgs, &KernelTable::quantize>,
      .sum_of_squares = instrumented_call<15, SumOfSquaresArgs, &KernelTable::sum_of_squares>,
      .loss_sum = instrumented_call<16, LossSumArgs, &KernelTable::loss_sum>,
      .column_sum = instrumented_call<17, ColumnSumArgs, &KernelTable::column_sum>,
      .rms_norm_forward = instrumented_call<18, RmsNormForwardArgs, &KernelTable::rms_norm_forward>,
      .rms_norm_backward =
          instrumented_call<19, RmsNormBackwardArgs, &KernelTable::rms_norm_backward>,
      .rotary_forward = instrumented_call<20, RotaryForwardArgs, &KernelTable::rotary_forward>,
      .rotary_backward = instrumented_call<21, RotaryBackwardArgs, &KernelTable::rotary_backward>,
      .sgd = instrumented_call<22, SgdArgs, &KernelTable::sgd>,
      .softmax_cross_entropy =
          instrumented_call<23, SoftmaxCrossEntropyArgs, &KernelTable::softmax_cross_entropy>,
      .swiglu_forward = instrumented_call<24, SwigluForwardArgs, &KernelTable::swiglu_forward>,
      .swiglu_backward = instrumented_call<25, SwigluBackwardArgs, &KernelTable::swiglu_backward>,
      .widen_nf4 = instrumented_call<26, WidenNf4Args, &KernelTable::widen_nf4>,
      .write_params = instrumented_call<27, WriteParamsArgs, &KernelTable::write_params>,
  };
}

std::vector<std::string_view> kernel_names() {
  return {kNames.begin(), kNames.end()};
}

}  // namespace tessera
