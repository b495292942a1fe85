// XXH3 (libxxhash) in 64 and 128 bits: every hash of this project. Files hold its values, so that
// they must never change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

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

enum class HashWidth : std::uint8_t { bits64, bits128 };

/// XXH3 over bytes that come piece by piece.
class Xxh3 {
 public:
  explicit Xxh3(HashWidth width = HashWidth::bits64);
  ~Xxh3();
  Xxh3(Xxh3&& other) noexcept = default;
  Xxh3& operator=(Xxh3&& other) noexcept = default;
  Xxh3(const Xxh3&) = delete;
  Xxh3& operator=(const Xxh3&) = delete;

  void reset64();
  void reset128();
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  /// Requires: of this width.
  [[nodiscard]] std::uint64_t digest64() const;
  [[nodiscard]] Hash128 digest128() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const noexcept;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
  bool is_wide_ = false;
};

/// As text: 16 lower-case hexadecimal digits.
[[nodiscard]] std::string hash_text(std::uint64_t hash);

[[nodiscard]] std::uint64_t xxh3_64(std::span<const std::byte> bytes, std::uint64_t seed = 0);
[[nodiscard]] Hash128 xxh3_128(std::span<const std::byte> bytes);
[[nodiscard]] inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace tessera
