// Both communicators: what every operation gives, in place and not, and which calls are refused.
#define BOOST_TEST_MODULE communicator
#include "collectives/communicator.h"

#include <string>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/base/progress.h"
#include "tests/collectives/rank_values.h"
#include "tests/support/check.h"
#include "tests/support/test_bench.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

struct Ranks {
  Ranks() : bench(own_device()), comm(make_communicator(session(), bench.device())) {}

  [[nodiscard]] int rank() const { return comm->rank(); }
  [[nodiscard]] int size() const { return comm->world_size(); }
  TestTensor input(DType dtype, Index count) {
    return bench.of(rank_values(rank(), count), dtype, Shape{count});
  }

  TestBench bench;
  std::unique_ptr<Communicator> comm;
};

constexpr Index kSlice = 1027;  // no multiple of anything
}  // namespace

BOOST_FIXTURE_TEST_SUITE(communicator, Ranks)

BOOST_AUTO_TEST_CASE(ranks_are_those_of_the_session) {
  BOOST_TEST(rank() == session().rank());
  BOOST_TEST(size() == session().world_size());
}

BOOST_AUTO_TEST_CASE(exchange_brings_each_rank_its_slice_of_every_rank_in_order) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i32, DType::i64}) {
    TestTensor send = input(dtype, size() * kSlice);
    TestTensor recv = bench.poisoned(dtype, Shape{size() * kSlice});
    comm->all_to_all(send.view(), recv.view(), bench.stream());
    check_equal(bench.read(recv.view()), exchanged_values(rank(), size(), kSlice),
                dtype_name(dtype));
    check_equal(bench.read(send.view()), send.values, "send is not touched");
  }
}

BOOST_AUTO_TEST_CASE(exchange_of_one_element_a_slice) {
  TestTensor send = input(DType::f32, size());
  TestTensor recv = bench.poisoned(DType::f32, Shape{size()});
  comm->all_to_all(send.view(), recv.view(), bench.stream());
  check_equal(bench.read(recv.view()), exchanged_values(rank(), size(), 1), "recv");
}

// Groups of neighbours, and of every G-th rank: together a node's ranks, and one rank of each node.
BOOST_AUTO_TEST_CASE(exchange_inside_groups_brings_slices_of_the_group_alone) {
  for (int each = 1; each <= size(); ++each) {
    if (size() % each != 0) {
      continue;
    }
    const RankGroup neighbours = {rank() / each * each, 1, each};
    const RankGroup apart = {rank() % each, each, size() / each};
    for (const RankGroup& group : {neighbours, apart}) {
      const Index count = group.count * kSlice;
      const Traffic before = comm->traffic();
      TestTensor send = input(DType::bf16, count);
      TestTensor recv = bench.poisoned(DType::bf16, Shape{count});
      comm->all_to_all(group, send.view(), recv.view(), bench.stream());
      std::vector<double> expected;
      for (int place = 0; place < group.count; ++place) {
        const std::vector<double> theirs = rank_values(group.rank(place), count);
        const auto slice = theirs.begin() + group.place_of(rank()) * kSlice;
        expected.insert(expected.end(), slice, slice + kSlice);
      }
      check_equal(bench.read(recv.view()), expected, "recv");
      BOOST_TEST((comm->traffic() - before).bytes == (group.count - 1) * kSlice * 2);
    }
  }
}

BOOST_AUTO_TEST_CASE(exchange_keeps_every_bit_of_a_nan) {
  std::vector<double> numbers(static_cast<std::size_t>(size()) * 2, 1.0);
  TestTensor send = bench.of(numbers, DType::i32, Shape{Index{2} * size()});
  poison_async(send.view(), bench.stream());
  TensorView as_floats = send.view();
  as_floats.dtype = DType::f32;
  TestTensor recv = bench.of(numbers, DType::i32, Shape{Index{2} * size()});
  TensorView into_floats = recv.view();
  into_floats.dtype = DType::f32;
  comm->all_to_all(as_floats, into_floats, bench.stream());
  check_equal(bench.read(recv.view()),
              std::vector<double>(static_cast<std::size_t>(size()) * 2, -1.0), "bits");
}

BOOST_AUTO_TEST_CASE(reduce_scatter_adds_slice_by_slice) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    TestTensor send = input(dtype, size() * kSlice);
    TestTensor recv = bench.poisoned(dtype, Shape{kSlice});
    comm->reduce_scatter(send.view(), recv.view(), bench.stream());
    check_equal(bench.read(recv.view()), summed_values(size(), rank() * kSlice, kSlice),
                dtype_name(dtype));
    check_equal(bench.read(send.view()), send.values, "send is not touched");
  }
}

BOOST_AUTO_TEST_CASE(reduce_scatter_in_place_writes_its_own_slice_alone) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    TestTensor send = input(dtype, size() * kSlice);
    const Index begin = rank() * kSlice;
    comm->reduce_scatter(send.view(), send.view().slice(begin, begin + kSlice), bench.stream());
    std::vector<double> expected = send.values;
    const std::vector<double> own = summed_values(size(), begin, kSlice);
    std::copy(own.begin(), own.end(), expected.begin() + begin);
    check_equal(bench.read(send.view()), expected, dtype_name(dtype));
  }
}

BOOST_AUTO_TEST_CASE(all_gather_concatenates_in_rank_order) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i64, DType::u8}) {
    std::vector<double> mine = rank_values(rank(), kSlice);
    std::vector<double> expected = gathered_values(size(), kSlice);
    if (dtype == DType::u8) {  // no negative numbers
      for (std::vector<double>* values : {&mine, &expected}) {
        for (double& value : *values) {
          value += 5;
        }
      }
    }
    TestTensor send = bench.of(mine, dtype, Shape{kSlice});
    TestTensor recv = bench.poisoned(dtype, Shape{size() * kSlice});
    comm->all_gather(send.view(), recv.view(), bench.stream());
    check_equal(bench.read(recv.view()), expected, dtype_name(dtype));
  }
}

BOOST_AUTO_TEST_CASE(all_gather_in_place_takes_its_own_slice) {
  TestTensor all = bench.poisoned(DType::f32, Shape{size() * kSlice});
  TestTensor mine = input(DType::f32, kSlice);
  const TensorView own = all.view().slice(rank() * kSlice, (rank() + 1) * kSlice);
  copy_async(mine.view(), own, bench.stream());
  comm->all_gather(own, all.view(), bench.stream());
  check_equal(bench.read(all.view()), gathered_values(size(), kSlice), "recv");
}

BOOST_AUTO_TEST_CASE(one_rank_that_disagrees_is_enough) {
  BOOST_TEST(comm->all_agree(true));
  for (int r = 0; r < size(); ++r) {
    BOOST_TEST(!comm->all_agree(rank() != r));
  }
}

BOOST_AUTO_TEST_CASE(sums_of_integers_are_exact) {
  constexpr std::int64_t kBeyondDouble = (std::int64_t{1} << 60) + 1;
  std::vector<std::int64_t> values = {rank(), -kBeyondDouble, rank() == 0 ? kBeyondDouble : 0};
  comm->sum(values);
  BOOST_TEST(values[0] == size() * (size() - 1) / 2);
  BOOST_TEST(values[1] == static_cast<std::int64_t>(-static_cast<std::uint64_t>(kBeyondDouble) *
                                                    static_cast<std::uint64_t>(size())));
  BOOST_TEST(values[2] == kBeyondDouble);
}

BOOST_AUTO_TEST_CASE(texts_of_unequal_lengths_are_gathered) {
  const auto text_of = [](int r) {
    return std::string(static_cast<std::size_t>(r) * 5, static_cast<char>('a' + r));
  };
  const std::vector<std::string> texts = comm->gather_text(text_of(rank()));
  BOOST_TEST_REQUIRE(texts.size() == static_cast<std::size_t>(size()));
  for (int r = 0; r < size(); ++r) {
    BOOST_TEST(texts[static_cast<std::size_t>(r)] == text_of(r));
  }
  for (const std::string& text : comm->gather_text("")) {
    BOOST_TEST(text.empty());
  }
}

BOOST_AUTO_TEST_CASE(health_is_good) {
  BOOST_CHECK_NO_THROW(comm->check_health());
  comm->barrier();
}

BOOST_AUTO_TEST_CASE(every_collective_counts_as_progress) {
  const std::int64_t number = progress().collective_number;
  const std::uint64_t beats = progress().beats;
  TestTensor values = input(DType::f32, kSlice);
  TestTensor all = bench.poisoned(DType::f32, Shape{size() * kSlice});
  comm->all_gather(values.view(), all.view(), bench.stream());
  bench.stream().synchronize();
  comm->barrier();
  // Peer copies gather handles of memory that they have not seen before: collectives of their own.
  BOOST_TEST(progress().collective_number >= number + 2);
  BOOST_TEST(progress().beats >= beats + 2);
  BOOST_TEST(progress().collective.load() == nullptr);
}

// Refused on every rank before anything is sent: the next collective still works.
BOOST_AUTO_TEST_CASE(broken_requirements_are_refused) {
  TestTensor send = input(DType::f32, size() * kSlice);
  TestTensor recv = bench.poisoned(DType::f32, Shape{size() * kSlice});
  TestTensor other = bench.poisoned(DType::i32, Shape{size() * kSlice});
  Stream& stream = bench.stream();
  const Index all = size() * kSlice;

  BOOST_CHECK_THROW(comm->all_to_all(send.view(), recv.view().slice(0, all - 1), stream),
                    ContractError);
  BOOST_CHECK_THROW(comm->all_to_all(send.view(), other.view(), stream), ContractError);
  BOOST_CHECK_THROW(comm->all_to_all(send.view(), send.view(), stream), ContractError);
  BOOST_CHECK_THROW(comm->all_to_all(send.view().slice(0, 0), recv.view().slice(0, 0), stream),
                    ContractError);
  for (const RankGroup& group :
       {RankGroup{0, 1, size() + 1}, RankGroup{-1, 1, 2}, RankGroup{rank() + 1, 1, 1},
        RankGroup{0, 0, 1}, RankGroup{0, 1, 0}}) {
    BOOST_CHECK_THROW(comm->all_to_all(group, send.view(), recv.view(), stream), ContractError);
  }
  if (size() > 1) {
    BOOST_CHECK_THROW(
        comm->all_to_all(send.view().slice(0, all - 1), recv.view().slice(0, all - 1), stream),
        ContractError);
    const Index next = (rank() + 1) % size() * kSlice;
    BOOST_CHECK_THROW(
        comm->reduce_scatter(send.view(), send.view().slice(next, next + kSlice), stream),
        ContractError);
    BOOST_CHECK_THROW(comm->all_gather(recv.view().slice(next, next + kSlice), recv.view(), stream),
                      ContractError);
  }
  BOOST_CHECK_THROW(comm->reduce_scatter(send.view(), recv.view().slice(0, kSlice - 1), stream),
                    ContractError);
  BOOST_CHECK_THROW(comm->all_gather(send.view().slice(0, kSlice - 1), recv.view(), stream),
                    ContractError);
  TensorView nowhere = send.view();
  nowhere.data = nullptr;
  BOOST_CHECK_THROW(comm->all_gather(nowhere, recv.view(), stream), ContractError);
  TestTensor few = bench.poisoned(DType::i32, Shape{kSlice});
  BOOST_CHECK_THROW(comm->reduce_scatter(other.view(), few.view(), stream), ContractError);
  TensorView elsewhere = send.view();
  elsewhere.device.ordinal += 1;
  BOOST_CHECK_THROW(comm->all_to_all(elsewhere, recv.view(), stream), ContractError);

  comm->all_to_all(send.view(), recv.view(), stream);
  check_equal(bench.read(recv.view()), exchanged_values(rank(), size(), kSlice), "afterwards");
}

BOOST_AUTO_TEST_CASE(two_communicators_do_not_mix) {
  const std::unique_ptr<Communicator> second = make_communicator(session(), bench.device());
  TestTensor a = input(DType::f32, kSlice);
  TestTensor b = input(DType::bf16, size() * kSlice);
  TestTensor gathered = bench.poisoned(DType::f32, Shape{size() * kSlice});
  TestTensor added = bench.poisoned(DType::bf16, Shape{kSlice});
  comm->all_gather(a.view(), gathered.view(), bench.stream());
  second->reduce_scatter(b.view(), added.view(), bench.stream());
  check_equal(bench.read(gathered.view()), gathered_values(size(), kSlice), "first");
  check_equal(bench.read(added.view()), summed_values(size(), rank() * kSlice, kSlice), "second");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
