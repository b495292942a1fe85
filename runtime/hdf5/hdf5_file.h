// HDF5 without leaks and without unread return codes: owning handles, and the checks every call
// stands in. Shared by checkpoints and token files; knows the content of neither.
//
// Everything read here may come from strangers: sizes are compared with limits before memory is
// taken.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <hdf5.h>

#include "kernels/base/error.h"

namespace tessera {

/// Before the first call of HDF5, and as often as wanted: it prints no error stacks, takes no file
/// locks whatever HDF5_USE_FILE_LOCKING says, and does nothing when the process ends. (There it
/// would try once more to write a file whose closing failed, and crash: 1.10.8. What is written
/// counts only where closing succeeded.)
void prepare_hdf5();

/// Owns one HDF5 identifier of any kind and the function that closes it.
class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Hdf5Handle() noexcept = default;
  Hdf5Handle(hid_t id, Close closer) noexcept : id_(id), close_(closer) {}
  /// Closes; a failure is logged. What has been written counts only after `close`.
  ~Hdf5Handle();
  Hdf5Handle(Hdf5Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  Hdf5Handle(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(const Hdf5Handle&) = delete;

  [[nodiscard]] hid_t get() const noexcept { return id_; }
  /// Closes now. `path` is for the message. Throws WriteError.
  void close(const std::filesystem::path& path);

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

namespace detail {
/// FormatError: "cannot read PATH as HDF5: what HDF5 says (in CALL)"; ReadError, with the system's
/// reason, where a system call failed.
[[noreturn]] void throw_hdf5_read_error(const std::filesystem::path& path, const char* call,
                                        SourceLocation where);
/// WriteError: "cannot write PATH: what HDF5 says (in CALL)".
[[noreturn]] void throw_hdf5_write_error(const std::filesystem::path& path, const char* call,
                                         SourceLocation where);
template <typename Result>
Result check_hdf5_read(Result result, const std::filesystem::path& path, const char* call,
                       SourceLocation where) {
  if (result < 0) {
    throw_hdf5_read_error(path, call, where);
  }
  return result;
}
template <typename Result>
Result check_hdf5_write(Result result, const std::filesystem::path& path, const char* call,
                        SourceLocation where) {
  if (result < 0) {
    throw_hdf5_write_error(path, call, where);
  }
  return result;
}
}  // namespace detail

/// Opens read-only, with file locking off (network file systems refuse locks, and what is read here
/// is never written again). Throws as File::open_read, and
/// FormatError if it is not an HDF5 file, is truncated, or has a user block of another size.
///
/// HDF5 1.10 reads damaged metadata beyond its buffers: check a hash of the file before.
[[nodiscard]] Hdf5Handle open_hdf5_file(const std::filesystem::path& path,
                                        std::uint64_t user_block_bytes = 0);

/// Makes a new file for writing, with file locking off and objects of 4 KiB or more aligned to
/// 4 KiB (behind the user block). Throws WriteError, also if the file exists.
/// Requires: user_block_bytes is 0, or 4096 times a power of two.
[[nodiscard]] Hdf5Handle create_hdf5_file(const std::filesystem::path& path,
                                          std::uint64_t user_block_bytes = 0);

/// Makes and opens a one-dimensional contiguous dataset whose space is taken at once and left
/// unfilled, so that its bytes can be written at `hdf5_dataset_offset` after the file is closed.
/// `location` is a file or group; a missing group on the way is an error. Throws WriteError.
[[nodiscard]] Hdf5Handle create_hdf5_dataset(hid_t location, const std::string& name, hid_t type,
                                             std::uint64_t count,
                                             const std::filesystem::path& path);

/// Where a contiguous dataset's elements are stored in its file.
struct Hdf5Extent {
  std::uint64_t offset;  // bytes from the start of the file; 0 if count is 0
  std::uint64_t count;   // elements
};
/// Extent of the one-dimensional dataset `name` in `location`. Refuses what cannot be read straight
/// from the file: links to other files, chunks, filters, external and virtual storage. The caller
/// compares the extent with the file's size. Throws FormatError.
[[nodiscard]] Hdf5Extent hdf5_dataset_extent(hid_t location, const std::string& name, hid_t dataset,
                                             const std::filesystem::path& path);

/// Opens the dataset `name`. Throws FormatError if there is none.
[[nodiscard]] Hdf5Handle open_hdf5_dataset(hid_t location, const std::string& name,
                                           const std::filesystem::path& path);
/// Whether `location` has a link of this name. Throws FormatError.
[[nodiscard]] bool hdf5_has(hid_t location, const std::string& name,
                            const std::filesystem::path& path);

/// "HDF5 1.10.8".
[[nodiscard]] std::string hdf5_library();

/// Scalar attributes. Strings are UTF-8, of fixed length when written; both kinds are read, up to
/// 64 KiB. An absent attribute is nullopt. Reading throws FormatError (wrong type, not scalar, an
/// integer that does not fit), writing WriteError.
[[nodiscard]] std::optional<std::string> read_hdf5_string(hid_t object, const std::string& name,
                                                          const std::filesystem::path& path);
[[nodiscard]] std::optional<std::int64_t> read_hdf5_integer(hid_t object, const std::string& name,
                                                            const std::filesystem::path& path);
void write_hdf5_string(hid_t object, const std::string& name, std::string_view value,
                       const std::filesystem::path& path);
void write_hdf5_integer(hid_t object, const std::string& name, std::int64_t value,
                        const std::filesystem::path& path);

}  // namespace tessera

/// The value of `call`; throws FormatError / WriteError naming `path` if it is negative.
#define TESSERA_READ_HDF5(path, call) \
  ::tessera::detail::check_hdf5_read((call), (path), #call, TESSERA_HERE)
#define TESSERA_WRITE_HDF5(path, call) \
  ::tessera::detail::check_hdf5_write((call), (path), #call, TESSERA_HERE)
