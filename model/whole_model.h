// All parameters of a model on one device, for programs without ranks: nothing to wait for.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "kernels/device/arena.h"
#include "model/param_gate.h"

namespace tessera {

class WholeModel final : public ParamGate {
 public:
  /// Fills `values` with all elements of `unit`.
  using Source = std::function<void(UnitId unit, std::span<float> values)>;

  /// Takes every unit from `source` and rounds it once to `dtype`, on the device of `arena`. Waits
  /// for `stream`. Throws what `source` and the arena throw.
  WholeModel(const ParamLayout& layout, DType dtype, const Source& source, Arena& arena,
             Stream& stream);

 private:
  [[nodiscard]] ConstTensorView open(UnitId unit, Stream& compute) override;
  [[nodiscard]] std::int64_t version(UnitId /*unit*/) const override { return 0; }
  void close(UnitId /*unit*/, Stream& /*compute*/) noexcept override {}

  std::vector<DeviceBuffer> units_;
};

}  // namespace tessera
