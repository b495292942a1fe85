// Token ids (and loss masks) made elsewhere: numpy's .npy with a 1-D integer array, llm.c's .bin, and
// files of nothing but ids. They come from strangers: every length is compared with the file's size before use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/device/stream.h"

namespace tessera {

/// Files of nothing but ids, little-endian, whose type the user says.
enum class RawIds : std::uint8_t { none, uint16, uint32 };

class IdFile {
 public:
  /// Opens a .npy of format 1 to 3 (any integer type or bool, either byte order) or a .bin of llm.c
  /// (magic 20240520, version 1, u16; magic 20240801, version 7, u32), distinguished by their first
  /// bytes. With `raw` the file is ids from its first byte on. Throws MissingError, FormatError if it is
  /// none of these, or damaged; with `raw` also if it begins as one of the others.
  explicit IdFile(const std::filesystem::path& path, RawIds raw = RawIds::none);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return file_.path(); }
  [[nodiscard]] Index count() const noexcept { return count_; }
  /// What the file's type can hold: ids below this (2^63 - 1 for the widest).
  [[nodiscard]] Index id_limit() const noexcept;
  /// Bits of one number.
  [[nodiscard]] std::size_t bits() const noexcept;
  /// Numbers [begin, begin + out.size()). Unsigned ones above 2^63 - 1 become 2^63 - 1.
  /// Requires: 0 <= begin, begin + out.size() <= count(). Throws FormatError.
  void read(Index begin, std::span<std::int64_t> out);

  /// Whether the name ends in .npy or .bin.
  [[nodiscard]] static bool has_name(const std::filesystem::path& path);

 private:
  void open_npy(std::uint64_t size);
  void open_bin(std::uint64_t size);
  void open_raw(std::uint64_t size, RawIds raw);
  [[noreturn]] void refuse(std::string_view reason) const;

  File file_;
  std::uint64_t data_offset_ = 0;  // bytes
  Index count_ = 0;
  std::size_t width_ = 0;  // bytes of one number
  bool is_signed_ = false;
  bool is_big_endian_ = false;
  std::vector<std::uint8_t> buffer_;
};

}  // namespace tessera
