// Names of files are bytes, of which JSON, terminals and people take UTF-8 alone.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

/// `text` as UTF-8 from which unescaped_text gives it back. Text that is UTF-8 (RFC 3629) stays as
/// it is; a byte that is not part of it becomes `\xHH`; and so that both can be distinguished, the
/// backslash of a `\xHH` that stood there becomes `\x5c`.
[[nodiscard]] std::string escaped_text(std::string_view text);
/// What escaped_text was given. Other text stays as it is.
[[nodiscard]] std::string unescaped_text(std::string_view text);
/// For reading alone: bytes that are not UTF-8 become `\xHH`.
[[nodiscard]] std::string shown_text(std::string_view text);

}  // namespace tessera
