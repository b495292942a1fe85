#include "kernels/device/cpu/threads.h"

#include <array>
#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <omp.h>

#include "kernels/base/error.h"

namespace tessera::cpu {
namespace {

int team_size() {
  int size = 0;
#pragma omp parallel default(none) shared(size)
  {
#pragma omp single
    size = omp_get_num_threads();
  }
  return size;
}

// "OMP_THREAD_LIMIT=1", or what OpenMP says of its limits where no variable explains them.
std::string limits_text() {
  constexpr std::array kNames = {"OMP_THREAD_LIMIT", "OMP_MAX_ACTIVE_LEVELS"};
  std::string text;
  for (const char* name : kNames) {
    if (const char* value = std::getenv(name); value != nullptr) {
      text += fmt::format("{}{}={}", text.empty() ? "" : ", ", name, value);
    }
  }
  return text.empty() ? fmt::format("its thread limit is {}, its active levels {}",
                                    omp_get_thread_limit(), omp_get_max_active_levels())
                      : text;
}

}  // namespace

void set_threads(int count) {
  TESSERA_REQUIRE(count >= 1, "at least one thread");
  omp_set_dynamic(0);
  omp_set_num_threads(count);
  if (const int size = team_size(); size != count) {
    throw ConfigError(
        fmt::format("--threads {}: OpenMP starts a team of {} ({}): unset OMP_THREAD_LIMIT "
                    "and OMP_MAX_ACTIVE_LEVELS, or give --threads {}",
                    count, size, limits_text(), size),
        TESSERA_HERE);
  }
}

}  // namespace tessera::cpu
