// AdamW over a ShardState whose master weights and moments lie in host memory, a page at a time.
//
//   page        k-1        k          k+1
//   page_in                           H2D
//   update                 adamw
//   page_out    D2H
//
// A page is a run of elements of the shard, not a tensor; its master, m and v lie side by side, so
// that it moves in one copy. Pages are visited in the same order at every step. Resident pages stay on
// the device and never move; the rest stream through `buffers` device pages. (Least-recently-used
// eviction would never hit on such a sweep.) A CPU device copies pages through the same buffers.
#pragma once

#include <vector>

#include "kernels/kernel_table.h"
#include "optim/shard_state.h"

namespace tessera {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double decay = 0.1;
};

struct PagingOptions {
  std::size_t page_bytes = std::size_t{8} << 20;  // of state: 12 bytes an element
  std::size_t max_device_bytes = 0;  // resident pages and buffers together; 0 = unlimited
  int buffers = 3;                   // device pages in flight, 2 or more
};

struct PagingReport {
  Index pages = 0;
  Index resident_pages = 0;
  std::size_t device_bytes = 0;  // of state, buffers included
  std::size_t bytes_in = 0;      // host to device, last step: exactly what is not resident
  std::size_t bytes_out = 0;     // device to host, last step
  double seconds = 0;            // of the sweep
  double exposed_seconds = 0;    // of it, what the next forward pass waited for
};

class PagedAdamW {
 public:
  PagedAdamW(const KernelTable& kernels, const AdamWOptions& options, const PagingOptions& paging,
             Device device);

  /// Updates one unit of the shard and writes the rank's slice of its parameters.
  ///
  ///   updates     1 at the first update; sets the bias corrections
  ///   lr          of this step
  ///   grad_scale  multiplies every gradient
  ///   params_out  [S]  bf16 or f32, this rank's slice of the unit, on the device
  ///
  /// Work is queued in the update stream and in two copy streams, never in the compute stream; a
  /// page is read only after its last write-back. The result is the same, bit for bit, for every
  /// PagingOptions. Requires: `ready` marks the end of the backward pass and of the norm.
  void update(ShardState& shard, UnitId unit, std::int64_t updates, double lr, double grad_scale,
              TensorView params_out, const Event& ready);

  /// Where `publish` of the unit's parameters is to be queued.
  [[nodiscard]] Stream& update_stream() noexcept { return update_; }

  [[nodiscard]] bool is_resident(const ShardState& shard, const ParamTensor& parameter) const;
  [[nodiscard]] Index resident_count(const ShardState& shard) const;  // parameters
  [[nodiscard]] const PagingReport& report() const noexcept;

 private:
  struct Buffer {
    DeviceBuffer state;  // [3, page elements] f32: master, m, v
    Event loaded;
    Event updated;
    Event stored;
  };

  const KernelTable* kernels_;
  AdamWOptions options_;
  PagingOptions paging_;
  Stream page_in_;
  Stream update_;
  Stream page_out_;
  std::vector<Buffer> buffers_;
};

}  // namespace tessera
