#define BOOST_TEST_MODULE agree
#include "runtime/launch/agree.h"

#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include <boost/test/unit_test.hpp>

#include "collectives/communicator.h"
#include "collectives/mpi_session.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

// Lets `rank` alone fail with `error`, and gives the message every rank got.
template <typename Kind, typename Ranks, typename Thrown>
std::string message_of(Ranks& ranks, int rank, const Thrown& error) {
  std::string message;
  try {
    agree(ranks, [&] {
      if (session().rank() == rank || rank < 0) {
        throw error;  // NOLINT(cert-err60-cpp): a copy that throws fails the case
      }
    });
    BOOST_ERROR("nothing was thrown");
  } catch (const Kind& thrown) {
    message = thrown.message();
    BOOST_TEST(dynamic_cast<const AgreedMark*>(&thrown) != nullptr);
  }
  return message;
}

std::string said_by(int rank, const std::string& message) {
  return session().world_size() == 1
             ? message
             : "rank " + std::to_string(rank) + " (" + session().host() + "): " + message;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(agree_suite)

BOOST_AUTO_TEST_CASE(what_succeeds_everywhere_gives_its_result) {
  BOOST_TEST(agree(session(), [] { return session().rank() + 1; }) == session().rank() + 1);
  const auto moved = agree(session(), [] { return std::make_unique<int>(7); });
  BOOST_TEST(*moved == 7);
  bool called = false;
  agree(session(), [&] { called = true; });
  BOOST_TEST(called);
}

BOOST_AUTO_TEST_CASE(one_rank_that_fails_makes_all_throw_its_type) {
  const int last = session().world_size() - 1;
  BOOST_TEST(message_of<ConfigError>(session(), last, ConfigError("c", TESSERA_HERE)) ==
             said_by(last, "c"));
  BOOST_TEST(message_of<FormatError>(session(), last, FormatError("f", TESSERA_HERE)) ==
             said_by(last, "f"));
  BOOST_TEST(message_of<WriteError>(session(), last, WriteError("w", TESSERA_HERE)) ==
             said_by(last, "w"));
  BOOST_TEST(message_of<DeviceError>(session(), last, DeviceError("d", TESSERA_HERE)) ==
             said_by(last, "d"));
  BOOST_TEST(message_of<CommError>(session(), last, CommError("m", TESSERA_HERE)) ==
             said_by(last, "m"));
  BOOST_TEST(message_of<DivergedError>(session(), last, DivergedError("v", TESSERA_HERE)) ==
             said_by(last, "v"));
}

BOOST_AUTO_TEST_CASE(a_failure_that_all_have_keeps_its_words) {
  BOOST_TEST(message_of<WriteError>(session(), -1, WriteError("two\nlines", TESSERA_HERE)) ==
             "two\nlines");
}

BOOST_AUTO_TEST_CASE(the_lowest_rank_speaks_where_ranks_fail_differently) {
  try {
    agree(session(),
          [] { throw WriteError("rank's own " + std::to_string(session().rank()), TESSERA_HERE); });
    BOOST_ERROR("nothing was thrown");
  } catch (const WriteError& error) {
    BOOST_TEST(error.message() == said_by(0, "rank's own 0"));
  }
}

BOOST_AUTO_TEST_CASE(other_exceptions_have_their_status) {
  BOOST_TEST(
      message_of<DeviceError>(session(), -1, std::bad_alloc()).starts_with("host memory ran out"));
  BOOST_TEST(message_of<ContractError>(session(), -1, std::runtime_error("unforeseen")) ==
             "an internal error in tessera, please report it: unforeseen");
  BOOST_TEST(
      message_of<ContractError>(session(), -1, 42).ends_with("an exception of unknown type"));
  const std::string contract =
      message_of<ContractError>(session(), -1, ContractError("too few", TESSERA_HERE));
  BOOST_TEST(contract.find("agree_test.cpp:") != std::string::npos);  // says where
}

BOOST_AUTO_TEST_CASE(an_agreed_failure_may_pass_through_a_second_agreement) {
  const std::string inner =
      message_of<ContractError>(session(), -1, ContractError("once", TESSERA_HERE));
  try {
    throw_agreed({9, inner}, TESSERA_HERE);
  } catch (...) {
    BOOST_TEST(failure_of(std::current_exception()).message == inner);
  }
}

BOOST_AUTO_TEST_CASE(a_communicator_can_agree_too) {
  const auto comm = make_communicator(session(), Device{});
  BOOST_TEST(message_of<FormatError>(*comm, 0, FormatError("f", TESSERA_HERE)) == said_by(0, "f"));
  BOOST_TEST(agree(*comm, [] { return 3; }) == 3);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
