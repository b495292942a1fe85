// The ParamStore of a frozen base in 4 bits (QLoRA, Dettmers et al. 2023, arXiv:2305.14314) around
// another one, whole copies or shards, on the device or the host, which stores packed units
// (packed_layout.h). A block is widened to the type of parameters just before it is used:
//
//   inner store   packed units, u8                      its own streams and events
//   slots         widened blocks, kSlots of them        written and read in the compute stream
//
// Embedding and head are not widened: their leases are the inner store's. A slot that still has a block
// is not written again. The values are those of the dequantised base in any other store, bit for bit.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device/arena.h"
#include "kernels/kernel_table.h"
#include "model/packed_layout.h"
#include "optim/param_store.h"

namespace tessera {

class QuantizedParams final : public ParamStore {
 public:
  /// Leases nest two deep, and a pass that turns finds its last block.
  static constexpr std::size_t kSlots = ParamGate::kMostLeases;

  /// Keeps references to `kernels`, `model` and `packed`, which must outlive it. `inner`: of units
  /// packed.bytes(), in u8; `world_size`: its ranks.
  QuantizedParams(const KernelTable& kernels, const ParamLayout& model, const PackedLayout& packed,
                  std::unique_ptr<ParamStore> inner, int world_size, Arena& arena);

  /// This rank's local shard of the packed unit: [S] u8.
  [[nodiscard]] TensorView local_shard(UnitId unit) override { return inner_->local_shard(unit); }
  void all_gather(UnitId unit, Stream& updates) override;
  [[nodiscard]] bool acquires_together() const override { return inner_->acquires_together(); }
  [[nodiscard]] double take_exposed_seconds() override { return inner_->take_exposed_seconds(); }

  [[nodiscard]] const PackedLayout& packed() const noexcept { return packed_; }
  /// Two packed blocks with the padding of shards, [2, W * S] u8 as one array, on the device: for
  /// whoever writes the base. Until a block is acquired.
  [[nodiscard]] TensorView spare_bytes();

 private:
  struct Slot {
    DeviceBuffer params;  // [elements of the largest block]
    UnitId unit = -1;     // that it holds
    std::int64_t version = -1;
    std::int64_t used = 0;  // when it was opened last
    int open = 0;
  };
  struct HeldLease {
    UnitId unit;
    ParamLease lease;
  };

  [[nodiscard]] ConstTensorView open(UnitId unit, Stream& compute) override;
  [[nodiscard]] std::int64_t version(UnitId unit) const override {
    return versions_[static_cast<std::size_t>(unit)];
  }
  void close(UnitId unit, Stream& compute) noexcept override;

  [[nodiscard]] Slot& slot_for(UnitId unit);
  void widen(UnitId unit, const ConstTensorView& bytes, const TensorView& values,
             Stream& compute) const;

  const KernelTable& kernels_;
  const ParamLayout& model_;
  const PackedLayout& packed_;
  std::unique_ptr<ParamStore> inner_;
  std::vector<std::int64_t> versions_;  // of units
  std::array<Slot, kSlots> slots_;
  Index spare_ = 0;                                         // bytes of spare_bytes
  std::array<std::optional<HeldLease>, kMostLeases> held_;  // of units that are not packed
  const Stream* stream_ = nullptr;  // in which blocks are used; null: none has been
  std::int64_t clock_ = 0;
};

}  // namespace tessera
