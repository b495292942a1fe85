// Documents that do not see each other within a batch of B sequences of T tokens: attention keeps
// to a token's own document, and positions count from its beginning (Krell et al. 2021,
// arXiv:2107.02027; Ding et al. 2024, arXiv:2404.10830, section 3).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/device/tensor_view.h"

namespace tessera {

/// Where the documents of a batch of N = B * T tokens are. They follow each other without gaps, and
/// none reaches from one sequence into the next. Without data each sequence is one document.
struct DocumentBounds {
  ConstTensorView begins;     // [documents + 1] i32 on the device: first tokens, from 0 on, then N
  ConstTensorView positions;  // [N] i32 on the device: of a token in its document, below T
  /// The values of `begins` in host memory, which a kernel's function reads before it returns.
  std::span<const std::int32_t> host_begins = {};

  [[nodiscard]] bool are_given() const noexcept { return begins.data != nullptr; }
  /// Requires: are_given().
  [[nodiscard]] Index count() const noexcept { return begins.count() - 1; }
};

}  // namespace tessera
