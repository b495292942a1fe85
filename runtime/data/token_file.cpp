#include "runtime/data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/device/error.h"
#include "kernels/device/log.h"
#include "kernels/device/output_file.h"
#include "runtime/checkpoint/hdf5_file.h"
#include "runtime/data/content_hash.h"
#include "runtime/data/file_descriptor.h"
#include "runtime/data/file_seal.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are mapped as they lie");

constexpr const char* kFormatName = "tessera-tokens";
constexpr Index kMaxVocab = Index{1} << 31U;  // ids are i32 in a batch
constexpr std::size_t kCopyBytes = std::size_t{1} << 20U;
constexpr std::size_t kHashTextLength = 32;

// Bytes of one token in a file for this vocabulary.
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

// The hash in a file: of what gives ids their meaning, then of the three datasets.
std::string combined_hash(const TokenFileInfo& info, std::size_t width, std::string_view model,
                          const ContentHash& tokens, const ContentHash& documents,
                          const ContentHash& mask) {
  ContentHash all;
  all.add(fmt::format("{} {} {} {}\n", info.tokenizer, info.vocab_size, info.end_token,
                      width_name(width)));
  ContentHash model_hash;
  model_hash.add(model);
  for (const ContentHash* part : {&std::as_const(model_hash), &tokens, &documents, &mask}) {
    all.add(part->hex());
  }
  return all.hex();
}

// A whole file, mapped read-only.
class Mapping {
 public:
  Mapping(const FileDescriptor& file, const std::filesystem::path& path)
      : bytes_(size_of(file, path)) {
    void* data = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file.get(), 0);
    if (data == MAP_FAILED) {
      throw FormatError(fmt::format("cannot map {}: {}", path.string(), std::strerror(errno)),
                        TESSERA_HERE);
    }
    data_ = static_cast<const std::uint8_t*>(data);
  }
  ~Mapping() {
    if (::munmap(const_cast<std::uint8_t*>(data_), bytes_) != 0) {  // NOLINT(*-const-cast)
      log_line(LogLevel::warning, fmt::format("cannot unmap: {}", std::strerror(errno)));
    }
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  [[nodiscard]] const std::uint8_t* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  const std::uint8_t* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

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

struct TokenFile::Impl {
  std::filesystem::path path;
  TokenFileInfo info;
  std::string hash;
  Index token_count = 0;
  Index document_count = 0;
  std::size_t width = 0;
  std::optional<Mapping> mapping;
  const std::uint8_t* tokens = nullptr;
  const std::uint8_t* documents = nullptr;
  const std::uint8_t* mask = nullptr;  // null: none
  std::string_view model;

  [[nodiscard]] std::uint64_t document(Index index) const noexcept {
    return load<std::uint64_t>(documents, static_cast<std::size_t>(index));
  }
  [[noreturn]] void refuse(std::string_view reason) const {
    throw FormatError(fmt::format("{} {}", path.string(), reason), TESSERA_HERE);
  }
  void read_attributes(hid_t file);
  [[nodiscard]] Index integer(hid_t file, const char* name, Index lowest, Index highest) const;
  [[nodiscard]] Hdf5Extent dataset(hid_t file, const char* name, std::size_t* width_out) const;
  [[nodiscard]] const std::uint8_t* place(const Hdf5Extent& extent, std::size_t element_bytes,
                                          const char* name) const;
  void check_documents() const;
};

// An attribute that must be there, in [lowest, highest].
Index TokenFile::Impl::integer(hid_t file, const char* name, Index lowest, Index highest) const {
  const std::optional<std::int64_t> value = read_hdf5_integer(file, name, path);
  if (!value) {
    refuse(fmt::format("is no token file: it has no attribute '{}'", name));
  }
  if (*value < lowest || *value > highest) {
    refuse(fmt::format("is damaged: its attribute '{}' is {}, not in {} to {}", name, *value,
                       lowest, highest));
  }
  return *value;
}

void TokenFile::Impl::read_attributes(hid_t file) {
  constexpr Index kNoLimit = std::numeric_limits<Index>::max();
  const std::string format = read_hdf5_string(file, "format", path).value_or("");
  if (format != kFormatName) {
    refuse(format.empty() ? std::string("is an HDF5 file but no token file; tokenize makes one")
                          : fmt::format("is a file of format '{}', not a token file ('{}')", format,
                                        kFormatName));
  }
  const Index version = integer(file, "version", 1, kNoLimit);
  if (version > kTokenFileVersion) {
    refuse(fmt::format("has token file version {}; this program reads up to {}", version,
                       kTokenFileVersion));
  }
  info.tokenizer = read_hdf5_string(file, "tokenizer", path).value_or("");
  if (info.tokenizer.empty()) {
    refuse("is no token file: it has no attribute 'tokenizer'");
  }
  info.tokenizer_name = read_hdf5_string(file, "tokenizer_name", path).value_or("");
  info.vocab_size = integer(file, "vocab_size", 1, kMaxVocab);
  info.end_token = integer(file, "end_token", -1, info.vocab_size - 1);
  info.source = read_hdf5_string(file, "source", path).value_or("");
  info.source_bytes = integer(file, "source_bytes", 0, kNoLimit);
  token_count = integer(file, "token_count", 0, kNoLimit);
  document_count = integer(file, "document_count", 0, kNoLimit);
  hash = read_hdf5_string(file, "content_hash", path).value_or("");
  if (hash.size() != kHashTextLength ||
      hash.find_first_not_of("0123456789abcdef") != std::string::npos) {
    refuse("is no token file: its attribute 'content_hash' is not 32 hexadecimal digits");
  }
}

// Extent of a dataset and the width of its unsigned little-endian elements.
Hdf5Extent TokenFile::Impl::dataset(hid_t file, const char* name, std::size_t* width_out) const {
  const Hdf5Handle data = open_hdf5_dataset(file, name, path);
  const Hdf5Handle type(TESSERA_READ_HDF5(path, H5Dget_type(data.get())), H5Tclose);
  *width_out = 0;
  for (const hid_t candidate : {H5T_STD_U8LE, H5T_STD_U16LE, H5T_STD_U32LE, H5T_STD_U64LE}) {
    if (TESSERA_READ_HDF5(path, H5Tequal(type.get(), candidate)) > 0) {
      *width_out = H5Tget_size(candidate);
    }
  }
  return hdf5_dataset_extent(file, name, data.get(), path);
}

// Where the extent lies in the mapping.
const std::uint8_t* TokenFile::Impl::place(const Hdf5Extent& extent, std::size_t element_bytes,
                                           const char* name) const {
  if (extent.count == 0) {
    return nullptr;
  }
  const std::uint64_t size = mapping->bytes();
  if (extent.offset > size || extent.count > (size - extent.offset) / element_bytes) {
    refuse(fmt::format("is truncated: {} has {} elements of {} bytes from byte {} on, but the file "
                       "ends at byte {}",
                       name, extent.count, element_bytes, extent.offset, size));
  }
  return mapping->data() + extent.offset;
}

void TokenFile::Impl::check_documents() const {
  if (document_count == 0 || document(0) != 0) {
    refuse("is damaged: its first document does not start at token 0");
  }
  std::uint64_t before = 0;
  for (Index i = 1; i < document_count; ++i) {
    const std::uint64_t start = document(i);
    if (start <= before || start >= static_cast<std::uint64_t>(token_count)) {
      refuse(fmt::format("is damaged: document {} starts at token {}, after {} and with {} tokens "
                         "in all",
                         i, start, before, token_count));
    }
    before = start;
  }
}

TokenFile::TokenFile(std::filesystem::path path) : impl_(std::make_unique<Impl>()) {
  Impl& self = *impl_;
  self.path = std::move(path);
  const FileDescriptor descriptor = open_to_read(self.path);
  check_seal(descriptor, self.path);
  Hdf5Extent tokens = {};
  Hdf5Extent documents = {};
  Hdf5Extent mask = {};
  Hdf5Extent model = {};
  {
    const Hdf5Handle file = open_hdf5_file(self.path, kSealBytes);
    self.read_attributes(file.get());
    tokens = self.dataset(file.get(), "tokens", &self.width);
    if (self.width == 0 || self.width > sizeof(std::uint32_t)) {
      self.refuse("holds tokens of another type than u8, u16 or u32");
    }
    std::size_t width = 0;
    documents = self.dataset(file.get(), "documents", &width);
    if (width != sizeof(std::uint64_t)) {
      self.refuse("holds documents of another type than u64");
    }
    for (const auto& [name, extent] :
         {std::pair{"targets_mask", &mask}, std::pair{"tokenizer_model", &model}}) {
      if (hdf5_has(file.get(), name, self.path)) {
        *extent = self.dataset(file.get(), name, &width);
        if (width != sizeof(std::uint8_t)) {
          self.refuse(fmt::format("holds a {} of another type than u8", name));
        }
      }
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
  self.mapping.emplace(descriptor, self.path);
  self.tokens = self.place(tokens, self.width, "tokens");
  self.documents = self.place(documents, sizeof(std::uint64_t), "documents");
  self.mask = self.place(mask, 1, "targets_mask");
  if (const std::uint8_t* bytes = self.place(model, 1, "tokenizer_model"); bytes != nullptr) {
    self.model = {reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(model.count)};
  }
  self.check_documents();
}

TokenFile::~TokenFile() = default;
TokenFile::TokenFile(TokenFile&& other) noexcept = default;
TokenFile& TokenFile::operator=(TokenFile&& other) noexcept = default;

const std::filesystem::path& TokenFile::path() const noexcept {
  return impl_->path;
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
  return impl_->mask != nullptr;
}
const std::string& TokenFile::content_hash() const noexcept {
  return impl_->hash;
}
std::string_view TokenFile::tokenizer_model() const noexcept {
  return impl_->model;
}

std::uint32_t TokenFile::read_tokens(Index begin, std::span<std::int32_t> out) const {
  const Impl& self = *impl_;
  TESSERA_REQUIRE(begin >= 0 && begin <= self.token_count &&
                      out.size() <= static_cast<std::size_t>(self.token_count - begin),
                  "tokens outside the file");
  const std::uint8_t* from = self.tokens + static_cast<std::size_t>(begin) * self.width;
  if (self.width == sizeof(std::uint8_t)) {
    return widen<std::uint8_t>(from, out);
  }
  return self.width == sizeof(std::uint16_t) ? widen<std::uint16_t>(from, out)
                                             : widen<std::uint32_t>(from, out);
}

Index TokenFile::next_document(Index position) const {
  const Impl& self = *impl_;
  Index low = 0;
  Index high = self.document_count;
  while (low < high) {
    const Index middle = low + (high - low) / 2;
    if (self.document(middle) < static_cast<std::uint64_t>(std::max<Index>(position, 0))) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low == self.document_count ? self.token_count : static_cast<Index>(self.document(low));
}

std::span<const std::uint8_t> TokenFile::mask(Index begin, Index count) const {
  const Impl& self = *impl_;
  TESSERA_REQUIRE(
      begin >= 0 && count >= 0 && begin <= self.token_count && count <= self.token_count - begin,
      "mask outside the file");
  if (self.mask == nullptr) {
    return {};
  }
  return {self.mask + begin, static_cast<std::size_t>(count)};
}

void TokenFile::verify_content() const {
  const Impl& self = *impl_;
  const auto count = static_cast<std::size_t>(self.token_count);
  ContentHash tokens;
  ContentHash documents;
  ContentHash mask;
  tokens.add(self.tokens, count * self.width);
  documents.add(self.documents,
                static_cast<std::size_t>(self.document_count) * sizeof(std::uint64_t));
  if (self.mask != nullptr) {
    mask.add(self.mask, count);
  }
  const std::string found =
      combined_hash(self.info, self.width, self.model, tokens, documents, mask);
  if (found != self.hash) {
    self.refuse(fmt::format("is damaged: its content has the hash {}, but should have {}", found,
                            self.hash));
  }
}

namespace {

// A growing unnamed file and the hash of what is in it.
class Spill {
 public:
  Spill(const std::filesystem::path& folder, const std::filesystem::path& final_path)
      : final_path_(final_path), file_(make(folder, final_path)) {
    buffer_.reserve(kCopyBytes);
  }

  void add(const void* data, std::size_t bytes) {
    hash_.add(data, bytes);
    const auto* from = static_cast<const char*>(data);
    while (bytes != 0) {
      const std::size_t part = std::min(bytes, kCopyBytes - buffer_.size());
      buffer_.insert(buffer_.end(), from, from + part);
      from += part;
      bytes -= part;
      if (buffer_.size() == kCopyBytes) {
        flush();
      }
    }
  }

  /// Copies everything to `offset` of `target`, a file at `path`.
  void copy_to(const FileDescriptor& target, std::uint64_t offset,
               const std::filesystem::path& path) {
    flush();
    std::vector<char> part(kCopyBytes);
    for (std::uint64_t done = 0; done < bytes_;) {
      const std::size_t count = read_at(file_, part.data(), part.size(), done, path);
      if (count == 0) {
        throw WriteError(fmt::format("cannot write {}: its pieces are lost", path.string()),
                         TESSERA_HERE);
      }
      write_at(target, part.data(), count, offset + done, path);
      done += count;
    }
  }

  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_ + buffer_.size(); }
  [[nodiscard]] const ContentHash& hash() const noexcept { return hash_; }

 private:
  static FileDescriptor make(const std::filesystem::path& folder,
                             const std::filesystem::path& final_path) {
    int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (file < 0) {
      // not every file system has unnamed files: a named one that loses its name at once
      std::string name = (folder / ".tokenize-XXXXXX").string();
      file = ::mkostemp(name.data(), O_CLOEXEC);
      if (file < 0) {
        throw_write_error(final_path);
      }
      static_cast<void>(::unlink(name.c_str()));
    }
    return FileDescriptor(file);
  }

  void flush() {
    write_at(file_, buffer_.data(), buffer_.size(), bytes_, final_path_);
    bytes_ += buffer_.size();
    buffer_.clear();
  }

  std::filesystem::path final_path_;
  FileDescriptor file_;
  std::vector<char> buffer_;
  std::uint64_t bytes_ = 0;
  ContentHash hash_;
};

// What a token file may take the place of.
OutputRules token_file_rules() {
  return {.option = {}, .what = "a token file", .is_ours = [](const std::filesystem::path& path) {
            return has_seal(path);
          }};
}

// Removes a file unless it was kept.
class Temporary {
 public:
  explicit Temporary(std::filesystem::path path) : path_(std::move(path)) {}
  ~Temporary() {
    if (!path_.empty()) {
      static_cast<void>(::unlink(path_.c_str()));
    }
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  void rename_to(const std::filesystem::path& final_path) {
    if (::rename(path_.c_str(), final_path.c_str()) != 0) {
      throw_write_error(final_path);
    }
    path_.clear();
  }

 private:
  std::filesystem::path path_;
};

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

void sync_folder(const std::filesystem::path& folder) {
  const FileDescriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // some file systems cannot sync a folder and say EINVAL
  if (file.get() < 0 || (::fsync(file.get()) != 0 && errno != EINVAL)) {
    throw_write_error(folder);
  }
}

}  // namespace

struct TokenFileWriter::Impl {
  Impl(std::filesystem::path the_path, TokenFileInfo the_info, std::string the_model, Mask the_mask)
      : path(std::move(the_path)),
        info(std::move(the_info)),
        model(std::move(the_model)),
        width(width_for(info.vocab_size)),
        place(find_output_place(path, token_file_rules()).path),
        tokens(folder_of(place), path),
        documents(folder_of(place), path) {
    if (the_mask == Mask::present) {
      mask.emplace(folder_of(place), path);
    }
  }

  std::filesystem::path path;
  TokenFileInfo info;
  std::string model;
  std::size_t width;
  std::filesystem::path place;  // links followed
  Spill tokens;
  Spill documents;
  std::optional<Spill> mask;
  Index token_count = 0;
  Index document_count = 0;
  bool at_document_start = true;

  template <typename T>
  void add_ids(std::span<const std::uint32_t> ids);
  void write_attributes(hid_t file, const std::filesystem::path& temporary) const;
};

template <typename T>
void TokenFileWriter::Impl::add_ids(std::span<const std::uint32_t> ids) {
  constexpr std::size_t kPart = 4096;
  std::array<T, kPart> part;
  std::uint32_t largest = 0;
  for (std::size_t begin = 0; begin < ids.size(); begin += kPart) {
    const std::size_t count = std::min(kPart, ids.size() - begin);
    for (std::size_t i = 0; i < count; ++i) {
      largest = std::max(largest, ids[begin + i]);
      part[i] = static_cast<T>(ids[begin + i]);
    }
    TESSERA_REQUIRE(static_cast<Index>(largest) < info.vocab_size,
                    fmt::format("token {} in a vocabulary of {}", largest, info.vocab_size));
    tokens.add(part.data(), count * sizeof(T));
  }
}

void TokenFileWriter::Impl::write_attributes(hid_t file,
                                             const std::filesystem::path& temporary) const {
  constexpr std::size_t kMaxSourceBytes = 4096;  // an attribute has room for 64 KiB
  write_hdf5_string(file, "format", kFormatName, temporary);
  write_hdf5_integer(file, "version", kTokenFileVersion, temporary);
  write_hdf5_string(file, "tokenizer", info.tokenizer, temporary);
  write_hdf5_string(file, "tokenizer_name", info.tokenizer_name, temporary);
  if (!model.empty()) {
    ContentHash model_hash;
    model_hash.add(model);
    write_hdf5_string(file, "tokenizer_hash", model_hash.hex(), temporary);
  }
  write_hdf5_integer(file, "vocab_size", info.vocab_size, temporary);
  write_hdf5_integer(file, "end_token", info.end_token, temporary);
  write_hdf5_string(file, "source", std::string_view(info.source).substr(0, kMaxSourceBytes),
                    temporary);
  write_hdf5_integer(file, "source_bytes", info.source_bytes, temporary);
  write_hdf5_integer(file, "token_count", token_count, temporary);
  write_hdf5_integer(file, "document_count", document_count, temporary);
  const ContentHash no_mask;
  write_hdf5_string(file, "content_hash",
                    combined_hash(info, width, model, tokens.hash(), documents.hash(),
                                  mask ? mask->hash() : no_mask),
                    temporary);
}

TokenFileWriter::TokenFileWriter(std::filesystem::path path, TokenFileInfo info,
                                 std::string tokenizer_model, Mask mask) {
  TESSERA_REQUIRE(info.vocab_size > 0 && info.vocab_size <= kMaxVocab,
                  fmt::format("a vocabulary of {}", info.vocab_size));
  TESSERA_REQUIRE(!info.tokenizer.empty(), "a token file names its tokenizer");
  impl_ =
      std::make_unique<Impl>(std::move(path), std::move(info), std::move(tokenizer_model), mask);
}

TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::begin_document() noexcept {
  impl_->at_document_start = true;
}

void TokenFileWriter::append(std::span<const std::uint32_t> ids,
                             std::span<const std::uint8_t> mask) {
  Impl& self = *impl_;
  TESSERA_REQUIRE(mask.size() == (self.mask ? ids.size() : 0), "one mask value a token, or none");
  if (ids.empty()) {
    return;
  }
  if (self.at_document_start) {
    const auto start = static_cast<std::uint64_t>(self.token_count);
    self.documents.add(&start, sizeof start);
    ++self.document_count;
    self.at_document_start = false;
  }
  if (self.width == sizeof(std::uint8_t)) {
    self.add_ids<std::uint8_t>(ids);
  } else if (self.width == sizeof(std::uint16_t)) {
    self.add_ids<std::uint16_t>(ids);
  } else {
    self.add_ids<std::uint32_t>(ids);
  }
  if (self.mask) {
    self.mask->add(mask.data(), mask.size());
  }
  self.token_count += static_cast<Index>(ids.size());
}

void TokenFileWriter::add_source_bytes(Index bytes) noexcept {
  impl_->info.source_bytes += bytes;
}
Index TokenFileWriter::token_count() const noexcept {
  return impl_->token_count;
}
Index TokenFileWriter::document_count() const noexcept {
  return impl_->document_count;
}
const std::filesystem::path& TokenFileWriter::path() const noexcept {
  return impl_->path;
}

void TokenFileWriter::commit() {
  Impl& self = *impl_;
  TESSERA_REQUIRE(self.token_count > 0, "a token file without tokens");
  const std::filesystem::path folder = folder_of(self.place);
  Temporary temporary(temporary_name(self.place));
  static_cast<void>(::unlink(temporary.path().c_str()));  // of a killed process with our number
  const std::filesystem::path& path = temporary.path();

  Hdf5Handle file = create_hdf5_file(path, kSealBytes);
  const auto offset_of = [&](const char* dataset_name, hid_t type, std::uint64_t count) {
    Hdf5Handle data = create_hdf5_dataset(file.get(), dataset_name, type, count, path);
    const std::uint64_t offset =
        hdf5_dataset_extent(file.get(), dataset_name, data.get(), path).offset;
    data.close(path);
    return offset;
  };
  const auto count = static_cast<std::uint64_t>(self.token_count);
  const std::uint64_t tokens_at = offset_of("tokens", file_type(self.width), count);
  const std::uint64_t documents_at =
      offset_of("documents", H5T_STD_U64LE, static_cast<std::uint64_t>(self.document_count));
  const std::uint64_t mask_at = self.mask ? offset_of("targets_mask", H5T_STD_U8LE, count) : 0;
  const std::uint64_t model_at =
      self.model.empty() ? 0 : offset_of("tokenizer_model", H5T_STD_U8LE, self.model.size());
  self.write_attributes(file.get(), path);
  file.close(path);

  const FileDescriptor target(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!target.is_open()) {
    throw_write_error(path);
  }
  std::vector<SealedRange> unsealed;
  const auto copy = [&](Spill& spill, std::uint64_t offset) {
    spill.copy_to(target, offset, path);
    unsealed.push_back({offset, spill.bytes()});
  };
  copy(self.tokens, tokens_at);
  copy(self.documents, documents_at);
  if (self.mask) {
    copy(*self.mask, mask_at);
  }
  write_at(target, self.model.data(), self.model.size(), model_at, path);
  std::sort(unsealed.begin(), unsealed.end(),
            [](const SealedRange& a, const SealedRange& b) { return a.offset < b.offset; });
  write_seal(target, unsealed, path);
  if (::fsync(target.get()) != 0) {
    throw_write_error(path);
  }
  // once more: another program may have put a file there meanwhile
  if (find_output_place(self.path, token_file_rules()).path != self.place) {
    throw WriteError(fmt::format("cannot write {}: it became another file while this one was made",
                                 self.path.string()),
                     TESSERA_HERE);
  }
  temporary.rename_to(self.place);
  sync_folder(folder);
}

}  // namespace tessera
