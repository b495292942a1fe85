// What a training run sees of its parameters, however they are stored: the model takes units by
// lease (param_gate.h), the optimizer writes each rank's local shard, and an all-gather makes it
// readable everywhere.
#pragma once

#include <cstdint>
#include <functional>

#include "model/param_gate.h"

namespace tessera {

/// Where local shards are stored.
enum class ParamPlacement : std::uint8_t { device, host };

class ParamStore : public ParamGate {
 public:
  /// This rank's local shard of `unit`, for the optimizer to write.  [S], on the device
  [[nodiscard]] virtual TensorView local_shard(UnitId unit) = 0;
  /// Makes every rank's shard readable once the work queued in `updates` so far is done.
  /// Collective, at once or as the unit is acquired.
  virtual void all_gather(UnitId unit, Stream& updates) = 0;
  /// `before_acquire(unit)` runs at each `acquire`, before anything is queued: the place where the
  /// trainer queues the updates of the units that come next.
  void set_before_acquire(std::function<void(UnitId)> before_acquire) {
    before_acquire_ = std::move(before_acquire);
  }
  /// Whether `acquire` is collective: every rank then acquires the same units in the same order,
  /// as it makes its other collective calls, whether it has work for them or not.
  [[nodiscard]] virtual bool acquires_together() const { return false; }
  /// How long compute streams have stood still for gathered units since the last call: what the
  /// update and the all-gather cost a step. Requires: they have passed the waits.
  [[nodiscard]] virtual double take_exposed_seconds() = 0;

 protected:
  void run_before_acquire(UnitId unit) const {
    if (before_acquire_) {
      before_acquire_(unit);
    }
  }

 private:
  std::function<void(UnitId)> before_acquire_;
};

}  // namespace tessera
