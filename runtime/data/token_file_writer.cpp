#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/hash.h"
#include "kernels/base/output_file.h"
#include "runtime/data/header_checksum.h"
#include "runtime/data/token_file.h"
#include "runtime/data/token_layout.h"
#include "runtime/hdf5/hdf5_file.h"

namespace tessera {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{1} << 20U;

// A growing unnamed file and the hash of what is in it.
class Spill {
 public:
  // `final_path` is what messages name.
  Spill(const std::filesystem::path& folder, const std::filesystem::path& final_path)
      : file_(File::create_unnamed(folder, final_path)) {
    buffer_.reserve(kCopyBytes);
  }

  void add(const void* data, std::size_t bytes) {
    hash_.add(std::span(static_cast<const std::byte*>(data), bytes));
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

  /// Copies everything to `offset` of `target`.
  void copy_to(File& target, std::uint64_t offset) {
    flush();
    std::vector<std::byte> part(kCopyBytes);
    for (std::uint64_t done = 0; done < bytes_;) {
      const std::size_t count = file_.read_up_to(done, part);
      if (count == 0) {
        throw WriteError(
            fmt::format("cannot write {}: its pieces are lost", target.path().string()),
            TESSERA_HERE);
      }
      target.write_at(offset + done, std::span(part).first(count));
      done += count;
    }
  }

  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_ + buffer_.size(); }
  [[nodiscard]] const Xxh3& hash() const noexcept { return hash_; }

 private:
  void flush() {
    file_.write_at(bytes_, std::as_bytes(std::span(buffer_)));
    bytes_ += buffer_.size();
    buffer_.clear();
  }

  File file_;
  std::vector<char> buffer_;
  std::uint64_t bytes_ = 0;
  Xxh3 hash_{HashWidth::bits128};
};

// What a token file may take the place of.
OutputRules token_file_rules() {
  return {.option = {}, .what = "a token file", .is_ours = [](const std::filesystem::path& path) {
            return has_header_checksum(path);
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
    rename_over(path_, final_path);
    path_.clear();
  }

 private:
  std::filesystem::path path_;
};

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
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
  std::vector<TokenizerFile> companions;
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
  write_hdf5_string(file, "format", kTokenFormatName, temporary);
  write_hdf5_integer(file, "version", kTokenFileVersion, temporary);
  write_hdf5_string(file, "tokenizer", info.tokenizer, temporary);
  write_hdf5_string(file, "tokenizer_name", info.tokenizer_name, temporary);
  if (!model.empty()) {
    write_hdf5_string(file, "tokenizer_hash", xxh3_128(bytes_of(model)).text(), temporary);
  }
  write_hdf5_integer(file, "vocab_size", info.vocab_size, temporary);
  write_hdf5_integer(file, "end_token", info.end_token, temporary);
  write_hdf5_string(file, "source", std::string_view(info.source).substr(0, kMaxSourceBytes),
                    temporary);
  write_hdf5_integer(file, "source_bytes", info.source_bytes, temporary);
  if (info.is_chats) {
    write_hdf5_integer(file, "chats", 1, temporary);
  }
  write_hdf5_integer(file, "token_count", token_count, temporary);
  write_hdf5_integer(file, "document_count", document_count, temporary);
  const Xxh3 no_mask(HashWidth::bits128);
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

void TokenFileWriter::keep_companions(std::vector<TokenizerFile> companions) {
  std::erase_if(companions, [](const TokenizerFile& file) { return file.content.empty(); });
  for (const TokenizerFile& file : companions) {
    TESSERA_REQUIRE(std::find(kTokenizerCompanions.begin(), kTokenizerCompanions.end(),
                              file.name) != kTokenizerCompanions.end(),
                    "a token file keeps no " + file.name);
  }
  impl_->companions = std::move(companions);
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

  Hdf5Handle file = create_hdf5_file(path, kHeaderBytes);
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
  std::vector<std::uint64_t> companions_at;
  companions_at.reserve(self.companions.size());
  for (const TokenizerFile& companion : self.companions) {
    companions_at.push_back(
        offset_of(companion.name.c_str(), H5T_STD_U8LE, companion.content.size()));
  }
  self.write_attributes(file.get(), path);
  file.close(path);

  File target = File::open_write(path);
  std::vector<UncheckedRange> unchecked;
  const auto copy = [&](Spill& spill, std::uint64_t offset) {
    spill.copy_to(target, offset);
    unchecked.push_back({offset, spill.bytes()});
  };
  copy(self.tokens, tokens_at);
  copy(self.documents, documents_at);
  if (self.mask) {
    copy(*self.mask, mask_at);
  }
  target.write_at(model_at, std::as_bytes(std::span(self.model)));
  for (std::size_t i = 0; i < companions_at.size(); ++i) {
    target.write_at(companions_at[i], std::as_bytes(std::span(self.companions[i].content)));
  }
  std::sort(unchecked.begin(), unchecked.end(),
            [](const UncheckedRange& a, const UncheckedRange& b) { return a.offset < b.offset; });
  write_header_checksum(target, unchecked);
  target.sync();
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
