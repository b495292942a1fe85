// Reads a committed checkpoint. Starts neither MPI nor CUDA: `inspect` is made of this and runtime.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optim/state_io.h"

namespace tessera {

struct ArrayInfo {
  std::string name;
  DType dtype;
  Index count;       // elements, over all ranks
  int writer_ranks;  // files that hold a slice of it
};

class CheckpointReader final : public StateReader {
 public:
  /// Reads and checks the manifest alone. Throws FormatError: no manifest, unknown version, or
  /// slices that do not cover an array exactly once.
  explicit CheckpointReader(const std::filesystem::path& checkpoint_folder);
  ~CheckpointReader() override;
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  [[nodiscard]] std::int64_t step() const;
  [[nodiscard]] int writer_ranks() const;
  [[nodiscard]] std::vector<ArrayInfo> arrays() const;

  [[nodiscard]] std::int64_t get_int(std::string_view name) override;
  [[nodiscard]] double get_real(std::string_view name) override;
  void get_slice(std::string_view name, Index begin, Index total, TensorView values) override;

  /// Reads every byte and compares every checksum. Throws FormatError naming file and array.
  void verify();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Newest committed checkpoint of a run. Empty if there is none; .partial folders do not count.
[[nodiscard]] std::optional<std::filesystem::path> latest_checkpoint(
    const std::filesystem::path& run_folder);

}  // namespace tessera
