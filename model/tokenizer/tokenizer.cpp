#include "model/tokenizer/tokenizer.h"

#include <algorithm>

namespace tessera {

std::vector<Index> Tokenizer::stop_tokens() const {
  return end_token() < 0 ? std::vector<Index>{} : std::vector<Index>{end_token()};
}

std::vector<std::int32_t> end_tokens_of(const Tokenizer& tokenizer, Index end_token) {
  const std::vector<Index> stop = tokenizer.stop_tokens();
  std::vector<std::int32_t> ids(stop.begin(), stop.end());
  if (end_token >= 0 && std::find(stop.begin(), stop.end(), end_token) == stop.end()) {
    ids.push_back(static_cast<std::int32_t>(end_token));
  }
  return ids;
}

}  // namespace tessera
