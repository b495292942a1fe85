// Numbers as users write them: sizes with suffixes, counts, reals; and as they are shown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/device/stream.h"

namespace tessera {

/// "64MiB", "5GB", "1048576": bytes. Suffixes B, kB/KB, MB, GB, TB (powers of 1000) and KiB, MiB,
/// GiB, TiB (powers of 1024). Throws ConfigError naming `what` ("--page-bytes").
[[nodiscard]] std::size_t parse_bytes(std::string_view text, std::string_view what);
/// A whole number of at least `least`. Throws ConfigError naming `what`.
[[nodiscard]] Index parse_count(std::string_view text, Index least, std::string_view what);
/// A finite number between `least` and `most`, with a point whatever the locale. Throws
/// ConfigError.
[[nodiscard]] double parse_real(std::string_view text, double least, double most,
                                std::string_view what);

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
