// An HDF5 file as checkpoints use it: attributes of the root, compound tables, contiguous datasets
// whose places are asked for, and virtual datasets. In memory: HDF5 never writes to a disk here,
// which may be full without its saying so (format.md).
//
// Not for bulk data: shards are written and read with POSIX calls at the places that HDF5 names.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/device/stream.h"
#include "runtime/hdf5/hdf5_file.h"

namespace tessera {

/// Column of a compound dataset: all values of one field.
struct Hdf5Column {
  using Extents = std::array<Index, 4>;
  std::string name;
  std::variant<std::vector<std::string>, std::vector<Index>, std::vector<std::uint64_t>,
               std::vector<Extents>>
      values;
};

/// Part of a virtual dataset: a box of it is a run of elements of a flat dataset in another file.
struct Hdf5Mapping {
  std::vector<Index> start;  // of the box, one a dimension
  std::vector<Index> count;
  std::string source_file;  // a bare name: looked up beside the file
  std::string source_dataset;
  Index source_total;  // elements of the source dataset
  Index source_begin;  // first element of the run; it has as many as the box
};

class File;

enum class Hdf5Element : std::uint8_t { f32, u64 };

/// One HDF5 file. What reads throws FormatError, what writes WriteError, naming the file, the call
/// and HDF5's own reason. Every member takes one lock for the process, since not every build of
/// HDF5 is thread-safe: a writer thread and the main thread may each have a document of their own.
class Hdf5Document {
 public:
  /// An existing file, read-only and without file locks.
  [[nodiscard]] static Hdf5Document open(const std::filesystem::path& file);
  /// A file that is stored in memory; `name` stands for it in messages. Copies `image`.
  [[nodiscard]] static Hdf5Document open_image(std::span<const std::byte> image, std::string name);
  /// Over an empty file that is open, whose path is for messages. Objects of 4 KiB and more are
  /// aligned to 4 KiB.
  [[nodiscard]] static Hdf5Document create_over(const File& file);
  /// A new file that stays in memory until `image` gives it.
  [[nodiscard]] static Hdf5Document create_in_memory(std::string name);
  /// Closes; a failure is logged. What has been written to disk counts only after `close`.
  ~Hdf5Document();
  Hdf5Document(Hdf5Document&& other) noexcept = default;
  Hdf5Document& operator=(Hdf5Document&& other) noexcept = default;
  Hdf5Document(const Hdf5Document&) = delete;
  Hdf5Document& operator=(const Hdf5Document&) = delete;

  /// The bytes that the file would have on disk.
  [[nodiscard]] std::vector<std::byte> image();
  void close();

  void create_group(const std::string& path);
  /// A second name for an object of this file.
  void link(const std::string& existing, const std::string& name);

  void put_attribute(const std::string& name, Index value);
  void put_attribute(const std::string& name, std::uint64_t value);
  /// UTF-8, without zero bytes. What is too long for an attribute becomes the scalar dataset
  /// /text/NAME; text_attribute reads either.
  void put_attribute(const std::string& name, const std::string& value);
  [[nodiscard]] Index int_attribute(const std::string& name) const;
  [[nodiscard]] std::uint64_t uint_attribute(const std::string& name) const;
  [[nodiscard]] std::string text_attribute(const std::string& name) const;
  /// The same; none where there is no such attribute.
  [[nodiscard]] std::optional<std::string> find_text_attribute(const std::string& name) const;

  /// A contiguous dataset [count] whose space exists at once and is not filled. Returns the place
  /// of its first byte in the file; 0 if it has no elements. Its elements are to be written by
  /// pwrite.
  std::uint64_t create_contiguous(const std::string& path, Hdf5Element type, Index count);
  /// f32, of `shape`; what no mapping covers reads as NaN.
  void create_virtual(const std::string& path, std::span<const Index> shape,
                      std::span<const Hdf5Mapping> mappings);
  /// A compound dataset; all columns have equally many values.
  void write_table(const std::string& path, std::span<const Hdf5Column> columns);

  /// One field of a compound dataset of one dimension.
  [[nodiscard]] std::vector<std::string> text_column(const std::string& path,
                                                     const std::string& field) const;
  [[nodiscard]] std::vector<Index> int_column(const std::string& path,
                                              const std::string& field) const;
  [[nodiscard]] std::vector<std::uint64_t> uint_column(const std::string& path,
                                                       const std::string& field) const;
  [[nodiscard]] std::vector<Hdf5Column::Extents> extents_column(const std::string& path,
                                                                const std::string& field) const;
  /// A u64 dataset of one dimension.
  [[nodiscard]] std::vector<std::uint64_t> read_uints(const std::string& path) const;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  Hdf5Document(std::filesystem::path path, Hdf5Handle file);
  void write_long_text(const std::string& name, const std::string& value);
  [[nodiscard]] std::optional<std::string> read_long_text(const std::string& name) const;
  [[nodiscard]] Hdf5Handle open_rows(const std::string& path, std::size_t& rows) const;
  /// Type of a field of a compound dataset. Throws FormatError if there is none of this class.
  [[nodiscard]] Hdf5Handle field_type(hid_t dataset, const std::string& path,
                                      const std::string& field, H5T_class_t wanted) const;
  template <typename T>
  [[nodiscard]] std::vector<T> column(const std::string& path, const std::string& field,
                                      hid_t type) const;

  std::filesystem::path path_;  // for messages; of a file in memory only a name
  Hdf5Handle file_;
};

}  // namespace tessera
