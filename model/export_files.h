// The files of what is exported, model or adapters, on the way out: several processes write one set of
// them, each the elements that it has.
#pragma once

#include <cstdint>
#include <span>

#include "model/param_layout.h"

namespace tessera {

class ExportFiles {
 public:
  ExportFiles() = default;
  virtual ~ExportFiles() = default;
  ExportFiles(const ExportFiles&) = delete;
  ExportFiles& operator=(const ExportFiles&) = delete;

  /// Bytes of all tensors, and of those elements that this object has written.
  [[nodiscard]] virtual std::int64_t tensor_bytes() const = 0;
  [[nodiscard]] virtual std::int64_t written_bytes() const = 0;
  /// Writes elements begin, begin + 1, ... of a unit, whose tensors are as in its ParamUnit. In any
  /// order, from any thread, each element once. Throws WriteError. Requires: a range within
  /// unit.count.
  virtual void write_unit(UnitId unit, Index begin, std::span<const float> values) = 0;
  /// All that was written is on the disk on return. Throws WriteError.
  virtual void close() = 0;
  /// Writes what says what the tensors are. Throws WriteError.
  virtual void write_config() const = 0;
};

}  // namespace tessera
