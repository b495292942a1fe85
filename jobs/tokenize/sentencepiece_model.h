// What of a SentencePiece model decides where text may be cut. The library keeps these fields to
// itself, so that they are read from the model's bytes (sentencepiece_model.proto).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::tokenize {

struct SentencePieceModel {
  enum class Type : std::uint8_t { unigram = 1, bpe = 2, word = 3, character = 4 };
  enum class PieceType : std::uint8_t {
    normal = 1,
    unknown = 2,
    control = 3,
    user_defined = 4,
    unused = 5,
    byte = 6
  };
  struct Piece {
    std::string_view text;  // of the model's bytes
    PieceType type = PieceType::normal;
  };
  /// The normaliser writes `to` where it reads `from`.
  struct Rule {
    std::string from;
    std::string_view to;
  };

  std::vector<Piece> pieces;
  std::vector<Rule> rules;
  Type type = Type::unigram;
  bool treat_whitespace_as_suffix = false;
  bool add_dummy_prefix = true;
  bool escape_whitespaces = true;
};

/// The model in `bytes`, which it refers to. nullopt: it is laid out in a way that is not known
/// here.
[[nodiscard]] std::optional<SentencePieceModel> parse_sentencepiece_model(std::string_view bytes);

}  // namespace tessera::tokenize
