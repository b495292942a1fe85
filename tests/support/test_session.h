// The one MpiSession of a test binary (tests/mpi_test_main.cpp).
#pragma once

#include "kernels/device/stream.h"

namespace tessera {
class MpiSession;
}

namespace tessera::test {
[[nodiscard]] MpiSession& session();
/// What this rank computes on in a test of this device kind: one GPU a local rank, over and over if
/// they are fewer; it is made the thread's.
[[nodiscard]] Device this_device();
/// The same for communication, where ranks share no GPU: with fewer, the program ends as skipped.
[[nodiscard]] Device own_device();
}  // namespace tessera::test
