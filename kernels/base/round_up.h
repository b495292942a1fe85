// Division and multiples, rounded up, of whole numbers that are not negative. On either device.
#pragma once

#include <type_traits>

namespace tessera {

/// count / by, rounded up. Requires: count >= 0, by > 0, and count + by in range.
template <typename Integer>
[[nodiscard]] constexpr Integer divide_up(Integer count,
                                          std::type_identity_t<Integer> by) noexcept {
  return (count + by - 1) / by;
}

/// The least multiple of `unit` that is `count` or more. Requires: as divide_up.
template <typename Integer>
[[nodiscard]] constexpr Integer round_up(Integer count,
                                         std::type_identity_t<Integer> unit) noexcept {
  return divide_up(count, unit) * unit;
}

}  // namespace tessera
