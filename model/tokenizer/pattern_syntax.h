// The patterns of tokenizer files: Oniguruma's syntax (Ruby's), which Hugging Face's tokenizers read,
// in terms of PCRE2. Where the two mean something else the construct is translated; what is not known
// to mean the same is refused.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

/// PCRE2's pattern (UTF and UCP set, newline LF) that matches what Oniguruma's `pattern` does.
/// Throws FormatError, a clause that names the construct and its byte: "\\h at byte 3 is not ...".
[[nodiscard]] std::string pcre2_from_oniguruma(std::string_view pattern);

/// A pattern that matches `text` alone.
[[nodiscard]] std::string pcre2_of_literal(std::string_view text);

}  // namespace tessera
