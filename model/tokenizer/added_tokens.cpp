#include "model/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "model/tokenizer/utf8.h"

namespace tessera {
namespace {

constexpr unsigned kByteBits = 8;

unsigned char byte_at(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

std::size_t white_space_before(std::string_view text, std::size_t end) {
  for (;;) {
    const Utf8Character character = last_character(text.substr(0, end));
    if (character.bytes == 0 || !is_white_space(character.code)) {
      return end;
    }
    end -= character.bytes;
  }
}

std::size_t white_space_behind(std::string_view text, std::size_t begin) {
  for (;;) {
    const Utf8Character character = first_character(text.substr(begin));
    if (character.bytes == 0 || !is_white_space(character.code)) {
      return begin;
    }
    begin += character.bytes;
  }
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), ends_(1, kNone) {
  for (std::uint32_t i = 0; i < tokens_.size(); ++i) {
    const std::string& content = tokens_[i].content;
    TESSERA_REQUIRE(!content.empty() && content.size() <= kMostAddedBytes,
                    "the content of an added token");
    begins_.at(byte_at(content, 0)) = true;
    std::uint32_t node = 0;
    for (const char c : content) {
      const std::uint64_t edge = (std::uint64_t{node} << kByteBits) | static_cast<unsigned char>(c);
      const auto [place, is_new] =
          edges_.try_emplace(edge, static_cast<std::uint32_t>(ends_.size()));
      if (is_new) {
        ends_.push_back(kNone);
      }
      node = place->second;
    }
    ends_[node] = std::min(ends_[node], i);
    if (tokens_[i].single_word && !word_) {
      word_.emplace(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])");  // Rust's \w
    }
  }
}

std::uint32_t AddedTokens::longest_at(std::string_view text) const {
  std::uint32_t longest = kNone;
  std::uint32_t node = 0;
  for (const char c : text) {
    const auto edge =
        edges_.find((std::uint64_t{node} << kByteBits) | static_cast<unsigned char>(c));
    if (edge == edges_.end()) {
      break;
    }
    node = edge->second;
    longest = ends_[node] == kNone ? longest : ends_[node];
  }
  return longest;
}

bool AddedTokens::stands_alone(std::string_view text, std::size_t begin, std::size_t end) const {
  PatternScratch scratch;
  const auto is_of_word = [&](std::string_view character) {
    return !character.empty() && word_->find(character, 0, scratch).has_value();
  };
  const std::size_t before = last_character(text.substr(0, begin)).bytes;
  const std::size_t behind = first_character(text.substr(end)).bytes;
  return !is_of_word(text.substr(begin - before, before)) && !is_of_word(text.substr(end, behind));
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text, std::size_t from,
                                                    std::size_t taken, SpecialText special) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    if (!begins_[byte_at(text, at)]) {
      continue;
    }
    const std::uint32_t place = longest_at(text.substr(at));
    if (place == kNone) {
      continue;
    }
    const AddedToken& token = tokens_[place];
    const std::size_t end = at + token.content.size();
    if ((special == SpecialText::is_text && token.special) ||
        (token.single_word && !stands_alone(text, at, end))) {
      at = end - 1;
      continue;
    }
    return Match{.begin = token.lstrip ? std::max(white_space_before(text, at), taken) : at,
                 .end = token.rstrip ? white_space_behind(text, end) : end,
                 .id = token.id,
                 .content_end = end};
  }
  return std::nullopt;
}

}  // namespace tessera
