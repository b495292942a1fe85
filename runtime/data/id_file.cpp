#include "runtime/data/id_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/input_file.h"

namespace tessera {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr std::size_t kNpyPrefixBytes = 8;  // magic and version
constexpr std::size_t kMaxNpyHeaderBytes = std::size_t{1} << 16U;
// llm.c, dev/data/data_common.py
struct BinKind {
  std::uint32_t magic;
  std::uint32_t version;
  std::size_t width;  // bytes of an id
};
constexpr std::array<BinKind, 2> kBinKinds = {
    {{20240520, 1, sizeof(std::uint16_t)}, {20240801, 7, sizeof(std::uint32_t)}}};
constexpr std::uint64_t kBinHeaderBytes = 1024;  // 256 int32
constexpr std::size_t kReadCount = std::size_t{1} << 16U;

std::uint32_t load_u32(const char* from) {
  std::uint32_t value = 0;
  std::memcpy(&value, from, sizeof value);
  return value;
}

const BinKind* find_bin_kind(std::uint32_t magic) {
  const auto* const row =
      std::find_if(kBinKinds.begin(), kBinKinds.end(),
                   [magic](const BinKind& kind) { return kind.magic == magic; });
  return row == kBinKinds.end() ? nullptr : row;
}

// What a .npy header says.
struct NpyHeader {
  std::string type;  // "<i4"
  std::vector<std::uint64_t> shape;
};

// Reads the Python dictionary of a .npy header: three known keys with a text, a truth value and a
// tuple of numbers. Anything else is nullopt.
class NpyHeaderParser {
 public:
  explicit NpyHeaderParser(std::string_view text) : rest_(text) {}

  std::optional<NpyHeader> parse() {
    NpyHeader header;
    int seen = 0;
    if (!take('{')) {
      return std::nullopt;
    }
    while (!take('}')) {
      const std::optional<std::string> key = text();
      if (!key || !take(':')) {
        return std::nullopt;
      }
      if (*key == "descr") {
        const std::optional<std::string> type = text();
        seen |= type ? 1 : 0;
        header.type = type.value_or("");
      } else if (*key == "fortran_order") {
        seen |= word("False") || word("True") ? 2 : 0;
      } else if (*key == "shape") {
        seen |= tuple(header.shape) ? 4 : 0;
      } else {
        return std::nullopt;
      }
      if (!take(',') && peek() != '}') {
        return std::nullopt;
      }
    }
    constexpr int kAllSeen = 7;
    peek();
    return seen == kAllSeen && rest_.empty() ? std::optional(header) : std::nullopt;
  }

 private:
  // the next character that is not a space; 0 at the end
  char peek() {
    const std::size_t at = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(std::min(at, rest_.size()));
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool take(char c) {
    const bool there = peek() == c && !rest_.empty();
    rest_.remove_prefix(there ? 1 : 0);
    return there;
  }
  bool word(std::string_view name) {
    peek();
    const bool there = rest_.substr(0, name.size()) == name;
    rest_.remove_prefix(there ? name.size() : 0);
    return there;
  }
  std::optional<std::string> text() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') {
      return std::nullopt;
    }
    rest_.remove_prefix(1);
    const std::size_t end = rest_.find(quote);
    if (end == std::string_view::npos) {
      return std::nullopt;
    }
    std::string value(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return value;
  }
  bool tuple(std::vector<std::uint64_t>& out) {
    constexpr std::size_t kMaxRank = 32;  // numpy's own
    if (!take('(')) {
      return false;
    }
    while (!take(')')) {
      peek();
      std::uint64_t number = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
      if (error != std::errc() || out.size() == kMaxRank) {
        return false;
      }
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      out.push_back(number);
      if (!take(',') && peek() != ')') {
        return false;
      }
    }
    return true;
  }

  std::string_view rest_;
};

template <std::size_t kWidth>
std::uint64_t load_bytes(const std::uint8_t* from, bool big_endian) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < kWidth; ++i) {
    const std::size_t shift = 8 * (big_endian ? kWidth - 1 - i : i);
    value |= std::uint64_t{from[i]} << shift;
  }
  return value;
}

template <std::size_t kWidth>
void widen(const std::uint8_t* from, std::span<std::int64_t> out, bool is_signed, bool big_endian) {
  constexpr std::size_t kUnusedBits = 64 - 8 * kWidth;
  constexpr auto kHighest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t bits = load_bytes<kWidth>(from + i * kWidth, big_endian);
    out[i] = is_signed ? static_cast<std::int64_t>(bits << kUnusedBits) >> kUnusedBits
                       : static_cast<std::int64_t>(std::min(bits, kHighest));
  }
}

}  // namespace

bool IdFile::has_name(const std::filesystem::path& path) {
  return path.extension() == ".npy" || path.extension() == ".bin";
}

std::size_t IdFile::bits() const noexcept {
  constexpr std::size_t kBitsOfByte = 8;
  return kBitsOfByte * width_;
}

Index IdFile::id_limit() const noexcept {
  const std::size_t value_bits = bits() - (is_signed_ ? 1 : 0);
  constexpr std::size_t kMostBits = 63;
  return value_bits >= kMostBits ? std::numeric_limits<Index>::max() : Index{1} << value_bits;
}

IdFile::IdFile(const std::filesystem::path& path, RawIds raw) : file_(File::open_read(path)) {
  const std::uint64_t size = file_.size();
  std::array<char, kNpyPrefixBytes> start = {};
  if (size == 0) {
    refuse("is empty");
  }
  const std::size_t count = file_.read_up_to(0, std::as_writable_bytes(std::span(start)));
  const bool is_npy =
      std::string_view(start.data(), count).substr(0, kNpyMagic.size()) == kNpyMagic;
  const bool is_bin = count == start.size() && find_bin_kind(load_u32(start.data())) != nullptr;
  if (raw != RawIds::none && (is_npy || is_bin)) {
    refuse(fmt::format("is {}, which says itself what its ids are: leave --raw out",
                       is_npy ? "a .npy file" : "a .bin file of llm.c"));
  }
  if (raw != RawIds::none) {
    open_raw(size, raw);
  } else if (is_npy) {
    open_npy(size);
  } else if (is_bin) {
    open_bin(size);
  } else {
    if (const std::string_view foreign = foreign_content(file_); !foreign.empty()) {
      refuse(fmt::format("holds no token ids: it is {}", foreign));
    }
    refuse(
        "holds no token ids: it is neither a .npy file nor a .bin file of llm.c (magic 20240520 or "
        "20240801). For ids without a header give --raw uint16 or --raw uint32");
  }
}

void IdFile::refuse(std::string_view reason) const {
  throw FormatError(fmt::format("{} {}", path().string(), reason), TESSERA_HERE);
}

void IdFile::open_npy(std::uint64_t size) {
  // magic, version, then the header's length: two bytes in version 1, four from 2 on
  constexpr std::size_t kMostPrefix = kNpyPrefixBytes + sizeof(std::uint32_t);
  std::array<char, kMostPrefix> prefix = {};
  const std::size_t got = file_.read_up_to(0, std::as_writable_bytes(std::span(prefix)));
  const int version = got > kNpyMagic.size() ? static_cast<unsigned char>(prefix[6]) : 0;
  constexpr int kHighestVersion = 3;
  if (version < 1 || version > kHighestVersion) {
    refuse(fmt::format("is a .npy file of format {}; 1 to {} are read", version, kHighestVersion));
  }
  const std::size_t length_bytes = version == 1 ? sizeof(std::uint16_t) : sizeof(std::uint32_t);
  const std::size_t header_bytes =
      load_u32(prefix.data() + kNpyPrefixBytes) & (version == 1 ? 0xFFFFU : 0xFFFFFFFFU);
  data_offset_ = kNpyPrefixBytes + length_bytes + header_bytes;
  if (header_bytes > kMaxNpyHeaderBytes || data_offset_ > size) {
    refuse(
        fmt::format("is damaged: a .npy header of {} bytes in a file of {}", header_bytes, size));
  }
  std::string text(header_bytes, '\0');
  file_.read_at(kNpyPrefixBytes + length_bytes, std::as_writable_bytes(std::span(text)));
  const std::optional<NpyHeader> header = NpyHeaderParser(text).parse();
  if (!header) {
    refuse("has a .npy header that says no simple type and shape");
  }
  const std::string_view type = header->type;
  constexpr std::size_t kTypeLength = 3;  // byte order, kind, width
  if (type.size() != kTypeLength || std::string_view("<>|=").find(type[0]) == std::string::npos ||
      std::string_view("iub").find(type[1]) == std::string::npos ||
      std::string_view("1248").find(type[2]) == std::string::npos ||
      (type[1] == 'b' && type[2] != '1')) {
    refuse(fmt::format("holds numbers of type '{}', not integers (numpy: ids.astype('uint32'))",
                       type));
  }
  if (header->shape.size() != 1) {
    refuse(fmt::format("holds an array of {} dimensions, not 1 (numpy: ids.reshape(-1))",
                       header->shape.size()));
  }
  is_big_endian_ = type[0] == '>';
  is_signed_ = type[1] == 'i';
  width_ = static_cast<std::size_t>(type[2] - '0');
  const std::uint64_t there = (size - data_offset_) / width_;
  if (header->shape[0] != there || (size - data_offset_) % width_ != 0) {
    refuse(fmt::format("is {}: it should have {} numbers of {} bytes and has {} bytes of them",
                       header->shape[0] > there ? "truncated" : "damaged", header->shape[0], width_,
                       size - data_offset_));
  }
  count_ = static_cast<Index>(there);
}

void IdFile::open_bin(std::uint64_t size) {
  constexpr std::size_t kWords = 3;  // magic, version, count
  std::array<char, kWords * sizeof(std::uint32_t)> header = {};
  if (size < kBinHeaderBytes) {
    refuse(fmt::format("is truncated: a .bin header has {} bytes, this file {}", kBinHeaderBytes,
                       size));
  }
  file_.read_at(0, std::as_writable_bytes(std::span(header)));
  const BinKind& kind = *find_bin_kind(load_u32(header.data()));
  const std::uint32_t version = load_u32(header.data() + sizeof(std::uint32_t));
  if (version != kind.version) {
    refuse(fmt::format("is a .bin file of magic {} and version {}; version {} is read", kind.magic,
                       version, kind.version));
  }
  const std::uint32_t count = load_u32(header.data() + 2 * sizeof(std::uint32_t));
  width_ = kind.width;
  data_offset_ = kBinHeaderBytes;
  if (size - kBinHeaderBytes != std::uint64_t{count} * width_) {
    refuse(fmt::format(
        "is {}: it should have {} tokens of {} bytes and has {} bytes of them",
        size - kBinHeaderBytes < std::uint64_t{count} * width_ ? "truncated" : "damaged", count,
        width_, size - kBinHeaderBytes));
  }
  count_ = count;
}

void IdFile::open_raw(std::uint64_t size, RawIds raw) {
  width_ = raw == RawIds::uint16 ? sizeof(std::uint16_t) : sizeof(std::uint32_t);
  if (size % width_ != 0) {
    refuse(fmt::format("has {} bytes, which are not a whole number of ids of {} bytes (--raw)",
                       size, width_));
  }
  count_ = static_cast<Index>(size / width_);
}

void IdFile::read(Index begin, std::span<std::int64_t> out) {
  TESSERA_REQUIRE(
      begin >= 0 && begin <= count_ && out.size() <= static_cast<std::size_t>(count_ - begin),
      "numbers outside the file");
  while (!out.empty()) {
    const std::span<std::int64_t> part = out.first(std::min(out.size(), kReadCount));
    buffer_.resize(part.size() * width_);
    const std::uint64_t offset = data_offset_ + static_cast<std::uint64_t>(begin) * width_;
    if (file_.read_up_to(offset, std::as_writable_bytes(std::span(buffer_))) != buffer_.size()) {
      refuse("became shorter while it was read");
    }
    switch (width_) {
      case sizeof(std::uint8_t):
        widen<sizeof(std::uint8_t)>(buffer_.data(), part, is_signed_, is_big_endian_);
        break;
      case sizeof(std::uint16_t):
        widen<sizeof(std::uint16_t)>(buffer_.data(), part, is_signed_, is_big_endian_);
        break;
      case sizeof(std::uint32_t):
        widen<sizeof(std::uint32_t)>(buffer_.data(), part, is_signed_, is_big_endian_);
        break;
      default:
        widen<sizeof(std::uint64_t)>(buffer_.data(), part, is_signed_, is_big_endian_);
    }
    begin += static_cast<Index>(part.size());
    out = out.subspan(part.size());
  }
}

}  // namespace tessera
