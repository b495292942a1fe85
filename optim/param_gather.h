// The ParamGate of a training run: all parameters on every rank, refreshed unit by unit from the
// ranks' slices while the forward pass of the next step is already under way.
#pragma once

#include <functional>
#include <vector>

#include "collectives/communicator.h"
#include "kernels/device/arena.h"
#include "kernels/device/wait_clock.h"
#include "model/param_gate.h"
#include "optim/optimizer_shard.h"

namespace tessera {

class ParamGather final : public ParamGate {
 public:
  /// Keeps references to `layout`, `comm` and `communication`, which must outlive it. `world_size`
  /// ranks share each unit; of them this is `rank`.
  ParamGather(const ParamLayout& layout, DType param_dtype, Communicator& comm,
              Stream& communication, Arena& arena);

  /// This rank's slice of `unit`, for the optimizer to write.  [S] param_dtype, on the device
  [[nodiscard]] TensorView own_slice(UnitId unit);
  /// All of `unit`, padding included.  [W * S]
  [[nodiscard]] ConstTensorView whole(UnitId unit) const;
  /// Gathers every rank's slice once the work queued in `updates` so far is done. Collective.
  void publish(UnitId unit, Stream& updates);
  /// `before_wait(unit)` runs at each `wait`, before anything is queued: the place where the
  /// trainer queues the updates of the units that come next.
  void set_before_wait(std::function<void(UnitId)> before_wait);
  [[nodiscard]] ConstTensorView wait(UnitId unit, Stream& compute) override;
  /// How long `compute` has stood still for published units since the last call: what the update
  /// and the gather cost a step. Requires: `compute` has passed the waits.
  [[nodiscard]] double take_exposed_seconds() { return waits_.take_seconds(); }

 private:
  struct Unit {
    DeviceBuffer params;  // [W * S], padding included
    Event updated;        // recorded in the update stream by publish
    Event gathered;       // recorded in the stream that completes the unit
    bool awaited = true;  // by the compute stream, since it was published
  };

  const ParamLayout& layout_;
  Communicator& comm_;
  Stream& communication_;
  std::vector<Unit> units_;
  std::vector<OptimizerShard> ranges_;
  std::function<void(UnitId)> before_wait_;
  WaitClock waits_;
};

}  // namespace tessera
