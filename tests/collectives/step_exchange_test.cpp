// The step's exchange: bit-identical however numbers are spread over ranks, and one bad number seen
// by all.
#define BOOST_TEST_MODULE step_exchange
#include "collectives/step_exchange.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "tests/support/compare.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

std::uint64_t bits_of(double value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

class WordSum {
 public:
  void add(double value) {
    fixed_point_parts(value, [this](int word, std::int64_t amount) {
      words_[static_cast<std::size_t>(word)] += amount;
    });
  }
  [[nodiscard]] StepExchange::Words words() const { return words_; }
  [[nodiscard]] double value() const { return fixed_point_value(words_.data()); }

 private:
  std::array<std::int64_t, kFixedPointWords> words_{};
};

// Positive numbers over 60 powers of two, so that a sum in doubles would depend on the order.
double number(Index i) {
  const auto words = philox(kSeed, 1, static_cast<std::uint64_t>(i));
  return std::ldexp(uniform_from(words[0]), static_cast<int>(words[1] % 60) - 30);
}

struct Exchange {
  Exchange() : comm(make_communicator(session(), Device{})), exchange(*comm) {}
  void add_loss(double value) {
    WordSum one;
    one.add(value);
    exchange.add_loss(one.words());
  }
  std::unique_ptr<Communicator> comm;
  StepExchange exchange;
};

constexpr Index kNumbers = 3000;

BOOST_AUTO_TEST_CASE(times_of_each_rank_come_to_all) {
  Exchange e;
  for (int step = 0; step < 2; ++step) {
    e.exchange.clear();
    const auto times_of = [step](int rank) {
      return RankTimes{1.25 + rank, 0.5 * step, rank / 1e9};
    };
    e.exchange.set_times(times_of(e.comm->rank()));
    e.exchange.add_counter(StepExchange::kCounters - 1, 1);  // beside them
    e.exchange.run();
    for (int rank = 0; rank < e.exchange.ranks(); ++rank) {
      BOOST_TEST((e.exchange.times(rank) == times_of(rank)), rank);
    }
    BOOST_TEST(e.exchange.counter(StepExchange::kCounters - 1) == e.exchange.ranks());
  }
  BOOST_CHECK_THROW((void)e.exchange.times(-1), ContractError);
  BOOST_CHECK_THROW((void)e.exchange.times(e.exchange.ranks()), ContractError);
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(step_exchange, Exchange)

BOOST_AUTO_TEST_CASE(norm_and_loss_have_the_same_bits_for_every_distribution) {
  WordSum all;
  for (Index i = 0; i < kNumbers; ++i) {
    all.add(number(i));
  }
  const int W = comm->world_size();
  constexpr int kDistributions = 4;
  for (int distribution = 0; distribution < kDistributions; ++distribution) {
    const auto owner = [&](Index i) -> int {
      switch (distribution) {
        case 0:  // one by one
          return static_cast<int>(i % W);
        case 1:  // in ranges
          return static_cast<int>(i * W / kNumbers);
        case 2:  // all on the last rank
          return W - 1;
        default:  // at random
          return static_cast<int>(philox(kSeed, 2, static_cast<std::uint64_t>(i))[0] %
                                  static_cast<std::uint32_t>(W));
      }
    };
    exchange.clear();
    WordSum mine;
    for (Index i = kNumbers - 1; i >= 0; --i) {  // backwards, to have another order too
      if (owner(i) == comm->rank()) {
        mine.add(number(i));
        add_loss(number(i));
      }
    }
    exchange.add_grad_squares(mine.words());
    exchange.run();
    BOOST_TEST(bits_of(exchange.grad_norm()) == bits_of(std::sqrt(all.value())));
    BOOST_TEST(bits_of(exchange.loss_sum()) == bits_of(all.value()));
    BOOST_TEST(exchange.finite());
  }
}

BOOST_AUTO_TEST_CASE(losses_may_cancel_and_be_negative) {
  exchange.clear();
  add_loss(0x1p100);
  add_loss(-0x1p100);
  add_loss(-0.5);
  exchange.run();
  BOOST_TEST(exchange.loss_sum() == -0.5 * comm->world_size());
}

BOOST_AUTO_TEST_CASE(a_nan_on_any_one_rank_is_seen_by_all) {
  for (int r = 0; r < comm->world_size(); ++r) {
    for (const double bad :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
          -std::numeric_limits<double>::infinity(), 0x1p128}) {
      exchange.clear();
      WordSum squares;
      squares.add(comm->rank() == r ? bad : 1.0);
      exchange.add_grad_squares(squares.words());
      add_loss(2.0);
      exchange.run();
      BOOST_TEST(!exchange.finite());
      BOOST_TEST(exchange.non_finite_count() == 1);
      BOOST_TEST(std::isnan(exchange.grad_norm()));
      BOOST_TEST(exchange.loss_sum() == 2.0 * comm->world_size());

      exchange.clear();
      add_loss(comm->rank() == r ? bad : 1.0);
      exchange.run();
      BOOST_TEST(!exchange.finite());
      BOOST_TEST(std::isnan(exchange.loss_sum()));
      BOOST_TEST(exchange.grad_norm() == 0.0);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_largest_finite_numbers_add_up) {
  exchange.clear();
  WordSum squares;
  const double largest = std::nextafter(0x1p128, 0.0);
  constexpr int kTerms = 1000;
  for (int i = 0; i < kTerms; ++i) {
    squares.add(largest);
  }
  exchange.add_grad_squares(squares.words());
  exchange.run();
  const double expected = std::sqrt(largest * kTerms * comm->world_size());
  BOOST_TEST(exchange.finite());
  BOOST_TEST(std::abs(exchange.grad_norm() - expected) <= 4e-16 * expected);
}

BOOST_AUTO_TEST_CASE(numbers_below_the_lowest_bit_are_cut_off) {
  exchange.clear();
  add_loss(0x1p-129);
  add_loss(std::numeric_limits<double>::denorm_min());
  exchange.run();
  BOOST_TEST(exchange.loss_sum() == 0.0);
  BOOST_TEST(exchange.finite());
}

BOOST_AUTO_TEST_CASE(counts_are_summed_over_the_ranks) {
  const int W = comm->world_size();
  constexpr Index kBeyond32Bits = Index{1} << 40;
  exchange.clear();
  exchange.add_next_targets(kBeyond32Bits + comm->rank());
  exchange.add_next_targets(1);
  exchange.add_counter(0, 3);
  exchange.add_counter(StepExchange::kCounters - 1, -comm->rank());
  exchange.run();
  BOOST_TEST(exchange.next_targets() == W * (kBeyond32Bits + 1) + Index{W} * (W - 1) / 2);
  BOOST_TEST(exchange.counter(0) == 3 * W);
  BOOST_TEST(exchange.counter(StepExchange::kCounters - 1) == -Index{W} * (W - 1) / 2);
  BOOST_CHECK_THROW(exchange.add_counter(StepExchange::kCounters, 1), ContractError);
  BOOST_CHECK_THROW((void)exchange.counter(StepExchange::kCounters), ContractError);
}

BOOST_AUTO_TEST_CASE(one_rank_that_wants_to_stop_stops_all) {
  for (std::size_t reason = 0; reason < kStopReasons; ++reason) {
    for (int r = 0; r < comm->world_size(); ++r) {
      exchange.clear();
      if (comm->rank() == r) {
        exchange.vote_stop(static_cast<StopReason>(reason));
      }
      exchange.run();
      BOOST_TEST((exchange.stop_reason() == static_cast<StopReason>(reason)));
    }
  }
  exchange.clear();
  exchange.run();
  BOOST_TEST(!exchange.stop_reason().has_value());
}

BOOST_AUTO_TEST_CASE(the_first_reason_wins_where_ranks_have_several) {
  exchange.clear();
  exchange.vote_stop(comm->rank() == 0 ? StopReason::time_limit : StopReason::usr1);
  exchange.run();
  const StopReason expected = comm->world_size() == 1 ? StopReason::time_limit : StopReason::usr1;
  BOOST_TEST((exchange.stop_reason() == expected));
}

BOOST_AUTO_TEST_CASE(writers_are_counted_by_state) {
  const int W = comm->world_size();
  exchange.clear();
  exchange.set_writer(Writer::save, comm->rank() == 0 ? WriterState::failed : WriterState::done);
  exchange.set_writer(Writer::promotion, WriterState::idle);
  exchange.run();
  BOOST_TEST(exchange.writers(Writer::save, WriterState::failed) == 1);
  BOOST_TEST(exchange.writers(Writer::save, WriterState::done) == W - 1);
  BOOST_TEST(exchange.writers(Writer::save, WriterState::busy) == 0);
  BOOST_TEST(exchange.writers(Writer::save, WriterState::idle) == 0);
  BOOST_TEST(exchange.writers(Writer::promotion, WriterState::idle) == W);
  BOOST_TEST(exchange.writers(Writer::promotion, WriterState::failed) == 0);
}

BOOST_AUTO_TEST_CASE(clear_forgets_everything) {
  add_loss(1.0);
  exchange.add_next_targets(5);
  exchange.vote_stop(StopReason::interrupt);
  exchange.add_counter(1, 1);
  exchange.clear();
  exchange.run();
  BOOST_TEST(exchange.loss_sum() == 0.0);
  BOOST_TEST(exchange.next_targets() == 0);
  BOOST_TEST(!exchange.stop_reason().has_value());
  BOOST_TEST(exchange.counter(1) == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
