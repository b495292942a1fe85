#include "runtime/checkpoint/checksums_file.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/read_error.h"
#include "runtime/checkpoint/manifest_check.h"

namespace tessera {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{1} << 20U;  // of one read while hashing a header

[[noreturn]] void refuse(const std::string& name, std::string_view what, SourceLocation where) {
  refuse_manifest(name, what, where);
}

/// Reads words of CHECKSUMS; the whole is compared with its canonical text afterwards, so that this
/// may be lenient.
class Words {
 public:
  Words(std::string_view line, const std::string& name) : stream_(std::string(line)), name_(name) {}

  std::string word() {
    std::string text;
    if (!(stream_ >> text)) {
      refuse(name_, "a line is too short", TESSERA_HERE);
    }
    return text;
  }
  void literal(std::string_view expected) {
    if (const std::string text = word(); text != expected) {
      refuse(name_, fmt::format("'{}' stands where '{}' should", text, expected), TESSERA_HERE);
    }
  }
  std::uint64_t number() { return parse(word(), kDecimal); }
  Hash128 hash() {
    constexpr std::size_t kDigits = 16;
    const std::string text = word();
    if (text.size() != 2 * kDigits) {
      refuse(name_, fmt::format("'{}' is not a checksum", text), TESSERA_HERE);
    }
    return {parse(text.substr(0, kDigits), kHexadecimal),
            parse(text.substr(kDigits), kHexadecimal)};
  }
  /// Ranges of bytes, up to the word `end`.
  std::vector<ByteRange> ranges_before(std::string_view end) {
    constexpr std::size_t kMost = 64;  // of one shard
    std::vector<ByteRange> ranges;
    for (std::string text = word(); text != end; text = word()) {
      if (ranges.size() == kMost) {
        refuse(name_, fmt::format("a line has more than {} ranges of bytes", kMost), TESSERA_HERE);
      }
      ranges.push_back(range(text));
    }
    return ranges;
  }

 private:
  static constexpr int kDecimal = 10;
  static constexpr int kHexadecimal = 16;

  ByteRange range(const std::string& text) {
    const std::size_t plus = text.find('+');
    if (plus == std::string::npos) {
      refuse(name_, fmt::format("'{}' is not a range of bytes", text), TESSERA_HERE);
    }
    return {parse(text.substr(0, plus), kDecimal), parse(text.substr(plus + 1), kDecimal)};
  }
  std::uint64_t parse(const std::string& text, int base) {
    std::uint64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data(), end, value, base);
    if (code != std::errc() || stop != end) {
      refuse(name_, fmt::format("'{}' is not a number", text), TESSERA_HERE);
    }
    return value;
  }

  std::istringstream stream_;
  const std::string& name_;
};

void require_ranges_inside(const ShardChecksum& shard, const std::string& name) {
  for (const ByteRange& range : shard.arrays) {
    const bool is_inside =
        range.offset <= shard.file_bytes && range.bytes <= shard.file_bytes - range.offset;
    const bool overlaps =
        std::any_of(shard.arrays.begin(), shard.arrays.end(), [&](const ByteRange& other) {
          return &other != &range && range.bytes > 0 && other.bytes > 0 &&
                 other.offset <= range.offset && range.offset - other.offset < other.bytes;
        });
    if (!is_inside || overlaps) {
      refuse(name, fmt::format("the arrays of {} do not lie inside the file", shard.file),
             TESSERA_HERE);
    }
  }
}

constexpr std::string_view kSelfWord = "self xxh3_128 ";

/// The version in the first line of CHECKSUMS, if that is a version line.
std::optional<Index> version_in(const std::vector<std::string>& lines) {
  const std::string start = fmt::format("{} ", kCheckpointFormat);
  if (lines.empty() || !lines[0].starts_with(start)) {
    return std::nullopt;
  }
  Index version = 0;
  const char* const end = lines[0].data() + lines[0].size();
  const auto [stop, code] = std::from_chars(lines[0].data() + start.size(), end, version);
  return code != std::errc() || stop != end ? std::nullopt : std::optional(version);
}

}  // namespace

std::string Checksums::to_text() const {
  std::string text =
      fmt::format("{} {}\nsave_id {}\n{} bytes {} xxh3_128 {}\n", kCheckpointFormat, version,
                  save_id, kManifestName, manifest_bytes, manifest_hash.text());
  for (const ShardChecksum& shard : shards) {
    text += fmt::format("{} bytes {} arrays", shard.file, shard.file_bytes);
    for (const ByteRange& range : shard.arrays) {
      text += fmt::format(" {}+{}", range.offset, range.bytes);
    }
    text += fmt::format(" outside_xxh3_128 {}\n", shard.header_hash.text());
  }
  text += fmt::format("{}{}\n", kSelfWord, xxh3_128(bytes_of(text)).text());
  return text;
}

Checksums parse_checksums(std::string_view text, const std::string& name) {
  std::vector<std::string> lines;
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  constexpr std::size_t kOtherLines = 4;  // version, save, manifest, self
  const std::size_t self = text.rfind(kSelfWord);
  const bool is_whole =
      lines.size() >= kOtherLines && self != std::string_view::npos &&
      text.substr(self) ==
          fmt::format("{}{}\n", kSelfWord, xxh3_128(bytes_of(text.substr(0, self))).text());
  // Another version may have other lines and another checksum: it is not damaged for that.
  const std::optional<Index> version = version_in(lines);
  if (version) {
    require_known_version(name, *version);
  }
  if (!is_whole || !version) {
    throw DamageError(
        fmt::format("{} is damaged: it does not match its own checksum, or lines are missing",
                    name),
        TESSERA_HERE);
  }
  Checksums sums;
  sums.version = *version;
  Words save(lines[1], name);
  save.literal("save_id");
  sums.save_id = save.word();
  Words manifest(lines[2], name);
  manifest.literal(kManifestName);
  manifest.literal("bytes");
  sums.manifest_bytes = manifest.number();
  manifest.literal("xxh3_128");
  sums.manifest_hash = manifest.hash();
  for (std::size_t i = kOtherLines - 1; i + 1 < lines.size(); ++i) {
    Words line(lines[i], name);
    ShardChecksum shard;
    shard.file = line.word();
    line.literal("bytes");
    shard.file_bytes = line.number();
    line.literal("arrays");
    shard.arrays = line.ranges_before("outside_xxh3_128");
    shard.header_hash = line.hash();
    require_ranges_inside(shard, name);
    sums.shards.push_back(std::move(shard));
  }
  if (sums.to_text() != text) {
    refuse(name, "is damaged: it is not written as this program writes it", TESSERA_HERE);
  }
  return sums;
}

Hash128 hash_outside(std::uint64_t file_bytes, std::span<const ByteRange> arrays,
                     const ReadBytes& read) {
  Xxh3 hash;
  hash.reset128();
  std::vector<std::byte> buffer(kCopyBytes);
  for (const ByteRange& range : bytes_outside(arrays, file_bytes)) {
    for (std::uint64_t begin = range.offset; begin < range.end(); begin += buffer.size()) {
      const auto part =
          static_cast<std::size_t>(std::min<std::uint64_t>(range.end() - begin, kCopyBytes));
      read(begin, std::span(buffer).first(part));
      hash.add(std::span(buffer).first(part));
    }
  }
  return hash.digest128();
}

}  // namespace tessera
