#include "runtime/hdf5/hdf5_file.h"

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "kernels/base/read_error.h"
#include "kernels/base/write_failure.h"

namespace tessera {
namespace {

// Objects from here on start at a page of the file, so that mapped elements are aligned.
constexpr hsize_t kAlignment = 4096;
constexpr std::size_t kMaxStringBytes = std::size_t{64} << 10U;

herr_t take_first(unsigned /*depth*/, const H5E_error2_t* error, void* text) {
  // the first one walked upward is the innermost: what really went wrong
  if (error->desc != nullptr && *error->desc != '\0') {
    *static_cast<std::string*>(text) = error->desc;
    return 1;  // ends the walk
  }
  return 0;
}

std::string hdf5_message() {
  std::string text;
  static_cast<void>(H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, &text));
  return text.empty() ? "no reason given" : text;
}

// The errno that HDF5 gives with a failed system call, as in "errno = 27, error message = ...".
std::optional<int> errno_in(const std::string& message) {
  constexpr std::string_view kBefore = "errno = ";
  const std::size_t at = message.find(kBefore);
  int code = 0;
  const char* const end = message.data() + message.size();
  if (at == std::string::npos ||
      std::from_chars(message.data() + at + kBefore.size(), end, code).ec != std::errc()) {
    return std::nullopt;
  }
  return code;
}

// "H5Fopen" of "H5Fopen(path.c_str(), ...)"
std::string_view function_of(std::string_view call) {
  return call.substr(0, call.find('('));
}

// A call that exists from 1.10.7 and 1.12.1 on; before, HDF5_USE_FILE_LOCKING does the same.
#if H5_VERSION_GE(1, 12, 1) || (H5_VERSION_GE(1, 10, 7) && !H5_VERSION_GE(1, 12, 0))
constexpr bool kLockingIsProperty = true;
void turn_locking_off(hid_t access, const std::filesystem::path& path) {
  TESSERA_READ_HDF5(path, H5Pset_file_locking(access, 0, 1));
}
#else
constexpr bool kLockingIsProperty = false;
void turn_locking_off(hid_t /*access*/, const std::filesystem::path& /*path*/) {}
#endif

// The library reads the variable once, when it starts, and lets it win over the property: what it
// says is replaced before that. Replacing a value that is there moves nothing under the feet of
// another thread that reads the environment.
void silence_locking_variable() {
  constexpr const char* kVariable = "HDF5_USE_FILE_LOCKING";
  if (!kLockingIsProperty || std::getenv(kVariable) != nullptr) {
    static_cast<void>(::setenv(kVariable, "FALSE", 1));
  }
}

Hdf5Handle open_attribute(hid_t object, const std::string& name,
                          const std::filesystem::path& path) {
  if (TESSERA_READ_HDF5(path, H5Aexists(object, name.c_str())) == 0) {
    return {};
  }
  Hdf5Handle attribute(TESSERA_READ_HDF5(path, H5Aopen(object, name.c_str(), H5P_DEFAULT)),
                       H5Aclose);
  const Hdf5Handle space(TESSERA_READ_HDF5(path, H5Aget_space(attribute.get())), H5Sclose);
  if (TESSERA_READ_HDF5(path, H5Sget_simple_extent_type(space.get())) != H5S_SCALAR) {
    throw FormatError(
        fmt::format("attribute '{}' of {} is not a single value", name, path.string()),
        TESSERA_HERE);
  }
  return attribute;
}

}  // namespace

void prepare_hdf5() {
  static const herr_t kept_from_exit = [] {
    silence_locking_variable();
    return H5dont_atexit();  // a second call is an error
  }();
  static_cast<void>(kept_from_exit);
  static_cast<void>(H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr));
}

Hdf5Handle::~Hdf5Handle() {
  if (id_ >= 0 && close_(id_) < 0) {
    log_line(LogLevel::warning, "HDF5 could not close a handle: " + hdf5_message());
  }
}

void Hdf5Handle::close(const std::filesystem::path& path) {
  const hid_t id = std::exchange(id_, H5I_INVALID_HID);
  if (id >= 0) {
    TESSERA_WRITE_HDF5(path, close_(id));
  }
}

namespace detail {

void throw_hdf5_read_error(const std::filesystem::path& path, const char* call,
                           SourceLocation where) {
  const std::string message = hdf5_message();
  if (const std::optional<int> code = errno_in(message)) {
    throw ReadError(fmt::format("cannot read {}: {}", path.string(), std::strerror(*code)), where);
  }
  throw FormatError(
      fmt::format("cannot read {} as HDF5: {} (in {})", path.string(), message, function_of(call)),
      where);
}

void throw_hdf5_write_error(const std::filesystem::path& path, const char* call,
                            SourceLocation where) {
  const std::string message = hdf5_message();
  const std::optional<int> code = errno_in(message);
  throw WriteError(fmt::format("cannot write {}: {}", path.string(),
                               code ? write_failure(*code)
                                    : fmt::format("{} (in {})", message, function_of(call))),
                   where);
}

}  // namespace detail

Hdf5Handle open_hdf5_file(const std::filesystem::path& path, std::uint64_t user_block_bytes) {
  prepare_hdf5();
  // plain system calls give plain reasons; HDF5's own are long
  if (File::open_read(path).size() == 0) {
    throw FormatError(fmt::format("{} is empty", path.string()), TESSERA_HERE);
  }
  const Hdf5Handle access(TESSERA_READ_HDF5(path, H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
  turn_locking_off(access.get(), path);
  Hdf5Handle file(TESSERA_READ_HDF5(path, H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get())),
                  H5Fclose);
  const Hdf5Handle creation(TESSERA_READ_HDF5(path, H5Fget_create_plist(file.get())), H5Pclose);
  hsize_t user_block = 0;
  TESSERA_READ_HDF5(path, H5Pget_userblock(creation.get(), &user_block));
  if (user_block != user_block_bytes) {
    throw FormatError(fmt::format("{} has a user block of {} bytes, not of {}", path.string(),
                                  user_block, user_block_bytes),
                      TESSERA_HERE);
  }
  return file;
}

Hdf5Handle create_hdf5_file(const std::filesystem::path& path, std::uint64_t user_block_bytes) {
  prepare_hdf5();
  const Hdf5Handle access(TESSERA_WRITE_HDF5(path, H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
  turn_locking_off(access.get(), path);
  TESSERA_WRITE_HDF5(path, H5Pset_alignment(access.get(), kAlignment, kAlignment));
  const Hdf5Handle creation(TESSERA_WRITE_HDF5(path, H5Pcreate(H5P_FILE_CREATE)), H5Pclose);
  TESSERA_WRITE_HDF5(path, H5Pset_userblock(creation.get(), user_block_bytes));
  // the system's word for why a file cannot be made, before HDF5's
  File::create(path).close();
  return {TESSERA_WRITE_HDF5(path,
                             H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get())),
          H5Fclose};
}

Hdf5Handle create_hdf5_dataset(hid_t location, const std::string& name, hid_t type,
                               std::uint64_t count, const std::filesystem::path& path) {
  const hsize_t extent = count;
  const Hdf5Handle space(TESSERA_WRITE_HDF5(path, H5Screate_simple(1, &extent, nullptr)), H5Sclose);
  const Hdf5Handle creation(TESSERA_WRITE_HDF5(path, H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
  TESSERA_WRITE_HDF5(path, H5Pset_layout(creation.get(), H5D_CONTIGUOUS));
  TESSERA_WRITE_HDF5(path, H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY));
  TESSERA_WRITE_HDF5(path, H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER));
  TESSERA_WRITE_HDF5(path, H5Pset_obj_track_times(creation.get(), 0));  // equal input, equal file
  return {TESSERA_WRITE_HDF5(path, H5Dcreate2(location, name.c_str(), type, space.get(),
                                              H5P_DEFAULT, creation.get(), H5P_DEFAULT)),
          H5Dclose};
}

Hdf5Extent hdf5_dataset_extent(hid_t location, const std::string& name, hid_t dataset,
                               const std::filesystem::path& path) {
  const auto refuse = [&](std::string_view reason) {
    throw FormatError(fmt::format("{} of {} {}", name, path.string(), reason), TESSERA_HERE);
  };
  H5L_info_t link = {};
  TESSERA_READ_HDF5(path, H5Lget_info(location, name.c_str(), &link, H5P_DEFAULT));
  if (link.type != H5L_TYPE_HARD) {
    refuse("is a link to another place; only data inside the file is read");
  }
  const Hdf5Handle space(TESSERA_READ_HDF5(path, H5Dget_space(dataset)), H5Sclose);
  if (TESSERA_READ_HDF5(path, H5Sget_simple_extent_ndims(space.get())) != 1) {
    refuse("is not one-dimensional");
  }
  const auto count = static_cast<std::uint64_t>(
      TESSERA_READ_HDF5(path, H5Sget_simple_extent_npoints(space.get())));
  const Hdf5Handle creation(TESSERA_READ_HDF5(path, H5Dget_create_plist(dataset)), H5Pclose);
  if (TESSERA_READ_HDF5(path, H5Pget_layout(creation.get())) != H5D_CONTIGUOUS ||
      TESSERA_READ_HDF5(path, H5Pget_external_count(creation.get())) != 0) {
    refuse("is not stored in one piece (h5repack -l NAME:CONTI makes it so)");
  }
  if (count == 0) {
    return {0, 0};
  }
  // space first: of a dataset without any, HDF5 1.10 gives a wrong offset in files with a user
  // block
  H5D_space_status_t status = H5D_SPACE_STATUS_ERROR;
  TESSERA_READ_HDF5(path, H5Dget_space_status(dataset, &status));
  const haddr_t offset = H5Dget_offset(dataset);
  if (status != H5D_SPACE_STATUS_ALLOCATED || offset == HADDR_UNDEF) {
    refuse("has no data");
  }
  return {offset, count};
}

Hdf5Handle open_hdf5_dataset(hid_t location, const std::string& name,
                             const std::filesystem::path& path) {
  if (!hdf5_has(location, name, path)) {
    throw FormatError(fmt::format("{} has no dataset {}", path.string(), name), TESSERA_HERE);
  }
  return {TESSERA_READ_HDF5(path, H5Dopen2(location, name.c_str(), H5P_DEFAULT)), H5Dclose};
}

bool hdf5_has(hid_t location, const std::string& name, const std::filesystem::path& path) {
  return TESSERA_READ_HDF5(path, H5Lexists(location, name.c_str(), H5P_DEFAULT)) > 0;
}

std::optional<std::string> read_hdf5_string(hid_t object, const std::string& name,
                                            const std::filesystem::path& path) {
  const Hdf5Handle attribute = open_attribute(object, name, path);
  if (attribute.get() < 0) {
    return std::nullopt;
  }
  const Hdf5Handle type(TESSERA_READ_HDF5(path, H5Aget_type(attribute.get())), H5Tclose);
  if (TESSERA_READ_HDF5(path, H5Tget_class(type.get())) != H5T_STRING) {
    throw FormatError(fmt::format("attribute '{}' of {} is not text", name, path.string()),
                      TESSERA_HERE);
  }
  const Hdf5Handle memory_type(TESSERA_READ_HDF5(path, H5Tcopy(H5T_C_S1)), H5Tclose);
  // HDF5 converts between kinds of padding, not between character sets
  TESSERA_READ_HDF5(path, H5Tset_cset(memory_type.get(), H5Tget_cset(type.get())));
  if (TESSERA_READ_HDF5(path, H5Tis_variable_str(type.get())) > 0) {
    TESSERA_READ_HDF5(path, H5Tset_size(memory_type.get(), H5T_VARIABLE));
    char* text = nullptr;
    TESSERA_READ_HDF5(path, H5Aread(attribute.get(), memory_type.get(), static_cast<void*>(&text)));
    std::string value =
        text == nullptr ? std::string() : std::string(text, ::strnlen(text, kMaxStringBytes));
    static_cast<void>(H5free_memory(text));
    return value;
  }
  const std::size_t bytes = H5Tget_size(type.get());
  if (bytes == 0 || bytes > kMaxStringBytes) {
    throw FormatError(fmt::format("attribute '{}' of {} has {} bytes; at most {} are read", name,
                                  path.string(), bytes, kMaxStringBytes),
                      TESSERA_HERE);
  }
  TESSERA_READ_HDF5(path, H5Tset_size(memory_type.get(), bytes + 1));
  std::vector<char> text(bytes + 1, '\0');
  TESSERA_READ_HDF5(path, H5Aread(attribute.get(), memory_type.get(), text.data()));
  return std::string(text.data(), ::strnlen(text.data(), bytes));
}

std::optional<std::int64_t> read_hdf5_integer(hid_t object, const std::string& name,
                                              const std::filesystem::path& path) {
  const Hdf5Handle attribute = open_attribute(object, name, path);
  if (attribute.get() < 0) {
    return std::nullopt;
  }
  const Hdf5Handle type(TESSERA_READ_HDF5(path, H5Aget_type(attribute.get())), H5Tclose);
  const auto refuse = [&](std::string_view reason) {
    throw FormatError(fmt::format("attribute '{}' of {} {}", name, path.string(), reason),
                      TESSERA_HERE);
  };
  if (TESSERA_READ_HDF5(path, H5Tget_class(type.get())) != H5T_INTEGER ||
      H5Tget_size(type.get()) > sizeof(std::int64_t)) {
    refuse("is not an integer of up to 64 bits");
  }
  // HDF5 would clip what does not fit, so an unsigned number is read as one
  if (TESSERA_READ_HDF5(path, H5Tget_sign(type.get())) == H5T_SGN_NONE) {
    std::uint64_t value = 0;
    TESSERA_READ_HDF5(path, H5Aread(attribute.get(), H5T_NATIVE_UINT64, &value));
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      refuse("is above 2^63");
    }
    return static_cast<std::int64_t>(value);
  }
  std::int64_t value = 0;
  TESSERA_READ_HDF5(path, H5Aread(attribute.get(), H5T_NATIVE_INT64, &value));
  return value;
}

void write_hdf5_string(hid_t object, const std::string& name, std::string_view value,
                       const std::filesystem::path& path) {
  const Hdf5Handle type(TESSERA_WRITE_HDF5(path, H5Tcopy(H5T_C_S1)), H5Tclose);
  TESSERA_WRITE_HDF5(path, H5Tset_size(type.get(), value.size() + 1));
  TESSERA_WRITE_HDF5(path, H5Tset_cset(type.get(), H5T_CSET_UTF8));
  const Hdf5Handle space(TESSERA_WRITE_HDF5(path, H5Screate(H5S_SCALAR)), H5Sclose);
  Hdf5Handle attribute(TESSERA_WRITE_HDF5(path, H5Acreate2(object, name.c_str(), type.get(),
                                                           space.get(), H5P_DEFAULT, H5P_DEFAULT)),
                       H5Aclose);
  const std::string text(value);
  TESSERA_WRITE_HDF5(path, H5Awrite(attribute.get(), type.get(), text.c_str()));
  attribute.close(path);
}

void write_hdf5_integer(hid_t object, const std::string& name, std::int64_t value,
                        const std::filesystem::path& path) {
  const Hdf5Handle space(TESSERA_WRITE_HDF5(path, H5Screate(H5S_SCALAR)), H5Sclose);
  Hdf5Handle attribute(TESSERA_WRITE_HDF5(path, H5Acreate2(object, name.c_str(), H5T_STD_I64LE,
                                                           space.get(), H5P_DEFAULT, H5P_DEFAULT)),
                       H5Aclose);
  TESSERA_WRITE_HDF5(path, H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value));
  attribute.close(path);
}

std::string hdf5_library() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  return H5get_libversion(&major, &minor, &release) < 0
             ? std::string()
             : fmt::format("HDF5 {}.{}.{}", major, minor, release);
}

}  // namespace tessera
