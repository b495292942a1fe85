// XXH3-128 of what is handed over piece by piece, as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tessera {

class ContentHash {
 public:
  ContentHash();
  ~ContentHash();
  ContentHash(ContentHash&& other) noexcept;
  ContentHash& operator=(ContentHash&& other) noexcept;
  ContentHash(const ContentHash&) = delete;
  ContentHash& operator=(const ContentHash&) = delete;

  void add(const void* data, std::size_t bytes);
  void add(std::string_view text) { add(text.data(), text.size()); }
  /// 32 hexadecimal digits, most significant first, as `xxhsum -H2` prints them.
  [[nodiscard]] std::string hex() const;
  /// The upper half of the same hash.
  [[nodiscard]] std::uint64_t word() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
