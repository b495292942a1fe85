#include "runtime/data/text_file.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/hash.h"

namespace tessera {
namespace {

constexpr std::size_t kScanBytes = std::size_t{1} << 18U;

// Bytes of `text` before the first that is not in 0x01 .. 0x7F, in whole words.
std::size_t plain_prefix(std::string_view text) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080ULL;
  constexpr std::uint64_t kLowBits = 0x0101010101010101ULL;
  std::size_t at = 0;
  for (; at + sizeof(std::uint64_t) <= text.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, sizeof word);
    // a byte of 0 borrows from its high bit; with the high bits clear there is no other cause
    if (((word | (word - kLowBits)) & kHighBits) != 0) {
      break;
    }
  }
  return at;
}

// Whether `text` from `at` on begins a character.
bool begins_character(std::string_view text, std::size_t at) {
  return (static_cast<unsigned char>(text[at]) & 0xC0U) != 0x80U;
}

// Where to cut `text`, which continues.
std::size_t cut_of(std::string_view text) {
  const std::size_t line_end = text.rfind('\n');
  if (line_end != std::string_view::npos && line_end >= text.size() / 2) {
    return line_end + 1;
  }
  std::size_t cut = text.size() - 1;  // the last character may continue
  while (cut > 1 && !begins_character(text, cut)) {
    --cut;
  }
  return cut;
}

[[noreturn]] void refuse_change(const std::filesystem::path& path) {
  throw FormatError(fmt::format("{} changed while it was read", path.string()), TESSERA_HERE);
}

// For text without a place to cut it: twice as much each time, so that the time stays linear.
void make_room(const std::filesystem::path& path, const TextCuts& cuts, std::vector<char>& buffer) {
  const std::size_t more = std::min(buffer.size() * 2, cuts.most_bytes + 1);
  if (more <= buffer.size()) {
    throw FormatError(fmt::format("{} {}", path.string(), cuts.refusal), TESSERA_HERE);
  }
  buffer.resize(more);
}

}  // namespace

void Utf8Checker::add_byte(unsigned char byte) noexcept {
  constexpr unsigned char kFirstFollowing = 0x80;
  constexpr unsigned char kLastFollowing = 0xBF;
  if (pending_ > 0) {
    is_valid_ = byte >= low_ && byte <= high_;
    low_ = kFirstFollowing;
    high_ = kLastFollowing;
    --pending_;
    return;
  }
  if (byte < kFirstFollowing) {
    is_valid_ = byte != 0;
    return;
  }
  // RFC 3629, section 4: the first byte says how many follow and narrows the second
  is_valid_ = byte >= 0xC2 && byte <= 0xF4;
  pending_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
  low_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : kFirstFollowing;
  high_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : kLastFollowing;
}

bool Utf8Checker::add(std::string_view part) {
  for (std::size_t at = 0; at < part.size() && is_valid_; ++at) {
    if (pending_ == 0) {
      at += plain_prefix(part.substr(at));
      if (at == part.size()) {
        break;
      }
    }
    add_byte(static_cast<unsigned char>(part[at]));
  }
  return is_valid_;
}

TextScan scan_text(const std::filesystem::path& path) {
  const File file = File::open_read(path);
  std::vector<char> buffer(kScanBytes);
  TextScan scan;
  Utf8Checker checker;
  Xxh3 hash(HashWidth::bits128);
  while (true) {
    const std::size_t count = file.read_up_to(static_cast<std::uint64_t>(scan.bytes),
                                              std::as_writable_bytes(std::span(buffer)));
    const std::string_view part(buffer.data(), count);
    if (!checker.add(part)) {
      return scan;
    }
    hash.add(part);
    scan.bytes += static_cast<Index>(count);
    if (count < buffer.size()) {
      break;
    }
  }
  scan.is_text = checker.is_whole();
  scan.hash = hash.digest128().high;
  return scan;
}

void read_text(const std::filesystem::path& path, const TextScan& scan, std::size_t piece_bytes,
               const std::function<void(std::string_view)>& take) {
  read_text(path, scan, TextCuts{piece_bytes, piece_bytes, cut_of, {}}, take);
}

void read_text(const std::filesystem::path& path, const TextScan& scan, const TextCuts& cuts,
               const std::function<void(std::string_view)>& take) {
  constexpr std::size_t kLeastPiece = 16;
  TESSERA_REQUIRE(scan.is_text && cuts.piece_bytes >= kLeastPiece, "no text, or pieces too small");
  TESSERA_REQUIRE(cuts.most_bytes >= cuts.piece_bytes, "a limit below the size of a piece");
  const File file = File::open_read(path);
  const std::size_t all = static_cast<std::size_t>(scan.bytes) + kLeastPiece;
  std::vector<char> buffer(std::min(cuts.piece_bytes, all));
  Xxh3 hash(HashWidth::bits128);
  Index done = 0;
  while (true) {
    const std::size_t count = file.read_up_to(static_cast<std::uint64_t>(done),
                                              std::as_writable_bytes(std::span(buffer)));
    std::string_view part(buffer.data(), count);
    const bool is_last = count < buffer.size();
    if (done + static_cast<Index>(count) > scan.bytes) {
      refuse_change(path);
    }
    if (!is_last) {
      part = part.substr(0, cuts.last_place(part));
      if (part.empty()) {
        make_room(path, cuts, buffer);
        continue;
      }
    }
    hash.add(part);
    done += static_cast<Index>(part.size());
    // what follows may rely on it being text, so it is compared before the last piece goes out
    if (is_last && (done != scan.bytes || hash.digest128().high != scan.hash)) {
      refuse_change(path);
    }
    if (!part.empty()) {
      take(part);
    }
    if (is_last) {
      return;
    }
    buffer.resize(std::min(cuts.piece_bytes, all));
  }
}

}  // namespace tessera
