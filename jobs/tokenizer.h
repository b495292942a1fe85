// The tokenizers of our programs: bytes, or a SentencePiece model.
#pragma once

#include <memory>
#include <string_view>

#include "model/tokenizer.h"

namespace tessera {

/// An id is a byte: vocabulary 256, no end token.
[[nodiscard]] std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// `model`: the bytes of a SentencePiece model; `name` is for messages. The end token is the
/// model's own (</s>), if it has one. Throws FormatError if it is not a model.
[[nodiscard]] std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view model,
                                                                      std::string_view name);

}  // namespace tessera
