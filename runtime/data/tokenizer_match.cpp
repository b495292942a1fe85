#include "runtime/data/tokenizer_match.h"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "kernels/base/quantity.h"

namespace tessera {
namespace {

constexpr std::string_view kJsonKind = kTokenizerJsonKind;

std::string hash_of(std::string_view model) {
  return model.empty() ? std::string() : xxh3_128(bytes_of(model)).text();
}

bool is_known(const TokenizerFacts& tokens) {
  return tokens.kind != "ids";
}

// "the SentencePiece model tok.model (1f2e3d4c, 32,000 tokens)".
std::string described(const TokenizerFacts& tokens) {
  constexpr std::size_t kShownHash = 8;
  std::string what = tokens.kind == "bytes"           ? "bytes"
                     : tokens.kind == "sentencepiece" ? "a SentencePiece model"
                     : is_known(tokens)               ? "a " + tokens.kind
                                                      : "an unknown tokenizer";
  if (!tokens.name.empty() && tokens.name != tokens.kind) {
    what += " " + tokens.name;
  }
  std::vector<std::string> more;
  if (!tokens.model_hash.empty()) {
    more.push_back("hash " + tokens.model_hash.substr(0, kShownHash));
  }
  if (tokens.vocab_size > 0) {
    more.push_back(grouped(tokens.vocab_size) + (tokens.vocab_size == 1 ? " token" : " tokens"));
  }
  return more.empty() ? what : fmt::format("{} ({})", what, fmt::join(more, ", "));
}

bool differ_for_certain(const TokenizerFacts& a, const TokenizerFacts& b) {
  if (is_known(a) && is_known(b)) {
    if (a.kind == b.kind) {
      return a.model_hash != b.model_hash;
    }
    // Hugging Face keeps SentencePiece models and tiktoken's files in either form
    const auto is_json_of = [](const TokenizerFacts& json, const TokenizerFacts& model) {
      return json.kind == kJsonKind && model.kind != kBytesKind;
    };
    return !is_json_of(a, b) && !is_json_of(b, a);
  }
  const auto has_ids_beyond = [](const TokenizerFacts& ids, const TokenizerFacts& known) {
    return !is_known(ids) && is_known(known) && known.vocab_size > 0 &&
           ids.vocab_size > known.vocab_size;
  };
  return has_ids_beyond(a, b) || has_ids_beyond(b, a);
}

}  // namespace

TokenizerFacts tokenizer_of(const TokenFile& file, std::string_view option) {
  return {.source = fmt::format("{} {}", option, file.path().string()),
          .kind = file.info().tokenizer,
          .name = file.info().tokenizer_name,
          .vocab_size = file.info().vocab_size,
          .model_hash = hash_of(file.tokenizer_model())};
}

TokenizerFacts tokenizer_of(const RunTokenizer& tokenizer, std::string source) {
  return {.source = std::move(source),
          .kind = tokenizer.kind,
          .name = {},
          .vocab_size = tokenizer.vocab_size,
          .model_hash = hash_of(tokenizer.model)};
}

std::optional<TokenizerFacts> tokenizer_of_folder(const std::filesystem::path& folder,
                                                  std::string source) {
  if (const auto kept = read_run_tokenizer(folder)) {
    return tokenizer_of(*kept, std::move(source));
  }
  for (const auto& [name, kind] : {std::pair{"tokenizer.model", "sentencepiece"},
                                   std::pair{"tokenizer.json", "tokenizer.json"}}) {
    if (!path_exists(folder / name)) {
      continue;
    }
    const std::string content = read_whole_file(folder / name, kMostTokenizerBytes);
    if (!is_tiktoken(content)) {  // which says little beside a tokenizer.json
      return TokenizerFacts{.source = std::move(source),
                            .kind = kind,
                            .name = name,
                            .vocab_size = 0,
                            .model_hash = hash_of(content)};
    }
  }
  return std::nullopt;
}

void TokenizerCheck::differ(const std::string& what, std::string_view advice) {
  if (action_ == OnTokenizerMismatch::refuse) {
    throw ConfigError(fmt::format("{}: {}, or give --allow-tokenizer-mismatch", what, advice),
                      TESSERA_HERE);
  }
  notes_.push_back(fmt::format("allowed by --allow-tokenizer-mismatch: {}", what));
}

void TokenizerCheck::report_unknown(const TokenizerFacts& tokens) {
  if (!is_known(tokens) && !reported_unknown_) {
    reported_unknown_ = true;
    notes_.push_back(
        fmt::format("{}: unknown tokenizer: the ids were made elsewhere, and only their "
                    "vocabulary of {} can be compared",
                    tokens.source, grouped(tokens.vocab_size)));
  }
}

void TokenizerCheck::compare(const TokenizerFacts& mine, const TokenizerFacts& theirs) {
  if (differ_for_certain(mine, theirs)) {
    differ(fmt::format("{} and {} have other tokens: {}, and {}", mine.source, theirs.source,
                       described(mine), described(theirs)),
           "use the same tokenizer for both");
    return;
  }
  report_unknown(mine);
  report_unknown(theirs);
}

void TokenizerCheck::compare_vocabulary(const TokenizerFacts& tokens, Index model_vocab) {
  report_unknown(tokens);
  const Index padding = std::max(kPaddingTokens, model_vocab / kPaddingPart);
  if (tokens.vocab_size > 0 && model_vocab - tokens.vocab_size > padding) {
    differ(fmt::format("{} has tokens of {}, and the model a vocabulary of {}, more than padding "
                       "explains",
                       tokens.source, described(tokens), grouped(model_vocab)),
           is_known(tokens)
               ? "use the model's own tokenizer, or a model with this vocabulary (tiny "
                 "and small take the data's)"
               : "give the size of the tokenizer's whole vocabulary with tokenize --vocab N");
  }
}

}  // namespace tessera
