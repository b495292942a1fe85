// What both fuzzers of tokenizer files do with bytes: refused with a FormatError or ConfigError, or a
// tokenizer whose ids are below its vocabulary.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "model/tokenizer/kinds.h"

namespace tessera::fuzz {

inline void try_tokenizer(TokenizerFiles files) {
  constexpr std::string_view kText = "It's 123 e\u0301 \u4e2d  \n\n <|endoftext|> a b\t";
  try {
    const auto tokenizer = make_tokenizer(files, "fuzz");
    for (const SpecialText special : {SpecialText::is_token, SpecialText::is_text}) {
      std::vector<std::uint32_t> ids;
      tokenizer->encode(kText, ids, special);
      for (const std::uint32_t id : ids) {
        if (static_cast<Index>(id) >= tokenizer->vocab_size()) {
          std::abort();
        }
      }
      static_cast<void>(tokenizer->decode(std::vector<std::int32_t>(ids.begin(), ids.end())));
    }
    static_cast<void>(tokenizer->stop_tokens());
  } catch (const FormatError&) {
    return;
  } catch (const ConfigError&) {
    return;
  }
}

}  // namespace tessera::fuzz
