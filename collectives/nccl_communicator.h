// Communicator on device memory, over NCCL and, where the GPUs reach each other's memory, their
// copy engines; control operations over MPI.
//
// NVLink multicast is neither asked for nor needed: NCCL_NVLS_ENABLE=0 holds.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include <nccl.h>

#include "collectives/communicator.h"
#include "collectives/cuda/peer_copies.h"
#include "collectives/mpi_control.h"

namespace tessera {

/// One rank's NCCL communicator, made with blocking = 0, so that a rank which waits for a lost peer
/// can still be asked how it does. One rank alone needs no NCCL: its data operations are copies.
///
/// Data operations must come from one thread; check_health and abort may come from another.
class NcclCommunicator final : public Communicator {
 public:
  /// Collective over all ranks. Throws ConfigError, on every rank, where two of them use one CUDA
  /// device of a host; DeviceError or CommError, on every rank, where one of them has no device.
  NcclCommunicator(const MpiSession& session, Device device, const CommunicatorOptions& options);
  /// Ends at once where there was an error or an exception is under way; waits a few seconds at
  /// most.
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  [[nodiscard]] std::string_view data_path() const noexcept override {
    return peers_ == nullptr ? "NCCL" : "peer copies";
  }
  void barrier() override { control_.barrier(); }
  [[nodiscard]] bool all_agree(bool ok) override { return control_.all_agree(ok); }
  void sum(std::span<std::int64_t> values) override { control_.sum(values); }
  [[nodiscard]] std::vector<std::string> gather_text(std::string_view text) override {
    return control_.gather_text(text);
  }
  void check_health() override;
  void abort() noexcept override;

 private:
  void do_all_to_all(const RankGroup& group, ConstTensorView send, TensorView recv,
                     Stream& stream) override;
  void do_reduce_scatter(ConstTensorView send, TensorView recv, Stream& stream) override;
  void do_all_gather(ConstTensorView send, TensorView recv, Stream& stream) override;

  void require_own_devices(const MpiSession& session);
  [[nodiscard]] ncclUniqueId shared_id();
  /// Waits until NCCL has done what `call` began (the first operation connects the ranks).
  void finish(std::optional<ncclResult_t> code, const char* call);
  /// What `call` gives, which no abort disturbs; nothing after an abort.
  template <typename Call>
  [[nodiscard]] std::optional<ncclResult_t> unless_aborted(Call&& call);
  [[noreturn]] static void throw_aborted();
  /// True where peer copies are tried first. Throws CommError after an abort, which they do not
  /// see.
  [[nodiscard]] bool goes_by_copies() const;
  /// True when the operations queued so far are flushed and the peers are done too; false after
  /// kFarewellSeconds.
  [[nodiscard]] bool finalize() noexcept;

  Device device_;
  MpiControl control_;
  ncclComm_t comm_ = nullptr;  // null with one rank
  std::atomic<bool> healthy_{true};
  std::atomic<bool> aborted_{false};
  std::timed_mutex call_;                    // held by the thread that is inside NCCL with comm_
  std::unique_ptr<cuda::PeerCopies> peers_;  // null with one rank, and where NCCL moves everything
};

}  // namespace tessera
