// The one MpiSession of a test binary (tests/mpi_test_main.cpp).
#pragma once

namespace tessera {
class MpiSession;
}

namespace tessera::test {
[[nodiscard]] MpiSession& session();
}
