#include "runtime/data/content_hash.h"

#include <new>

#include <fmt/format.h>
#include <xxhash.h>

#include "kernels/base/error.h"

namespace tessera {

struct ContentHash::State {
  State() : value(XXH3_createState()) {
    if (value == nullptr) {
      throw std::bad_alloc();
    }
    TESSERA_REQUIRE(XXH3_128bits_reset(value) == XXH_OK, "xxHash cannot start");
  }
  ~State() { static_cast<void>(XXH3_freeState(value)); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  XXH3_state_t* value;
};

ContentHash::ContentHash() : state_(std::make_unique<State>()) {}
ContentHash::~ContentHash() = default;
ContentHash::ContentHash(ContentHash&& other) noexcept = default;
ContentHash& ContentHash::operator=(ContentHash&& other) noexcept = default;

void ContentHash::add(const void* data, std::size_t bytes) {
  if (bytes != 0) {
    TESSERA_REQUIRE(XXH3_128bits_update(state_->value, data, bytes) == XXH_OK,
                    "xxHash refuses its input");
  }
}

std::string ContentHash::hex() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(state_->value);
  return fmt::format("{:016x}{:016x}", digest.high64, digest.low64);
}

std::uint64_t ContentHash::word() const {
  return XXH3_128bits_digest(state_->value).high64;
}

}  // namespace tessera
