// main of the tests that need no MPI.
#include <boost/test/unit_test.hpp>

namespace {
// Boost.Test's shared library wants a function here; the cases register themselves.
bool start() {
  return true;
}
}  // namespace

int main(int argc, char** argv) {
  return boost::unit_test::unit_test_main(&start, argc, argv);
}
