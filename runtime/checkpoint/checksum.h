// XXH3 (libxxhash), 64 bits for data blocks and 128 for headers and tensors, and the count of
// numbers that are not finite, which is taken in the same pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/device/stream.h"

struct XXH3_state_s;

namespace tessera {

/// A 128-bit hash. As text: 32 lower-case hexadecimal digits, the canonical order of XXH3-128, as
/// `xxhsum -H2` prints it.
struct Hash128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
  [[nodiscard]] std::string text() const;
};

/// XXH3 over bytes that come piece by piece.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(Xxh3&& other) noexcept = default;
  Xxh3& operator=(Xxh3&& other) noexcept = default;
  Xxh3(const Xxh3&) = delete;
  Xxh3& operator=(const Xxh3&) = delete;

  void reset64();
  void reset128();
  void add(std::span<const std::byte> bytes);
  /// Requires: begun by reset64, or reset128.
  [[nodiscard]] std::uint64_t digest64() const;
  [[nodiscard]] Hash128 digest128() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const noexcept;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
  bool is_wide_ = false;
};

[[nodiscard]] std::uint64_t xxh3_64(std::span<const std::byte> bytes);
[[nodiscard]] Hash128 xxh3_128(std::span<const std::byte> bytes);
[[nodiscard]] inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// How many of these numbers are NaN or infinite.
[[nodiscard]] Index count_nonfinite(std::span<const float> values) noexcept;

}  // namespace tessera
