// Token files for tests: good ones through the writer, bad ones through HDF5.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <hdf5.h>

#include "kernels/base/file.h"
#include "runtime/data/header_checksum.h"
#include "runtime/data/token_file.h"
#include "runtime/hdf5/hdf5_file.h"

namespace tessera::test {

using Documents = std::vector<std::vector<std::uint32_t>>;

/// Writes the documents. `mask`, if given, has one value a token.
inline void write_tokens(const std::filesystem::path& path, const Documents& documents,
                         Index vocab = 256, const std::vector<std::uint8_t>& mask = {}) {
  TokenFileWriter writer(
      path, {"bytes", "", vocab, -1, "a test", 0}, "",
      mask.empty() ? TokenFileWriter::Mask::absent : TokenFileWriter::Mask::present);
  std::size_t at = 0;
  for (const std::vector<std::uint32_t>& document : documents) {
    writer.begin_document();
    writer.append(document, mask.empty() ? std::span<const std::uint8_t>()
                                         : std::span(mask).subspan(at, document.size()));
    at += document.size();
  }
  writer.commit();
}

/// begin, begin + 1, ... modulo `modulus`.
inline std::vector<std::uint32_t> counting(std::size_t count, std::uint32_t modulus = 251,
                                           std::uint32_t begin = 0) {
  std::vector<std::uint32_t> ids(count);
  for (std::size_t i = 0; i < count; ++i) {
    ids[i] = static_cast<std::uint32_t>((begin + i) % modulus);
  }
  return ids;
}

/// A token file made by hand, so that any part of it can be wrong.
struct RawTokenFile {
  hid_t token_type = H5T_STD_U8LE;
  std::vector<std::uint32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  hid_t document_type = H5T_STD_U64LE;
  std::vector<std::uint64_t> documents = {0, 3};
  std::optional<std::vector<std::uint32_t>> mask = std::nullopt;
  std::string format = "tessera-tokens";
  std::int64_t version = 1;
  std::int64_t vocab = 256;
  std::int64_t token_count = 8;
  std::int64_t document_count = 2;
  std::string hash = std::string(32, '0');
  std::string left_out = {};  // an attribute or dataset that is not written
  /// Makes the tokens; the default makes a contiguous dataset.
  std::function<void(hid_t file, const std::filesystem::path&)> make_tokens = {};
};

inline void write_raw_without_checksum(const std::filesystem::path& path, const RawTokenFile& raw) {
  const Hdf5Handle file = create_hdf5_file(path, kHeaderBytes);
  const auto dataset = [&](const char* name, hid_t type, const auto& values, hid_t memory) {
    if (raw.left_out == name) {
      return;
    }
    const Hdf5Handle data = create_hdf5_dataset(file.get(), name, type, values.size(), path);
    if (!values.empty()) {
      TESSERA_WRITE_HDF5(
          path, H5Dwrite(data.get(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
    }
  };
  if (raw.make_tokens) {
    raw.make_tokens(file.get(), path);
  } else {
    dataset("tokens", raw.token_type, raw.tokens, H5T_NATIVE_UINT32);
  }
  dataset("documents", raw.document_type, raw.documents, H5T_NATIVE_UINT64);
  if (raw.mask) {
    dataset("targets_mask", H5T_STD_U8LE, *raw.mask, H5T_NATIVE_UINT32);
  }
  const auto text = [&](const char* name, const std::string& value) {
    if (raw.left_out != name) {
      write_hdf5_string(file.get(), name, value, path);
    }
  };
  const auto integer = [&](const char* name, std::int64_t value) {
    if (raw.left_out != name) {
      write_hdf5_integer(file.get(), name, value, path);
    }
  };
  text("format", raw.format);
  integer("version", raw.version);
  text("tokenizer", "bytes");
  integer("vocab_size", raw.vocab);
  integer("end_token", -1);
  integer("source_bytes", 0);
  integer("token_count", raw.token_count);
  integer("document_count", raw.document_count);
  text("content_hash", raw.hash);
}

/// The same with a checksum over all of it, as after the writer.
inline void write_raw(const std::filesystem::path& path, const RawTokenFile& raw) {
  write_raw_without_checksum(path, raw);
  File file = File::open_write(path);
  write_header_checksum(file, {});
}

/// The first document start at or after `position`; token_count() if there is none.
inline Index next_document(const TokenFile& file, Index position) {
  std::vector<Index> starts;
  file.document_starts(position, file.token_count(), starts);
  return starts.empty() ? file.token_count() : starts.front();
}

/// Message of the `Kind` that `body` throws; what happened instead if it does not.
template <typename Kind, typename Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Kind& error) {
    return error.message();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "no exception";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace tessera::test
