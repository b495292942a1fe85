// Numbers as users write them: sizes with suffixes, counts, reals; and as they are shown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/types.h"

namespace tessera {

/// Whole numbers that an option takes, both ends included.
struct CountRange {
  Index least;
  Index most;
};
struct SizeRange {
  std::size_t least;
  std::size_t most;
};
struct RealRange {
  double least;
  double most;
};

// The largest numbers that programs take. They are beyond every use, and small enough that what is
// computed from them fits in an Index or an int.
inline constexpr Index kMostTokens = 2'147'483'647;  // of one micro-batch: kernels count in i32
inline constexpr Index kMostSequences = 2'147'483'647;
inline constexpr Index kMostSteps = 1'000'000'000'000;
inline constexpr Index kMostRanks = Index{1} << 20;
inline constexpr Index kMostThreads = 1024;  // of one process
inline constexpr Index kMostSeed = 9'223'372'036'854'775'807;
inline constexpr std::size_t kMostBytes = std::size_t{1} << 50U;
inline constexpr double kMostSeconds = 1e9;  // 31 years

/// "64MiB", "5GB", "1048576": bytes. Suffixes B, kB/KB, MB, GB, TB (powers of 1000) and KiB, MiB,
/// GiB, TiB, PiB (powers of 1024). Throws ConfigError naming `what` ("--page-bytes") and the range.
[[nodiscard]] std::size_t parse_bytes(std::string_view text, SizeRange range,
                                      std::string_view what);
/// A whole number. Throws ConfigError naming `what` and the range.
[[nodiscard]] Index parse_count(std::string_view text, CountRange range, std::string_view what);
/// A finite number, with a point whatever the locale. Throws ConfigError naming `what` and the
/// range.
[[nodiscard]] double parse_real(std::string_view text, RealRange range, std::string_view what);

/// The range as help and refusals show it: "1 to 1024", "0 to 1 PiB".
[[nodiscard]] std::string range_text(CountRange range);
[[nodiscard]] std::string range_text(SizeRange range);
[[nodiscard]] std::string range_text(RealRange range);

/// "4.40 GB" below 1000 of each unit; powers of 1000.
[[nodiscard]] std::string format_bytes(std::size_t bytes);
/// 1234567 as "1,234,567", whatever the locale.
[[nodiscard]] std::string grouped(Index value);
/// "1 rank", "3 ranks": `noun` in the singular, its plural with an s.
[[nodiscard]] std::string counted(Index count, std::string_view noun);
/// "64 of 4,733 sequences": `noun` in the singular.
[[nodiscard]] std::string part_text(Index part, Index whole, std::string_view noun);
/// "1h02m", "3m10s", "12s".
[[nodiscard]] std::string format_duration(double seconds);

}  // namespace tessera
