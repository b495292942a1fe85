// All-to-all and gather among the GPUs of one host by their copy engines, which take no
// multiprocessor from the GEMMs that run beside them (NCCL's kernels take some) and reach the
// link's rate.
//
// A rank maps its peers' receive buffers (cudaIpcOpenMemHandle) when it first meets them. Ranks
// tell each other how far they are through numbers in mapped device memory, which streams write and
// wait for, so that the host never waits:
//
//   receiver                                  sender
//   free[receiver] at the sender = n
//                                             wait until free[receiver] >= n
//                                             copy the slice into the receiver's buffer
//                                             arrived[sender] at the receiver = n
//   wait until arrived[sender] >= n
//
// n counts what this pair of ranks has done together.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/communicator.h"
#include "kernels/device/device_buffer.h"

namespace tessera::cuda {

class PeerCopies {
 public:
  /// Collective over all ranks of `control`, whose control operations alone are used; it must
  /// outlive the result. Null on every rank where some rank cannot map another's memory: ranks on
  /// several hosts, cards without peer access, or hidden from each other; and, with a warning of
  /// rank 0, where bytes of a trial arrive otherwise than they were sent, or not within seconds, as
  /// behind an IOMMU that does not know of peer access.
  [[nodiscard]] static std::unique_ptr<PeerCopies> connect(Communicator& control, Device device);
  /// Waits for the device where nothing failed. Requires: no operation of this rank is still to
  /// come.
  ~PeerCopies();
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  /// Communicator::all_to_all and all_gather: same requirements, same results. False on every
  /// rank, and nothing done, where some rank's `recv` cannot be mapped by another. Every rank's
  /// `recv` must be at the same place of memory that was allocated in the same order.
  /// Collective over all ranks, and blocks the host, when `recv` is met for the first time.
  [[nodiscard]] bool all_to_all(const RankGroup& group, ConstTensorView send, TensorView recv,
                                Stream& stream);
  [[nodiscard]] bool all_gather(ConstTensorView send, TensorView recv, Stream& stream);

  /// From any thread: makes streams that wait for peers continue. What they move is garbage, here
  /// and in the peers' buffers: for the end of a run.
  void release() noexcept;

 private:
  using Counter = std::uint32_t;

  /// What one rank has mapped of the others, for one receive buffer of its own.
  struct Mapping {
    std::uint64_t allocation = 0;    // tells a new one at the same address
    std::vector<std::byte*> begins;  // by rank; own: null; empty: some rank could not map it
  };
  /// Where a slice goes: bytes [from, from + size) of `send` to byte `at` of the receive buffer of
  /// `rank`.
  struct Route {
    int rank;
    std::size_t from;
    std::size_t at;
  };

  /// What stays on this rank.
  struct OwnSlice {
    const std::byte* from;
    std::byte* to;
  };

  PeerCopies(Communicator& control, Device device);
  [[nodiscard]] bool map_counters();
  [[nodiscard]] bool passes_trial();
  [[nodiscard]] const Mapping& mapping_of(TensorView recv);
  [[nodiscard]] Mapping map(std::byte* begin);
  [[nodiscard]] std::byte* open(int rank, const std::string& handle);
  void forget_freed();
  void follow_last(Stream& stream);
  void move(const OwnSlice& own, const std::vector<Route>& routes, const std::byte* send,
            std::size_t size, const Mapping& mapping, Stream& stream);
  void write(std::byte* counters, std::size_t place, Counter value, Stream& stream) const;
  void wait(std::size_t place, Counter value, Stream& stream) const;

  Communicator& control_;
  Device device_;
  std::optional<Stream> releasing_;
  // [2, W]: free, arrived; by the rank that writes them. Own memory, and all ranks' as mapped here.
  std::byte* counters_ = nullptr;
  std::vector<std::byte*> peer_counters_;
  std::unique_ptr<std::atomic<Counter>[]> done_;  // by rank: n of the last operation with it
  std::map<const void*, Mapping> mappings_;
  std::map<std::pair<int, std::string>, std::byte*> opened_;  // by rank and handle
  Event last_;
  void* last_stream_ = nullptr;
  std::vector<Route> routes_;
};

}  // namespace tessera::cuda
