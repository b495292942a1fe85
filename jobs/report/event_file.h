// TensorBoard's event files, as far as scalars need them: a minimal writer.
//
// A file is a row of records (TFRecord): the length as u64, the masked CRC-32C of those 8 bytes as
// u32, the content, its masked CRC-32C as u32, all little-endian. The mask of a checksum c is
// rotate right(c, 15) + 0xa282ead8. A content is a protocol buffer `Event`:
//   1 wall_time (double)  2 step (int64)  3 file_version (string, of the first record alone:
//   "brain.Event:2")  5 summary: 1 value (repeated): 1 tag (string), 2 simple_value (float)
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::report {

/// CRC-32C (Castagnoli, reflected 0x82f63b78) of `bytes`.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes) noexcept;
[[nodiscard]] std::uint32_t masked_crc32c(std::string_view bytes) noexcept;

struct Scalar {
  std::string tag;
  double value;  // kept as f32, as TensorBoard does; NaN is allowed
};

/// One record. `version_record` is the first of a file.
[[nodiscard]] std::string version_record(double wall_time);
[[nodiscard]] std::string scalar_record(double wall_time, std::int64_t step,
                                        const std::vector<Scalar>& scalars);

struct RunRecord;

/// Writes the run's scalars into FOLDER/events.out.tfevents.TIME.tessera, TIME being the run's
/// begin in seconds: a second call for the same run replaces the file. Returns its path. Throws
/// WriteError.
std::filesystem::path write_event_file(const RunRecord& run, const std::filesystem::path& folder);

}  // namespace tessera::report
