// Files in tiktoken's form: a token in base64 and its rank a line. They hold neither pattern nor special
// tokens: a family's row adds these. A pair's rank is that of the two together, and a word that is a
// token is taken whole (tiktoken 0.7, `CoreBPE`).
#include <algorithm>
#include <array>
#include <charconv>
#include <span>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/quantity.h"
#include "model/tokenizer/byte_level_tokenizer.h"
#include "model/tokenizer/end_tokens.h"
#include "model/tokenizer/kinds.h"
#include "model/tokenizer/known_patterns.h"
#include "model/tokenizer/pattern_syntax.h"

namespace tessera {
namespace {

constexpr std::uint32_t kMostRank = std::uint32_t{1} << 24U;
constexpr std::size_t kMostTokenBytes = 1024;

void add_numbered(std::vector<std::string>& tokens, std::string_view prefix, int first, int count) {
  for (int i = first; i < first + count; ++i) {
    tokens.push_back(fmt::format("<|{}{}|>", prefix, i));
  }
}

// Of Meta's llama-models, models/llama3/tokenizer.py.
std::vector<std::string> llama3_specials() {
  constexpr int kAll = 256;
  std::vector<std::string> tokens = {"<|begin_of_text|>",
                                     "<|end_of_text|>",
                                     "<|reserved_special_token_0|>",
                                     "<|reserved_special_token_1|>",
                                     "<|finetune_right_pad_id|>",
                                     "<|step_id|>",
                                     "<|start_header_id|>",
                                     "<|end_header_id|>",
                                     "<|eom_id|>",
                                     "<|eot_id|>",
                                     "<|python_tag|>",
                                     "<|image|>"};
  add_numbered(tokens, "reserved_special_token_", 2, kAll - static_cast<int>(tokens.size()));
  return tokens;
}

// Of the same, models/llama4/tokenizer.py.
std::vector<std::string> llama4_specials() {
  constexpr int kAll = 2048;
  std::vector<std::string> tokens = {
      "<|begin_of_text|>", "<|end_of_text|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
      "<|header_start|>",  "<|header_end|>",  "<|eom|>",        "<|eot|>",        "<|step|>"};
  const auto add_reserved = [&](std::string_view name, int first, int count) {
    add_numbered(tokens, fmt::format("{}_reserved_special_token_", name), first, count);
  };
  add_reserved("text_post_train", 0, 6);
  for (const char* token : {"<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>"}) {
    tokens.emplace_back(token);
  }
  add_reserved("text_post_train", 8, 61);
  for (const char* token : {"<|image_start|>", "<|image_end|>"}) {
    tokens.emplace_back(token);
  }
  add_reserved("vision", 0, 2);
  for (const char* token : {"<|tile_x_separator|>", "<|tile_y_separator|>"}) {
    tokens.emplace_back(token);
  }
  add_reserved("vision", 2, 4);
  tokens.emplace_back("<|image|>");
  add_reserved("vision", 6, 1);
  tokens.emplace_back("<|patch|>");
  add_reserved("vision", 7, 1041);
  add_reserved("reasoning", 0, 8);
  tokens.emplace_back("<|reasoning_thinking_start|>");
  tokens.emplace_back("<|reasoning_thinking_end|>");
  add_numbered(tokens, "reserved_special_token_", 0, kAll - static_cast<int>(tokens.size()));
  return tokens;
}

// Of Qwen (the first), tokenization_qwen.py.
std::vector<std::string> qwen_specials() {
  constexpr int kExtras = 205;
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  add_numbered(tokens, "extra_", 0, kExtras);
  return tokens;
}

struct Family {
  std::string_view kind;
  std::string_view models;
  std::string_view hash;  // XXH3-128 of the file that comes with the models
  std::string_view pattern;
  std::vector<std::string> (*specials)();  // their ids follow the vocabulary's
  bool begins_documents;                   // with the first of them
  bool normalizes;                         // to NFC, by Python
};

constexpr std::array<Family, 3> kFamilies = {{
    {"tiktoken-llama3", "Llama 3", "22e6ee98364f2a1fe7339703bb9e9d7b", kLlama3Pattern,
     &llama3_specials, true, false},
    {"tiktoken-llama4", "Llama 4", "fd1ec8f19c117ba2d2fc82dae9636e64", kLlama4Pattern,
     &llama4_specials, true, false},
    {"tiktoken-qwen", "Qwen", "d68162fbd6d3acb39f288efcb5368aab", kQwen2Pattern, &qwen_specials,
     false, true},
}};

// -1: not a digit of base64.
int digit_of(char c) {
  if (c >= 'A' && c <= 'Z') {
    return c - 'A';
  }
  if (c >= 'a' && c <= 'z') {
    return c - 'a' + 26;
  }
  if (c >= '0' && c <= '9') {
    return c - '0' + 52;
  }
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// Empty: it is not base64 of at least a byte.
std::string from_base64(std::string_view text) {
  constexpr unsigned kDigitBits = 6;
  std::string bytes;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  if (text.size() % 4 != 0) {
    return {};
  }
  std::uint32_t bits = 0;
  unsigned count = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    const int digit = digit_of(c);
    if (digit < 0) {
      return {};
    }
    bits = (bits << kDigitBits) | static_cast<std::uint32_t>(digit);
    count += kDigitBits;
    if (count >= 8) {
      count -= 8;
      bytes.push_back(static_cast<char>((bits >> count) & 0xFFU));
    }
  }
  return bytes;
}

struct Line {
  std::string token;
  std::uint32_t rank = 0;
  bool is_sound = false;
};

Line parse_line(std::string_view line) {
  const std::size_t blank = line.find(' ');
  Line parsed;
  if (blank > 2 * kMostTokenBytes) {  // or there is none
    return parsed;
  }
  parsed.token = from_base64(line.substr(0, blank));
  const std::string_view number = line.substr(blank + 1);
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), parsed.rank);
  parsed.is_sound = !parsed.token.empty() && parsed.token.size() <= kMostTokenBytes &&
                    error == std::errc() && end == number.data() + number.size() &&
                    parsed.rank < kMostRank;
  return parsed;
}

// Calls `use` with each line that is not empty, without its end, and its number from 1 on.
template <typename Use>
void for_each_line(std::string_view content, const Use& use) {
  for (Index number = 1; !content.empty(); ++number) {
    const std::size_t end = content.find('\n');
    std::string_view line = content.substr(0, end);
    content.remove_prefix(end == std::string_view::npos ? content.size() : end + 1);
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (!line.empty()) {
      use(line, number);
    }
  }
}

void read_tokens(std::string_view content, std::string_view source, ByteLevelFacts& facts) {
  for_each_line(content, [&](std::string_view line, Index number) {
    Line parsed = parse_line(line);
    const auto refuse = [&](std::string_view why) {
      throw FormatError(fmt::format("{}: line {} {}", source, number, why), TESSERA_HERE);
    };
    if (!parsed.is_sound) {
      refuse(
          fmt::format("is not a token of at most {} bytes in base64, a blank and its rank below {}",
                      kMostTokenBytes, grouped(kMostRank)));
    }
    if (parsed.rank >= facts.tokens.size()) {
      facts.tokens.resize(parsed.rank + 1);
    }
    if (!facts.tokens[parsed.rank].empty()) {
      refuse(fmt::format("gives rank {} a second time", parsed.rank));
    }
    if (!facts.words.try_emplace(parsed.token, parsed.rank).second) {
      refuse("gives a token a second time");
    }
    facts.tokens[parsed.rank] = std::move(parsed.token);
  });
  if (const std::string missing = missing_bytes(facts.words); !missing.empty()) {
    throw FormatError(fmt::format("{} has no token for the bytes {}", source, missing),
                      TESSERA_HERE);
  }
}

void add_pairs(ByteLevelFacts& facts) {
  for (const auto& [token, id] : facts.words) {
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const std::string_view text = token;
      const auto left = facts.words.find(text.substr(0, cut));
      const auto right = facts.words.find(text.substr(cut));
      if (left != facts.words.end() && right != facts.words.end()) {
        facts.pairs.push_back({left->second, right->second, id, id});
      }
    }
  }
}

std::string kind_choice() {
  std::string choice;
  for (const Family& family : kFamilies) {
    choice += fmt::format("{}{} ({})", choice.empty() ? "" : ", ", family.kind, family.models);
  }
  return choice;
}

}  // namespace

bool is_tiktoken(std::string_view content) {
  return parse_line(content.substr(0, content.find_first_of("\r\n"))).is_sound;
}

std::string_view tiktoken_kind_of(std::string_view content, std::string_view source) {
  if (!is_tiktoken(content)) {
    return {};
  }
  const std::string hash = TokenizerFiles{
      .kind = {},
      .name = {},
      .content = std::string(content),
      .companions = {}}.hash();
  for (const Family& family : kFamilies) {
    if (family.hash == hash) {
      return family.kind;
    }
  }
  throw ConfigError(fmt::format("{} has tiktoken's form, which holds neither pattern nor special "
                                "tokens, and is not a vocabulary that is known: say whose they are "
                                "with --tokenizer-kind: {}",
                                source, kind_choice()),
                    TESSERA_HERE);
}

std::unique_ptr<Tokenizer> make_tiktoken_tokenizer(const TokenizerFiles& files,
                                                   std::string_view source) {
  const auto* const family =
      std::find_if(kFamilies.begin(), kFamilies.end(),
                   [&](const Family& row) { return row.kind == files.kind; });
  TESSERA_REQUIRE(family != kFamilies.end(), "a family of tiktoken files");
  ByteLevelFacts facts;
  facts.kind = files.kind;
  facts.hash = files.hash();
  facts.takes_whole_words = true;
  facts.nfc = family->normalizes ? std::make_optional(NfcTables::newest) : std::nullopt;
  read_tokens(files.content, source, facts);
  add_pairs(facts);
  for (std::string& content : family->specials()) {
    const auto id = static_cast<std::uint32_t>(facts.tokens.size());
    facts.tokens.push_back(content);
    facts.added.push_back({.content = std::move(content), .id = id, .special = true});
  }
  facts.steps.push_back(
      {SplitStep::Action::isolate, SplitPattern(pcre2_from_oniguruma(family->pattern))});
  if (family->begins_documents) {
    facts.begin_tokens.push_back(facts.added.front().id);
  }
  const auto id_of = [&](std::string_view content) -> std::optional<Index> {
    for (const AddedToken& token : facts.added) {
      if (token.content == content) {
        return token.id;
      }
    }
    return std::nullopt;
  };
  EndTokens ends = find_end_tokens(files, id_of, std::ssize(facts.tokens), source);
  facts.end_token = ends.document;
  facts.stop_tokens = std::move(ends.stop);
  const std::array patterns = {family->pattern};
  facts.text_cut = splits_before_spaces(patterns) ? TextCut::at_spaces : TextCut::nowhere;
  return std::make_unique<ByteLevelTokenizer>(std::move(facts));
}

}  // namespace tessera
