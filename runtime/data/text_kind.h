// What a file is that would be learned as text but is none: an archive, a document of another
// program, a pointer to a file that is elsewhere, records in JSON.
#pragma once

#include <string_view>

namespace tessera {

/// Bytes that text_kind wants to see: JSON is recognised by its first lines.
inline constexpr std::size_t kTextKindBytes = std::size_t{1} << 16U;

/// For "FILE is {}": what a file that begins with `first_bytes` is and what to do, if it is no
/// plain text. Empty for text, and for bytes of which nothing is known. `first_bytes` is the whole
/// file if there are fewer than kTextKindBytes.
[[nodiscard]] std::string_view text_kind(std::string_view first_bytes);

}  // namespace tessera
