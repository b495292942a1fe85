// The ParamGate of a training run: all parameters on every rank, refreshed unit by unit from the
// ranks' slices while the forward pass of the next step is already under way.
#pragma once

#include <vector>

#include "collectives/communicator.h"
#include "model/param_gate.h"
#include "kernels/device/device_buffer.h"
#include "optim/optimizer_shard.h"

namespace tessera {

class ParamGather final : public ParamGate {
 public:
  ParamGather(const ParamLayout& layout, DType param_dtype, Communicator& comm,
              Stream& communication);

  /// This rank's slice of `unit`, for the optimizer to write.  [S] param_dtype, on the device
  [[nodiscard]] TensorView own_slice(UnitId unit);
  /// Gathers every rank's slice once the work queued in `updates` so far is done. Collective.
  void publish(UnitId unit, Stream& updates);
  [[nodiscard]] ConstTensorView wait(UnitId unit, Stream& compute) override;

 private:
  struct Unit {
    DeviceBuffer params;  // [W * S], padding included
    Event updated;        // recorded in the update stream by publish
    Event gathered;       // recorded in the communication stream
  };

  Communicator& comm_;
  Stream& communication_;
  std::vector<Unit> units_;
  std::vector<OptimizerShard> ranges_;
};

}  // namespace tessera
