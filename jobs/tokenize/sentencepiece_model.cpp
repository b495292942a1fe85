#include "jobs/tokenize/sentencepiece_model.h"

#include <cstddef>
#include <cstring>
#include <utility>

namespace tessera::tokenize {
namespace {

// A field of a message in protobuf's wire format.
struct Field {
  std::uint64_t number = 0;
  std::uint64_t value = 0;  // of a varint
  std::string_view bytes;   // of a string or message
};

// The fields of a message, one after another.
class Fields {
 public:
  explicit Fields(std::string_view message) : rest_(message) {}

  // False: the end, or what is not a message.
  bool next(Field& field) {
    constexpr unsigned kTypeBits = 3;
    std::uint64_t tag = 0;
    if (rest_.empty() || !take_varint(tag)) {
      return false;
    }
    field = Field{tag >> kTypeBits, 0, {}};
    switch (tag & 7U) {
      case 0:
        return take_varint(field.value);
      case 1:
        return take(sizeof(std::uint64_t), field.bytes);
      case 2: {
        std::uint64_t size = 0;
        return take_varint(size) && take(size, field.bytes);
      }
      case 5:
        return take(sizeof(std::uint32_t), field.bytes);
      default:
        is_broken_ = true;
        return false;
    }
  }
  [[nodiscard]] bool is_broken() const { return is_broken_; }

 private:
  bool take_varint(std::uint64_t& value) {
    constexpr unsigned kBits = 7;
    value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += kBits) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80U) {
        return true;
      }
    }
    is_broken_ = true;
    return false;
  }
  bool take(std::uint64_t size, std::string_view& bytes) {
    if (size > rest_.size()) {
      is_broken_ = true;
      return false;
    }
    bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
  bool is_broken_ = false;
};

// The rules of a normaliser: their texts are stored in a double array of darts-clone, and what they
// become behind it, each up to a NUL.
class RuleTrie {
 public:
  // False: `map` is not such a thing.
  bool open(std::string_view map) {
    std::uint32_t size = 0;
    if (map.size() < sizeof size) {
      return false;
    }
    std::memcpy(&size, map.data(), sizeof size);
    map.remove_prefix(sizeof size);
    if (size > map.size() || size < sizeof(std::uint32_t) || size % sizeof(std::uint32_t) != 0) {
      return false;
    }
    units_.resize(size / sizeof(std::uint32_t));
    std::memcpy(units_.data(), map.data(), size);
    targets_ = map.substr(size);
    return true;
  }

  // False: a broken trie.
  bool list(std::vector<SentencePieceModel::Rule>& rules) const {
    std::vector<std::pair<std::size_t, std::string>> open = {{0, ""}};
    // rules share their ends, so that there are more paths than units (nmt_nfkc has 225,000 rules);
    // a broken trie has circles
    constexpr std::size_t kMaxPaths = std::size_t{1} << 22U;
    for (std::size_t visited = 0; !open.empty(); ++visited) {
      const auto [at, from] = std::move(open.back());
      open.pop_back();
      if (visited + open.size() > kMaxPaths) {
        return false;
      }
      const std::size_t base = at ^ offset(units_[at]);
      if (has_leaf(units_[at]) && !add(base, from, rules)) {
        return false;
      }
      for (std::size_t byte = 1; byte <= 0xFFU; ++byte) {
        const std::size_t child = base ^ byte;
        if (child < units_.size() && label(units_[child]) == byte) {
          open.emplace_back(child, from + static_cast<char>(byte));
        }
      }
    }
    return true;
  }

 private:
  static bool has_leaf(std::uint32_t unit) { return ((unit >> 8U) & 1U) == 1; }
  static std::uint32_t label(std::uint32_t unit) { return unit & ((1U << 31U) | 0xFFU); }
  static std::size_t offset(std::uint32_t unit) {
    return std::size_t{unit >> 10U} << ((unit & (1U << 9U)) >> 6U);
  }
  bool add(std::size_t leaf, const std::string& from,
           std::vector<SentencePieceModel::Rule>& rules) const {
    if (leaf >= units_.size()) {
      return false;
    }
    const std::size_t begin = units_[leaf] & ((1U << 31U) - 1U);
    const std::size_t end = begin < targets_.size() ? targets_.find('\0', begin) : begin;
    if (begin >= targets_.size() || end == std::string_view::npos) {
      return false;
    }
    rules.push_back({from, targets_.substr(begin, end - begin)});
    return true;
  }

  std::vector<std::uint32_t> units_;
  std::string_view targets_;
};

bool parse_piece(std::string_view message, SentencePieceModel& model) {
  SentencePieceModel::Piece piece;
  Fields fields(message);
  for (Field field; fields.next(field);) {
    if (field.number == 1) {
      piece.text = field.bytes;
    } else if (field.number == 3) {
      piece.type = static_cast<SentencePieceModel::PieceType>(field.value);
    }
  }
  model.pieces.push_back(piece);
  return !fields.is_broken();
}

bool parse_trainer(std::string_view message, SentencePieceModel& model) {
  constexpr std::uint64_t kModelType = 3;
  constexpr std::uint64_t kTreatWhitespaceAsSuffix = 24;
  Fields fields(message);
  for (Field field; fields.next(field);) {
    if (field.number == kModelType) {
      model.type = static_cast<SentencePieceModel::Type>(field.value);
    } else if (field.number == kTreatWhitespaceAsSuffix) {
      model.treat_whitespace_as_suffix = field.value != 0;
    }
  }
  return !fields.is_broken();
}

bool parse_normalizer(std::string_view message, SentencePieceModel& model) {
  bool is_whole = true;
  Fields fields(message);
  for (Field field; fields.next(field);) {
    if (field.number == 2 && !field.bytes.empty()) {
      RuleTrie trie;
      is_whole = trie.open(field.bytes) && trie.list(model.rules);
    } else if (field.number == 3) {
      model.add_dummy_prefix = field.value != 0;
    } else if (field.number == 5) {
      model.escape_whitespaces = field.value != 0;
    }
  }
  return is_whole && !fields.is_broken();
}

}  // namespace

std::optional<SentencePieceModel> parse_sentencepiece_model(std::string_view bytes) {
  SentencePieceModel model;
  bool is_whole = true;
  Fields fields(bytes);
  for (Field field; is_whole && fields.next(field);) {
    if (field.number == 1) {
      is_whole = parse_piece(field.bytes, model);
    } else if (field.number == 2) {
      is_whole = parse_trainer(field.bytes, model);
    } else if (field.number == 3) {
      is_whole = parse_normalizer(field.bytes, model);
    }
  }
  return is_whole && !fields.is_broken() ? std::optional(std::move(model)) : std::nullopt;
}

}  // namespace tessera::tokenize
