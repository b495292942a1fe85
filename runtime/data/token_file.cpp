#include "runtime/data/token_file.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/hash.h"
#include "runtime/data/header_checksum.h"
#include "runtime/data/token_layout.h"
#include "runtime/hdf5/hdf5_file.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as they lie");

constexpr std::size_t kCopyBytes = std::size_t{1} << 20U;
constexpr std::size_t kHashTextLength = 32;
constexpr std::size_t kReadBytes = std::size_t{1} << 16U;  // of one read, on the stack
// Every so many documents one start stays in memory; those between are read when they are needed.
constexpr Index kIndexStep = 512;

// Loads one element; a foreign file may have it at any address.
template <typename T>
T load(const std::uint8_t* base, std::size_t index) noexcept {
  T value;
  std::memcpy(&value, base + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
std::uint32_t widen(const std::uint8_t* from, std::span<std::int32_t> out) noexcept {
  T largest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const T id = load<T>(from, i);
    largest = std::max(largest, id);
    out[i] = static_cast<std::int32_t>(id);
  }
  return largest;
}

}  // namespace

std::size_t width_for(Index vocab) {
  if (vocab <= Index{1} << 8U) {
    return sizeof(std::uint8_t);
  }
  return vocab <= Index{1} << 16U ? sizeof(std::uint16_t) : sizeof(std::uint32_t);
}

std::string_view width_name(std::size_t width) {
  if (width == sizeof(std::uint8_t)) {
    return "u8";
  }
  return width == sizeof(std::uint16_t) ? "u16" : "u32";
}

hid_t file_type(std::size_t width) {
  if (width == sizeof(std::uint8_t)) {
    return H5T_STD_U8LE;
  }
  return width == sizeof(std::uint16_t) ? H5T_STD_U16LE : H5T_STD_U32LE;
}

std::string combined_hash(const TokenFileInfo& info, std::size_t width, std::string_view model,
                          const Xxh3& tokens, const Xxh3& documents, const Xxh3& mask) {
  Xxh3 all(HashWidth::bits128);
  all.add(fmt::format("{} {} {} {}\n", info.tokenizer, info.vocab_size, info.end_token,
                      width_name(width)));
  all.add(xxh3_128(bytes_of(model)).text());
  for (const Xxh3* part : {&tokens, &documents, &mask}) {
    all.add(part->digest128().text());
  }
  return all.digest128().text();
}

struct TokenFile::Impl {
  TokenFileInfo info;
  std::string hash;
  Index token_count = 0;
  Index document_count = 0;
  std::size_t width = 0;
  File file;
  FileStamp opened;                        // as it was found
  std::atomic<std::int64_t> modified = 0;  // time of the last change that proved harmless
  std::string first_block;                 // of kHeaderBytes
  std::uint64_t tokens_at = 0;
  std::uint64_t documents_at = 0;
  std::uint64_t mask_at = 0;
  bool has_mask = false;
  std::vector<Index> document_index;  // start of every kIndexStep-th document
  std::string model;
  std::vector<TokenizerFile> companions;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return file.path(); }
  [[noreturn]] void refuse(std::string_view reason) const {
    throw FormatError(fmt::format("{} {}", path().string(), reason), TESSERA_HERE);
  }
  [[noreturn]] void refuse_change() const;
  void read_block(void* data, std::size_t bytes, std::uint64_t offset) const;
  void read_attributes(hid_t hdf5);
  [[nodiscard]] Index integer(hid_t hdf5, const char* name, Index lowest, Index highest) const;
  [[nodiscard]] Hdf5Extent dataset(hid_t hdf5, const char* name, std::size_t* width_out) const;
  [[nodiscard]] std::uint64_t place(const Hdf5Extent& extent, std::size_t element_bytes,
                                    const char* name) const;
  [[nodiscard]] std::string bytes_at(const Hdf5Extent& extent, const char* name) const;
  void index_documents();
};

// The file is no longer the one that was opened.
void TokenFile::Impl::refuse_change() const {
  const std::uint64_t now = file.size();
  refuse(fmt::format("was {} while it was in use: it had {} bytes when it was opened and has {} "
                     "now; put the file back as it was, and run the same command to continue",
                     now < opened.bytes ? "truncated" : "replaced or changed", opened.bytes, now));
}

// All of `bytes`: they were there when the file was opened.
void TokenFile::Impl::read_block(void* data, std::size_t bytes, std::uint64_t offset) const {
  if (file.read_up_to(offset, std::span(static_cast<std::byte*>(data), bytes)) != bytes) {
    refuse_change();
  }
}

// An attribute that must be there, in [lowest, highest].
Index TokenFile::Impl::integer(hid_t hdf5, const char* name, Index lowest, Index highest) const {
  const std::optional<std::int64_t> value = read_hdf5_integer(hdf5, name, path());
  if (!value) {
    refuse(fmt::format("is not a token file: it has no attribute '{}'", name));
  }
  if (*value < lowest || *value > highest) {
    refuse(fmt::format("is damaged: its attribute '{}' is {}, not in {} to {}", name, *value,
                       lowest, highest));
  }
  return *value;
}

void TokenFile::Impl::read_attributes(hid_t hdf5) {
  constexpr Index kNoLimit = std::numeric_limits<Index>::max();
  const std::string format = read_hdf5_string(hdf5, "format", path()).value_or("");
  if (format != kTokenFormatName) {
    refuse(format.empty() ? std::string("is an HDF5 file but no token file; tokenize makes one")
                          : fmt::format("is a file of format '{}', not a token file ('{}')", format,
                                        kTokenFormatName));
  }
  const Index version = integer(hdf5, "version", 1, kNoLimit);
  if (version > kTokenFileVersion) {
    refuse(fmt::format("has token file version {}; this program reads up to {}", version,
                       kTokenFileVersion));
  }
  info.tokenizer = read_hdf5_string(hdf5, "tokenizer", path()).value_or("");
  if (info.tokenizer.empty()) {
    refuse("is not a token file: it has no attribute 'tokenizer'");
  }
  info.tokenizer_name = read_hdf5_string(hdf5, "tokenizer_name", path()).value_or("");
  info.vocab_size = integer(hdf5, "vocab_size", 1, kMaxVocab);
  info.end_token = integer(hdf5, "end_token", -1, info.vocab_size - 1);
  info.source = read_hdf5_string(hdf5, "source", path()).value_or("");
  info.source_bytes = integer(hdf5, "source_bytes", 0, kNoLimit);
  info.is_chats = read_hdf5_integer(hdf5, "chats", path()).value_or(0) != 0;
  token_count = integer(hdf5, "token_count", 0, kNoLimit);
  document_count = integer(hdf5, "document_count", 0, kNoLimit);
  hash = read_hdf5_string(hdf5, "content_hash", path()).value_or("");
  if (hash.size() != kHashTextLength ||
      hash.find_first_not_of("0123456789abcdef") != std::string::npos) {
    refuse("is not a token file: its attribute 'content_hash' is not 32 hexadecimal digits");
  }
}

// Extent of a dataset and the width of its unsigned little-endian elements.
Hdf5Extent TokenFile::Impl::dataset(hid_t hdf5, const char* name, std::size_t* width_out) const {
  const Hdf5Handle data = open_hdf5_dataset(hdf5, name, path());
  const Hdf5Handle type(TESSERA_READ_HDF5(path(), H5Dget_type(data.get())), H5Tclose);
  *width_out = 0;
  for (const hid_t candidate : {H5T_STD_U8LE, H5T_STD_U16LE, H5T_STD_U32LE, H5T_STD_U64LE}) {
    if (TESSERA_READ_HDF5(path(), H5Tequal(type.get(), candidate)) > 0) {
      *width_out = H5Tget_size(candidate);
    }
  }
  return hdf5_dataset_extent(hdf5, name, data.get(), path());
}

// Where the extent lies, all of it inside the file.
std::uint64_t TokenFile::Impl::place(const Hdf5Extent& extent, std::size_t element_bytes,
                                     const char* name) const {
  const std::uint64_t size = opened.bytes;
  if (extent.count != 0 &&
      (extent.offset > size || extent.count > (size - extent.offset) / element_bytes)) {
    refuse(fmt::format("is truncated: {} has {} elements of {} bytes from byte {} on, but the file "
                       "ends at byte {}",
                       name, extent.count, element_bytes, extent.offset, size));
  }
  return extent.offset;
}

// All of a dataset of bytes.
std::string TokenFile::Impl::bytes_at(const Hdf5Extent& extent, const char* name) const {
  const std::uint64_t offset = place(extent, 1, name);
  std::string bytes(static_cast<std::size_t>(extent.count), '\0');
  read_block(bytes.data(), bytes.size(), offset);
  return bytes;
}

// Checks where documents start, and keeps some of it in memory.
void TokenFile::Impl::index_documents() {
  std::array<std::uint64_t, kIndexStep> starts = {};
  std::uint64_t before = 0;
  for (Index begin = 0; begin < document_count; begin += kIndexStep) {
    const auto count = static_cast<std::size_t>(std::min(kIndexStep, document_count - begin));
    read_block(starts.data(), count * sizeof(std::uint64_t),
               documents_at + static_cast<std::uint64_t>(begin) * sizeof(std::uint64_t));
    if (begin == 0 && starts[0] != 0) {
      refuse("is damaged: its first document does not start at token 0");
    }
    for (std::size_t i = 0; i < count; ++i) {
      const bool is_first = begin == 0 && i == 0;
      if (!is_first &&
          (starts[i] <= before || starts[i] >= static_cast<std::uint64_t>(token_count))) {
        refuse(
            fmt::format("is damaged: document {} starts at token {}, after {} and with {} tokens "
                        "in all",
                        begin + static_cast<Index>(i), starts[i], before, token_count));
      }
      before = starts[i];
    }
    document_index.push_back(static_cast<Index>(starts[0]));
  }
  if (document_count == 0) {
    refuse("is damaged: its first document does not start at token 0");
  }
}

TokenFile::TokenFile(const std::filesystem::path& path) : impl_(std::make_unique<Impl>()) {
  Impl& self = *impl_;
  self.file = File::open_read(path);
  self.opened = self.file.stamp();
  self.modified = self.opened.modified;
  check_header_checksum(self.file);
  self.first_block.resize(kHeaderBytes);
  self.read_block(self.first_block.data(), self.first_block.size(), 0);
  Hdf5Extent tokens = {};
  Hdf5Extent documents = {};
  Hdf5Extent mask = {};
  Hdf5Extent model = {};
  std::array<Hdf5Extent, kTokenizerCompanions.size()> companions = {};
  {
    const Hdf5Handle hdf5 = open_hdf5_file(self.path(), kHeaderBytes);
    self.read_attributes(hdf5.get());
    tokens = self.dataset(hdf5.get(), "tokens", &self.width);
    if (self.width == 0 || self.width > sizeof(std::uint32_t)) {
      self.refuse("holds tokens of another type than u8, u16 or u32");
    }
    std::size_t width = 0;
    documents = self.dataset(hdf5.get(), "documents", &width);
    if (width != sizeof(std::uint64_t)) {
      self.refuse("holds documents of another type than u64");
    }
    const auto look_for = [&](const char* name, Hdf5Extent& extent) {
      if (hdf5_has(hdf5.get(), name, self.path())) {
        extent = self.dataset(hdf5.get(), name, &width);
        if (width != sizeof(std::uint8_t)) {
          self.refuse(fmt::format("holds a {} of another type than u8", name));
        }
      }
    };
    look_for("targets_mask", mask);
    look_for("tokenizer_model", model);
    for (std::size_t i = 0; i < companions.size(); ++i) {
      look_for(kTokenizerCompanions[i].data(), companions[i]);
    }
  }
  if (self.width < width_for(self.info.vocab_size)) {
    self.refuse(fmt::format("holds {} tokens, too narrow for its vocabulary of {}",
                            width_name(self.width), self.info.vocab_size));
  }
  if (tokens.count != static_cast<std::uint64_t>(self.token_count) ||
      documents.count != static_cast<std::uint64_t>(self.document_count)) {
    self.refuse(fmt::format("is damaged: it says {} tokens in {} documents, but has {} in {}",
                            self.token_count, self.document_count, tokens.count, documents.count));
  }
  if (self.token_count == 0) {
    self.refuse("holds no tokens");
  }
  if (mask.count != 0 && mask.count != tokens.count) {
    self.refuse(
        fmt::format("is damaged: it has {} tokens but {} mask values", tokens.count, mask.count));
  }
  self.tokens_at = self.place(tokens, self.width, "tokens");
  self.documents_at = self.place(documents, sizeof(std::uint64_t), "documents");
  self.mask_at = self.place(mask, 1, "targets_mask");
  self.has_mask = mask.count != 0;
  self.model = self.bytes_at(model, "tokenizer_model");
  for (std::size_t i = 0; i < companions.size(); ++i) {
    if (companions[i].count > 0) {
      const char* const name = kTokenizerCompanions[i].data();
      self.companions.push_back({name, self.bytes_at(companions[i], name)});
    }
  }
  self.index_documents();
}

TokenFile::~TokenFile() = default;
TokenFile::TokenFile(TokenFile&& other) noexcept = default;
TokenFile& TokenFile::operator=(TokenFile&& other) noexcept = default;

const std::filesystem::path& TokenFile::path() const noexcept {
  return impl_->path();
}
const TokenFileInfo& TokenFile::info() const noexcept {
  return impl_->info;
}
Index TokenFile::token_count() const noexcept {
  return impl_->token_count;
}
Index TokenFile::document_count() const noexcept {
  return impl_->document_count;
}
bool TokenFile::has_mask() const noexcept {
  return impl_->has_mask;
}
const std::string& TokenFile::content_hash() const noexcept {
  return impl_->hash;
}
std::string_view TokenFile::tokenizer_model() const noexcept {
  return impl_->model;
}
const std::vector<TokenizerFile>& TokenFile::tokenizer_companions() const noexcept {
  return impl_->companions;
}

std::uint32_t TokenFile::read_tokens(Index begin, std::span<std::int32_t> out) const {
  const Impl& self = *impl_;
  TESSERA_REQUIRE(begin >= 0 && begin <= self.token_count &&
                      out.size() <= static_cast<std::size_t>(self.token_count - begin),
                  "tokens outside the file");
  std::array<std::uint8_t, kReadBytes> bytes;  // NOLINT(*-member-init): filled before it is read
  std::uint64_t at = self.tokens_at + static_cast<std::uint64_t>(begin) * self.width;
  std::uint32_t largest = 0;
  while (!out.empty()) {
    const std::span<std::int32_t> part = out.first(std::min(out.size(), kReadBytes / self.width));
    self.read_block(bytes.data(), part.size() * self.width, at);
    const std::uint32_t here =
        self.width == sizeof(std::uint8_t)    ? widen<std::uint8_t>(bytes.data(), part)
        : self.width == sizeof(std::uint16_t) ? widen<std::uint16_t>(bytes.data(), part)
                                              : widen<std::uint32_t>(bytes.data(), part);
    largest = std::max(largest, here);
    at += part.size() * self.width;
    out = out.subspan(part.size());
  }
  return largest;
}

void TokenFile::document_starts(Index begin, Index end, std::vector<Index>& out) const {
  const Impl& self = *impl_;
  out.clear();
  const std::vector<Index>& index = self.document_index;
  // the last document of the index that starts at or before `begin`
  const auto behind = std::upper_bound(index.begin(), index.end(), begin) - index.begin();
  std::array<std::uint64_t, kIndexStep> starts = {};
  for (Index next = std::max<Index>(behind - 1, 0) * kIndexStep; next < self.document_count;
       next += kIndexStep) {
    const auto count = static_cast<std::size_t>(std::min(kIndexStep, self.document_count - next));
    self.read_block(starts.data(), count * sizeof(std::uint64_t),
                    self.documents_at + static_cast<std::uint64_t>(next) * sizeof(std::uint64_t));
    for (std::size_t i = 0; i < count; ++i) {
      const auto start = static_cast<Index>(starts[i]);
      if (start >= end) {
        return;
      }
      if (start >= begin) {
        out.push_back(start);
      }
    }
  }
}

void TokenFile::read_document_starts(Index first, std::span<std::uint64_t> out) const {
  const Impl& self = *impl_;
  TESSERA_REQUIRE(first >= 0 && first <= self.document_count &&
                      out.size() <= static_cast<std::size_t>(self.document_count - first),
                  "documents outside the file");
  self.read_block(out.data(), out.size_bytes(),
                  self.documents_at + static_cast<std::uint64_t>(first) * sizeof(std::uint64_t));
}

void TokenFile::read_mask(Index begin, std::span<std::uint8_t> out) const {
  const Impl& self = *impl_;
  TESSERA_REQUIRE(self.has_mask && begin >= 0 && begin <= self.token_count &&
                      out.size() <= static_cast<std::size_t>(self.token_count - begin),
                  "mask outside the file");
  self.read_block(out.data(), out.size(), self.mask_at + static_cast<std::uint64_t>(begin));
}

Index TokenFile::count_targets(Index enough) const {
  const Impl& self = *impl_;
  if (!self.has_mask) {
    return self.token_count - self.document_count;
  }
  Index targets = 0;
  std::vector<std::uint8_t> mask(kReadBytes);
  std::vector<Index> starts;
  for (Index begin = 0; begin < self.token_count; begin += static_cast<Index>(kReadBytes)) {
    const Index count = std::min(static_cast<Index>(kReadBytes), self.token_count - begin);
    read_mask(begin, std::span(mask).first(static_cast<std::size_t>(count)));
    document_starts(begin, begin + count, starts);
    for (const Index start : starts) {
      mask[static_cast<std::size_t>(start - begin)] = 0;
    }
    targets += count - std::count(mask.begin(), mask.begin() + count, std::uint8_t{0});
    if (targets >= enough) {
      break;
    }
  }
  return targets;
}

bool TokenFile::has_targets() const {
  return count_targets(1) > 0;
}

Index TokenFile::target_count() const {
  return count_targets(impl_->token_count);
}

void TokenFile::require_unchanged() const {
  Impl& self = *impl_;
  const FileStamp now = self.file.stamp();
  if (now.bytes == self.opened.bytes && now.modified == self.modified) {
    return;
  }
  // Only touched, or written again: the same header of the same length is the same content.
  std::array<char, kHeaderBytes> block = {};
  if (now.bytes != self.opened.bytes ||
      self.file.read_up_to(0, std::as_writable_bytes(std::span(block))) != block.size() ||
      std::string_view(block.data(), block.size()) != self.first_block) {
    self.refuse_change();
  }
  self.modified = now.modified;
}

struct ContentCheck::State {
  struct Part {
    std::uint64_t offset;
    std::uint64_t bytes;
    Xxh3 hash{HashWidth::bits128};
  };
  explicit State(const TokenFile::Impl& the_file) : file(the_file), piece(kCopyBytes) {
    const auto count = static_cast<std::uint64_t>(file.token_count);
    const auto documents = static_cast<std::uint64_t>(file.document_count);
    parts[0] = {file.tokens_at, count * file.width};
    parts[1] = {file.documents_at, documents * sizeof(std::uint64_t)};
    parts[2] = {file.mask_at, file.has_mask ? count : 0};
  }
  void compare() const;

  const TokenFile::Impl& file;
  std::array<Part, 3> parts;  // tokens, documents, mask
  std::size_t part = 0;       // that is read now; 3: all have been compared
  std::uint64_t done = 0;     // bytes of it
  std::vector<char> piece;
};

void ContentCheck::State::compare() const {
  const std::string found =
      combined_hash(file.info, file.width, file.model, parts[0].hash, parts[1].hash, parts[2].hash);
  if (found != file.hash) {
    file.refuse(fmt::format("is damaged: its content has the hash {}, but should have {}: copy the "
                            "file again, or make it again with tokenize",
                            found, file.hash));
  }
}

ContentCheck::ContentCheck(const TokenFile& file) : state_(std::make_unique<State>(*file.impl_)) {}
ContentCheck::~ContentCheck() = default;
ContentCheck::ContentCheck(ContentCheck&& other) noexcept = default;
ContentCheck& ContentCheck::operator=(ContentCheck&& other) noexcept = default;

bool ContentCheck::is_done() const noexcept {
  return state_->part == state_->parts.size();
}

void ContentCheck::advance(std::uint64_t bytes) {
  State& state = *state_;
  while (!is_done()) {
    State::Part& part = state.parts[state.part];
    if (state.done == part.bytes) {
      ++state.part;
      state.done = 0;
      if (is_done()) {
        state.compare();
      }
      continue;
    }
    const auto count = static_cast<std::size_t>(
        std::min({std::uint64_t{state.piece.size()}, part.bytes - state.done, bytes}));
    if (count == 0) {
      return;
    }
    state.file.read_block(state.piece.data(), count, part.offset + state.done);
    part.hash.add(std::string_view(state.piece.data(), count));
    state.done += count;
    bytes -= count;
  }
}

void TokenFile::verify_content() const {
  ContentCheck(*this).advance(std::numeric_limits<std::uint64_t>::max());
}

}  // namespace tessera
