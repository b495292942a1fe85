// Causal self-attention with grouped heads: query head h uses key/value head h / (Hq / Hkv).
//
//   p[t, s] = softmax_s(scale * q[t] . k[s]),  s <= t        out[t] = sum_s p[t, s] v[s]
//             and s > t - window, where there is a sliding window (Beltagy et al. 2020,
//             arXiv:2004.05150; Mistral 7B, arXiv:2310.06825)
//   lse[t]  = log(sum_s exp(scale * q[t] . k[s]))
//
// Blocked with an online softmax (Dao et al. 2022, arXiv:2205.14135; Milakov & Gimelshein 2018,
// arXiv:1805.02867): T x T scores never exist for all heads. Where a batch has DocumentBounds, t and
// s count from the beginning of a document and no query sees another document's keys: a document's
// results are those of a sequence of its own, bit for bit on the CPU and with `builtin`. q, k, v are read, and their gradients
// written, as columns of one fused row of (Hq + 2 Hkv) * D elements: q heads, k heads, v heads. q
// and k may be read from rows of their own instead, where rotary embedding has put them; the
// results are bit-identical.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device/tensor_view.h"
#include "kernels/document_bounds.h"

namespace tessera {

struct AttentionShape {
  Index batch;        // B sequences
  Index sequence;     // T tokens each
  Index query_heads;  // Hq, a multiple of kv_heads
  Index kv_heads;     // Hkv
  Index head_dim;     // D, a multiple of 8 on CUDA
  Index window = 0;   // a token sees itself and the window - 1 before it; 0: all before it
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;

  /// The first key that query `t` sees.
  [[nodiscard]] constexpr Index first_key(Index t) const noexcept {
    return window == 0 || t < window ? 0 : t - window + 1;
  }
};

/// `library` is cuDNN (bf16 only); `builtin` our own blocked kernel (f32 and bf16, slower). The CPU
/// has one implementation and takes both words for it.
enum class AttentionMethod : std::uint8_t { library, builtin };
/// `fast` lets the library's backward pass add in an order that changes from run to run.
enum class AttentionOrder : std::uint8_t { deterministic, fast };

struct AttentionOptions {
  AttentionMethod method = AttentionMethod::builtin;
  AttentionOrder order = AttentionOrder::deterministic;
  /// Upper bound of a slice's backward workspace: the batch, or the heads of one sequence, are cut
  /// into slices that fit. Part of what fixes the bits, so never derived from free memory.
  std::size_t slice_bytes = std::size_t{1} << 30U;
  /// Batches may have DocumentBounds: the library's workspace has room for their rows.
  bool documents = false;
};

/// Bytes that forward and backward need in `workspace`: a pure function, also in a build without
/// CUDA, so that the memory plan knows it. Throws ConfigError if not even one head group fits.
[[nodiscard]] std::size_t attention_workspace_bytes(DeviceKind kind, const AttentionShape& shape,
                                                    DType dtype, const AttentionOptions& options);

struct AttentionForwardArgs {
  AttentionShape shape;
  AttentionOptions options;
  float scale;                 // 1 / sqrt(D)
  ConstTensorView qkv;         // [N, (Hq + 2 Hkv) * D] f32 or bf16, N = B * T
  ConstTensorView rotated_qk;  // [N, (Hq + Hkv) * D] same dtype: q and k with rotary embedding, and
                               // only v is read of qkv; data null: q and k of qkv have it
  TensorView out;              // [N, Hq * D] same dtype, written
  TensorView lse;              // [B, Hq, T] f32, written
  TensorView workspace;        // u8, attention_workspace_bytes
  DocumentBounds documents = {};
};

struct AttentionBackwardArgs {
  AttentionShape shape;
  AttentionOptions options;
  float scale;
  ConstTensorView qkv;
  ConstTensorView rotated_qk;  // as in forward
  ConstTensorView out;
  ConstTensorView lse;
  ConstTensorView d_out;  // [N, Hq * D]
  TensorView d_qkv;       // [N, (Hq + 2 Hkv) * D], written
  TensorView workspace;   // u8
  DocumentBounds documents = {};
};

/// One signature; a definition in kernels/cpu and one in kernels/cuda.
using AttentionForwardFn = void(const AttentionForwardArgs& args, Stream& stream);
using AttentionBackwardFn = void(const AttentionBackwardArgs& args, Stream& stream);

namespace cpu {
AttentionForwardFn attention_forward;
AttentionBackwardFn attention_backward;
}  // namespace cpu
namespace cuda {
AttentionForwardFn attention_forward;
AttentionBackwardFn attention_backward;
void prepare_attention(const AttentionForwardArgs& forward, const AttentionBackwardArgs& backward,
                       Stream& stream);
}  // namespace cuda

/// Prepares what calls with DocumentBounds may need of a library, so that no later one waits for it
/// or takes memory: for both passes' arguments as they will come, documents aside. Overwrites their
/// results and workspaces. Does nothing where the options have no documents, or the device has
/// nothing to prepare.
void prepare_attention(const AttentionForwardArgs& forward, const AttentionBackwardArgs& backward,
                       Stream& stream);

}  // namespace tessera
