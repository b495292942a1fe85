#include "kernels/base/vector_registers.h"

#if defined(__x86_64__)
#  include <cstdint>

#  include <cpuid.h>
#endif

namespace tessera {

#if defined(__x86_64__)

namespace {

bool has_avx() noexcept {
  static const bool has = __builtin_cpu_supports("avx") != 0;
  return has;
}

// XGETBV with ecx = 1: which parts of the state are not as at the start (CPUID 0Dh, 1: eax bit 2).
bool tells_state_in_use() noexcept {
  constexpr unsigned kLeaf = 0xD;
  constexpr unsigned kBit = 1U << 2U;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return has_avx() && __get_cpuid_count(kLeaf, 1, &a, &b, &c, &d) != 0 && (a & kBit) != 0;
}

}  // namespace

// The callers keep nothing in these registers across a call, which is one: all of them are the callee's.
[[gnu::noinline]] void clear_upper_vector_registers() noexcept {
  if (has_avx()) {
    asm volatile("vzeroupper");  // NOLINT(hicpp-no-assembler): the compiler's needs its own flags
  }
}

std::optional<bool> upper_vector_registers_in_use() noexcept {
  if (!tells_state_in_use()) {
    return std::nullopt;
  }
  constexpr std::uint32_t kAvxState = 1U << 2U;
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));  // NOLINT(hicpp-no-assembler)
  return (low & kAvxState) != 0;
}

#else

void clear_upper_vector_registers() noexcept {}

std::optional<bool> upper_vector_registers_in_use() noexcept {
  return std::nullopt;
}

#endif

}  // namespace tessera
