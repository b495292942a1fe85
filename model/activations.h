// Everything that forward leaves for backward, and what both only pass through: one set of buffers
// for the run, reused by every micro-batch.
//
// Kept per block (N tokens, C width, F hidden width, Hq, Hkv heads of D):
//   residual    [N, C]               the block's input
//   qkv         [N, (Hq + 2 Hkv) D]  what attention reads; with QK-norm only v of it, and q and k
//                                    are as they were before the norm
//   rotated_qk  [N, (Hq + Hkv) D]    after QK-norm and rotary embedding (only with QK-norm): the q
//                                    and k that attention reads
//   attended    [N, Hq D], lse [B, Hq, T]
//   middle      [N, C]               after attention is added
//   gate_up     [N, 2 F]
//   adapters    [N, adapter width]   x A^T of its linear layers (only beside adapters)
// The normalised inputs and the SwiGLU product are not kept: the backward kernels write them again
// on their way. What a block's recompute level drops it writes into the copy of the next block that
// keeps its own: in the forward pass it is overwritten there, in the backward pass that block needs it
// no more. The last block needs a copy in any case, and has its values in it when the backward pass
// begins. So there are as many copies as blocks that keep, and one at least.
#pragma once

#include <vector>

#include "kernels/attention.h"
#include "kernels/device/arena.h"
#include "model/block_inputs.h"
#include "model/model_config.h"
#include "model/recompute.h"

namespace tessera {

struct BatchShape {
  Index sequences;  // B of one micro-batch
  Index length;     // T
  [[nodiscard]] Index tokens() const noexcept { return sequences * length; }
};

struct BlockActivations {
  TensorView residual;
  TensorView qkv;
  TensorView rotated_qk;  // data null without QK-norm
  TensorView attended;
  TensorView lse;
  TensorView middle;
  TensorView gate_up;
  TensorView adapters;  // no elements without adapters
  TensorView output;    // the next block's residual
};

/// Micro-batches that pass through the blocks side by side.
struct ActivationSets {
  Index inputs = 1;     // whose block inputs are kept at the same time
  Index gradients = 1;  // whose backward passes run at the same time: 1, or `inputs`
};

class Activations {
 public:
  /// `placement`: where block inputs are kept; `adapter_width`: AdapterLayout::block_width, 0 without
  /// adapters.
  Activations(const ModelConfig& config, const BatchShape& batch, DType dtype,
              const RecomputeLevels& recompute, const ActivationSets& sets,
              InputPlacement placement, const AttentionOptions& attention, Arena& arena,
              Index adapter_width = 0);

  /// Residuals that are asked for from now on, and their gradient, are those of micro-batch
  /// 0 .. inputs-1; all else exists once, for whichever is under way.
  void use_set(Index set);
  /// The set in use, of those whose gradients there are.
  [[nodiscard]] Index gradient_set() const noexcept { return gradient_set_; }

  /// Views for one block. What its recompute level drops it shares with the next one.
  [[nodiscard]] BlockActivations block(Index layer);
  /// Input of block `layer`; layer L is the last block's output.
  [[nodiscard]] TensorView residual(Index layer);
  /// Of the set in use.
  [[nodiscard]] BlockInputs& inputs() noexcept { return inputs_; }

  // What forward and backward pass through; each may be overwritten by the next block.
  [[nodiscard]] TensorView normed() { return normed_.view(); }          // [N, C]
  [[nodiscard]] TensorView product() { return product_.view(); }        // [N, F]
  [[nodiscard]] TensorView d_attended() { return d_attended_.view(); }  // [N, Hq D]
  [[nodiscard]] TensorView d_qkv() { return d_qkv_.view(); }            // [N, (Hq + 2 Hkv) D]
  [[nodiscard]] TensorView d_hidden();                                  // [N, C]
  [[nodiscard]] TensorView reduction_workspace() { return reduction_.view(); }  // f32
  [[nodiscard]] TensorView attention_workspace() { return attention_.view(); }  // u8
  [[nodiscard]] TensorView embedding_workspace() { return embedding_.view(); }  // u8
  [[nodiscard]] TensorView gemm_workspace() { return gemm_.view(); }            // u8
  [[nodiscard]] ConstTensorView cos() const { return cos_.view(); }             // [T, D/2] f32
  [[nodiscard]] ConstTensorView sin() const { return sin_.view(); }
  /// What of block `layer` the backward pass computes again, behind a forward pass of the same
  /// micro-batch.
  [[nodiscard]] Recompute recompute(Index layer) const noexcept {
    return recompute_.computed_again(layer, layers_);
  }

 private:
  // Copies of what blocks write, and which of them is each block's.
  struct Copies {
    std::vector<std::size_t> of_layer;
    std::vector<DeviceBuffer> buffers;
    [[nodiscard]] TensorView view(Index layer) {
      return buffers[of_layer[static_cast<std::size_t>(layer)]].view();
    }
  };

  RecomputeLevels recompute_;
  Index layers_;
  DeviceBuffer cos_;
  DeviceBuffer sin_;
  BlockInputs inputs_;
  Copies qkv_;
  Copies rotated_qk_;
  Copies attended_;
  Copies lse_;
  Copies middle_;
  Copies gate_up_;
  Copies adapters_;
  DeviceBuffer normed_;
  DeviceBuffer product_;
  DeviceBuffer d_attended_;
  DeviceBuffer d_qkv_;
  DeviceBuffer d_hidden_;  // [gradients, N, C]
  Index gradient_set_ = 0;
  DeviceBuffer reduction_;
  DeviceBuffer attention_;
  DeviceBuffer embedding_;
  DeviceBuffer gemm_;
};

/// Cosines and sines of positions 0, 1, ... of a sequence of T tokens (rotary_frequencies).
///   cos_table, sin_table  [T, D/2]  f32 on `device`, written; waits for it
void write_rotary_tables(const ModelConfig& config, TensorView cos_table, TensorView sin_table,
                         Device device);

}  // namespace tessera
