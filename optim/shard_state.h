// This rank's share of the training state: for each unit, elements OptimizerShard::for_rank(...) of
// its gradient sum, master weights and moments. What one rank owns, no other rank stores.
#pragma once

#include <span>
#include <vector>

#include "kernels/device/device_buffer.h"
#include "model/param_layout.h"
#include "optim/optimizer_shard.h"
#include "optim/state_io.h"

namespace tessera {

/// Runs of one page that share a decay rule, in element order, covering the page.
struct DecayRun {
  Index count;
  bool decays;
};

/// A run of elements of one unit's slice: a multiple of 1024, but for the last of a unit.
struct StatePage {
  UnitId unit;
  Index begin;        // within the rank's slice of the unit
  Index count;        // elements
  TensorView state;   // [3, count] f32: master, m, v; pinned host, or the device where resident
  bool resident;      // never moves
  std::vector<DecayRun> decay_runs;
};

enum class StateArray : std::uint8_t { master, first_moment, second_moment };

class ShardState {
 public:
  ShardState(const ParamLayout& layout, int rank, int world_size, Device device,
             std::size_t page_bytes, std::size_t resident_bytes);

  [[nodiscard]] OptimizerShard range(UnitId unit) const;  // elements of the padded unit
  [[nodiscard]] TensorView grad(UnitId unit);             // [S] f32, on the device
  /// The pages of one unit, in element order.
  [[nodiscard]] std::span<StatePage> pages(UnitId unit);

  /// Copies elements [begin, begin + values.count) of one array of the unit's slice to host memory,
  /// out of the interleaved pages: for saving, inspection, export.
  void read(UnitId unit, StateArray array, Index begin, TensorView values) const;

  /// Takes the master weights from freshly initialised parameters.
  ///   unit_params  [count]  bf16 or f32, the whole unit, on the device
  void init_master(UnitId unit, ConstTensorView unit_params, Stream& stream);

  /// Writes this rank's slices under the unit names. Padding is not written, so the file does not
  /// depend on the number of ranks.
  void save(StateWriter& out) const;
  void load(StateReader& in);

 private:
  std::vector<DeviceBuffer> grads_;
  std::vector<StatePage> pages_;
  std::vector<OptimizerShard> ranges_;
};

}  // namespace tessera
