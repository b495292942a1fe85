#include "kernels/device/cpu/threads.h"

#include <omp.h>

#include "kernels/device/error.h"

namespace tessera::cpu {

void set_threads(int count) {
  TESSERA_REQUIRE(count >= 1, "at least one thread");
  omp_set_dynamic(0);
  omp_set_num_threads(count);
}

}  // namespace tessera::cpu
