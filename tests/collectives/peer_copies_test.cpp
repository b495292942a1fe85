// The copy engines' exchange and gather beside NCCL's: the same bytes, however operations follow
// one another; on two GPUs and more.
#define BOOST_TEST_MODULE peer_copies
#include "collectives/cuda/peer_copies.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "collectives/communicator.h"
#include "collectives/mpi_session.h"
#include "kernels/device/device_backend.h"
#include "tests/collectives/rank_values.h"
#include "tests/support/check.h"
#include "tests/support/test_bench.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

constexpr Index kSlice = 1027;  // no multiple of anything

// The control operations of `comm`; when the `mapping`'th memory is mapped, rank 0 is given a place
// of its peers' that is one counter beside the right one.
class Misdirected final : public Communicator {
 public:
  static constexpr int kNone = -1;
  static constexpr int kCounters = 0;
  static constexpr int kBuffer = 1;  // of the trial

  Misdirected(Communicator& comm, int mapping)
      : Communicator(comm.rank(), comm.world_size()), comm_(comm), mapping_(mapping) {}

  [[nodiscard]] int mappings() const { return mappings_; }

  void barrier() override { comm_.barrier(); }
  [[nodiscard]] bool all_agree(bool ok) override { return comm_.all_agree(ok); }
  void sum(std::span<std::int64_t> values) override { comm_.sum(values); }
  [[nodiscard]] std::vector<std::string> gather_text(std::string_view text) override {
    std::vector<std::string> all = comm_.gather_text(text);
    if (mappings_++ == mapping_ && rank() == 0) {
      for (std::string& handle_and_offset : all) {
        std::int64_t offset = 0;
        const std::size_t at = handle_and_offset.size() - sizeof(offset);
        std::memcpy(&offset, handle_and_offset.data() + at, sizeof(offset));
        offset += sizeof(std::uint32_t);
        std::memcpy(handle_and_offset.data() + at, &offset, sizeof(offset));
      }
    }
    return all;
  }
  void check_health() override { comm_.check_health(); }
  void abort() noexcept override { comm_.abort(); }

 private:
  void do_all_to_all(const RankGroup& group, ConstTensorView send, TensorView recv,
                     Stream& stream) override {
    comm_.all_to_all(group, send, recv, stream);
  }
  void do_reduce_scatter(ConstTensorView send, TensorView recv, Stream& stream) override {
    comm_.reduce_scatter(send, recv, stream);
  }
  void do_all_gather(ConstTensorView send, TensorView recv, Stream& stream) override {
    comm_.all_gather(send, recv, stream);
  }

  Communicator& comm_;
  int mapping_;
  int mappings_ = 0;
};

struct Ranks {
  Ranks()
      : bench(own_device()),
        copies(make_communicator(session(), bench.device())),
        nccl(make_communicator(session(), bench.device(), {.peer_copies = false})) {}

  [[nodiscard]] int rank() const { return copies->rank(); }
  [[nodiscard]] int size() const { return copies->world_size(); }

  TestBench bench;
  std::unique_ptr<Communicator> copies;
  std::unique_ptr<Communicator> nccl;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(peer_copies, Ranks)

BOOST_AUTO_TEST_CASE(each_communicator_goes_its_way) {
  BOOST_TEST(nccl->data_path() == "NCCL");
  BOOST_TEST(copies->data_path() == "peer copies");  // the GPUs of a machine with NVLink
}

// Sizes from one element to millions; the copies in one of two streams, of which nothing else says
// that one waits for the other.
BOOST_AUTO_TEST_CASE(what_arrives_is_what_nccl_brings) {
  constexpr int kOperations = 120;
  constexpr Index kLargest = 3'000'000;
  std::mt19937 random(7);  // the same numbers on every rank
  Stream second(bench.device(), StreamPriority::high, "second");
  TestTensor send = bench.normal(DType::bf16, Shape{kLargest});
  TestTensor by_copies = bench.poisoned(DType::bf16, Shape{kLargest});
  TestTensor by_nccl = bench.poisoned(DType::bf16, Shape{kLargest});
  bench.stream().synchronize();
  for (int i = 0; i < kOperations; ++i) {
    Stream& stream = random() % 2 == 0 ? bench.stream() : second;
    const Index most = Index{1} << (random() % 21);
    const Index slice = std::min<Index>(1 + static_cast<Index>(random()) % most, kLargest / size());
    const Index all = slice * size();
    const bool gathers = random() % 2 == 0;
    const auto operate = [&](Communicator& comm, const TensorView& recv, Stream& in) {
      if (gathers) {
        comm.all_gather(send.view().slice(0, slice), recv.slice(0, all), in);
      } else {
        comm.all_to_all(send.view().slice(0, all), recv.slice(0, all), in);
      }
    };
    operate(*copies, by_copies.view(), stream);
    operate(*nccl, by_nccl.view(), bench.stream());
    if (i % 10 == 9) {
      second.synchronize();
      check_equal(bench.read(by_copies.view()), bench.read(by_nccl.view()), "recv");
    }
  }
}

// One buffer receives again and again while the host runs ahead, and ranks fall behind in turn:
// what is taken out of it between two operations is what the first of them brought.
BOOST_AUTO_TEST_CASE(a_buffer_is_not_overwritten_before_it_is_read) {
  constexpr int kRounds = 40;
  constexpr Index kDelay = 64'000'000;  // elements that a rank which falls behind fills
  TestTensor delay = bench.poisoned(DType::bf16, Shape{kDelay});
  TestTensor recv = bench.poisoned(DType::f32, Shape{size() * kSlice});
  std::vector<TestTensor> sent;
  std::vector<TestTensor> taken;
  for (int i = 0; i < kRounds; ++i) {
    sent.push_back(
        bench.of(rank_values(rank() + i, size() * kSlice), DType::f32, Shape{size() * kSlice}));
    taken.push_back(bench.poisoned(DType::f32, Shape{size() * kSlice}));
  }
  bench.stream().synchronize();
  for (int i = 0; i < kRounds; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (i % size() == rank()) {
      for (int times = 0; times < 1 + i % 3; ++times) {
        poison_async(delay.view(), bench.stream());
      }
    }
    copies->all_to_all(sent[at].view(), recv.view(), bench.stream());
    copy_async(recv.view(), taken[at].view(), bench.stream());
  }
  for (int i = 0; i < kRounds; ++i) {
    std::vector<double> expected;
    for (int from = 0; from < size(); ++from) {
      const std::vector<double> theirs = rank_values(from + i, size() * kSlice);
      const auto slice = theirs.begin() + rank() * kSlice;
      expected.insert(expected.end(), slice, slice + kSlice);
    }
    check_equal(bench.read(taken[static_cast<std::size_t>(i)].view()), expected, "taken");
  }
}

// Memory that is freed and allocated again, small (parts of one block of the driver's) and large.
BOOST_AUTO_TEST_CASE(new_memory_at_an_old_address_is_met_anew) {
  for (int i = 0; i < 12; ++i) {
    const Index slice = i % 3 == 2 ? 2'000'000 : kSlice + i;
    TestTensor other = bench.poisoned(DType::f32, Shape{i % 2 == 0 ? 1 : slice});
    TestTensor send = bench.of(rank_values(rank(), slice), DType::f32, Shape{slice});
    TestTensor recv = bench.poisoned(DType::f32, Shape{size() * slice});
    copies->all_gather(send.view(), recv.view(), bench.stream());
    check_equal(bench.read(recv.view()), gathered_values(size(), slice), "recv");
  }
}

// As behind an IOMMU that sends a card's writes elsewhere. Counters that never change are given up
// after some seconds, and the device is free again.
BOOST_AUTO_TEST_CASE(copies_that_arrive_elsewhere_are_found_before_the_run) {
  for (const int mapping : {Misdirected::kCounters, Misdirected::kBuffer}) {
    BOOST_TEST_CONTEXT("mapping " << mapping) {
      Misdirected control(*nccl, mapping);
      BOOST_TEST((cuda::PeerCopies::connect(control, bench.device()) == nullptr));
      BOOST_TEST(control.mappings() > mapping);
    }
  }
  Misdirected control(*nccl, Misdirected::kNone);
  BOOST_TEST((cuda::PeerCopies::connect(control, bench.device()) != nullptr));
  TestTensor values = bench.of(rank_values(rank(), kSlice), DType::f32, Shape{kSlice});
  TestTensor recv = bench.poisoned(DType::f32, Shape{size() * kSlice});
  copies->all_gather(values.view(), recv.view(), bench.stream());
  check_equal(bench.read(recv.view()), gathered_values(size(), kSlice), "recv");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
