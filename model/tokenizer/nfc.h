// Unicode's normalization form C (UAX #15), by utf8proc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Whose combining marks and compositions count.
enum class NfcTables : std::uint8_t {
  newest,   // all that utf8proc knows, as Python's unicodedata
  unicode9  // those of Unicode 9, which is what Hugging Face's tokenizers (0.23) know: marks that
            // came later keep their place there
};

class Nfc {
 public:
  /// Makes the table of characters that normalization may change. Throws ConfigError in a build
  /// without utf8proc.
  explicit Nfc(NfcTables tables);

  /// The normalized text: `text` itself where nothing changes, else `room`, which is overwritten.
  /// Takes time in proportion to n log n. Requires: `text` is UTF-8.
  [[nodiscard]] std::string_view normalized(std::string_view text, std::string& room) const;

 private:
  [[nodiscard]] bool is_settled(std::uint32_t code) const;
  void append_composed(std::string_view part, std::string& text) const;

  NfcTables tables_;
  std::vector<bool> unsettled_;  // by code point: it changes alone, or may with what is before it
};

}  // namespace tessera
