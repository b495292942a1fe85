#include "model/fused_linear_cross_entropy.h"

#include <algorithm>
#include <string>

#include "kernels/device/device_backend.h"
#include "kernels/device/error.h"

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

FusedLinearCrossEntropy::FusedLinearCrossEntropy(const KernelTable& kernels, Arena& arena,
                                                 DType dtype, Index vocab, Index width,
                                                 Index chunk_rows, const LossOptions& options)
    : kernels_(kernels),
      vocab_(vocab),
      width_(width),
      stride_(logits_stride(vocab, dtype)),
      chunk_rows_(chunk_rows),
      options_(options),
      logits_(arena.allocate(MemoryKind::device, dtype, {chunk_rows, stride_}, "logits chunk")),
      ready_(arena.device(), "loss.ready"),
      done_(arena.device(), "loss.done") {
  TESSERA_REQUIRE(chunk_rows >= 1, "at least one row of logits");
  TESSERA_REQUIRE(options.schedule.pieces >= 1, "at least one piece");
  if (options.bias == OutputBias::present) {
    ones_ = arena.allocate(MemoryKind::device, dtype, {chunk_rows}, "logits chunk/ones");
  }
}

TensorView FusedLinearCrossEntropy::logits_from(Index row) {
  return logits_.view().slice(row * stride_, chunk_rows_ * stride_);
}

void FusedLinearCrossEntropy::multiply_logits(const LinearCrossEntropyInputs& inputs,
                                              const Rows& rows, const Place& place) {
  kernels_.gemm({.m = rows.count,
                 .n = vocab_,
                 .k = width_,
                 .transpose_a = Transpose::no,
                 .transpose_b = Transpose::yes,
                 .a = rows_of(inputs.hidden, rows.begin, rows.count, width_),
                 .lda = width_,
                 .b = inputs.weight,
                 .ldb = width_,
                 .beta = 0.0F,
                 .c = {},
                 .bias = inputs.bias,
                 .d = logits_from(rows.place),
                 .ldd = stride_,
                 .workspace = place.workspace,
                 .multiprocessors = place.multiprocessors},
                place.stream);
}

void FusedLinearCrossEntropy::softmax(const LinearCrossEntropyInputs& inputs, const Rows& rows,
                                      LogitsGradient gradient, int multiprocessors,
                                      Stream& stream) {
  const TensorView correct = inputs.correct.data == nullptr
                                 ? inputs.correct
                                 : rows_of(inputs.correct, rows.begin, rows.count, 1);
  kernels_.softmax_cross_entropy(
      {.logits =
           logits_from(rows.place).slice(0, rows.count * stride_).reshaped({rows.count, stride_}),
       .vocab = vocab_,
       .ld = stride_,
       .targets = rows_of(inputs.targets, rows.begin, rows.count, 1),
       .ignore_target = options_.ignore_target,
       .weights = rows_of(inputs.weights, rows.begin, rows.count, 1),
       .terms = options_.terms,
       .gradient = gradient,
       .loss = rows_of(inputs.loss, rows.begin, rows.count, 1),
       .correct = correct,
       .scale = inputs.scale,
       .multiprocessors = multiprocessors},
      stream);
}

void FusedLinearCrossEntropy::multiply_hidden(const LinearCrossEntropyInputs& inputs,
                                              const LinearCrossEntropyGradients& gradients,
                                              const Rows& rows, const Place& place) {
  kernels_.gemm({.m = rows.count,
                 .n = width_,
                 .k = vocab_,
                 .transpose_a = Transpose::no,
                 .transpose_b = Transpose::no,
                 .a = logits_from(rows.place),
                 .lda = stride_,
                 .b = inputs.weight,
                 .ldb = width_,
                 .beta = 0.0F,
                 .c = {},
                 .bias = {},
                 .d = rows_of(gradients.d_hidden, rows.begin, rows.count, width_),
                 .ldd = width_,
                 .workspace = place.workspace,
                 .multiprocessors = place.multiprocessors},
                place.stream);
}

void FusedLinearCrossEntropy::multiply_weight(const LinearCrossEntropyInputs& inputs,
                                              const LinearCrossEntropyGradients& gradients,
                                              const Rows& chunk, const Place& place) {
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
                 .workspace = place.workspace,
                 .multiprocessors = place.multiprocessors},
                place.stream);
}

void FusedLinearCrossEntropy::multiply_bias(const LinearCrossEntropyGradients& gradients,
                                            const Rows& chunk, const Place& place) {
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
                 .workspace = place.workspace,
                 .multiprocessors = place.multiprocessors},
                place.stream);
}

// With pieces 0 .. p-1 of a chunk, L their logits, S their softmax and H their d_hidden, W
// d_weight:
//
//   main   L0   S0   S1  ...  S(p-1)   H1 .. H(p-1)
//   side        L1   L2  ...  H0       W
//
// each column beginning when the one before it has ended, its two halves on different
// multiprocessors. The softmax is the main stream's, where it is queued first and finds the device
// empty, so that its few blocks do not wait for the product's many.
void FusedLinearCrossEntropy::run_chunk(const LinearCrossEntropyInputs& inputs,
                                        const LinearCrossEntropyGradients& gradients,
                                        const Rows& chunk, TensorView gemm_workspace,
                                        Stream& stream) {
  const LossSchedule& schedule = options_.schedule;
  const Place all = {gemm_workspace, 0, stream};
  const auto others = [&](int taken, Stream& of) -> Place {
    return {gemm_workspace, std::max(0, multiprocessors_ - taken), of};
  };
  const auto beside = [&](const auto& in_main, const auto& in_side) {
    ready_.record(stream);
    side_->wait(ready_);
    in_main();
    in_side();
    done_.record(*side_);
    stream.wait(done_);
  };
  const Index piece_rows = (chunk.count + schedule.pieces - 1) / schedule.pieces;
  const auto piece = [&](Index number) -> Rows {
    const Index from = std::min(number * piece_rows, chunk.count);
    return {chunk.begin + from, std::min(piece_rows, chunk.count - from), from};
  };
  const Index pieces = (chunk.count + piece_rows - 1) / piece_rows;

  multiply_logits(inputs, piece(0), all);
  Rows rest = chunk;  // without d_hidden
  if (pieces == 1) {
    softmax(inputs, chunk, LogitsGradient::write, 0, stream);
  } else {
    const int few = schedule.softmax_multiprocessors;
    for (Index p = 0; p < pieces; ++p) {
      beside([&] { softmax(inputs, piece(p), LogitsGradient::write, few, stream); },
             [&] {
               if (p + 1 < pieces) {
                 multiply_logits(inputs, piece(p + 1), others(few, *side_));
               } else {
                 multiply_hidden(inputs, gradients, piece(0), others(few, *side_));
               }
             });
    }
    rest = {chunk.begin + piece_rows, chunk.count - piece_rows, piece_rows};
  }
  if (const int many = schedule.weight_multiprocessors; many > 0) {
    beside([&] { multiply_hidden(inputs, gradients, rest, others(many, stream)); },
           [&] {
             multiply_weight(inputs, gradients, chunk, {gemm_workspace, many, *side_});
           });
  } else {
    multiply_hidden(inputs, gradients, rest, all);
    multiply_weight(inputs, gradients, chunk, all);
  }
  if (options_.bias == OutputBias::present) {
    multiply_bias(gradients, chunk, all);
  }
}

void FusedLinearCrossEntropy::prepare(const LinearCrossEntropyInputs& inputs, Stream& stream) {
  TESSERA_REQUIRE((inputs.bias.data != nullptr) == (options_.bias == OutputBias::present),
                  "a bias is given exactly where the options say so");
  if (is_prepared_) {
    return;
  }
  if (options_.schedule.overlaps()) {
    multiprocessors_ = device_info(stream.device()).multiprocessors;
    side_.emplace(stream.device(), StreamPriority::normal, "loss");
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
    run_chunk(inputs, gradients, {begin, std::min(chunk_rows_, tokens - begin), 0}, gemm_workspace,
              stream);
  }
}

void FusedLinearCrossEntropy::forward(const LinearCrossEntropyInputs& inputs,
                                      TensorView gemm_workspace, Stream& stream) {
  prepare(inputs, stream);
  const Index tokens = inputs.targets.count();
  for (Index begin = 0; begin < tokens; begin += chunk_rows_) {
    const Rows chunk = {begin, std::min(chunk_rows_, tokens - begin), 0};
    multiply_logits(inputs, chunk, {gemm_workspace, 0, stream});
    softmax(inputs, chunk, LogitsGradient::leave, 0, stream);
  }
}

}  // namespace tessera
