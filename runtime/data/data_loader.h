// Batches of token windows, the same for a given (seed, step) whatever the number of ranks.
#pragma once

#include <filesystem>
#include <vector>

#include "optim/state_io.h"

namespace tessera {

struct DataLoaderOptions {
  std::vector<std::filesystem::path> files;  // token files, HDF5 dataset "/tokens", u8, u16 or u32
  Index sequence_length = 0;                 // T, tokens
  Index sequences_per_rank = 0;              // B, of one micro-step
  std::uint64_t seed = 0;
};

/// Host memory, reused by the next call.
struct Batch {
  TensorView inputs;   // [B, T] i32
  TensorView targets;  // [B, T] i32: inputs moved by one, ignored at a document's end
  Index target_count;  // targets that are not ignored
};

class DataLoader {
 public:
  /// Opens and checks the files. Throws ConfigError if there is not one full window,
  /// FormatError if a file is damaged.
  DataLoader(DataLoaderOptions options, int rank, int world_size, Index vocab);

  /// The next micro-batch of this rank. Starts a new epoch, with a new order, at the end.
  /// Throws FormatError, naming file and position, on a token that is not in [0, vocab).
  [[nodiscard]] Batch next();

  /// Windows taken by all ranks so far: the whole state, so a run may resume with more or fewer
  /// ranks and see each window once.
  [[nodiscard]] Index windows_taken() const noexcept { return windows_taken_; }
  void save(StateWriter& out) const;
  void load(StateReader& in);

 private:
  DataLoaderOptions options_;
  Index windows_taken_ = 0;
};

}  // namespace tessera
