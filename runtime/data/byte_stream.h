// The bytes of a file from its beginning to its end, decompressed where it is gzip or Zstandard.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/base/file.h"

namespace tessera {

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  /// Fills `target` from its beginning and returns how many bytes came; 0: the end. Throws ReadError;
  /// FormatError where compressed data is damaged, ends too early or is followed by something else.
  [[nodiscard]] virtual std::size_t read(std::span<char> target) = 0;
  /// Bytes of the file itself (compressed ones) that have been read.
  [[nodiscard]] virtual std::uint64_t file_bytes_read() const = 0;

 protected:
  ByteStream() = default;
};

/// Whether a file that begins with these bytes is gzip or Zstandard.
[[nodiscard]] bool is_compressed(std::string_view first_bytes) noexcept;

/// By the first bytes of the file: gzip (RFC 1952, several members too), Zstandard (RFC 8878,
/// several frames too), or plain. Throws as File::open_read, and ConfigError for Zstandard in a build
/// without libzstd.
[[nodiscard]] std::unique_ptr<ByteStream> open_byte_stream(const std::filesystem::path& path);

/// A file read in order, in blocks: what the kinds of streams are made of.
class BlockReader {
 public:
  explicit BlockReader(File file) : file_(std::move(file)) {}
  [[nodiscard]] std::size_t read(std::span<char> target) {
    const std::size_t count = file_.read_up_to(offset_, std::as_writable_bytes(target));
    offset_ += count;
    return count;
  }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return file_.path(); }

 private:
  File file_;
  std::uint64_t offset_ = 0;
};

// The kinds with a library, each in a file of its own.
[[nodiscard]] std::unique_ptr<ByteStream> make_gzip_stream(BlockReader file);
[[nodiscard]] std::unique_ptr<ByteStream> make_zstd_stream(BlockReader file);

}  // namespace tessera
