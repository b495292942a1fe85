#include "jobs/tokenizer.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include "kernels/base/error.h"
#include "kernels/base/input_file.h"

namespace tessera {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] Index vocab_size() const override { return kBytes; }
  [[nodiscard]] Index end_token() const override { return -1; }
  [[nodiscard]] Index unknown_token() const override { return -1; }
  [[nodiscard]] bool keeps_line_ends() const override { return true; }
  [[nodiscard]] std::size_t max_call_bytes() const override { return 0; }
  void encode(std::string_view text, std::vector<std::uint32_t>& ids) const override {
    ids.resize(text.size());
    std::transform(text.begin(), text.end(), ids.begin(),
                   [](char c) { return static_cast<unsigned char>(c); });
  }
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      if (id >= 0 && id < kBytes) {
        text.push_back(static_cast<char>(id));
      }
    }
    return text;
  }

 private:
  static constexpr std::int32_t kBytes = 256;
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string_view model, std::string_view name) {
    const auto status = processor_.LoadFromSerializedProto(model);
    if (!status.ok() || processor_.GetPieceSize() <= 0) {
      constexpr std::string_view kJson = "JSON, as Hugging Face's tokenizer.json is, which is not "
                                         "read: make the ids with Python's "
                                         "tokenizers (README: Text for Qwen and Llama)";
      const std::string_view foreign =
          model.starts_with('{') ? kJson : foreign_content(model.substr(0, kForeignBytes));
      throw FormatError(fmt::format("{} is not a SentencePiece model{}{}", name,
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
  [[nodiscard]] bool keeps_line_ends() const override { return keeps_line_ends_; }
  [[nodiscard]] std::size_t max_call_bytes() const override { return kMaxCallBytes; }
  void encode(std::string_view text, std::vector<std::uint32_t>& ids) const override {
    std::vector<int> pieces;
    const auto status = processor_.Encode(text, &pieces);
    if (!status.ok()) {
      throw FormatError(fmt::format("SentencePiece cannot encode: {}", status.ToString()),
                        TESSERA_HERE);
    }
    ids.assign(pieces.begin(), pieces.end());
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

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view model,
                                                        std::string_view name) {
  return std::make_unique<SentencePieceTokenizer>(model, name);
}

}  // namespace tessera
