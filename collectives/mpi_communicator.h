// Communicator on host memory, over MPI.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/mpi_control.h"

namespace tessera {

class MpiHandle;

struct MpiCommunicatorOptions {
  /// Most bytes of one buffer in one MPI call: counts are int in MPI 3, and libraries multiply them
  /// by the number of ranks. Larger operations go in several calls.
  Index max_call_bytes = Index{1} << 30;
  /// The buffer through which values are reduced that MPI cannot reduce where they are: bfloat16,
  /// which is added in f32, and slices in place. 1 MiB stays in a core's cache.
  Index scratch_bytes = Index{1} << 20;
};

/// Work runs in the stream's order through kernels/device/cpu/submit.h. After the constructor no
/// call allocates memory of ours.
///
/// bf16 is added in f32 and rounded once. Which order MPI adds in is its own affair;
/// all_to_all and kernels/accumulate.h fix it.
class MpiCommunicator final : public Communicator {
 public:
  /// Collective over all ranks.
  MpiCommunicator(const MpiSession& session, const MpiCommunicatorOptions& options);
  ~MpiCommunicator() override;
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  [[nodiscard]] std::string_view data_path() const noexcept override { return "MPI"; }
  void barrier() override { control_.barrier(); }
  [[nodiscard]] bool all_agree(bool ok) override { return control_.all_agree(ok); }
  void sum(std::span<std::int64_t> values) override { control_.sum(values); }
  [[nodiscard]] std::vector<std::string> gather_text(std::string_view text) override {
    return control_.gather_text(text);
  }
  /// Nothing: MPI reports by return codes, and ends the ranks of a peer that died.
  void check_health() override {}
  /// Nothing: no other thread may call MPI.
  void abort() noexcept override {}

 private:
  struct Requests;

  void do_all_to_all(const RankGroup& group, ConstTensorView send, TensorView recv,
                     Stream& stream) override;
  void do_reduce_scatter(ConstTensorView send, TensorView recv, Stream& stream) override;
  void do_all_gather(ConstTensorView send, TensorView recv, Stream& stream) override;

  void swap_slices(const RankGroup& group, const std::byte* send, std::byte* recv,
                   Index slice_bytes);
  // The first part_bytes of the slices that go to and come from the peers `first` to `last` - 1
  // away.
  void swap_parts(const RankGroup& group, const std::byte* send, std::byte* recv, Index slice_bytes,
                  Index part_bytes, int first, int last);
  void gather_slices(const std::byte* send, std::byte* recv, Index slice_bytes);
  void reduce_slices(const ConstTensorView& send, const TensorView& recv);

  MpiCommunicatorOptions options_;
  MpiControl control_;
  std::unique_ptr<MpiHandle> comm_;
  std::unique_ptr<Requests> requests_;
  std::vector<float> scratch_;  // double for its alignment
};

}  // namespace tessera
