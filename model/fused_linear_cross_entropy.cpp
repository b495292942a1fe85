#include "model/fused_linear_cross_entropy.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "kernels/base/error.h"

namespace tessera {
namespace {

constexpr Index kRowAlignmentBytes = 16;
constexpr Index kCoarseRows = 1024;  // GEMM tiles of every backend divide it
constexpr Index kFineRows = 64;

TensorView rows_of(const TensorView& view, Index begin, Index rows, Index width) {
  return view.slice(begin * width, (begin + rows) * width);
}

ConstTensorView rows_of(const ConstTensorView& view, Index begin, Index rows, Index width) {
  return view.data == nullptr ? view : view.slice(begin * width, (begin + rows) * width);
}

}  // namespace

Index logits_stride(Index vocab, DType dtype) {
  const Index unit = kRowAlignmentBytes / static_cast<Index>(size_in_bytes(dtype));
  return (vocab + unit - 1) / unit * unit;
}

Index chunk_rows_for(Index tokens, Index vocab, DType dtype, std::size_t budget_bytes) {
  const Index row_bytes = logits_stride(vocab, dtype) * static_cast<Index>(size_in_bytes(dtype));
  const Index fitting = std::max<Index>(1, static_cast<Index>(budget_bytes) / row_bytes);
  if (fitting >= tokens) {
    return std::max<Index>(1, tokens);
  }
  for (const Index unit : {kCoarseRows, kFineRows}) {
    if (fitting >= unit) {
      return fitting / unit * unit;
    }
  }
  return fitting;
}

std::string objective_text(const CrossEntropyTerms& terms) {
  std::string text;
  if (terms.label_smoothing != 0) {
    text += fmt::format(" with label smoothing {}", terms.label_smoothing);
  }
  if (terms.z_loss != 0) {
    text += fmt::format(" + {} x (log of the softmax's denominator)^2 (z-loss)", terms.z_loss);
  }
  return text.empty() ? text : "cross entropy" + text;
}

FusedLinearCrossEntropy::FusedLinearCrossEntropy(const KernelTable& kernels, Arena& arena,
                                                 DType dtype, Index vocab, Index width,
                                                 Index chunk_rows, const LossOptions& options)
    : kernels_(kernels),
      vocab_(vocab),
      width_(width),
      stride_(logits_stride(vocab, dtype)),
      chunk_rows_(chunk_rows),
      options_(options),
      logits_(arena.allocate(MemoryKind::device, dtype, {chunk_rows, stride_}, "logits chunk")) {
  TESSERA_REQUIRE(chunk_rows >= 1, "at least one row of logits");
  if (options.bias == OutputBias::present) {
    ones_ = arena.allocate(MemoryKind::device, dtype, {chunk_rows}, "logits chunk/ones");
  }
}

void FusedLinearCrossEntropy::multiply_logits(const LinearCrossEntropyInputs& inputs,
                                              const Chunk& chunk, TensorView gemm_workspace,
                                              Stream& stream) {
  kernels_.gemm({.m = chunk.count,
                 .n = vocab_,
                 .k = width_,
                 .transpose_a = Transpose::no,
                 .transpose_b = Transpose::yes,
                 .a = rows_of(inputs.hidden, chunk.begin, chunk.count, width_),
                 .lda = width_,
                 .b = inputs.weight,
                 .ldb = width_,
                 .beta = 0.0F,
                 .c = {},
                 .bias = inputs.bias,
                 .d = logits_.view(),
                 .ldd = stride_,
                 .workspace = gemm_workspace},
                stream);
}

void FusedLinearCrossEntropy::softmax(const LinearCrossEntropyInputs& inputs, const Chunk& chunk,
                                      const CrossEntropyTerms& terms, LogitsGradient gradient,
                                      Stream& stream) {
  const TensorView correct = inputs.correct.data == nullptr
                                 ? inputs.correct
                                 : rows_of(inputs.correct, chunk.begin, chunk.count, 1);
  kernels_.softmax_cross_entropy(
      {.logits = logits_.view().slice(0, chunk.count * stride_).reshaped({chunk.count, stride_}),
       .vocab = vocab_,
       .ld = stride_,
       .targets = rows_of(inputs.targets, chunk.begin, chunk.count, 1),
       .ignore_target = options_.ignore_target,
       .weights = rows_of(inputs.weights, chunk.begin, chunk.count, 1),
       .terms = terms,
       .gradient = gradient,
       .loss = rows_of(inputs.loss, chunk.begin, chunk.count, 1),
       .correct = correct,
       .scale = inputs.scale},
      stream);
}

void FusedLinearCrossEntropy::multiply_hidden(const LinearCrossEntropyInputs& inputs,
                                              const LinearCrossEntropyGradients& gradients,
                                              const Chunk& chunk, TensorView gemm_workspace,
                                              Stream& stream) {
  kernels_.gemm({.m = chunk.count,
                 .n = width_,
                 .k = vocab_,
                 .transpose_a = Transpose::no,
                 .transpose_b = Transpose::no,
                 .a = logits_.view(),
                 .lda = stride_,
                 .b = inputs.weight,
                 .ldb = width_,
                 .beta = 0.0F,
                 .c = {},
                 .bias = {},
                 .d = rows_of(gradients.d_hidden, chunk.begin, chunk.count, width_),
                 .ldd = width_,
                 .workspace = gemm_workspace},
                stream);
}

void FusedLinearCrossEntropy::multiply_weight(const LinearCrossEntropyInputs& inputs,
                                              const LinearCrossEntropyGradients& gradients,
                                              const Chunk& chunk, TensorView gemm_workspace,
                                              Stream& stream) {
  const bool first = chunk.begin == 0;
  kernels_.gemm({.m = vocab_,
                 .n = width_,
                 .k = chunk.count,
                 .transpose_a = Transpose::yes,
                 .transpose_b = Transpose::no,
                 .a = logits_.view(),
                 .lda = stride_,
                 .b = rows_of(inputs.hidden, chunk.begin, chunk.count, width_),
                 .ldb = width_,
                 .beta = first ? 0.0F : 1.0F,
                 .c = first ? ConstTensorView{} : ConstTensorView{gradients.d_weight},
                 .bias = {},
                 .d = gradients.d_weight,
                 .ldd = width_,
                 .workspace = gemm_workspace},
                stream);
}

void FusedLinearCrossEntropy::multiply_bias(const LinearCrossEntropyGradients& gradients,
                                            const Chunk& chunk, TensorView gemm_workspace,
                                            Stream& stream) {
  const bool first = chunk.begin == 0;
  kernels_.gemm({.m = vocab_,
                 .n = 1,
                 .k = chunk.count,
                 .transpose_a = Transpose::yes,
                 .transpose_b = Transpose::no,
                 .a = logits_.view(),
                 .lda = stride_,
                 .b = ones_.view(),
                 .ldb = 1,
                 .beta = first ? 0.0F : 1.0F,
                 .c = first ? ConstTensorView{} : ConstTensorView{gradients.d_bias},
                 .bias = {},
                 .d = gradients.d_bias,
                 .ldd = 1,
                 .workspace = gemm_workspace},
                stream);
}

void FusedLinearCrossEntropy::prepare(const LinearCrossEntropyInputs& inputs, Stream& stream) {
  TESSERA_REQUIRE((inputs.bias.data != nullptr) == (options_.bias == OutputBias::present),
                  "a bias is given exactly where the options say so");
  if (is_prepared_) {
    return;
  }
  if (!ones_.empty()) {
    const TensorView ones = ones_.view();
    DeviceBuffer host({}, MemoryKind::host, ones.dtype, ones.shape, "ones");
    if (ones.dtype == DType::bf16) {
      std::fill_n(data_as<BFloat16>(host.view()), ones.count(), to_bfloat16(1.0F));
    } else {
      std::fill_n(data_as<float>(host.view()), ones.count(), 1.0F);
    }
    copy_async(host.view(), ones, stream);
    stream.synchronize();
  }
  is_prepared_ = true;
}

void FusedLinearCrossEntropy::forward_backward(const LinearCrossEntropyInputs& inputs,
                                               const LinearCrossEntropyGradients& gradients,
                                               TensorView gemm_workspace, Stream& stream) {
  prepare(inputs, stream);
  const Index tokens = inputs.targets.count();
  for (Index begin = 0; begin < tokens; begin += chunk_rows_) {
    const Chunk chunk = {begin, std::min(chunk_rows_, tokens - begin)};
    multiply_logits(inputs, chunk, gemm_workspace, stream);
    softmax(inputs, chunk, options_.terms, LogitsGradient::write, stream);
    multiply_hidden(inputs, gradients, chunk, gemm_workspace, stream);
    if (gradients.d_weight.data != nullptr) {
      multiply_weight(inputs, gradients, chunk, gemm_workspace, stream);
    }
    if (options_.bias == OutputBias::present) {
      multiply_bias(gradients, chunk, gemm_workspace, stream);
    }
  }
}

void FusedLinearCrossEntropy::forward(const LinearCrossEntropyInputs& inputs,
                                      TensorView gemm_workspace, Stream& stream) {
  const CrossEntropyTerms plain = {.soft_cap = options_.terms.soft_cap};
  prepare(inputs, stream);
  const Index tokens = inputs.targets.count();
  for (Index begin = 0; begin < tokens; begin += chunk_rows_) {
    const Chunk chunk = {begin, std::min(chunk_rows_, tokens - begin)};
    multiply_logits(inputs, chunk, gemm_workspace, stream);
    softmax(inputs, chunk, plain, LogitsGradient::leave, stream);
  }
}

}  // namespace tessera
