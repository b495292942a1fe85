// Which of the library's algorithms a GEMM takes on CUDA.
//
// By default the first one that cuBLASLt proposes for the shape and the fixed workspace. With
// tuning on, the first use of a shape times the proposals on the real operands and keeps the
// fastest. What was chosen can be written as text and used by other ranks and later runs: a table
// is part of what fixes the bits of a run, so its hash belongs to a checkpoint. The CPU has one
// algorithm, and an empty table.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/device/stream.h"

namespace tessera {

enum class GemmTuning : std::uint8_t { off, on };

/// With `on`, a shape that has no entry yet is timed at its first use, which waits for the device
/// and may allocate room for one result. Entries that exist stay. Throws ConfigError for `on` on
/// the CPU, or in a build without CUDA.
void set_gemm_tuning(Device device, GemmTuning mode);

/// Every entry that was timed or given, one a line, sorted by shape, below two lines that name the
/// card and the library. Shapes that took the first proposal are not in it. Empty on the CPU.
[[nodiscard]] std::string gemm_table(Device device);

/// Uses the entries of a table from now on, without timing. `name` is what messages call it: a
/// path. Empty text is an empty table. Throws FormatError if it is not such a table, ConfigError if
/// it was made for another card or version of the library, or on the CPU.
void use_gemm_table(Device device, std::string_view text, std::string_view name);

/// A hash of what gemm_table gives, times left out. 0 where the table is empty.
[[nodiscard]] std::uint64_t gemm_table_hash(Device device);

/// CUDA's half: kernels/cuda/gemm_plans.cpp, or cuda_absent.cpp, which throws ConfigError.
struct GemmTuner {
  void (*set_tuning)(int ordinal, GemmTuning mode);
  std::string (*table)(int ordinal);
  void (*use_table)(int ordinal, std::string_view text, std::string_view name);
  std::uint64_t (*hash)(int ordinal);
};
namespace cuda {
[[nodiscard]] const GemmTuner& gemm_tuner();
}  // namespace cuda

}  // namespace tessera
