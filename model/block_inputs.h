// The inputs of all blocks, which the backward pass starts from: on the device, or in pinned host
// memory with a few of them on the device at a time.
//
// On the host: a block's input is copied away while the blocks behind it compute, and comes back
// two blocks before the backward pass needs it. The device keeps kSlots of a set in turn, so that
// the last ones are never copied.
#pragma once

#include <vector>

#include "kernels/device/arena.h"
#include "kernels/device/stream.h"

namespace tessera {

enum class InputPlacement : std::uint8_t { device, host };

/// Whether a forward pass leaves something for a backward pass.
enum class Keep : std::uint8_t { inputs, nothing };

class BlockInputs {
 public:
  static constexpr Index kSlots = 3;  // of a set, on the device, where the host keeps the others

  /// Inputs of `layers` blocks and the last one's output, of `shape` each, for `sets` micro-batches
  /// whose inputs are kept at the same time.
  BlockInputs(Index layers, DType dtype, const Shape& shape, Index sets, InputPlacement placement,
              Arena& arena);

  /// Everything below is about this set, 0 at first.
  void use(Index set);
  [[nodiscard]] Index set() const noexcept { return static_cast<Index>(set_); }

  /// Input of block `layer`, or the last output for layer L. Valid until three layers later, where
  /// the host keeps them: see the calls below.
  [[nodiscard]] TensorView view(Index layer);

  /// Before work that writes input `layer` is queued in `compute`: what it overwrites has been
  /// copied.
  void will_write(Index layer, Stream& compute);
  /// After it: the input goes to the host where its place is needed again.
  void written(Index layer, Keep keep, Stream& compute);
  /// Before work that reads input `layer` in the backward pass, from layer L-1 down to 0, each once:
  /// it is there, and the one two layers before is on its way.
  void will_read_back(Index layer, Stream& compute);

 private:
  struct Slot {
    DeviceBuffer buffer;
    Event written;   // by compute
    Event stored;    // its copy to the host
    Event released;  // by compute: what lies there may be overwritten
    Event loaded;    // its copy from the host
  };
  struct Set {
    std::vector<Slot> slots;           // L + 1 on the device, or kSlots in turn
    std::vector<DeviceBuffer> hosted;  // of layers 0 .. L - kSlots
  };
  [[nodiscard]] Slot& slot(Index layer);
  [[nodiscard]] bool is_hosted(Index layer) const noexcept;

  Index layers_;
  bool on_host_;
  std::vector<Set> sets_;
  std::size_t set_ = 0;
  std::vector<Stream> copies_;  // one, where the host keeps inputs
};

}  // namespace tessera
