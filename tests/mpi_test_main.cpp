// main of the tests that run on several ranks: Boost.Test between MPI_Init and MPI_Finalize. A
// failure on any rank fails the case everywhere.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_control.h"
#include "collectives/mpi_session.h"
#include "kernels/device/device_backend.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {
MpiSession* the_session = nullptr;  // NOLINT(*-avoid-non-const-global-variables): main's
// Boost.Test's shared library wants a function here; the cases register themselves.
bool start() {
  return true;
}
}  // namespace
MpiSession& session() {
  return *the_session;
}
Device this_device() {
  if (TESSERA_TEST_DEVICE != DeviceKind::cuda) {
    return {};
  }
  const Device device = {DeviceKind::cuda, session().local_rank() % device_count(DeviceKind::cuda)};
  use_device(device);
  return device;
}
Device own_device() {
  if (TESSERA_TEST_DEVICE != DeviceKind::cuda) {
    return {};
  }
  const bool enough = session().local_rank() < device_count(TESSERA_TEST_DEVICE);
  if (!session().control().all_agree(enough)) {
    constexpr int kSkipped = 77;
    (void)std::fputs("skipped: fewer devices than ranks\n", stderr);
    std::exit(kSkipped);
  }
  return this_device();
}
}  // namespace tessera::test

int main(int argc, char** argv) {
  tessera::MpiSession session(argc, argv);
  tessera::test::the_session = &session;
  const int status = boost::unit_test::unit_test_main(&tessera::test::start, argc, argv);
  return session.control().all_agree(status == 0) ? 0 : std::max(status, 1);
}
