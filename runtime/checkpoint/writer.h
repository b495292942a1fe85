// Writes a checkpoint that either exists whole or does not exist. Names, files and order are those of
// runtime/checkpoint/format.md; its version is kCheckpointVersion.
//
// The arrays are taken page by page (ShardState::read) between two sweeps, into a staging buffer of
// the planned size; a writer thread writes, checks and syncs them and makes no MPI call. Ranks learn
// of each other's progress through the step's exchange; when all are done, rank 0's writer commits.
#pragma once

#include <filesystem>
#include <memory>

#include "collectives/communicator.h"
#include "optim/state_io.h"

namespace tessera {

inline constexpr int kCheckpointVersion = 1;

class CheckpointWriter final : public StateWriter {
 public:
  /// Collective. Throws ConfigError if `step` has been written already.
  CheckpointWriter(const std::filesystem::path& run_folder, std::int64_t step, Communicator& comm);
  /// Drops the .partial folder unless `commit` was called.
  ~CheckpointWriter() override;
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  void put_int(std::string_view name, std::int64_t value) override;
  void put_real(std::string_view name, double value) override;
  void put_slice(std::string_view name, Index begin, Index total, ConstTensorView values) override;

  /// Steps 2 to 4. Collective. The checkpoint exists on return, and survives a power loss.
  void commit();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
