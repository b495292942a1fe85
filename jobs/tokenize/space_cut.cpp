#include "jobs/tokenize/space_cut.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "jobs/tokenize/outputs.h"
#include "jobs/tokenize/sentencepiece_model.h"
#include "kernels/base/error.h"

namespace tessera::tokenize {
namespace {

constexpr std::string_view kEscapedSpace = "\xE2\x96\x81";  // U+2581

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Whether the cut's space (in the text) may be within `piece`, or behind something of it.
bool may_span(std::string_view piece) {
  if (piece.find(' ') != std::string_view::npos) {
    return true;
  }
  // a run of U+2581 at the begin may match at the cut's space only if it is a run of one
  while (piece.starts_with(kEscapedSpace)) {
    piece.remove_prefix(kEscapedSpace.size());
  }
  return piece.find(kEscapedSpace) != std::string_view::npos;
}

// Whether a rule may read the space of a cut, or leave no character, or a space, of the letters
// beside it.
bool may_disturb(const SentencePieceModel::Rule& rule) {
  const std::string& from = rule.from;
  if (from.empty() || from == " ") {
    return true;
  }
  for (std::size_t i = 0; i + 1 < from.size(); ++i) {
    if ((from[i] == ' ' && is_letter(from[i + 1])) || (is_letter(from[i]) && from[i + 1] == ' ')) {
      return true;
    }
  }
  const std::string_view to = rule.to;
  const bool begins = is_letter(from.front());
  const bool ends = is_letter(from.back());
  return ((begins || ends) && to.empty()) ||
         (begins && (to.starts_with(' ') || to.starts_with(kEscapedSpace))) ||
         (ends && (to.ends_with(' ') || to.ends_with(kEscapedSpace)));
}

// SentencePiece joins unknown pieces that stand side by side: the one behind a cut must be known.
bool knows_space(const SentencePieceModel& model) {
  using Type = SentencePieceModel::PieceType;
  return std::any_of(model.pieces.begin(), model.pieces.end(), [](const auto& piece) {
    return piece.text == kEscapedSpace &&
           (piece.type == Type::normal || piece.type == Type::user_defined);
  });
}

}  // namespace

bool can_cut_at_spaces(std::string_view model) {
  const std::optional<SentencePieceModel> parsed = parse_sentencepiece_model(model);
  if (!parsed || parsed->treat_whitespace_as_suffix || !parsed->escape_whitespaces ||
      (parsed->type != SentencePieceModel::Type::unigram &&
       parsed->type != SentencePieceModel::Type::bpe)) {
    return false;
  }
  return knows_space(*parsed) &&
         std::none_of(parsed->pieces.begin(), parsed->pieces.end(),
                      [](const auto& piece) { return may_span(piece.text); }) &&
         std::none_of(parsed->rules.begin(), parsed->rules.end(), may_disturb);
}

std::size_t last_space_cut(std::string_view text) {
  for (std::size_t at = text.size() < 2 ? 0 : text.size() - 2; at > 0; --at) {
    if (text[at] == ' ' && is_letter(text[at - 1]) && is_letter(text[at + 1])) {
      return at;
    }
  }
  return 0;
}

TextCuts space_cuts(bool can_cut, std::size_t piece_bytes, std::size_t most_bytes) {
  const std::string most = megabytes(static_cast<Index>(most_bytes));
  if (!can_cut) {
    return {
        most_bytes, most_bytes, [](std::string_view) { return std::size_t{0}; },
        fmt::format("has more than {}; this SentencePiece model's pieces or rules may reach over "
                    "a space, so that it encodes a document as a whole, which takes much "
                    "memory. Split the file into one for each document",
                    most)};
  }
  return {piece_bytes, most_bytes, last_space_cut,
          fmt::format("has more than {} without a single space between two letters (a to z), which "
                      "is where it can be cut; the tokenizer encodes what lies between as a "
                      "whole, which takes much memory. Split the file into one for each document",
                      most)};
}

void encode_behind_cut(const Tokenizer& tokenizer, std::string_view text,
                       std::vector<std::uint32_t>& ids) {
  TESSERA_REQUIRE(text.starts_with(' '), "not behind a cut");
  // The model may put a prefix before the text, or remove the space. Neither happens to it behind
  // a letter, and the ids of the letter come first: there, too, is a cut.
  constexpr std::string_view kLetter = "a";
  ids.clear();
  tokenizer.encode(kLetter, ids);
  const auto letter_ids = static_cast<std::ptrdiff_t>(ids.size());
  std::string behind_letter(kLetter);
  behind_letter += text;
  ids.clear();
  tokenizer.encode(behind_letter, ids);
  ids.erase(ids.begin(), ids.begin() + letter_ids);
}

}  // namespace tessera::tokenize
