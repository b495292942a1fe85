// What holds for every kernel: bit-identical twice, on the CPU for every number of threads; no
// memory from the heap.
#include "tests/kernels/every_kernel.h"

#include <atomic>
#include <cstdlib>
#include <new>

#include <omp.h>

#include "tests/support/kernel_test.h"

// Counts every allocation of the program. What replaces operator new cannot but use malloc.
// NOLINTBEGIN(*-no-malloc,*-owning-memory,*-avoid-non-const-global-variables)
namespace {
std::atomic<std::int64_t> allocations{0};
}  // namespace

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
// std::stable_sort asks for this one; the address sanitizer has its own
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
// NOLINTEND(*-no-malloc,*-owning-memory,*-avoid-non-const-global-variables)

namespace tessera::test {
namespace {

// The number of threads that kernels start from now on, as --threads sets it.
class Threads {
 public:
  explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(every_kernel)

BOOST_AUTO_TEST_CASE(two_runs_give_the_same_bits) {
  TestBench bench(test_device());
  EveryKernel kernels(bench);
  BOOST_CHECK_EQUAL(kernels.entries().size(), sizeof(KernelTable) / sizeof(void*));
  for (const EveryKernel::Entry& entry : kernels.entries()) {
    check_equal(kernels.results_of(entry), kernels.results_of(entry), entry.name);
  }
}

BOOST_AUTO_TEST_CASE(results_do_not_depend_on_the_number_of_threads) {
  if (test_device().kind != DeviceKind::cpu) {
    BOOST_TEST_MESSAGE("threads are the CPU's");
    return;
  }
  TestBench bench(test_device());
  const Threads most(4);  // the attention's workspace is made for so many
  EveryKernel kernels(bench);
  for (const EveryKernel::Entry& entry : kernels.entries()) {
    if (entry.name == "gemm" || entry.name == "adapter_gradients") {
      continue;  // dnnl_sgemm gives other bits on two threads
    }
    const std::vector<double> alone = [&] {
      const Threads threads(1);
      return kernels.results_of(entry);
    }();
    for (const int count : {2, 3, 4}) {
      const Threads threads(count);
      check_equal(kernels.results_of(entry), alone,
                  entry.name + " on " + std::to_string(count) + " threads");
    }
  }
}

BOOST_AUTO_TEST_CASE(no_kernel_takes_memory_from_the_heap) {
  TestBench bench(test_device());
  EveryKernel kernels(bench);
  for (const EveryKernel::Entry& entry : kernels.entries()) {
    entry.run();  // plans and threads are made by the first run
    bench.stream().synchronize();
    const std::int64_t before = allocations;
    entry.run();
    bench.stream().synchronize();
    BOOST_CHECK_MESSAGE(allocations == before,
                        entry.name << " allocated " << allocations - before << " times");
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
