// Collective operations among the ranks of a run.
//
// Two implementations, chosen once by make_communicator: MPI on host memory (CPU ranks and tests)
// and NCCL on device memory; control operations are MPI's in both. tests/collectives runs every
// case against both.
//
// Rules for callers:
//   * every rank makes the same calls in the same order;
//   * data operations are queued in a Stream and may return before they are done;
//   * control operations (barrier, all_agree, sum, gather_text) block the host; they have an MPI
//     communicator of their own, and in the deferred mode of CPU streams run all queued work first
//     (kernels/device/cpu/deferred.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/tensor_view.h"

namespace tessera {

class MpiSession;

/// What one rank had to send to others by data operations, whatever the backend's algorithm.
struct Traffic {
  std::int64_t operations = 0;
  std::int64_t bytes = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
  friend Traffic operator-(const Traffic& a, const Traffic& b) noexcept {
    return {a.operations - b.operations, a.bytes - b.bytes};
  }
};

/// Ranks first, first + stride, ..., `count` of them: those of a node, or one of each node.
struct RankGroup {
  int first = 0;
  int stride = 1;
  int count = 1;
  /// The place'th rank of the group.
  [[nodiscard]] int rank(int place) const noexcept { return first + place * stride; }
  /// Of a rank that is in it.
  [[nodiscard]] int place_of(int rank) const noexcept { return (rank - first) / stride; }
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }              // 0 .. world_size()-1
  [[nodiscard]] int world_size() const noexcept { return world_size_; }  // 1 or more

  /// Sends slice p of `send` to rank p; the slices that came here are stored in `recv` in rank
  /// order.
  ///
  ///   send  [W * S]  read; W = world_size()
  ///   recv  [W * S]  written; must not overlap send
  ///
  /// With kernels/accumulate.h, which adds the slices in f32 in that order, this is the
  /// reduce-scatter whose sums depend neither on the run nor on the number of ranks.
  /// Requires: same dtype, on every rank the same S; S > 0.
  /// Throws ContractError on a broken requirement, CommError on a failed call.
  void all_to_all(ConstTensorView send, TensorView recv, Stream& stream);
  /// The same among the ranks of `group`, of which this is one: W is group.count, and slices are in
  /// the group's order. Every rank makes the call, each with the group that it is in.
  void all_to_all(const RankGroup& group, ConstTensorView send, TensorView recv, Stream& stream);

  /// The backend's own reduce-scatter, a sum (ncclReduceScatter, MPI_Reduce_scatter_block): it
  /// chooses the order, and rounds in the dtype of `send`.
  ///
  ///   send  [W * S]  f32 or bf16, read
  ///   recv  [S]      written; may be exactly slice rank() of send
  void reduce_scatter(ConstTensorView send, TensorView recv, Stream& stream);

  /// Concatenates `send` of every rank, in rank order, into `recv` on every rank.
  ///
  ///   send  [S]      read; may be exactly slice rank() of recv
  ///   recv  [W * S]  written
  void all_gather(ConstTensorView send, TensorView recv, Stream& stream);

  /// How all_to_all and all_gather move data: "MPI", "NCCL" or "peer copies"; "nothing" where
  /// they never do.
  [[nodiscard]] virtual std::string_view data_path() const noexcept { return "nothing"; }

  /// Since the start, on this rank: a slice counts once for each other rank that must have it.
  [[nodiscard]] const Traffic& traffic() const noexcept { return traffic_; }

  /// Blocks until every rank has called it.
  virtual void barrier() = 0;
  /// True on every rank if `ok` is true on every rank. Use it before anything that one rank could
  /// fail alone (a file, an allocation), so that all ranks throw together instead of some hanging.
  [[nodiscard]] virtual bool all_agree(bool ok) = 0;
  /// Sums host integers over the ranks in place: exact, so the same whatever the ranks.
  virtual void sum(std::span<std::int64_t> values) = 0;
  /// Host bytes of every rank, on every rank, in rank order; lengths may differ. For set-up.
  [[nodiscard]] virtual std::vector<std::string> gather_text(std::string_view text) = 0;
  /// Throws CommError if the backend has seen an error since the last call. Never blocks; the
  /// trainer calls it once a step, the watchdog once a second.
  virtual void check_health() = 0;
  /// Makes calls and device work of this rank that wait for peers return, from any thread, within
  /// seconds; what they moved is garbage, and data operations throw CommError from then on. For
  /// the watchdog; not beside the destructor. MPI, which leaves nothing waiting behind the host's
  /// back, does nothing.
  virtual void abort() noexcept = 0;

 protected:
  Communicator(int rank, int world_size) noexcept : rank_(rank), world_size_(world_size) {}

 private:
  // The public functions check the requirements once; a backend only moves data.
  virtual void do_all_to_all(const RankGroup& group, ConstTensorView send, TensorView recv,
                             Stream& stream) = 0;
  virtual void do_reduce_scatter(ConstTensorView send, TensorView recv, Stream& stream) = 0;
  virtual void do_all_gather(ConstTensorView send, TensorView recv, Stream& stream) = 0;

  // `sent` is `parts` slices, each of which goes `copies` times to every other one of `ranks`.
  void count(const ConstTensorView& sent, std::int64_t copies, std::int64_t parts, int ranks);

  int rank_;
  int world_size_;
  Traffic traffic_;
};

struct CommunicatorOptions {
  /// On CUDA: all_to_all and all_gather by the cards' copy engines where every rank can map
  /// every other's memory (collectives/cuda/peer_copies.h), not by NCCL. Changes no bit. Receive
  /// buffers must then be allocated alike on every rank.
  bool peer_copies = true;
};

/// MPI for a CPU device, NCCL for a CUDA device. Collective over all ranks of `session`, which must
/// outlive the result. Throws ConfigError where two ranks of a host share a CUDA device.
[[nodiscard]] std::unique_ptr<Communicator> make_communicator(
    MpiSession& session, Device device, const CommunicatorOptions& options = {});

/// NCCL's half of make_communicator: nccl_communicator.cpp, or nccl_absent.cpp, which throws
/// ConfigError.
[[nodiscard]] std::unique_ptr<Communicator> make_nccl_communicator(
    MpiSession& session, Device device, const CommunicatorOptions& options);
/// "NCCL 2.21.5"; empty in a build without it.
[[nodiscard]] std::string nccl_library();

}  // namespace tessera
