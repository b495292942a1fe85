// Which tokens end a document and a turn: what a Hugging Face folder says, and the names that are known.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "model/tokenizer/kinds.h"

namespace tessera {

struct EndTokens {
  Index document = -1;         // -1: none is known
  std::vector<Index> stop;     // of written text: the end of a document and of a turn
  std::optional<Index> begin;  // tokenizer_config.json asks for one before each document
};

/// A document ends with eos_token of tokenizer_config.json, unless that is known to end turns
/// (<|im_end|>, <|eot_id|>) and there is a token that is known to end documents (<|endoftext|>,
/// <|end_of_text|>); without tokenizer_config.json with the latter. `id_of`: of a token's content.
/// Throws FormatError where a companion is not what it should be; `source` is for messages.
[[nodiscard]] EndTokens find_end_tokens(
    const TokenizerFiles& files,
    const std::function<std::optional<Index>(std::string_view content)>& id_of, Index vocab_size,
    std::string_view source);

}  // namespace tessera
