#define BOOST_TEST_MODULE mpi_session
#include "collectives/mpi_session.h"

#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <boost/test/unit_test.hpp>
#include <unistd.h>

#include "collectives/mpi_control.h"
#include "kernels/base/error.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

// The environment that a launcher leaves, put back afterwards.
class LauncherEnvironment {
 public:
  using Values = std::map<std::string, std::string>;

  explicit LauncherEnvironment(const Values& values) {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS",
                             "SLURM_NTASKS", "SLURM_PROCID"}) {
      const char* former = std::getenv(name);
      former_[name] = former == nullptr ? std::nullopt : std::optional<std::string>(former);
      unsetenv(name);
    }
    for (const auto& [name, value] : values) {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~LauncherEnvironment() {
    for (const auto& [name, value] : former_) {
      if (value) {
        setenv(name.c_str(), value->c_str(), 1);
      } else {
        unsetenv(name.c_str());
      }
    }
  }
  LauncherEnvironment(const LauncherEnvironment&) = delete;
  LauncherEnvironment& operator=(const LauncherEnvironment&) = delete;

 private:
  std::map<std::string, std::optional<std::string>> former_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(mpi_session)

BOOST_AUTO_TEST_CASE(ranks_of_a_host_have_local_ranks_from_zero) {
  const std::vector<std::string> hosts = session().control().gather_text(session().host());
  const std::vector<std::string> locals =
      session().control().gather_text(std::to_string(session().local_rank()));
  std::map<std::string, std::set<int>> by_host;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    BOOST_TEST(by_host[hosts[r]].insert(std::stoi(locals[r])).second);
  }
  for (const auto& [host, ranks] : by_host) {
    BOOST_TEST(*ranks.begin() == 0);
    BOOST_TEST(*ranks.rbegin() == static_cast<int>(ranks.size()) - 1);
  }
  BOOST_TEST(!host_name().empty());
  BOOST_TEST(session().host() == host_name());
}

BOOST_AUTO_TEST_CASE(clocks_that_differ_are_brought_to_rank_0) {
  const double skew = 1000.0 * session().rank();
  const auto clock = [skew] {
    return skew + std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
                      .count();
  };
  constexpr double kMillisecond = 1e-3;
  // Ranks that share a core answer when their turn comes.
  constexpr double kTurns = 0.1;
  const bool crowded =
      static_cast<unsigned>(session().world_size()) > std::thread::hardware_concurrency();
  // Seen on all ranks, so that a failure names its rank; each then knows how the others fared.
  const double error = session().control().clock_offset(clock) + skew;
  const std::vector<std::string> all = session().control().gather_text(std::to_string(error));
  for (const std::string& each : all) {
    BOOST_CHECK_SMALL(std::stod(each), crowded ? kTurns : kMillisecond);
  }
  if (session().rank() == 0) {
    BOOST_CHECK_EQUAL(error, 0);
  }
}

BOOST_AUTO_TEST_CASE(a_launcher_of_another_mpi_is_refused_by_name) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const LauncherEnvironment environment(LauncherEnvironment::Values{{name, "4"}});
    BOOST_CHECK_EXCEPTION(refuse_wrong_launcher(1), ConfigError, [&](const ConfigError& error) {
      return error.message().find("started 4 tasks (" + std::string(name) + ")") !=
             std::string::npos;
    });
    BOOST_CHECK_NO_THROW(refuse_wrong_launcher(4));
  }
}

BOOST_AUTO_TEST_CASE(one_process_is_accepted_where_it_is_meant) {
  {
    const LauncherEnvironment none(LauncherEnvironment::Values{});
    BOOST_CHECK_NO_THROW(refuse_wrong_launcher(1));
  }
  {
    // mpirun -np 1 inside a job step: the launcher nearest to the process decides
    const LauncherEnvironment inside(
        {{"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}});
    BOOST_CHECK_NO_THROW(refuse_wrong_launcher(1));
  }
  {
    // a batch script that starts one process by itself
    const LauncherEnvironment batch(
        LauncherEnvironment::Values{{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}});
    BOOST_CHECK_NO_THROW(refuse_wrong_launcher(1));
  }
  const LauncherEnvironment odd(LauncherEnvironment::Values{{"PMI_SIZE", "many"}});
  BOOST_CHECK_NO_THROW(refuse_wrong_launcher(1));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
