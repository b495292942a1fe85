#include "runtime/hdf5/hdf5_document.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <type_traits>

#include <fmt/format.h>

#include "kernels/base/file.h"

namespace tessera {
namespace {

/// HDF5 keeps an attribute in the object's header, whose messages are below 64 KiB.
constexpr std::size_t kLongestAttribute = 60000;
/// A longer text is a dataset of this group. More than this is not text of ours.
constexpr const char* kTextGroup = "/text";
constexpr std::size_t kLongestText = std::size_t{64} << 20U;
constexpr hsize_t kPage = 4096;
constexpr std::size_t kImageIncrement = std::size_t{1} << 20U;  // by which a file in memory grows
/// A table larger than this is not a table of ours: 100,000 rows of 1 KiB.
constexpr hsize_t kMostRows = 10'000'000;

/// Recursive, because members call members.
std::recursive_mutex& hdf5_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}
using Lock = std::lock_guard<std::recursive_mutex>;

Hdf5Handle make_space(const std::filesystem::path& path, std::span<const Index> extents) {
  const std::vector<hsize_t> sizes(extents.begin(), extents.end());
  return {TESSERA_WRITE_HDF5(
              path, H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr)),
          H5Sclose};
}

Hdf5Handle make_string_type(const std::filesystem::path& path, std::size_t bytes) {
  Hdf5Handle type(TESSERA_WRITE_HDF5(path, H5Tcopy(H5T_C_S1)), H5Tclose);
  TESSERA_WRITE_HDF5(path, H5Tset_size(type.get(), bytes));
  TESSERA_WRITE_HDF5(path, H5Tset_cset(type.get(), H5T_CSET_UTF8));
  return type;
}

Hdf5Handle make_extents_type(const std::filesystem::path& path) {
  constexpr hsize_t kSize = std::tuple_size_v<Hdf5Column::Extents>;
  return {TESSERA_WRITE_HDF5(path, H5Tarray_create2(H5T_STD_I64LE, 1, &kSize)), H5Tclose};
}

/// Creation properties of our datasets: no times, so that equal content gives equal bytes.
Hdf5Handle make_dataset_properties(const std::filesystem::path& path) {
  Hdf5Handle properties(TESSERA_WRITE_HDF5(path, H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
  TESSERA_WRITE_HDF5(path, H5Pset_obj_track_times(properties.get(), 0));
  return properties;
}

Hdf5Handle make_memory_access(const std::filesystem::path& path) {
  Hdf5Handle access(TESSERA_READ_HDF5(path, H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
  TESSERA_READ_HDF5(path, H5Pset_fapl_core(access.get(), kImageIncrement, 0));
  return access;
}

/// A name for HDF5 to tell files in memory apart by. No file can have it: HDF5 refuses an image
/// whose name exists on disk, and takes two of one name for the same file.
std::string memory_name() {
  static std::uint64_t number = 0;  // under the lock
  return fmt::format("/dev/null/{}", number++);
}

/// One field of a compound type: where it is stored in a packed row.
struct Field {
  std::size_t offset;
  std::size_t width;
};

std::size_t column_size(const Hdf5Column& column) {
  return std::visit([](const auto& values) { return values.size(); }, column.values);
}

std::size_t column_width(const Hdf5Column& column) {
  if (const auto* texts = std::get_if<std::vector<std::string>>(&column.values)) {
    std::size_t longest = 0;
    for (const std::string& text : *texts) {
      longest = std::max(longest, text.size());
    }
    return longest + 1;
  }
  if (std::holds_alternative<std::vector<Hdf5Column::Extents>>(column.values)) {
    return sizeof(Hdf5Column::Extents);
  }
  return sizeof(Index);
}

Hdf5Handle column_type(const std::filesystem::path& path, const Hdf5Column& column,
                       std::size_t width) {
  if (std::holds_alternative<std::vector<std::string>>(column.values)) {
    return make_string_type(path, width);
  }
  if (std::holds_alternative<std::vector<Hdf5Column::Extents>>(column.values)) {
    return make_extents_type(path);
  }
  const bool is_signed = std::holds_alternative<std::vector<Index>>(column.values);
  return {TESSERA_WRITE_HDF5(path, H5Tcopy(is_signed ? H5T_STD_I64LE : H5T_STD_U64LE)), H5Tclose};
}

void fill_field(const Hdf5Column& column, std::size_t row, std::byte* target) {
  std::visit(
      [&](const auto& values) {
        const auto& value = values[row];
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>) {
          std::memcpy(target, value.data(), value.size());
        } else {
          std::memcpy(target, &value, sizeof value);
        }
      },
      column.values);
}

}  // namespace

Hdf5Document::Hdf5Document(std::filesystem::path path, Hdf5Handle file)
    : path_(std::move(path)), file_(std::move(file)) {}

Hdf5Document::~Hdf5Document() {
  const Lock lock(hdf5_mutex());
  const Hdf5Handle closing(std::move(file_));
}

Hdf5Document Hdf5Document::open(const std::filesystem::path& file) {
  const Lock lock(hdf5_mutex());
  return {file, open_hdf5_file(file)};
}

Hdf5Document Hdf5Document::open_image(std::span<const std::byte> image, std::string name) {
  const Lock lock(hdf5_mutex());
  prepare_hdf5();
  const Hdf5Handle access = make_memory_access(name);
  // HDF5 asks for a pointer to what it may write, but copies it before it does.
  auto* bytes =
      const_cast<std::byte*>(image.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  TESSERA_READ_HDF5(name, H5Pset_file_image(access.get(), bytes, image.size()));
  Hdf5Handle handle(
      TESSERA_READ_HDF5(name, H5Fopen(memory_name().c_str(), H5F_ACC_RDONLY, access.get())),
      H5Fclose);
  return {std::move(name), std::move(handle)};
}

Hdf5Document Hdf5Document::create_over(const File& file) {
  const Lock lock(hdf5_mutex());
  prepare_hdf5();
  const std::filesystem::path& path = file.path();
  const Hdf5Handle access(TESSERA_WRITE_HDF5(path, H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
  TESSERA_WRITE_HDF5(path, H5Pset_alignment(access.get(), kPage, kPage));
  // The default driver wants the real path of a link such as /proc/self/fd/3, which has none.
  TESSERA_WRITE_HDF5(path, H5Pset_fapl_stdio(access.get()));
  Hdf5Handle handle(TESSERA_WRITE_HDF5(path, H5Fcreate(file.own_name().c_str(), H5F_ACC_TRUNC,
                                                       H5P_DEFAULT, access.get())),
                    H5Fclose);
  return {path, std::move(handle)};
}

Hdf5Document Hdf5Document::create_in_memory(std::string name) {
  const Lock lock(hdf5_mutex());
  prepare_hdf5();
  const Hdf5Handle access = make_memory_access(name);
  Hdf5Handle handle(TESSERA_WRITE_HDF5(name, H5Fcreate(memory_name().c_str(), H5F_ACC_TRUNC,
                                                       H5P_DEFAULT, access.get())),
                    H5Fclose);
  return {std::move(name), std::move(handle)};
}

std::vector<std::byte> Hdf5Document::image() {
  const Lock lock(hdf5_mutex());
  TESSERA_WRITE_HDF5(path_, H5Fflush(file_.get(), H5F_SCOPE_LOCAL));
  const ssize_t size = TESSERA_WRITE_HDF5(path_, H5Fget_file_image(file_.get(), nullptr, 0));
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  TESSERA_WRITE_HDF5(path_, H5Fget_file_image(file_.get(), bytes.data(), bytes.size()));
  return bytes;
}

void Hdf5Document::close() {
  const Lock lock(hdf5_mutex());
  file_.close(path_);
}

void Hdf5Document::create_group(const std::string& path) {
  const Lock lock(hdf5_mutex());
  Hdf5Handle group(TESSERA_WRITE_HDF5(path_, H5Gcreate2(file_.get(), path.c_str(), H5P_DEFAULT,
                                                        H5P_DEFAULT, H5P_DEFAULT)),
                   H5Gclose);
  group.close(path_);
}

void Hdf5Document::link(const std::string& existing, const std::string& name) {
  const Lock lock(hdf5_mutex());
  TESSERA_WRITE_HDF5(path_, H5Lcreate_hard(file_.get(), existing.c_str(), file_.get(), name.c_str(),
                                           H5P_DEFAULT, H5P_DEFAULT));
}

void Hdf5Document::put_attribute(const std::string& name, Index value) {
  const Lock lock(hdf5_mutex());
  write_hdf5_integer(file_.get(), name, value, path_);
}

void Hdf5Document::put_attribute(const std::string& name, std::uint64_t value) {
  const Lock lock(hdf5_mutex());
  const Hdf5Handle space(TESSERA_WRITE_HDF5(path_, H5Screate(H5S_SCALAR)), H5Sclose);
  Hdf5Handle attribute(
      TESSERA_WRITE_HDF5(path_, H5Acreate2(file_.get(), name.c_str(), H5T_STD_U64LE, space.get(),
                                           H5P_DEFAULT, H5P_DEFAULT)),
      H5Aclose);
  TESSERA_WRITE_HDF5(path_, H5Awrite(attribute.get(), H5T_NATIVE_UINT64, &value));
  attribute.close(path_);
}

void Hdf5Document::put_attribute(const std::string& name, const std::string& value) {
  TESSERA_REQUIRE(value.find('\0') == std::string::npos,
                  fmt::format("attribute {} contains a zero byte", name));
  const Lock lock(hdf5_mutex());
  if (value.size() < kLongestAttribute) {
    write_hdf5_string(file_.get(), name, value, path_);
  } else {
    write_long_text(name, value);
  }
}

// HDF5 1.10 could keep it in an attribute too (dense storage), but not read that from an image.
void Hdf5Document::write_long_text(const std::string& name, const std::string& value) {
  if (value.size() > kLongestText) {
    throw WriteError(fmt::format("cannot write {}: {} has {} bytes; at most {} are kept",
                                 path_.string(), name, value.size(), kLongestText),
                     TESSERA_HERE);
  }
  if (!hdf5_has(file_.get(), kTextGroup, path_)) {
    create_group(kTextGroup);
  }
  const Hdf5Handle properties = make_dataset_properties(path_);
  const Hdf5Handle type = make_string_type(path_, value.size() + 1);
  const Hdf5Handle space(TESSERA_WRITE_HDF5(path_, H5Screate(H5S_SCALAR)), H5Sclose);
  const std::string place = fmt::format("{}/{}", kTextGroup, name);
  Hdf5Handle dataset(
      TESSERA_WRITE_HDF5(path_, H5Dcreate2(file_.get(), place.c_str(), type.get(), space.get(),
                                           H5P_DEFAULT, properties.get(), H5P_DEFAULT)),
      H5Dclose);
  TESSERA_WRITE_HDF5(
      path_, H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, value.c_str()));
  dataset.close(path_);
}

std::optional<std::string> Hdf5Document::read_long_text(const std::string& name) const {
  const std::string place = fmt::format("{}/{}", kTextGroup, name);
  if (!hdf5_has(file_.get(), kTextGroup, path_) || !hdf5_has(file_.get(), place, path_)) {
    return std::nullopt;
  }
  const Hdf5Handle dataset = open_hdf5_dataset(file_.get(), place, path_);
  const Hdf5Handle space(TESSERA_READ_HDF5(path_, H5Dget_space(dataset.get())), H5Sclose);
  const Hdf5Handle stored(TESSERA_READ_HDF5(path_, H5Dget_type(dataset.get())), H5Tclose);
  const std::size_t bytes = H5Tget_size(stored.get());
  if (TESSERA_READ_HDF5(path_, H5Tget_class(stored.get())) != H5T_STRING ||
      TESSERA_READ_HDF5(path_, H5Tis_variable_str(stored.get())) > 0 ||
      TESSERA_READ_HDF5(path_, H5Sget_simple_extent_type(space.get())) != H5S_SCALAR ||
      bytes == 0 || bytes > kLongestText + 1) {
    throw FormatError(fmt::format("{} of {} is not one text of at most {} bytes", place,
                                  path_.string(), kLongestText),
                      TESSERA_HERE);
  }
  const Hdf5Handle type = make_string_type(path_, bytes);
  std::string value(bytes, '\0');
  TESSERA_READ_HDF5(
      path_, H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, value.data()));
  value.resize(std::min(value.find('\0'), bytes));
  return value;
}

Index Hdf5Document::int_attribute(const std::string& name) const {
  const Lock lock(hdf5_mutex());
  const std::optional<std::int64_t> value = read_hdf5_integer(file_.get(), name, path_);
  if (!value) {
    throw FormatError(fmt::format("{} has no attribute {}", path_.string(), name), TESSERA_HERE);
  }
  return *value;
}

std::uint64_t Hdf5Document::uint_attribute(const std::string& name) const {
  const Lock lock(hdf5_mutex());
  if (TESSERA_READ_HDF5(path_, H5Aexists(file_.get(), name.c_str())) == 0) {
    throw FormatError(fmt::format("{} has no attribute {}", path_.string(), name), TESSERA_HERE);
  }
  const Hdf5Handle attribute(
      TESSERA_READ_HDF5(path_, H5Aopen(file_.get(), name.c_str(), H5P_DEFAULT)), H5Aclose);
  const Hdf5Handle type(TESSERA_READ_HDF5(path_, H5Aget_type(attribute.get())), H5Tclose);
  const Hdf5Handle space(TESSERA_READ_HDF5(path_, H5Aget_space(attribute.get())), H5Sclose);
  // HDF5 would clip a negative number
  if (TESSERA_READ_HDF5(path_, H5Tget_class(type.get())) != H5T_INTEGER ||
      TESSERA_READ_HDF5(path_, H5Tget_sign(type.get())) != H5T_SGN_NONE ||
      TESSERA_READ_HDF5(path_, H5Sget_simple_extent_npoints(space.get())) != 1) {
    throw FormatError(
        fmt::format("attribute {} of {} is not an unsigned integer", name, path_.string()),
        TESSERA_HERE);
  }
  std::uint64_t value = 0;
  TESSERA_READ_HDF5(path_, H5Aread(attribute.get(), H5T_NATIVE_UINT64, &value));
  return value;
}

std::optional<std::string> Hdf5Document::find_text_attribute(const std::string& name) const {
  const Lock lock(hdf5_mutex());
  std::optional<std::string> value = read_hdf5_string(file_.get(), name, path_);
  return value ? value : read_long_text(name);
}

std::string Hdf5Document::text_attribute(const std::string& name) const {
  std::optional<std::string> value = find_text_attribute(name);
  if (!value) {
    throw FormatError(fmt::format("{} has no attribute {}", path_.string(), name), TESSERA_HERE);
  }
  return *std::move(value);
}

std::uint64_t Hdf5Document::create_contiguous(const std::string& path, Hdf5Element type,
                                              Index count) {
  const Lock lock(hdf5_mutex());
  const Hdf5Handle properties = make_dataset_properties(path_);
  TESSERA_WRITE_HDF5(path_, H5Pset_layout(properties.get(), H5D_CONTIGUOUS));
  TESSERA_WRITE_HDF5(path_, H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY));
  TESSERA_WRITE_HDF5(path_, H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER));
  const Hdf5Handle space = make_space(path_, std::array{count});
  const hid_t element = type == Hdf5Element::f32 ? H5T_IEEE_F32LE : H5T_STD_U64LE;
  Hdf5Handle dataset(
      TESSERA_WRITE_HDF5(path_, H5Dcreate2(file_.get(), path.c_str(), element, space.get(),
                                           H5P_DEFAULT, properties.get(), H5P_DEFAULT)),
      H5Dclose);
  std::uint64_t place = 0;
  if (count > 0) {  // a dataset without elements has no place
    const haddr_t address = H5Dget_offset(dataset.get());
    if (address == HADDR_UNDEF) {
      throw WriteError(
          fmt::format("cannot write {}: HDF5 gave no place to {}", path_.string(), path),
          TESSERA_HERE);
    }
    place = address;
  }
  dataset.close(path_);
  return place;
}

void Hdf5Document::create_virtual(const std::string& path, std::span<const Index> shape,
                                  std::span<const Hdf5Mapping> mappings) {
  const Lock lock(hdf5_mutex());
  const Hdf5Handle properties = make_dataset_properties(path_);
  const Hdf5Handle space = make_space(path_, shape);
  const float fill = std::numeric_limits<float>::quiet_NaN();
  TESSERA_WRITE_HDF5(path_, H5Pset_fill_value(properties.get(), H5T_NATIVE_FLOAT, &fill));
  for (const Hdf5Mapping& mapping : mappings) {
    const std::vector<hsize_t> start(mapping.start.begin(), mapping.start.end());
    const std::vector<hsize_t> count(mapping.count.begin(), mapping.count.end());
    hsize_t elements = 1;
    for (const hsize_t extent : count) {
      elements *= extent;
    }
    TESSERA_WRITE_HDF5(path_, H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(),
                                                  nullptr, count.data(), nullptr));
    const Hdf5Handle source = make_space(path_, std::array{mapping.source_total});
    const auto begin = static_cast<hsize_t>(mapping.source_begin);
    TESSERA_WRITE_HDF5(path_, H5Sselect_hyperslab(source.get(), H5S_SELECT_SET, &begin, nullptr,
                                                  &elements, nullptr));
    TESSERA_WRITE_HDF5(path_,
                       H5Pset_virtual(properties.get(), space.get(), mapping.source_file.c_str(),
                                      mapping.source_dataset.c_str(), source.get()));
  }
  TESSERA_WRITE_HDF5(path_, H5Sselect_all(space.get()));
  Hdf5Handle dataset(
      TESSERA_WRITE_HDF5(path_, H5Dcreate2(file_.get(), path.c_str(), H5T_IEEE_F32LE, space.get(),
                                           H5P_DEFAULT, properties.get(), H5P_DEFAULT)),
      H5Dclose);
  dataset.close(path_);
}

void Hdf5Document::write_table(const std::string& path, std::span<const Hdf5Column> columns) {
  TESSERA_REQUIRE(!columns.empty(), "a table needs a column");
  const Lock lock(hdf5_mutex());
  const std::size_t rows = column_size(columns.front());
  std::vector<Field> fields;
  std::size_t row_bytes = 0;
  for (const Hdf5Column& column : columns) {
    TESSERA_REQUIRE(column_size(column) == rows,
                    fmt::format("column {} has {} values, the first one {}", column.name,
                                column_size(column), rows));
    const std::size_t width = column_width(column);
    fields.push_back({row_bytes, width});
    row_bytes += width;
  }
  const Hdf5Handle type(TESSERA_WRITE_HDF5(path_, H5Tcreate(H5T_COMPOUND, row_bytes)), H5Tclose);
  std::vector<std::byte> packed(rows * row_bytes);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const Hdf5Handle member = column_type(path_, columns[i], fields[i].width);
    TESSERA_WRITE_HDF5(
        path_, H5Tinsert(type.get(), columns[i].name.c_str(), fields[i].offset, member.get()));
    for (std::size_t row = 0; row < rows; ++row) {
      fill_field(columns[i], row, packed.data() + row * row_bytes + fields[i].offset);
    }
  }
  const Hdf5Handle properties = make_dataset_properties(path_);
  const Hdf5Handle space = make_space(path_, std::array{static_cast<Index>(rows)});
  Hdf5Handle dataset(
      TESSERA_WRITE_HDF5(path_, H5Dcreate2(file_.get(), path.c_str(), type.get(), space.get(),
                                           H5P_DEFAULT, properties.get(), H5P_DEFAULT)),
      H5Dclose);
  if (rows > 0) {
    TESSERA_WRITE_HDF5(
        path_, H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, packed.data()));
  }
  dataset.close(path_);
}

Hdf5Handle Hdf5Document::open_rows(const std::string& path, std::size_t& rows) const {
  Hdf5Handle dataset = open_hdf5_dataset(file_.get(), path, path_);
  const Hdf5Handle space(TESSERA_READ_HDF5(path_, H5Dget_space(dataset.get())), H5Sclose);
  hsize_t extent = 0;
  if (TESSERA_READ_HDF5(path_, H5Sget_simple_extent_ndims(space.get())) != 1) {
    throw FormatError(fmt::format("{} of {} has not one dimension", path, path_.string()),
                      TESSERA_HERE);
  }
  TESSERA_READ_HDF5(path_, H5Sget_simple_extent_dims(space.get(), &extent, nullptr));
  if (extent > kMostRows) {
    throw FormatError(fmt::format("{} of {} has {} rows; at most {} are read", path, path_.string(),
                                  extent, kMostRows),
                      TESSERA_HERE);
  }
  rows = extent;
  return dataset;
}

Hdf5Handle Hdf5Document::field_type(hid_t dataset, const std::string& path,
                                    const std::string& field, H5T_class_t wanted) const {
  const Hdf5Handle row(TESSERA_READ_HDF5(path_, H5Dget_type(dataset)), H5Tclose);
  const bool is_table = TESSERA_READ_HDF5(path_, H5Tget_class(row.get())) == H5T_COMPOUND;
  const int member = is_table ? H5Tget_member_index(row.get(), field.c_str()) : -1;
  if (member < 0) {
    throw FormatError(fmt::format("{} of {} has no field {}", path, path_.string(), field),
                      TESSERA_HERE);
  }
  Hdf5Handle type(
      TESSERA_READ_HDF5(path_, H5Tget_member_type(row.get(), static_cast<unsigned>(member))),
      H5Tclose);
  if (TESSERA_READ_HDF5(path_, H5Tget_class(type.get())) != wanted) {
    throw FormatError(
        fmt::format("field {} of {} in {} is of another type", field, path, path_.string()),
        TESSERA_HERE);
  }
  return type;
}

template <typename T>
std::vector<T> Hdf5Document::column(const std::string& path, const std::string& field,
                                    hid_t type) const {
  std::size_t rows = 0;
  const Hdf5Handle dataset = open_rows(path, rows);
  // a field that is missing would read as zeros
  static_cast<void>(field_type(dataset.get(), path, field, H5Tget_class(type)));
  std::vector<T> values(rows);
  const Hdf5Handle row(TESSERA_READ_HDF5(path_, H5Tcreate(H5T_COMPOUND, sizeof(T))), H5Tclose);
  TESSERA_READ_HDF5(path_, H5Tinsert(row.get(), field.c_str(), 0, type));
  if (rows > 0) {
    TESSERA_READ_HDF5(
        path_, H5Dread(dataset.get(), row.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  }
  return values;
}

std::vector<std::string> Hdf5Document::text_column(const std::string& path,
                                                   const std::string& field) const {
  const Lock lock(hdf5_mutex());
  std::size_t rows = 0;
  const Hdf5Handle dataset = open_rows(path, rows);
  const Hdf5Handle stored = field_type(dataset.get(), path, field, H5T_STRING);
  const std::size_t width = H5Tget_size(stored.get());
  if (width == 0 || width > kLongestAttribute) {
    throw FormatError(
        fmt::format("field {} of {} in {} is not a short text", field, path, path_.string()),
        TESSERA_HERE);
  }
  const Hdf5Handle row(TESSERA_READ_HDF5(path_, H5Tcreate(H5T_COMPOUND, width)), H5Tclose);
  const Hdf5Handle text = make_string_type(path_, width);
  TESSERA_READ_HDF5(path_, H5Tinsert(row.get(), field.c_str(), 0, text.get()));
  std::vector<char> packed(rows * width);
  if (rows > 0) {
    TESSERA_READ_HDF5(
        path_, H5Dread(dataset.get(), row.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, packed.data()));
  }
  std::vector<std::string> values;
  values.reserve(rows);
  for (std::size_t i = 0; i < rows; ++i) {
    const char* begin = packed.data() + i * width;
    values.emplace_back(begin, std::find(begin, begin + width, '\0'));
  }
  return values;
}

std::vector<Index> Hdf5Document::int_column(const std::string& path,
                                            const std::string& field) const {
  const Lock lock(hdf5_mutex());
  return column<Index>(path, field, H5T_NATIVE_INT64);
}

std::vector<std::uint64_t> Hdf5Document::uint_column(const std::string& path,
                                                     const std::string& field) const {
  const Lock lock(hdf5_mutex());
  return column<std::uint64_t>(path, field, H5T_NATIVE_UINT64);
}

std::vector<Hdf5Column::Extents> Hdf5Document::extents_column(const std::string& path,
                                                              const std::string& field) const {
  const Lock lock(hdf5_mutex());
  const Hdf5Handle type = make_extents_type(path_);
  return column<Hdf5Column::Extents>(path, field, type.get());
}

std::vector<std::uint64_t> Hdf5Document::read_uints(const std::string& path) const {
  const Lock lock(hdf5_mutex());
  std::size_t rows = 0;
  const Hdf5Handle dataset = open_rows(path, rows);
  std::vector<std::uint64_t> values(rows);
  if (rows > 0) {
    TESSERA_READ_HDF5(path_, H5Dread(dataset.get(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL,
                                     H5P_DEFAULT, values.data()));
  }
  return values;
}

}  // namespace tessera
