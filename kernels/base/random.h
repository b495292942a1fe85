// Counter-based random numbers (Philox 4x32-10; Salmon et al. 2011, "Parallel random numbers: as
// easy as 1, 2, 3"): the value for (seed, stream, index) is a pure function, the same on every
// rank, host and device.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace tessera {

/// Four 32-bit words for (seed, stream, index).
[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox(std::uint64_t seed,
                                                            std::uint64_t stream,
                                                            std::uint64_t index) noexcept {
  std::array<std::uint32_t, 4> c = {
      static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32U),
      static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32U)};
  auto k0 = static_cast<std::uint32_t>(seed);
  auto k1 = static_cast<std::uint32_t>(seed >> 32U);
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32U) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32U) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return c;
}

/// Uniform in (0, 1), 32 bits of resolution; never 0 or 1.
[[nodiscard]] inline double uniform_from(std::uint32_t word) noexcept {
  return (static_cast<double>(word) + 0.5) * 0x1p-32;
}

/// Standard normal (Box-Muller, in double), for (seed, stream, index).
[[nodiscard]] inline double normal(std::uint64_t seed, std::uint64_t stream,
                                   std::uint64_t index) noexcept {
  constexpr double kTwoPi = 6.283185307179586476925286766559;
  const std::array<std::uint32_t, 4> words = philox(seed, stream, index);
  return std::sqrt(-2.0 * std::log(uniform_from(words[0]))) *
         std::cos(kTwoPi * uniform_from(words[1]));
}

}  // namespace tessera
