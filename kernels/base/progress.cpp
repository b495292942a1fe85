#include "kernels/base/progress.h"

namespace tessera {

ProgressRecord& progress() noexcept {
  static ProgressRecord record;
  return record;
}

}  // namespace tessera
