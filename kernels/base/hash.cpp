#include "kernels/base/hash.h"

#include <new>

#include <fmt/format.h>

// The variant that asks the processor at run time is three times as fast; not every build of the
// library has it.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#  include <xxh_x86dispatch.h>
#else
#  include <xxhash.h>
#endif

#include "kernels/base/error.h"

namespace tessera {

std::string Hash128::text() const {
  return hash_text(high) + hash_text(low);
}

std::string hash_text(std::uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

void Xxh3::Free::operator()(XXH3_state_s* state) const noexcept {
  static_cast<void>(XXH3_freeState(state));
}

Xxh3::Xxh3(HashWidth width) : state_(XXH3_createState()) {
  if (!state_) {
    throw std::bad_alloc();
  }
  if (width == HashWidth::bits64) {
    reset64();
  } else {
    reset128();
  }
}

Xxh3::~Xxh3() = default;

void Xxh3::reset64() {
  is_wide_ = false;
  static_cast<void>(XXH3_64bits_reset(state_.get()));
}

void Xxh3::reset128() {
  is_wide_ = true;
  static_cast<void>(XXH3_128bits_reset(state_.get()));
}

void Xxh3::add(std::span<const std::byte> bytes) {
  if (bytes.empty()) {
    return;  // its address may be null, which the library refuses
  }
  const XXH_errorcode code = is_wide_
                                 ? XXH3_128bits_update(state_.get(), bytes.data(), bytes.size())
                                 : XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
  if (code != XXH_OK) {
    throw ContractError("XXH3 refused its input", TESSERA_HERE);
  }
}

std::uint64_t Xxh3::digest64() const {
  TESSERA_REQUIRE(!is_wide_, "a hash of 64 bits");
  return XXH3_64bits_digest(state_.get());
}

Hash128 Xxh3::digest128() const {
  TESSERA_REQUIRE(is_wide_, "a hash of 128 bits");
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return {hash.high64, hash.low64};
}

std::uint64_t xxh3_64(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

Hash128 xxh3_128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

}  // namespace tessera
