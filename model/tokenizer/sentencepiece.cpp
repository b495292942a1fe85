// SentencePiece models, encoded by their own library.
#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include "kernels/base/error.h"
#include "kernels/base/hash.h"
#include "kernels/base/input_file.h"
#include "model/tokenizer/kinds.h"

namespace tessera {
namespace {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string_view model, std::string_view source)
      : Tokenizer(std::string(kSentencePieceKind), xxh3_128(bytes_of(model)).text()) {
    const auto status = processor_.LoadFromSerializedProto(model);
    if (!status.ok() || processor_.GetPieceSize() <= 0) {
      const std::string_view foreign = model.starts_with('{')
                                           ? "JSON (a tokenizer.json is read under that name)"
                                           : foreign_content(model.substr(0, kForeignBytes));
      throw FormatError(fmt::format("{} is not a SentencePiece model{}{}", source,
                                    foreign.empty() ? "" : ": it is ", foreign),
                        TESSERA_HERE);
    }
    // Many models' normaliser turns line ends into spaces; others have no piece for them.
    std::vector<std::uint32_t> ids;
    encode("a\nb", ids);
    keeps_line_ends_ =
        decode(std::vector<std::int32_t>(ids.begin(), ids.end())).find('\n') != std::string::npos;
  }
  [[nodiscard]] Index vocab_size() const override { return processor_.GetPieceSize(); }
  [[nodiscard]] Index end_token() const override { return std::max(processor_.eos_id(), -1); }
  [[nodiscard]] Index unknown_token() const override { return processor_.unk_id(); }
  [[nodiscard]] std::optional<Index> token_id(std::string_view content) const override {
    const int id =
        processor_.PieceToId(content);  // the unknown token's where there is no such piece
    return id >= 0 && processor_.IdToPiece(id) == content ? std::make_optional<Index>(id)
                                                          : std::nullopt;
  }
  [[nodiscard]] bool keeps_line_ends() const override { return keeps_line_ends_; }
  [[nodiscard]] std::size_t max_call_bytes() const override { return kMaxCallBytes; }
  using Tokenizer::encode;
  /// Control pieces are never made of text, so that both values of `special` are the same.
  void encode(std::string_view text, std::vector<std::uint32_t>& ids,
              SpecialText /*special*/) const override {
    std::vector<int> pieces;
    const auto status = processor_.Encode(text, &pieces);
    if (!status.ok()) {
      throw FormatError(fmt::format("SentencePiece cannot encode: {}", status.ToString()),
                        TESSERA_HERE);
    }
    ids.insert(ids.end(), pieces.begin(), pieces.end());
  }
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override {
    std::vector<int> known;
    std::copy_if(ids.begin(), ids.end(), std::back_inserter(known),
                 [this](std::int32_t id) { return id >= 0 && id < processor_.GetPieceSize(); });
    std::string text;
    const auto status = processor_.Decode(known, &text);
    if (!status.ok()) {
      throw FormatError(fmt::format("SentencePiece cannot decode: {}", status.ToString()),
                        TESSERA_HERE);
    }
    return text;
  }

 private:
  // While SentencePiece encodes it takes up to about 115 times the text's size (measured with BPE,
  // 0.1.97).
  static constexpr std::size_t kMaxCallBytes = std::size_t{32} << 20U;

  sentencepiece::SentencePieceProcessor processor_;
  bool keeps_line_ends_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view model,
                                                        std::string_view source) {
  return std::make_unique<SentencePieceTokenizer>(model, source);
}

}  // namespace tessera
