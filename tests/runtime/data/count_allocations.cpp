#include "tests/runtime/data/count_allocations.h"

#include <cstdlib>
#include <new>

// What replaces operator new cannot but use malloc.
// NOLINTBEGIN(*-no-malloc,*-owning-memory,*-avoid-non-const-global-variables)
namespace {

thread_local bool counting = false;
thread_local int allocations = 0;

}  // namespace

namespace tessera::test {

void start_counting_allocations() noexcept {
  allocations = 0;
  counting = true;
}

int stop_counting_allocations() noexcept {
  counting = false;
  return allocations;
}

}  // namespace tessera::test

// All that go together: the address sanitizer has its own of those left out and compares them.
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  allocations += counting ? 1 : 0;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new(std::size_t bytes) {
  if (void* data = operator new(bytes, std::nothrow); data != nullptr) {
    return data;
  }
  throw std::bad_alloc();
}
void operator delete(void* data) noexcept {
  std::free(data);
}
void operator delete(void* data, std::size_t /*bytes*/) noexcept {
  std::free(data);
}
void operator delete(void* data, const std::nothrow_t& /*tag*/) noexcept {
  std::free(data);
}
// NOLINTEND(*-no-malloc,*-owning-memory,*-avoid-non-const-global-variables)
