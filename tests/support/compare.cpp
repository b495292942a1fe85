#include "tests/support/compare.h"

#include <cmath>
#include <cstdlib>
#include <sstream>

#include "kernels/base/error.h"

namespace tessera::test {
namespace {

// The rank under mpirun of Open MPI; 0 in a program that runs alone.
std::string rank_of_process() {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank == nullptr ? "0" : rank;
}

bool is_within(double actual, double expected, double bound) {
  if (actual == expected) {
    return true;  // equal infinities too
  }
  if (std::isnan(actual) || std::isnan(expected)) {
    return std::isnan(actual) && std::isnan(expected);
  }
  return std::abs(actual - expected) <= bound;
}

}  // namespace

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 0x1p-24;
    case DType::bf16:
      return 0x1p-8;
    case DType::f64:
      return 0x1p-53;
    default:
      throw ContractError("integers have no roundoff", TESSERA_HERE);
  }
}

std::string difference(const std::vector<double>& actual, const std::vector<double>& expected,
                       const std::vector<double>& bounds, std::string_view what) {
  std::ostringstream line;
  line.precision(9);
  line << what << " (seed " << kSeed << ", rank " << rank_of_process() << "): ";
  if (actual.size() != expected.size()) {
    line << actual.size() << " elements, expected are " << expected.size();
    return line.str();
  }
  const auto bound_of = [&bounds](std::size_t i) {
    return bounds.size() == 1 ? bounds.front() : bounds.at(i);
  };
  std::size_t differing = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (!is_within(actual[i], expected[i], bound_of(i))) {
      first = differing == 0 ? i : first;
      ++differing;
    }
  }
  if (differing == 0) {
    return {};
  }
  line << differing << " of " << actual.size() << " differ, first at " << first << ": is "
       << actual[first] << ", expected " << expected[first] << ", off by "
       << std::abs(actual[first] - expected[first]) << ", bound " << bound_of(first);
  return line.str();
}

std::vector<double> central_differences(const std::function<double(const std::vector<double>&)>& f,
                                        std::vector<double> x, double step) {
  std::vector<double> derivatives(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + step;
    const double above = f(x);
    x[i] = at - step;
    const double below = f(x);
    x[i] = at;
    derivatives[i] = (above - below) / (2 * step);
  }
  return derivatives;
}

}  // namespace tessera::test
