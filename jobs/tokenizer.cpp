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
      const std::string_view foreign = foreign_content(model.substr(0, kForeignBytes));
      throw FormatError(fmt::format("{} is no SentencePiece model{}{}", name,
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

unsigned byte_of(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

// Bytes of the UTF-8 character that `text` begins with; 0 if it begins with none.
std::size_t character_bytes(std::string_view text) {
  const unsigned byte = byte_of(text, 0);
  const std::size_t length = byte < 0x80U                    ? 1
                             : byte >= 0xC2U && byte < 0xE0U ? 2
                             : byte >= 0xE0U && byte < 0xF0U ? 3
                             : byte >= 0xF0U && byte < 0xF5U ? 4
                                                             : 0;
  if (length > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte_of(text, i) & 0xC0U) != 0x80U) {
      return 0;
    }
  }
  return length;
}

// Of a whole character: C0 but for line feed and tab, DEL, and C1.
bool is_control(std::string_view character) {
  const unsigned byte = byte_of(character, 0);
  return (byte < 0x20U && byte != '\n' && byte != '\t') || byte == 0x7FU ||
         (byte == 0xC2U && byte_of(character, 1) < 0xA0U);
}

}  // namespace

std::string terminal_text(std::string_view text) {
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = character_bytes(text.substr(at));
    const std::string_view character = text.substr(at, std::max<std::size_t>(length, 1));
    if (length > 0 && !is_control(character)) {
      shown += character;
    } else {
      shown += '?';
    }
    at += character.size();
  }
  return shown;
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view model,
                                                        std::string_view name) {
  return std::make_unique<SentencePieceTokenizer>(model, name);
}

}  // namespace tessera
