// What a training run sees of its parameters, however they are stored: the model takes units by
// lease (param_gate.h), the optimizer writes each rank's local shard, and an all-gather makes it
// readable everywhere.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "kernels/device/wait_clock.h"
#include "model/param_gate.h"

namespace tessera {

/// Where local shards are stored.
enum class ParamPlacement : std::uint8_t { device, host };

class ParamStore : public ParamGate {
 public:
  explicit ParamStore(Device device) noexcept : waits_(device) {}

  /// This rank's local shard of `unit`, for the optimizer to write.  [S], on the device
  [[nodiscard]] virtual TensorView local_shard(UnitId unit) = 0;
  /// Makes every rank's shard readable once the work queued in `updates` so far is done.
  /// Collective, at once or as the unit is acquired.
  virtual void all_gather(UnitId unit, Stream& updates) = 0;
  /// What is still to be queued for units, as whoever updates them knows it.
  struct PendingUpdates {
    /// Runs at each `acquire`, before anything is queued: the place where the trainer queues the
    /// updates of the units that come next.
    std::function<void(UnitId)> before_acquire;
    /// Whether it would queue nothing that the unit waits for.
    std::function<bool(UnitId)> are_queued;
  };
  void set_pending_updates(PendingUpdates pending) { pending_ = std::move(pending); }
  /// Whether `acquire` is collective: every rank then acquires the same units in the same order,
  /// as it makes its other collective calls, whether it has work for them or not.
  [[nodiscard]] virtual bool acquires_together() const { return false; }
  /// How long compute streams have stood still for units since the last call: what the update and
  /// the gathers cost a step. Requires: they have passed the waits.
  [[nodiscard]] virtual double take_exposed_seconds() { return waits_.take_seconds(); }

 protected:
  void run_before_acquire(UnitId unit) const {
    if (pending_.before_acquire) {
      pending_.before_acquire(unit);
    }
  }
  [[nodiscard]] bool updates_are_queued(UnitId unit) const {
    return !pending_.are_queued || pending_.are_queued(unit);
  }
  /// From here on `compute` may stand still for `unit`; runs what comes before it is acquired.
  void begin_wait(UnitId unit, Stream& compute) {
    if (std::exchange(prepared_, kNone) != unit) {
      waits_.begin(compute);
      run_before_acquire(unit);
    }
  }
  /// To here; where it is not called, the wait is not counted.
  void end_wait(Stream& compute) { waits_.end(compute); }

 private:
  static constexpr UnitId kNone = -1;

  void prepare(UnitId unit, Stream& compute) final {
    begin_wait(unit, compute);
    prepared_ = unit;
  }

  WaitClock waits_;
  PendingUpdates pending_;
  UnitId prepared_ = kNone;  // whose wait has begun
};

}  // namespace tessera
