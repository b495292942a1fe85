// What the backward pass computes again instead of finding it kept, by layer.
//
// Levels are given for the first layers. The backward pass comes to those when all layers behind them
// are done, so that they need no buffers of their own: they write into those of the next layer that
// keeps its own (Activations), and N layers that recompute save N copies exactly. Any N layers would
// save as much; with the first ones the backward pass is slow where it ends, and gradients of the fast
// layers behind them, which are exchanged first, have that time to be exchanged in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/types.h"

namespace tessera {

/// What of a layer is computed again, with bit-identical results: nothing; attention up to its
/// output (qkv, rotated_qk, attended, lse); the MLP's gate_up; or the whole block from its input.
enum class Recompute : std::uint8_t { none, attention, mlp, block };

[[nodiscard]] constexpr bool drops_attention(Recompute level) noexcept {
  return level == Recompute::attention || level == Recompute::block;
}
[[nodiscard]] constexpr bool drops_middle(Recompute level) noexcept {
  return level == Recompute::block;
}
[[nodiscard]] constexpr bool drops_mlp(Recompute level) noexcept {
  return level == Recompute::mlp || level == Recompute::block;
}
/// x A^T of the adapters of a block (linear_adapter.h).
[[nodiscard]] constexpr bool drops_adapters(Recompute level) noexcept {
  return level != Recompute::none;
}

/// A level of so many consecutive layers.
struct RecomputePart {
  Recompute level;
  std::optional<Index> layers;  // none: all that follow
  friend bool operator==(const RecomputePart&, const RecomputePart&) = default;
};

class RecomputeLevels {
 public:
  /// The same in all layers.
  // NOLINTNEXTLINE(google-explicit-constructor): a level is the levels of all layers
  RecomputeLevels(Recompute level = Recompute::none) : parts_{{level, std::nullopt}} {}
  /// From layer 0 on; layers behind the last part keep everything.
  explicit RecomputeLevels(std::vector<RecomputePart> parts) : parts_(std::move(parts)) {}

  /// What layer `layer` does not keep.
  [[nodiscard]] Recompute of(Index layer) const noexcept;
  /// What the backward pass behind a forward pass of the same micro-batch computes again in a model
  /// of `layers` layers: of(layer), but nothing in the last one, of which nothing has been
  /// overwritten yet.
  [[nodiscard]] Recompute computed_again(Index layer, Index layers) const noexcept {
    return layer + 1 == layers ? Recompute::none : of(layer);
  }
  /// Whether some part has this level.
  [[nodiscard]] bool has(Recompute level) const noexcept;
  /// Throws ConfigError for more layers than the model's `layers`.
  void require_layers(Index layers) const;
  /// As parse_recompute takes it: "none", "mlp:24", "block:8,mlp".
  [[nodiscard]] std::string text() const;

  friend bool operator==(const RecomputeLevels&, const RecomputeLevels&) = default;

 private:
  std::vector<RecomputePart> parts_;
};

/// Of the option `name`: "none", or levels, each with the number of layers it is for, the last one
/// also without: then for all layers that follow. Throws ConfigError that says `name`.
[[nodiscard]] RecomputeLevels parse_recompute(std::string_view text, std::string_view name);

}  // namespace tessera
