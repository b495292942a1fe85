// Cutting a document for a SentencePiece model so that its ids stay those of one call.
//
// A document is cut in front of a single space between two ASCII letters, "a| b". The normaliser
// makes U+2581 of the space. Where no rule of the normaliser reaches over the cut and no piece of
// the vocabulary has a U+2581 behind another character, no piece can hold text of both sides, and
// the best pieces of the whole are those of the two sides: BPE never merges over the cut, and every
// path through Unigram's lattice goes through it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/tokenizer/kinds.h"
#include "runtime/data/text_file.h"

namespace tessera::tokenize {

/// Whether all this holds for `model` (its bytes): false also where it is not known.
[[nodiscard]] bool can_cut_at_spaces(std::string_view model);

/// Bytes of `text` before the last place to cut it; 0: there is none.
[[nodiscard]] std::size_t last_space_cut(std::string_view text);

/// Pieces for read_text, of about `piece_bytes` and none above `most_bytes`. `can_cut`: false: a
/// document is one piece.
[[nodiscard]] TextCuts space_cuts(bool can_cut, std::size_t piece_bytes, std::size_t most_bytes);

/// Replaces `ids` by those of `text`, which continues behind a cut and begins with its space.
void encode_behind_cut(const Tokenizer& tokenizer, std::string_view text,
                       std::vector<std::uint32_t>& ids);

}  // namespace tessera::tokenize
