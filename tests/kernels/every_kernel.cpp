#include "tests/kernels/every_kernel.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/base/fixed_point.h"

namespace tessera::test {
namespace {

constexpr Index kRows = 300;    // N
constexpr Index kWidth = 260;   // C
constexpr Index kVocab = 1001;  // V
constexpr float kEps = 1e-6F;
constexpr AttentionShape kAttention = {
    .batch = 2, .sequence = 150, .query_heads = 4, .kv_heads = 2, .head_dim = 32};
constexpr RotaryShape kRotary = {
    .tokens = 300, .sequence = 150, .query_heads = 4, .kv_heads = 2, .head_dim = 32};

}  // namespace

EveryKernel::EveryKernel(TestBench& bench) : bench_(bench) {
  add_optimizer();
  add_attention();
  add_embedding();
  add_gemm();
  add_adapter();
  add_quantize();
  add_nf4();
  add_reductions();
  add_rms_norm();
  add_rotary();
  add_loss();
  add_swiglu();
}

TestTensor& EveryKernel::normal(const Shape& shape, double deviation, double mean) {
  return tensors_.emplace_back(bench_.normal(DType::f32, shape, deviation, mean));
}

TestTensor& EveryKernel::poisoned(DType dtype, const Shape& shape) {
  return tensors_.emplace_back(bench_.poisoned(dtype, shape));
}

void EveryKernel::add(std::string name, std::function<void(const KernelTable&, Stream&)> run,
                      std::vector<TestTensor*> read_and_written, std::vector<TestTensor*> written) {
  entries_.push_back({std::move(name),
                      [this, run = std::move(run)] { run(bench_.kernels(), bench_.stream()); },
                      std::move(read_and_written), std::move(written)});
}

std::vector<double> EveryKernel::results_of(const Entry& entry) {
  for (TestTensor* tensor : entry.read_and_written) {
    const TensorView view = tensor->view();
    *tensor = bench_.of(tensor->values, view.dtype, view.shape);
  }
  for (TestTensor* tensor : entry.written) {
    poison_async(tensor->view(), bench_.stream());
  }
  entry.run();
  std::vector<double> results;
  for (const std::vector<TestTensor*>* tensors : {&entry.read_and_written, &entry.written}) {
    for (TestTensor* tensor : *tensors) {
      const std::vector<double> values = bench_.read(tensor->view());
      results.insert(results.end(), values.begin(), values.end());
    }
  }
  return results;
}

void EveryKernel::add_optimizer() {
  constexpr Index kCount = 70001;
  constexpr Index kSlices = 5;
  TestTensor& slices = normal({kSlices, kCount});
  TestTensor& sum = poisoned(DType::f32, {kCount});
  TestTensor& partial = poisoned(DType::f32, {kCount});
  add("accumulate",
      [&](const KernelTable& table, Stream& stream) {
        table.accumulate({.slices = slices.view(),
                          .sum = sum.view(),
                          .partial = partial.view(),
                          .first = 0,
                          .count = kSlices,
                          .total = kSlices + 1,
                          .reduce_group = 2},
                         stream);
      },
      {}, {&sum, &partial});
  TestTensor& packed = poisoned(DType::bf16, {kSlices, kCount / 2});
  add("cast_rows",
      [&](const KernelTable& table, Stream& stream) {
        table.cast_rows({.from = slices.view(),
                         .to = packed.view(),
                         .rows = kSlices,
                         .columns = kCount / 2,
                         .from_stride = kCount,
                         .to_stride = kCount / 2},
                        stream);
      },
      {}, {&packed});
  TestTensor& master = normal({kCount});
  TestTensor& m = normal({kCount});
  TestTensor& v = normal({kCount}, 0.1, 1);
  TestTensor& grad = normal({kCount});
  TestTensor& param = poisoned(DType::f32, {kCount});
  add("adamw",
      [&](const KernelTable& table, Stream& stream) {
        table.adamw({.master = master.view(),
                     .m = m.view(),
                     .v = v.view(),
                     .grad = grad.view(),
                     .param = param.view(),
                     .lr = 1e-3F,
                     .beta1 = 0.9F,
                     .beta2 = 0.95F,
                     .bias_correction1 = 0.1F,
                     .bias_correction2 = 0.05F,
                     .eps = 1e-8F,
                     .decay = 0.1F,
                     .grad_scale = 0.5F},
                    stream);
      },
      {&master, &m, &v}, {&param});
  TestTensor& weights = normal({kCount});
  TestTensor& buffer = normal({kCount});
  TestTensor& rounded_weights = poisoned(DType::f32, {kCount});
  add("sgd",
      [&](const KernelTable& table, Stream& stream) {
        table.sgd({.master = weights.view(),
                   .buffer = buffer.view(),
                   .grad = grad.view(),
                   .param = rounded_weights.view(),
                   .lr = 1e-2F,
                   .momentum = 0.9F,
                   .decay = 0.1F,
                   .grad_scale = 0.5F},
                  stream);
      },
      {&weights, &buffer}, {&rounded_weights});
  TestTensor& moving = normal({kCount});
  TestTensor& direction = poisoned(DType::f32, {kCount});
  add("muon_momentum",
      [&](const KernelTable& table, Stream& stream) {
        table.muon_momentum({.m = moving.view(),
                             .grad = grad.view(),
                             .direction = direction.view(),
                             .momentum = 0.95F,
                             .grad_scale = 0.5F},
                            stream);
      },
      {&moving}, {&direction});
  TestTensor& normalized = poisoned(DType::f32, {kCount});
  TestTensor& squares = poisoned(DType::u8, {static_cast<Index>(muon_normalize_workspace_bytes())});
  add("muon_normalize",
      [&](const KernelTable& table, Stream& stream) {
        table.muon_normalize(
            {.matrix = grad.view(), .normal = normalized.view(), .workspace = squares.view()},
            stream);
      },
      {}, {&normalized});
  TestTensor& matrix = normal({kCount});
  TestTensor& matrix_params = poisoned(DType::f32, {kCount});
  add("muon_update",
      [&](const KernelTable& table, Stream& stream) {
        table.muon_update({.master = matrix.view(),
                           .direction = grad.view(),
                           .param = matrix_params.view(),
                           .lr = 1e-2F,
                           .scale = 3,
                           .decay = 0.1F},
                          stream);
      },
      {&matrix}, {&matrix_params});
  TestTensor& params = poisoned(DType::bf16, {kCount});
  add("write_params",
      [&](const KernelTable& table, Stream& stream) {
        table.write_params({.master = grad.view(), .param = params.view()}, stream);
      },
      {}, {&params});
}

void EveryKernel::add_attention() {
  const Index tokens = kAttention.batch * kAttention.sequence;
  const Index row_width = (kAttention.query_heads + 2 * kAttention.kv_heads) * kAttention.head_dim;
  const Index out_width = kAttention.query_heads * kAttention.head_dim;
  const float scale = 0.125F;
  const Index qk_width = out_width + kAttention.kv_heads * kAttention.head_dim;
  TestTensor& qkv = normal({tokens, row_width});
  TestTensor& rotated = normal({tokens, qk_width});
  TestTensor& out = poisoned(DType::f32, {tokens, out_width});
  TestTensor& lse =
      poisoned(DType::f32, {kAttention.batch, kAttention.query_heads, kAttention.sequence});
  TestTensor& workspace =
      poisoned(DType::u8, {static_cast<Index>(attention_workspace_bytes(
                              bench_.device().kind, kAttention, DType::f32, AttentionOptions{}))});
  add("attention_forward",
      [&, scale](const KernelTable& table, Stream& stream) {
        table.attention_forward({.shape = kAttention,
                                 .options = {},
                                 .scale = scale,
                                 .qkv = qkv.view(),
                                 .rotated_qk = rotated.view(),
                                 .out = out.view(),
                                 .lse = lse.view(),
                                 .workspace = workspace.view()},
                                stream);
      },
      {}, {&out, &lse});
  // not the outputs above, so that each kernel runs alone
  TestTensor& given_out = normal({tokens, out_width});
  TestTensor& given_lse = normal(lse.view().shape, 0.1, 6);
  TestTensor& d_out = normal({tokens, out_width});
  TestTensor& d_qkv = poisoned(DType::f32, {tokens, row_width});
  add("attention_backward",
      [&, scale](const KernelTable& table, Stream& stream) {
        table.attention_backward({.shape = kAttention,
                                  .options = {},
                                  .scale = scale,
                                  .qkv = qkv.view(),
                                  .rotated_qk = rotated.view(),
                                  .out = given_out.view(),
                                  .lse = given_lse.view(),
                                  .d_out = d_out.view(),
                                  .d_qkv = d_qkv.view(),
                                  .workspace = workspace.view()},
                                 stream);
      },
      {}, {&d_qkv});
  constexpr Index kFew = 20;
  constexpr Index kBefore = 400;
  TestTensor& cache = normal({kBefore + kFew, 2 * kAttention.kv_heads * kAttention.head_dim});
  TestTensor& of_few = poisoned(DType::f32, {kFew, out_width});
  add("attention_cached",
      [&, scale](const KernelTable& table, Stream& stream) {
        table.attention_cached({.rows = kFew,
                                .query_heads = kAttention.query_heads,
                                .kv_heads = kAttention.kv_heads,
                                .head_dim = kAttention.head_dim,
                                .position = kBefore,
                                .scale = scale,
                                .qkv = qkv.view(),
                                .cache = cache.view(),
                                .out = of_few.view()},
                               stream);
      },
      {&cache}, {&of_few});
}

void EveryKernel::add_embedding() {
  TestTensor& tokens = tensors_.emplace_back(bench_.integers({kRows}, 50));
  std::vector<double> sorted(kRows);
  std::iota(sorted.begin(), sorted.end(), 0.0);
  std::stable_sort(sorted.begin(), sorted.end(), [&tokens](double a, double b) {
    return tokens.values[static_cast<std::size_t>(a)] < tokens.values[static_cast<std::size_t>(b)];
  });
  TestTensor& order = tensors_.emplace_back(bench_.of(sorted, DType::i32, {kRows}));
  TestTensor& table_rows = normal({50, kWidth});
  TestTensor& out = poisoned(DType::f32, {kRows, kWidth});
  add("embedding_forward",
      [&](const KernelTable& table, Stream& stream) {
        table.embedding_forward({.tokens = tokens.view(),
                                 .order = order.view(),
                                 .table = table_rows.view(),
                                 .out = out.view()},
                                stream);
      },
      {}, {&out});
  TestTensor& d_out = normal({kRows, kWidth});
  TestTensor& d_table = normal({50, kWidth});
  TestTensor& workspace =
      poisoned(DType::u8, {static_cast<Index>(embedding_workspace_bytes(kRows, kWidth))});
  add("embedding_backward",
      [&](const KernelTable& table, Stream& stream) {
        table.embedding_backward({.tokens = tokens.view(),
                                  .order = order.view(),
                                  .d_out = d_out.view(),
                                  .d_table = d_table.view(),
                                  .workspace = workspace.view()},
                                 stream);
      },
      {&d_table}, {});
}

void EveryKernel::add_gemm() {
  TestTensor& a = normal({kRows, kWidth});
  TestTensor& b = normal({kWidth, kWidth});
  TestTensor& bias = normal({kWidth});
  TestTensor& d = normal({kRows, kWidth});
  TestTensor& workspace =
      poisoned(DType::u8, {static_cast<Index>(gemm_workspace_bytes(bench_.device().kind))});
  add("gemm",
      [&](const KernelTable& table, Stream& stream) {
        table.gemm({.m = kRows,
                    .n = kWidth,
                    .k = kWidth,
                    .transpose_a = Transpose::no,
                    .transpose_b = Transpose::no,
                    .a = a.view(),
                    .lda = kWidth,
                    .b = b.view(),
                    .ldb = kWidth,
                    .beta = 1,
                    .c = d.view(),
                    .bias = bias.view(),
                    .d = d.view(),
                    .ldd = kWidth,
                    .workspace = workspace.optional()},
                   stream);
      },
      {&d}, {});
}

void EveryKernel::add_adapter() {
  constexpr Index kRank = 8;
  TestTensor& d_y = normal({kRows, kWidth});
  TestTensor& b = normal({kWidth, kRank});
  TestTensor& hidden = normal({kRows, kRank});
  TestTensor& d_hidden = poisoned(DType::f32, {kRows, kRank});
  TestTensor& d_b = poisoned(DType::f32, {kWidth, kRank});
  TestTensor& workspace =
      poisoned(DType::u8, {static_cast<Index>(gemm_workspace_bytes(bench_.device().kind))});
  add("adapter_gradients",
      [&](const KernelTable& table, Stream& stream) {
        table.adapter_gradients({.tokens = kRows,
                                 .out = kWidth,
                                 .rank = kRank,
                                 .d_y = d_y.view(),
                                 .ld_y = kWidth,
                                 .b = b.view(),
                                 .hidden = hidden.view(),
                                 .d_hidden = d_hidden.view(),
                                 .ld_hidden = kRank,
                                 .d_b = d_b.view(),
                                 .workspace = workspace.optional(),
                                 .scale = 2},
                                stream);
      },
      {}, {&d_hidden, &d_b});
}

void EveryKernel::add_quantize() {
  TestTensor& x = normal({kRows, kWidth});
  TestTensor& largest = poisoned(DType::f32, {1});
  add("abs_max",
      [&](const KernelTable& table, Stream& stream) {
        table.abs_max({.x = x.view(), .out = largest.view()}, stream);
      },
      {}, {&largest});
  TestTensor& given = tensors_.emplace_back(bench_.of({4}, DType::f32, {1}));
  TestTensor& codes = poisoned(DType::e4m3, {kRows, kWidth});
  TestTensor& transposed = poisoned(DType::e4m3, {kWidth, kRows});
  TestTensor& scale = poisoned(DType::f32, {1});
  const std::vector<double> zeros(kQuantizeCounts);
  TestTensor& counts = tensors_.emplace_back(bench_.of(zeros, DType::i64, {kQuantizeCounts}));
  add("quantize",
      [&](const KernelTable& table, Stream& stream) {
        table.quantize({.x = x.view(),
                        .abs_max = given.view(),
                        .codes = codes.view(),
                        .transposed = transposed.view(),
                        .scale = scale.view(),
                        .counts = counts.view()},
                       stream);
      },
      {&counts}, {&codes, &transposed, &scale});
}

void EveryKernel::add_nf4() {
  constexpr Index kCount = 70001;
  // any bytes are codes, and any integers below 2^31 floats
  TestTensor& packed = tensors_.emplace_back(bench_.of(
      bench_.integers({nf4_parts(kCount).bytes}, 64).values, DType::u8, {nf4_parts(kCount).bytes}));
  TestTensor& out = poisoned(DType::f32, {kCount});
  add("widen_nf4",
      [&](const KernelTable& table, Stream& stream) {
        table.widen_nf4({.packed = packed.view(), .out = out.view()}, stream);
      },
      {}, {&out});
}

void EveryKernel::add_reductions() {
  TestTensor& x = normal({kRows, kWidth});
  const std::vector<double> zeros(kFixedPointWords);
  TestTensor& words = tensors_.emplace_back(bench_.of(zeros, DType::i64, {kFixedPointWords}));
  TestTensor& loss_words = tensors_.emplace_back(bench_.of(zeros, DType::i64, {kFixedPointWords}));
  TestTensor& out = poisoned(DType::f32, {kWidth});
  TestTensor& workspace = poisoned(DType::f32, {column_sum_workspace(kRows, kWidth)});
  add("sum_of_squares",
      [&](const KernelTable& table, Stream& stream) {
        table.sum_of_squares({.values = x.view(), .words = words.view()}, stream);
      },
      {&words}, {});
  add("loss_sum",
      [&](const KernelTable& table, Stream& stream) {
        table.loss_sum({.losses = x.view(), .words = loss_words.view()}, stream);
      },
      {&loss_words}, {});
  add("column_sum",
      [&](const KernelTable& table, Stream& stream) {
        table.column_sum({.x = x.view(), .out = out.view(), .workspace = workspace.view()}, stream);
      },
      {}, {&out});
}

void EveryKernel::add_rms_norm() {
  TestTensor& x = normal({kRows, kWidth});
  TestTensor& gain = normal({kWidth});
  TestTensor& y = poisoned(DType::f32, {kRows, kWidth});
  add("rms_norm_forward",
      [&](const KernelTable& table, Stream& stream) {
        table.rms_norm_forward({.x = x.view(), .gain = gain.view(), .y = y.view(), .eps = kEps},
                               stream);
      },
      {}, {&y});
  TestTensor& d_y = normal({kRows, kWidth});
  TestTensor& residual = normal({kRows, kWidth});
  TestTensor& d_x = poisoned(DType::f32, {kRows, kWidth});
  TestTensor& d_gain = poisoned(DType::f32, {kWidth});
  TestTensor& workspace = poisoned(DType::f32, {column_sum_workspace(kRows, kWidth)});
  add("rms_norm_backward",
      [&](const KernelTable& table, Stream& stream) {
        table.rms_norm_backward({.x = x.view(),
                                 .gain = gain.view(),
                                 .d_y = d_y.view(),
                                 .residual = residual.view(),
                                 .d_x = d_x.view(),
                                 .y = y.view(),
                                 .d_gain = d_gain.view(),
                                 .workspace = workspace.view(),
                                 .eps = kEps},
                                stream);
      },
      {}, {&d_x, &y, &d_gain});
}

void EveryKernel::add_rotary() {
  const Index rotated_width = (kRotary.query_heads + kRotary.kv_heads) * kRotary.head_dim;
  const Index row_width = rotated_width + kRotary.kv_heads * kRotary.head_dim;
  TestTensor& qkv = normal({kRotary.tokens, row_width});
  TestTensor& cosine = normal({kRotary.sequence, kRotary.head_dim / 2});
  TestTensor& sine = normal({kRotary.sequence, kRotary.head_dim / 2});
  TestTensor& q_gain = normal({kRotary.head_dim});
  TestTensor& k_gain = normal({kRotary.head_dim});
  TestTensor& rotated = poisoned(DType::f32, {kRotary.tokens, rotated_width});
  add("rotary_forward",
      [&](const KernelTable& table, Stream& stream) {
        table.rotary_forward({.shape = kRotary,
                              .qkv = qkv.view(),
                              .cos = cosine.view(),
                              .sin = sine.view(),
                              .q_gain = q_gain.view(),
                              .k_gain = k_gain.view(),
                              .rotated_qk = rotated.view(),
                              .eps = kEps},
                             stream);
      },
      {}, {&rotated});
  TestTensor& d_qkv = normal({kRotary.tokens, row_width});
  TestTensor& d_q_gain = poisoned(DType::f32, {kRotary.head_dim});
  TestTensor& d_k_gain = poisoned(DType::f32, {kRotary.head_dim});
  TestTensor& workspace = poisoned(DType::f32, {rotary_workspace(kRotary)});
  add("rotary_backward",
      [&](const KernelTable& table, Stream& stream) {
        table.rotary_backward({.shape = kRotary,
                               .d_qkv = d_qkv.view(),
                               .cos = cosine.view(),
                               .sin = sine.view(),
                               .q_gain = q_gain.view(),
                               .k_gain = k_gain.view(),
                               .qkv = qkv.view(),
                               .d_q_gain = d_q_gain.view(),
                               .d_k_gain = d_k_gain.view(),
                               .workspace = workspace.view(),
                               .eps = kEps},
                              stream);
      },
      {&d_qkv}, {&d_q_gain, &d_k_gain});
}

void EveryKernel::add_loss() {
  TestTensor& logits = normal({kRows, kVocab + 3});
  TestTensor& targets = tensors_.emplace_back(bench_.integers({kRows}, kVocab));
  TestTensor& scale = tensors_.emplace_back(bench_.of({0.01}, DType::f32, {1}));
  TestTensor& loss = poisoned(DType::f32, {kRows});
  TestTensor& correct = poisoned(DType::u8, {kRows});
  add("softmax_cross_entropy",
      [&](const KernelTable& table, Stream& stream) {
        table.softmax_cross_entropy(
            {.logits = logits.view(),
             .vocab = kVocab,
             .ld = kVocab + 3,
             .targets = targets.view(),
             .ignore_target = 7,
             .weights = {},
             .terms = {.label_smoothing = 0.1F, .z_loss = 1e-3F, .soft_cap = 20},
             .gradient = LogitsGradient::write,
             .loss = loss.view(),
             .correct = correct.view(),
             .scale = scale.view()},
            stream);
      },
      {&logits}, {&loss, &correct});
}

void EveryKernel::add_swiglu() {
  TestTensor& gate_up = normal({kRows, 2 * kWidth});
  TestTensor& act = poisoned(DType::f32, {kRows, kWidth});
  add("swiglu_forward",
      [&](const KernelTable& table, Stream& stream) {
        table.swiglu_forward({.gate_up = gate_up.view(), .act = act.view()}, stream);
      },
      {}, {&act});
  TestTensor& d_act = normal({kRows, kWidth});
  TestTensor& d_gate_up = poisoned(DType::f32, {kRows, 2 * kWidth});
  add("swiglu_backward",
      [&](const KernelTable& table, Stream& stream) {
        table.swiglu_backward({.gate_up = gate_up.view(),
                               .d_act = d_act.view(),
                               .d_gate_up = d_gate_up.view(),
                               .act = act.view()},
                              stream);
      },
      {}, {&d_gate_up, &act});
}

}  // namespace tessera::test
