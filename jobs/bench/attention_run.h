// Attention alone on random numbers, forward and backward, for whoever times it.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/device/device_buffer.h"
#include "kernels/kernel_table.h"

namespace tessera::bench {

/// Where the operands q and k are: in the fused rows, or in rows of their own as with QK-norm.
enum class QkPlace : std::uint8_t { fused, apart };

/// Owns operands of one shape in `dtype`, and a workspace of `workspace_bytes`, the most that any
/// options it is run with want. Keeps a reference to `stream`, where it queues.
class AttentionRun {
 public:
  AttentionRun(const AttentionShape& shape, DType dtype, QkPlace place, std::size_t workspace_bytes,
               Stream& stream);
  void forward(const AttentionOptions& options);
  /// Requires: `forward` has been queued before.
  void backward(const AttentionOptions& options);

 private:
  AttentionShape shape_;
  float scale_;
  Stream& stream_;
  const KernelTable& kernels_;
  DeviceBuffer qkv_;
  DeviceBuffer rotated_qk_;  // empty: in qkv_
  DeviceBuffer d_out_;
  DeviceBuffer d_qkv_;
  DeviceBuffer out_;
  DeviceBuffer lse_;
  DeviceBuffer workspace_;
};

}  // namespace tessera::bench
