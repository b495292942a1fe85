#include "tests/runtime/data/count_allocations.h"

#include <cstdlib>
#include <new>

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

void* operator new(std::size_t bytes) {
  allocations += counting ? 1 : 0;
  if (void* data = std::malloc(bytes == 0 ? 1 : bytes); data != nullptr) {
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
