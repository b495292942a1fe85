// Communicator::abort from another thread, where a peer never comes: on two GPUs, over NCCL and by
// peer copies.
#define BOOST_TEST_MODULE nccl_abort
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include <boost/test/unit_test.hpp>

#include "collectives/communicator.h"
#include "collectives/mpi_control.h"
#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/device/device_backend.h"
#include "tests/support/test_bench.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Index kSlice = 1027;
// Until the step's thread surely waits.
constexpr std::chrono::milliseconds kSettle{500};
constexpr std::chrono::seconds kAtMost{10};

struct Ranks {
  Ranks() : bench(own_device()) {
    send = bench.normal(DType::f32, Shape{kSlice});
    recv = bench.poisoned(DType::f32, Shape{kSlice * session().world_size()});
    bench.stream().synchronize();
  }
  // No farewell to a peer that never came.
  ~Ranks() {
    session().control().barrier();
    comm->abort();
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  void gather() {
    use_device(bench.device());  // of this thread
    comm->all_gather(send.view(), recv.view(), bench.stream());
    bench.stream().synchronize();
  }

  TestBench bench;
  std::unique_ptr<Communicator> comm;
  TestTensor send;
  TestTensor recv;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(nccl_abort, Ranks)

// NCCL's first operation connects the ranks, in which the host waits; a later one waits on the
// device. The first of peer copies is a control operation, which no abort ends.
BOOST_AUTO_TEST_CASE(an_abort_from_another_thread_ends_the_wait_for_a_peer) {
  struct Case {
    bool peer_copies;
    bool connected;
  };
  for (const auto& [peer_copies, connected] :
       {Case{false, false}, Case{false, true}, Case{true, true}}) {
    BOOST_TEST_CONTEXT("peer copies " << peer_copies << ", connected " << connected) {
      session().control().barrier();
      comm = make_communicator(session(), bench.device(), {.peer_copies = peer_copies});
      if (connected) {
        gather();
      }
      if (comm->rank() == 0) {
        std::future<void> gathered = std::async(std::launch::async, [this] { gather(); });
        BOOST_TEST((gathered.wait_for(kSettle) == std::future_status::timeout));
        const Clock::time_point begin = Clock::now();
        comm->abort();
        BOOST_TEST((gathered.wait_for(kAtMost) == std::future_status::ready));
        BOOST_TEST((Clock::now() - begin < kAtMost));
        if (connected) {
          BOOST_CHECK_NO_THROW(gathered.get());  // with garbage, as the device does not know
        } else {
          BOOST_CHECK_THROW(gathered.get(), CommError);
        }
        BOOST_CHECK_THROW(gather(), CommError);
        BOOST_CHECK_THROW(comm->check_health(), CommError);
        comm->abort();  // a second one has nothing to do
      }
      session().control().barrier();
      comm->abort();
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
