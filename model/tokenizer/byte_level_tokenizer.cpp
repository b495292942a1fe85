#include "model/tokenizer/byte_level_tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "model/tokenizer/utf8.h"

namespace tessera {
namespace {

// Places in a word are 32 bits wide; and a text takes about 30 times its size while it is encoded.
constexpr std::size_t kMaxCallBytes = std::size_t{256} << 20U;
// Bytes that occur in UTF-8: not C0, C1 and from F5 on.
constexpr bool is_of_utf8(unsigned byte) {
  return byte < 0xC0 || (byte >= 0xC2 && byte < 0xF5);
}

std::array<std::uint32_t, 256> byte_ids(const WordIds& words) {
  std::array<std::uint32_t, 256> ids = {};
  for (unsigned byte = 0; byte < ids.size(); ++byte) {
    const auto word = words.find(std::string(1, static_cast<char>(byte)));
    ids.at(byte) = word == words.end() ? BytePairs::kNone : word->second;
  }
  return ids;
}

AddedTokens select_added(const std::vector<AddedToken>& all, bool normalized, const Nfc* nfc) {
  std::vector<AddedToken> selected;
  for (AddedToken token : all) {
    if (token.normalized == normalized) {
      if (normalized && nfc != nullptr) {
        std::string room;
        token.content = std::string(nfc->normalized(token.content, room));
      }
      selected.push_back(std::move(token));
    }
  }
  return AddedTokens(std::move(selected));
}

// Calls `text_between` and `token` in the order of the text.
template <typename TextBetween>
void split_at_tokens(const AddedTokens& added, std::string_view text, SpecialText special,
                     std::vector<std::uint32_t>& ids, const TextBetween& text_between) {
  std::size_t done = 0;
  std::size_t from = 0;
  while (!added.is_empty()) {
    const auto match = added.find(text, from, done, special);
    if (!match) {
      break;
    }
    if (match->begin > done) {
      text_between(text.substr(done, match->begin - done));
    }
    ids.push_back(match->id);
    done = match->end;
    from = match->content_end;
  }
  if (done < text.size()) {
    text_between(text.substr(done));
  }
}

}  // namespace

std::string missing_bytes(const WordIds& words) {
  const std::array<std::uint32_t, 256> ids = byte_ids(words);
  std::string missing;
  for (unsigned byte = 0; byte < ids.size(); ++byte) {
    if (is_of_utf8(byte) && ids.at(byte) == BytePairs::kNone) {
      missing += fmt::format("{}0x{:02X}", missing.empty() ? "" : " ", byte);
    }
  }
  return missing;
}

struct ByteLevelTokenizer::Scratch {
  BytePairs::Scratch pairs;
  PatternScratch patterns;
  std::string normalized;
  const char* end = nullptr;  // of what may be read behind a word
};

// One call's scratch, given back at its end.
class ByteLevelTokenizer::Lease {
 public:
  explicit Lease(const ByteLevelTokenizer& owner) : owner_(owner) {
    {
      const std::lock_guard lock(owner.mutex_);
      if (!owner.free_scratch_.empty()) {
        scratch_ = std::move(owner.free_scratch_.back());
        owner.free_scratch_.pop_back();
      }
    }
    if (!scratch_) {
      scratch_ = std::make_unique<Scratch>();
    }
  }
  ~Lease() {
    const std::lock_guard lock(owner_.mutex_);
    owner_.free_scratch_.push_back(std::move(scratch_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  [[nodiscard]] Scratch& operator*() noexcept { return *scratch_; }

 private:
  const ByteLevelTokenizer& owner_;
  std::unique_ptr<Scratch> scratch_;
};

ByteLevelTokenizer::ByteLevelTokenizer(ByteLevelFacts facts)
    : Tokenizer(facts.kind, facts.hash),
      facts_(std::move(facts)),
      pairs_(byte_ids(facts_.words), facts_.pairs),
      nfc_(facts_.nfc ? std::make_optional<Nfc>(*facts_.nfc) : std::nullopt),
      raw_added_(select_added(facts_.added, false, nullptr)),
      normalized_added_(select_added(facts_.added, true, nfc_ ? &*nfc_ : nullptr)) {
  facts_.pairs = {};
}

ByteLevelTokenizer::~ByteLevelTokenizer() = default;

std::size_t ByteLevelTokenizer::max_call_bytes() const {
  return kMaxCallBytes;
}

std::optional<Index> ByteLevelTokenizer::token_id(std::string_view content) const {
  for (const AddedToken& token : facts_.added) {
    if (token.content == content) {
      return token.id;
    }
  }
  const auto word = facts_.words.find(content);
  return word == facts_.words.end() ? std::nullopt : std::make_optional<Index>(word->second);
}

void ByteLevelTokenizer::encode(std::string_view text, std::vector<std::uint32_t>& ids,
                                SpecialText special) const {
  if (text.size() > kMaxCallBytes) {
    throw FormatError(fmt::format("a text of {} bytes is too long for the tokenizer: at most {} in "
                                  "one document",
                                  text.size(), kMaxCallBytes),
                      TESSERA_HERE);
  }
  if (const std::size_t valid = utf8_bytes(text); valid != text.size()) {
    throw FormatError(fmt::format("the text is not UTF-8 at byte {}", valid), TESSERA_HERE);
  }
  Lease scratch(*this);
  split_at_tokens(raw_added_, text, special, ids, [&](std::string_view part) {
    const std::string_view normalized = nfc_ ? nfc_->normalized(part, (*scratch).normalized) : part;
    encode_normalized(normalized, special, *scratch, ids);
  });
}

void ByteLevelTokenizer::encode_normalized(std::string_view text, SpecialText special,
                                           Scratch& scratch,
                                           std::vector<std::uint32_t>& ids) const {
  scratch.end = text.data() + text.size();
  split_at_tokens(normalized_added_, text, special, ids,
                  [&](std::string_view piece) { encode_piece(piece, 0, scratch, ids); });
}

void ByteLevelTokenizer::encode_piece(std::string_view piece, std::size_t step, Scratch& scratch,
                                      std::vector<std::uint32_t>& ids) const {
  if (step == facts_.steps.size()) {
    encode_word(piece, scratch, ids);
    return;
  }
  const SplitStep& split = facts_.steps[step];
  if (split.action == SplitStep::Action::begin_with_space) {
    if (piece.starts_with(' ')) {
      encode_piece(piece, step + 1, scratch, ids);
    } else {
      std::string longer(1, ' ');
      longer += piece;
      const char* const end = std::exchange(scratch.end, longer.data() + longer.size());
      encode_piece(longer, step + 1, scratch, ids);
      scratch.end = end;
    }
    return;
  }
  std::size_t done = 0;
  while (done < piece.size()) {
    const auto match = split.pattern->find(piece, done, scratch.patterns);
    const std::size_t begin = match ? match->begin : piece.size();
    if (begin > done && split.action == SplitStep::Action::isolate) {
      encode_piece(piece.substr(done, begin - done), step + 1, scratch, ids);
    }
    if (!match) {
      break;
    }
    encode_piece(piece.substr(begin, match->end - begin), step + 1, scratch, ids);
    done = match->end;
  }
}

void ByteLevelTokenizer::encode_word(std::string_view word, Scratch& scratch,
                                     std::vector<std::uint32_t>& ids) const {
  using Slot = WordCache::Slot;
  if (word.size() > Slot::kMostBytes) {
    build_word(word, scratch, ids);
    return;
  }
  const WordCache::Key key = WordCache::key_of(word, scratch.end);
  Slot& slot = scratch.pairs.cache.slot_of(key);
  if (slot.key == key) {
    ids.insert(ids.end(), slot.ids.begin(), slot.ids.begin() + slot.id_count);
    return;
  }
  const std::size_t before = ids.size();
  build_word(word, scratch, ids);
  const std::size_t count = ids.size() - before;
  if (count <= Slot::kMostIds) {
    slot.key = key;
    slot.id_count = static_cast<std::uint32_t>(count);
    std::copy_n(ids.begin() + static_cast<std::ptrdiff_t>(before), count, slot.ids.begin());
  }
}

void ByteLevelTokenizer::build_word(std::string_view word, Scratch& scratch,
                                    std::vector<std::uint32_t>& ids) const {
  if (facts_.takes_whole_words) {
    const auto whole = facts_.words.find(word);
    if (whole != facts_.words.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  pairs_.encode(word, scratch.pairs, ids);
}

std::string ByteLevelTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < vocab_size()) {
      text += facts_.tokens[static_cast<std::size_t>(id)];
    }
  }
  return text;
}

}  // namespace tessera
