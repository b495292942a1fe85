// The GEMM table as text: which algorithm each shape of GEMM takes. What an algorithm is, only the
// library knows: here it is a row of bytes. kernels/gemm_tuning.h says what a table is for.
//
//   tessera gemm table 2          3, once an entry has an operand of 8 bits or with scales
//   card NVIDIA H200
//   library cublasLt 130100
//   gemm m=... algo=HEX # what people may want to know
//
// Version 2 names one type for both operands and has a field `sms` (the multiprocessors that a GEMM
// kept to, 0 for all; every GEMM uses all now). Version 3 names the types and scales of both
// operands and how their products are accumulated. A table is written in the lowest version that
// has words for it, so that the text of tables and their hashes, which checkpoints keep, stay what
// they were.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "kernels/gemm.h"

namespace tessera {

inline constexpr int kMaxGemmAlignment = 16;

/// What the choice of an algorithm may depend on: never free memory, never a pointer beyond its
/// alignment. The order of the fields is the order of a table's lines.
struct GemmKey {
  Index m;
  Index n;
  Index k;
  Transpose transpose_a;
  Transpose transpose_b;
  Index lda;
  Index ldb;
  Index ldd;
  DType in_a;
  DType out;
  bool reads_c;   // beta is not 0
  bool in_place;  // c is d
  bool has_bias;
  // Bytes that a, b, c, d and bias are aligned to, at most kMaxGemmAlignment; that where there is
  // none.
  std::array<int, 5> alignment;
  DType in_b;
  ScaleMode scale_a;
  ScaleMode scale_b;
  Accumulation accumulation;
  // clang-tidy 14 takes the 0 that <=> is compared with for a pointer
  // NOLINTNEXTLINE(modernize-use-nullptr,readability-implicit-bool-conversion)
  friend auto operator<=>(const GemmKey&, const GemmKey&) = default;
};

[[nodiscard]] GemmKey gemm_key(const GemmArgs& args);

/// The shape as messages have it: as a table that held it alone would.
[[nodiscard]] std::string to_text(const GemmKey& key);

/// cublasLtMatmulAlgo_t.
using GemmAlgorithmBytes = std::array<unsigned char, 64>;

/// An entry's algorithm, and what stands behind '#'.
struct GemmTableEntry {
  GemmAlgorithmBytes algorithm;
  std::string note;
};

/// What a table was made on.
struct GemmTableOrigin {
  std::string card;
  std::string library;
};

using GemmTableEntries = std::map<GemmKey, GemmTableEntry>;

[[nodiscard]] std::string write_gemm_table(const GemmTableOrigin& origin,
                                           const GemmTableEntries& entries);

/// FNV-1a, 64 bits, of the text without what stands behind '#': a name for a table, not a
/// protection. 0 for no entries.
[[nodiscard]] std::uint64_t hash_of(const GemmTableOrigin& origin, const GemmTableEntries& entries);

/// Empty text is an empty table; entries have no notes. `name` is what messages call it: a path.
/// Throws FormatError naming the line if it is not such a table, or is of a version that is not
/// known here; ConfigError if it was made elsewhere than `here`.
[[nodiscard]] GemmTableEntries read_gemm_table(std::string_view text, std::string_view name,
                                               const GemmTableOrigin& here);

}  // namespace tessera
