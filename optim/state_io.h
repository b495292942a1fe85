// How an object with state meets a checkpoint, without knowing the file format.
//
// Every stateful class has `save(StateWriter&) const` and `load(StateReader&)` and reads exactly
// the names it writes. runtime/checkpoint give the implementations;
// tests give one that keeps everything in a map.
#pragma once

#include <string_view>

#include "kernels/device/tensor_view.h"

namespace tessera {

class StateWriter {
 public:
  virtual ~StateWriter() = default;
  virtual void put_int(std::string_view name, std::int64_t value) = 0;
  virtual void put_real(std::string_view name, double value) = 0;
  /// Elements [begin, end) of the global rank-1 array `name` of `total` elements. Ranks write
  /// disjoint slices that together cover it. Blocks until `values` (host memory) may be reused.
  virtual void put_slice(std::string_view name, Index begin, Index total,
                         ConstTensorView values) = 0;
};

class StateReader {
 public:
  virtual ~StateReader() = default;
  /// Throws FormatError if `name` is missing or of another type. So do the other two.
  [[nodiscard]] virtual std::int64_t get_int(std::string_view name) = 0;
  [[nodiscard]] virtual double get_real(std::string_view name) = 0;
  /// Fills `values` with elements [begin, begin + count) of the global array `name`, whichever
  /// ranks wrote them: the number of ranks may differ from the writing run's.
  virtual void get_slice(std::string_view name, Index begin, Index total, TensorView values) = 0;
};

}  // namespace tessera
