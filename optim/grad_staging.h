// Device memory through which gradients travel: what is packed and what has arrived, before it is
// added.
#pragma once

#include "kernels/device/arena.h"
#include "kernels/kernel_table.h"

namespace tessera {

class GradStaging {
 public:
  /// Room for `elements` of `dtype`.
  GradStaging(Index elements, DType dtype, Arena& arena);

  /// All of it as `dtype`, and its two halves.
  [[nodiscard]] TensorView all(DType dtype);
  [[nodiscard]] TensorView lower(DType dtype);
  [[nodiscard]] TensorView upper(DType dtype);

 private:
  [[nodiscard]] TensorView part(Index begin, Index end, DType dtype);  // of bytes

  DeviceBuffer buffer_;
};

/// Elements of `dtype` that pass kShardAlignment columns of all shards at a time, packed and
/// arrived, whichever type they have.
[[nodiscard]] Index least_staging(Index world_size, DType dtype);

/// Columns of all rows, side by side, rounded where `packed` is narrower.
///
///   rows    [R, S]  f32 or bf16, read
///   packed  [R, K]  f32 or bf16: columns [begin, begin + K)
void pack_columns(const KernelTable& kernels, const ConstTensorView& rows, Index begin,
                  const TensorView& packed, Stream& stream);

}  // namespace tessera
