// Ids that are bytes: vocabulary 256, no end token.
#include <memory>

#include "model/tokenizer/kinds.h"

namespace tessera {
namespace {

constexpr std::int32_t kBytes = 256;

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() : Tokenizer(std::string(kBytesKind), {}) {}
  [[nodiscard]] Index vocab_size() const override { return kBytes; }
  [[nodiscard]] Index end_token() const override { return -1; }
  [[nodiscard]] std::optional<Index> token_id(std::string_view content) const override {
    return content.size() == 1
               ? std::make_optional<Index>(static_cast<unsigned char>(content.front()))
               : std::nullopt;
  }
  [[nodiscard]] TextCut text_cut() const override { return TextCut::anywhere; }
  [[nodiscard]] std::size_t max_call_bytes() const override { return ~std::size_t{0}; }
  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::uint32_t>& ids,
              SpecialText /*special*/) const override {
    ids.reserve(ids.size() + text.size());
    for (const char c : text) {
      ids.push_back(static_cast<unsigned char>(c));
    }
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
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

}  // namespace tessera
