#include "runtime/data/header_checksum.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/hash.h"
#include "kernels/base/input_file.h"
#include "kernels/base/output_file.h"
#include "kernels/base/shell_word.h"

namespace tessera {
namespace {

constexpr std::string_view kFirstLine = "tessera token file 1\n";
constexpr std::size_t kMaxRanges = 8;
constexpr std::size_t kHashTextLength = 32;
constexpr std::size_t kPartBytes = std::size_t{1} << 16U;
// Metadata and a tokenizer's model; more would mean to read a big file at every start.
constexpr std::uint64_t kMaxCheckedBytes = std::uint64_t{1} << 28U;

// What the block says; its text is the same for the same content.
struct Header {
  std::uint64_t size = 0;  // of the file
  std::vector<UncheckedRange> left_out;
  std::string hash;

  [[nodiscard]] std::string text() const {
    std::string lines = fmt::format("{}size {}\n", kFirstLine, size);
    for (const UncheckedRange& range : left_out) {
      lines += fmt::format("data {} {}\n", range.offset, range.bytes);
    }
    return lines;
  }
};

// Takes "NAME number..." off the front of `text`.
bool take_line(std::string_view& text, std::string_view name,
               std::initializer_list<std::uint64_t*> numbers) {
  if (text.substr(0, name.size()) != name) {
    return false;
  }
  std::string_view rest = text.substr(name.size());
  for (std::uint64_t* number : numbers) {
    if (rest.empty() || rest.front() != ' ') {
      return false;
    }
    rest.remove_prefix(1);
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), *number);
    if (error != std::errc()) {
      return false;
    }
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  }
  if (rest.empty() || rest.front() != '\n') {
    return false;
  }
  text = rest.substr(1);
  return true;
}

// In order, apart, inside the file, and not too much besides.
bool ranges_fit(const Header& header) {
  std::uint64_t end = kHeaderBytes;
  std::uint64_t checked = 0;
  for (const UncheckedRange& range : header.left_out) {
    if (range.offset < end || range.offset > header.size ||
        range.bytes > header.size - range.offset) {
      return false;
    }
    checked += range.offset - end;
    end = range.offset + range.bytes;
  }
  return header.size >= end && checked + (header.size - end) <= kMaxCheckedBytes;
}

std::optional<Header> parse(std::string_view text) {
  Header header;
  if (text.substr(0, kFirstLine.size()) != kFirstLine) {
    return std::nullopt;
  }
  text.remove_prefix(kFirstLine.size());
  if (!take_line(text, "size", {&header.size})) {
    return std::nullopt;
  }
  UncheckedRange range = {};
  while (header.left_out.size() < kMaxRanges &&
         take_line(text, "data", {&range.offset, &range.bytes})) {
    header.left_out.push_back(range);
  }
  constexpr std::string_view kName = "seal ";
  if (text.substr(0, kName.size()) != kName) {
    return std::nullopt;
  }
  text.remove_prefix(kName.size());
  header.hash = text.substr(0, kHashTextLength);
  text.remove_prefix(std::min(text.size(), kHashTextLength));
  const bool ends = !text.empty() && text.front() == '\n' &&
                    text.find_first_not_of('\0', 1) == std::string_view::npos;
  return ends && ranges_fit(header) ? std::optional(header) : std::nullopt;
}

// Hash of the text above it and of the file from kHeaderBytes on, without the ranges left out.
std::string hash_of(const File& file, const Header& header) {
  Xxh3 hash(HashWidth::bits128);
  hash.add(header.text());
  std::vector<char> part(kPartBytes);
  std::uint64_t at = kHeaderBytes;
  const auto add_until = [&](std::uint64_t end) {
    while (at < end) {
      const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(part.size(), end - at));
      const std::size_t count =
          file.read_up_to(at, std::as_writable_bytes(std::span(part).first(wanted)));
      hash.add(std::string_view(part.data(), count));
      if (count < wanted) {
        return;  // shorter by now: another hash
      }
      at += count;
    }
  };
  for (const UncheckedRange& range : header.left_out) {
    add_until(range.offset);
    at = range.offset + range.bytes;
  }
  add_until(header.size);
  return hash.digest128().text();
}

}  // namespace

void write_header_checksum(File& file, std::span<const UncheckedRange> left_out) {
  Header header;
  header.size = file.size();
  header.left_out.assign(left_out.begin(), left_out.end());
  TESSERA_REQUIRE(left_out.size() <= kMaxRanges && ranges_fit(header),
                  "ranges that a header cannot hold");
  std::string text = header.text() + "seal " + hash_of(file, header) + "\n";
  TESSERA_REQUIRE(text.size() <= kHeaderBytes, "a header too long for its block");
  text.resize(kHeaderBytes, '\0');
  file.write_at(0, std::as_bytes(std::span(text)));
}

namespace {
constexpr std::string_view kAnyVersion = kFirstLine.substr(0, kFirstLine.rfind(' ') + 1);
}  // namespace

bool begins_as_token_file(const std::filesystem::path& path) {
  return first_bytes(path, kAnyVersion.size()) == kAnyVersion;
}

bool has_header_checksum(const std::filesystem::path& path) {
  constexpr std::string_view kHdf5 = "\x89HDF\r\n\x1a\n";
  const File file = File::open_read(path);
  std::array<char, kHeaderBytes + kHdf5.size()> begin = {};
  const std::size_t count = file.read_up_to(0, std::as_writable_bytes(std::span(begin)));
  const std::string_view text(begin.data(), count);
  return text.size() == begin.size() && text.substr(0, kAnyVersion.size()) == kAnyVersion &&
         text.substr(kHeaderBytes) == kHdf5;
}

namespace {

// That makes a token file of a file by its name, with words in capitals for what it does not say.
std::string tokenize_command(const std::filesystem::path& path) {
  const std::string end = path.extension().string();
  const std::filesystem::path out = std::filesystem::path(path.filename()).replace_extension(".h5");
  const bool has_ids = end == ".npy" || end == ".bin";
  const bool has_lines = end == ".jsonl" || end == ".ndjson" || end == ".json";
  return fmt::format("`tokenize{}{} --out {} {}`{}", has_ids ? "" : " --tokenizer HF_FOLDER",
                     has_lines ? " --chat auto" : "", shell_word(out.string()),
                     shell_word(path.string()),
                     has_lines ? " (of texts: --field NAME in place of --chat)" : "");
}

}  // namespace

void check_header_checksum(const File& file) {
  const std::filesystem::path& path = file.path();
  const std::uint64_t size = file.size();
  if (size == 0) {
    throw FormatError(fmt::format("{} is empty", path.string()), TESSERA_HERE);
  }
  std::array<char, kHeaderBytes> block = {};
  const std::size_t count = file.read_up_to(0, std::as_writable_bytes(std::span(block)));
  const std::string_view text(block.data(), count);
  if (text.substr(0, kFirstLine.size()) != kFirstLine) {
    if (const std::string_view foreign = foreign_content(text); !foreign.empty()) {
      throw FormatError(fmt::format("{} is not a token file: it is {}", path.string(), foreign),
                        TESSERA_HERE);
    }
    throw FormatError(fmt::format("{} is not a token file; make one of it: {}", path.string(),
                                  tokenize_command(path)),
                      TESSERA_HERE);
  }
  const std::optional<Header> header = count == kHeaderBytes ? parse(text) : std::nullopt;
  if (!header) {
    throw FormatError(
        fmt::format("{} is damaged in its first {} bytes", path.string(), kHeaderBytes),
        TESSERA_HERE);
  }
  if (size != header->size) {
    throw FormatError(
        fmt::format("{} is {}: it has {} bytes and should have {}", path.string(),
                    size < header->size ? "truncated" : "damaged", size, header->size),
        TESSERA_HERE);
  }
  if (hash_of(file, *header) != header->hash) {
    throw FormatError(fmt::format("{} is damaged: what describes its data is not what was written",
                                  path.string()),
                      TESSERA_HERE);
  }
}

}  // namespace tessera
