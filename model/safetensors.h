// The safetensors file format (github.com/huggingface/safetensors): a length of 8 bytes,
// little-endian, a JSON header of that length, and the tensors' bytes behind it.
//
// Files come from strangers: every length, offset, type and shape is checked when the file is
// opened, and nothing is allocated from a number that has not been compared with the file's size.
// Contents are read piece by piece, so that a file of any size needs bounded memory; a file that is
// cut off while it is being read is an error, not a signal, which is why it is not mapped.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/device/stream.h"

namespace tessera {

/// Element types of the format (those that take whole bytes).
enum class SafetensorsType : std::uint8_t {
  boolean,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  u16,
  i16,
  f16,
  bf16,
  u32,
  i32,
  f32,
  u64,
  i64,
  f64
};

[[nodiscard]] std::size_t size_in_bytes(SafetensorsType type);
/// As it stands in the header: "BF16".
[[nodiscard]] std::string_view type_name(SafetensorsType type);

/// Name, type and shape of one tensor. A shape of rank 0 is one number.
struct SafetensorsSpec {
  std::string name;
  SafetensorsType type;
  std::vector<Index> shape;
};

/// One tensor of a file.
struct SafetensorsTensor : SafetensorsSpec {
  Index count;          // elements
  std::int64_t offset;  // of the first byte, in the file
};

/// "[3, 4]", for messages.
[[nodiscard]] std::string shape_text(std::span<const Index> shape);
/// `name` in quotes, for a message: unprintable bytes as `\xNN`, long names cut.
[[nodiscard]] std::string printable(std::string_view name);

/// An open file whose header has been read and found sound. Move-only. Reading is safe from several
/// threads.
class SafetensorsFile {
 public:
  /// Headers above this are refused, as by the format's own library: 100 MB.
  static constexpr std::int64_t kLargestHeaderBytes = 100'000'000;
  /// Shapes of more extents than this are refused.
  static constexpr std::size_t kLargestRank = 8;

  /// Throws FormatError: not a regular file that can be read; header length beyond the file or the
  /// limit; not JSON; a key, type, shape or range that the format does not know; a name twice;
  /// ranges that overlap, leave a hole, do not fit their shape, or do not end where the file ends.
  explicit SafetensorsFile(const std::filesystem::path& file);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return file_.path(); }
  /// In the order of their bytes.
  [[nodiscard]] const std::vector<SafetensorsTensor>& tensors() const noexcept { return tensors_; }
  /// Null if there is none of this name.
  [[nodiscard]] const SafetensorsTensor* find(std::string_view name) const;
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept {
    return metadata_;
  }

  /// Fills `values` with elements [begin, begin + values.size()) of the flattened tensor. bf16, f16
  /// and f32 are converted exactly. Requires: a tensor of this file, a range within it. Throws
  /// FormatError if it is of another type or the file has become shorter.
  void read(const SafetensorsTensor& tensor, Index begin, std::span<float> values) const;
  /// The same for i64, i32 and u8.
  void read(const SafetensorsTensor& tensor, Index begin, std::span<std::int64_t> values) const;
  /// The same for u8 alone.
  void read(const SafetensorsTensor& tensor, Index begin, std::span<std::uint8_t> values) const;

 private:
  void read_header();
  void read_bytes(const SafetensorsTensor& tensor, Index begin, Index count,
                  std::span<std::byte> bytes) const;

  File file_;
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> positions_;  // in tensors_
  std::map<std::string, std::string> metadata_;
};

/// Makes the file, its header and room for the tensors' bytes, in which several processes then write
/// parts. Throws WriteError; the file must not exist.
void create_safetensors(const std::filesystem::path& file, std::span<const SafetensorsSpec> tensors,
                        const std::map<std::string, std::string>& metadata);

/// What a writer writes: a whole new file, or a part of one that `create_safetensors` has made of
/// the same tensors and metadata.
enum class SafetensorsShare : std::uint8_t { whole, part };

/// Writes a file piece by piece, in bounded memory.
class SafetensorsWriter {
 public:
  /// `whole`: makes the file and writes its header. The tensors are stored in the order given.
  /// Throws WriteError; a whole file must not exist.
  SafetensorsWriter(const std::filesystem::path& file, std::span<const SafetensorsSpec> tensors,
                    const std::map<std::string, std::string>& metadata,
                    SafetensorsShare share = SafetensorsShare::whole);

  /// Writes a piece of the tensors, which are stored one behind the other; `offset` counts bytes
  /// from the first one's begin. In any order, from any thread, each byte once. Throws WriteError.
  void write(std::int64_t offset, std::span<const std::byte> bytes);
  /// Writes it through to the disk. Requires, of a whole file: as many bytes written as announced.
  /// Throws WriteError.
  void close();

 private:
  SafetensorsShare share_;
  File file_;
  std::int64_t data_begin_ = 0;  // in the file
  std::int64_t data_bytes_ = 0;
  std::atomic<std::int64_t> written_bytes_ = 0;
};

}  // namespace tessera
