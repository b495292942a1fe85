// A small tokenizer.json made here: the 256 bytes and a few merges, for tests to edit.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/tokenizer/kinds.h"
#include "model/tokenizer/utf8.h"

namespace tessera::test {

/// `bytes` in the alphabet of byte-level vocabularies: printable Latin-1 stands for itself, the other
/// bytes for U+0100 on.
inline std::string in_alphabet(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    std::uint32_t others = 0;
    const auto prints = [](unsigned value) {
      return (value > 0x20 && value < 0x7F) || (value > 0xA0 && value != 0xAD);
    };
    for (unsigned before = 0; before < byte; ++before) {
      others += prints(before) ? 0 : 1;
    }
    append_utf8(prints(byte) ? byte : 256 + others, text);
  }
  return text;
}

using Merges = std::vector<std::pair<std::string, std::string>>;

/// Bytes have the ids 0 to 255, and merge i makes 256 + i.
inline nlohmann::json small_json(const Merges& merges) {
  nlohmann::json vocab = nlohmann::json::object();
  nlohmann::json pairs = nlohmann::json::array();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[in_alphabet(std::string(1, static_cast<char>(byte)))] = byte;
  }
  for (const auto& [left, right] : merges) {
    const auto id = static_cast<int>(256 + pairs.size());
    vocab[in_alphabet(left + right)] = id;
    pairs.push_back(in_alphabet(left) + " " + in_alphabet(right));
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"},
            {"add_prefix_space", false},
            {"trim_offsets", true},
            {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder",
           {{"type", "ByteLevel"},
            {"add_prefix_space", true},
            {"trim_offsets", true},
            {"use_regex", true}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", ""},
            {"end_of_word_suffix", ""},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", pairs}}}};
}

inline nlohmann::json added(std::string_view content, int id) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", false}};
}

inline nlohmann::json split(std::string_view pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

/// Steps in front of a ByteLevel that only makes bytes.
inline nlohmann::json steps(std::vector<nlohmann::json> parts) {
  parts.push_back({{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", parts}};
}

inline std::unique_ptr<Tokenizer> make(const nlohmann::json& json,
                                       std::vector<TokenizerFile> companions = {}) {
  return make_tokenizer({.kind = std::string(kTokenizerJsonKind),
                         .name = "tokenizer.json",
                         .content = json.dump(),
                         .companions = std::move(companions)},
                        "small.json");
}

using Ids = std::vector<std::uint32_t>;

inline Ids encode(const Tokenizer& tokenizer, std::string_view text,
                  SpecialText special = SpecialText::is_token) {
  Ids ids;
  tokenizer.encode(text, ids, special);
  return ids;
}

inline std::string decode(const Tokenizer& tokenizer, const Ids& ids) {
  return tokenizer.decode(std::vector<std::int32_t>(ids.begin(), ids.end()));
}

}  // namespace tessera::test
