// The ParamStore with all parameters on every rank, refreshed unit by unit from the ranks' local
// shards while the forward pass of the next step is already under way.
#pragma once

#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "kernels/device/arena.h"
#include "optim/optimizer_shard.h"
#include "optim/param_store.h"

namespace tessera {

class ReplicatedParams final : public ParamStore {
 public:
  /// Keeps references to `layout`, `comm` and `communication`, which must outlive it. `what`: what
  /// its memory is called.
  ReplicatedParams(const ParamLayout& layout, DType param_dtype, Communicator& comm,
                   Stream& communication, Arena& arena, const std::string& what = "parameters");

  [[nodiscard]] TensorView local_shard(UnitId unit) override;
  void all_gather(UnitId unit, Stream& updates) override;

 private:
  struct Unit {
    DeviceBuffer params;   // [W * S], padding included
    Event updated;         // recorded in the update stream by all_gather
    Event gathered;        // recorded in the stream that completes the unit
    bool consumed = true;  // by a compute stream, since it was gathered
    std::int64_t gathers = 0;
  };

  [[nodiscard]] ConstTensorView open(UnitId unit, Stream& compute) override;
  [[nodiscard]] std::int64_t version(UnitId unit) const override {
    return units_[static_cast<std::size_t>(unit)].gathers;
  }
  // A unit stays. It is written again only by an update, before which the host has waited for all
  // work on it.
  void close(UnitId /*unit*/, Stream& /*compute*/) noexcept override {}

  const ParamLayout& layout_;
  Communicator& comm_;
  Stream& communication_;
  std::vector<Unit> units_;
  std::vector<OptimizerShard> ranges_;
};

}  // namespace tessera
