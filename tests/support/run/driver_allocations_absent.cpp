// For builds without CUDA or without CUPTI's headers.
#include "tests/support/run/driver_allocations.h"

namespace tessera::test {

DriverAllocations::DriverAllocations() : why_not_("built without CUPTI") {}
DriverAllocations::~DriverAllocations() = default;

}  // namespace tessera::test
