// What is MPI's alone: operations cut into several calls, and order under deferred streams.
#define BOOST_TEST_MODULE mpi_communicator
#include "collectives/mpi_communicator.h"

#include <array>
#include <string>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/device/cpu/deferred.h"
#include "kernels/device/cpu/submit.h"
#include "tests/collectives/rank_values.h"
#include "tests/support/check.h"
#include "tests/support/test_bench.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

constexpr Index kSlice = 103;

// Limits far below the sizes: every operation goes in many calls, with a last one that is shorter.
// They must hold one double of each rank.
std::vector<MpiCommunicatorOptions> low_limits(int ranks) {
  const Index least = Index{8} * ranks;
  return {{.max_call_bytes = least, .scratch_bytes = least},
          {.max_call_bytes = least * 3, .scratch_bytes = least * 2},
          {.max_call_bytes = least * 7 + 5, .scratch_bytes = Index{1} << 20}};
}

struct Cut {
  explicit Cut(const MpiCommunicatorOptions& options) : bench(Device{}), comm(session(), options) {}
  TestTensor input(DType dtype, Index count) {
    return bench.of(rank_values(comm.rank(), count), dtype, Shape{count});
  }
  TestBench bench;
  MpiCommunicator comm;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(mpi_communicator)

BOOST_AUTO_TEST_CASE(operations_cut_into_many_calls_give_the_same) {
  const int W = session().world_size();
  for (const MpiCommunicatorOptions& options : low_limits(W)) {
    Cut cut(options);
    Communicator& comm = cut.comm;
    Stream& stream = cut.bench.stream();
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i32, DType::i64}) {
      const std::string_view what = dtype_name(dtype);
      TestTensor send = cut.input(dtype, W * kSlice);
      TestTensor recv = cut.bench.poisoned(dtype, Shape{W * kSlice});
      TestTensor part = cut.bench.poisoned(dtype, Shape{kSlice});

      comm.all_to_all(send.view(), recv.view(), stream);
      check_equal(cut.bench.read(recv.view()), exchanged_values(comm.rank(), W, kSlice), what);

      if (dtype == DType::f32 || dtype == DType::bf16) {
        comm.reduce_scatter(send.view(), part.view(), stream);
        check_equal(cut.bench.read(part.view()), summed_values(W, comm.rank() * kSlice, kSlice),
                    what);
      }

      poison_async(recv.view(), stream);
      TestTensor mine = cut.input(dtype, kSlice);
      comm.all_gather(mine.view(), recv.view(), stream);
      check_equal(cut.bench.read(recv.view()), gathered_values(W, kSlice), what);

      const TensorView own = recv.view().slice(comm.rank() * kSlice, (comm.rank() + 1) * kSlice);
      poison_async(recv.view(), stream);
      copy_async(mine.view(), own, stream);
      comm.all_gather(own, recv.view(), stream);
      check_equal(cut.bench.read(recv.view()), gathered_values(W, kSlice), what);
    }
  }
}

BOOST_AUTO_TEST_CASE(limits_that_cannot_hold_one_element_of_each_rank_are_refused) {
  const Index too_low = Index{4} * session().world_size() - 1;
  BOOST_CHECK_THROW(MpiCommunicator(session(), {.max_call_bytes = too_low}), ContractError);
  BOOST_CHECK_THROW(MpiCommunicator(session(), {.max_call_bytes = Index{1} << 31}), ContractError);
}

BOOST_AUTO_TEST_CASE(bfloat16_is_added_in_f32_and_rounded_once) {
  // 256 + 1 is 256 in bf16: adding rank by rank in bf16 would lose every 1
  Cut cut({});
  const int W = cut.comm.world_size();
  const std::vector<double> mine(static_cast<std::size_t>(W), cut.comm.rank() == 0 ? 256.0 : 1.0);
  TestTensor values = cut.bench.of(mine, DType::bf16, Shape{W});
  TestTensor sum = cut.bench.poisoned(DType::bf16, Shape{1});
  cut.comm.reduce_scatter(values.view(), sum.view(), cut.bench.stream());
  check_equal(cut.bench.read(sum.view()), rounded({255.0 + W}, DType::bf16), "sum");
}

namespace {

constexpr int kRounds = 4;
constexpr int kSeeds = 20;

// Rounds of: produce on one stream, exchange on a second, consume on the third into `results`, with
// one buffer for all rounds, so that each of the three events is needed. Returns the rounds that
// were wrong.
int wrong_rounds(std::uint64_t seed, const char* forgotten) {
  cpu::DeferredMode deferred(seed);
  if (forgotten != nullptr) {
    deferred.ignore_waits_on(forgotten);
  }
  MpiCommunicator comm(session(), {});
  const int W = comm.world_size();
  const Index all = W * kSlice;
  std::vector<float> send(static_cast<std::size_t>(all));
  std::vector<float> recv(static_cast<std::size_t>(all));
  std::array<std::vector<float>, kRounds> results;
  const auto view = [all](std::vector<float>& values) {
    return TensorView{values.data(), DType::f32, Shape{all}, Device{}};
  };
  Stream produce(Device{}, StreamPriority::normal, "produce");
  Stream exchange(Device{}, StreamPriority::high, "exchange");
  Stream consume(Device{}, StreamPriority::normal, "consume");
  Event produced(Device{}, "produced");
  Event exchanged(Device{}, "exchanged");
  Event consumed(Device{}, "consumed");
  for (int round = 0; round < kRounds; ++round) {
    produce.wait(exchanged);
    cpu::submit(produce, [&send, &comm, round] {
      for (std::size_t i = 0; i < send.size(); ++i) {
        send[i] = static_cast<float>(rank_value(comm.rank(), static_cast<Index>(i)) + 100 * round);
      }
    });
    produced.record(produce);
    exchange.wait(produced);
    exchange.wait(consumed);
    comm.all_to_all(view(send), view(recv), exchange);
    exchanged.record(exchange);
    consume.wait(exchanged);
    std::vector<float>& result = results[static_cast<std::size_t>(round)];
    cpu::submit(consume, [&recv, &result] { result = recv; });
    consumed.record(consume);
  }
  comm.barrier();  // a control operation runs what is queued
  int wrong = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<double> expected = exchanged_values(comm.rank(), W, kSlice);
    const std::vector<float>& result = results[static_cast<std::size_t>(round)];
    bool right = result.size() == expected.size();
    for (std::size_t i = 0; right && i < expected.size(); ++i) {
      right = static_cast<double>(result[i]) == expected[i] + 100 * round;
    }
    wrong += right ? 0 : 1;
  }
  return wrong;
}

}  // namespace

BOOST_AUTO_TEST_CASE(events_order_collectives_in_every_deferred_order) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      BOOST_TEST(wrong_rounds(seed, nullptr) == 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(ranks_may_run_their_streams_in_different_orders) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const std::uint64_t own = seed + 1000 * static_cast<std::uint64_t>(session().rank());
    BOOST_TEST_CONTEXT("seed " << own) {
      BOOST_TEST(wrong_rounds(own, nullptr) == 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(each_event_that_is_forgotten_shows) {
  for (const char* forgotten : {"produced", "exchanged", "consumed"}) {
    int wrong = 0;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      wrong += wrong_rounds(seed, forgotten);
    }
    BOOST_TEST_CONTEXT("without " << forgotten) {
      BOOST_TEST(wrong > 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(every_control_operation_runs_what_is_queued_first) {
  const cpu::DeferredMode deferred(kSeed);
  MpiCommunicator comm(session(), {});
  Stream stream(Device{}, StreamPriority::normal, "queued");
  int done = 0;
  const auto queue = [&] { cpu::submit(stream, [&done] { ++done; }); };
  queue();
  BOOST_TEST(done == 0);
  comm.barrier();
  BOOST_TEST(done == 1);
  queue();
  BOOST_TEST(comm.all_agree(true));
  BOOST_TEST(done == 2);
  queue();
  std::array<std::int64_t, 1> values = {1};
  comm.sum(values);
  BOOST_TEST(done == 3);
  queue();
  BOOST_TEST(comm.gather_text("x").size() == static_cast<std::size_t>(comm.world_size()));
  BOOST_TEST(done == 4);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
