// Our formats as Jinja templates, for transformers and what else reads them: chat_template.jinja of
// an exported folder. Each writes, word by word, what the format's function in C++ writes.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

[[nodiscard]] std::string chatml_template();
[[nodiscard]] std::string qwen25_template();
[[nodiscard]] std::string qwen3_template();
[[nodiscard]] std::string qwen3_instruct_template();
[[nodiscard]] std::string llama3_template();
[[nodiscard]] std::string llama31_template();
[[nodiscard]] std::string mistral_template();

/// `text` as a literal of Jinja: 'it\'s\n'.
[[nodiscard]] std::string jinja_literal(std::string_view text);

}  // namespace tessera
