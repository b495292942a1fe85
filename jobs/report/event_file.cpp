#include "jobs/report/event_file.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include <fmt/format.h>

#include "jobs/report/metrics_file.h"
#include "jobs/report/output_file.h"

namespace tessera::report {
namespace {

constexpr unsigned kByteBits = 8;

constexpr std::array<std::uint32_t, 256> crc_table() {
  constexpr std::uint32_t kPolynomial = 0x82f63b78U;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t crc = byte;
    for (unsigned bit = 0; bit < kByteBits; ++bit) {
      crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? kPolynomial : 0);
    }
    table.at(byte) = crc;
  }
  return table;
}

// Little-endian, whatever the machine.
template <typename Unsigned>
std::string little_endian(Unsigned value) {
  static_assert(std::is_unsigned_v<Unsigned>);
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(value); ++i) {
    bytes += static_cast<char>((value >> (kByteBits * i)) & 0xffU);
  }
  return bytes;
}

// Protocol buffers: a field's number and wire type, then its value.
enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

std::string varint(std::uint64_t value) {
  constexpr unsigned kGroup = 7;
  constexpr std::uint64_t kMore = 0x80;
  std::string bytes;
  while (value >= kMore) {
    bytes += static_cast<char>((value & (kMore - 1)) | kMore);
    value >>= kGroup;
  }
  bytes += static_cast<char>(value);
  return bytes;
}

std::string key(unsigned field, Wire wire) {
  constexpr unsigned kWireBits = 3;
  return varint((field << kWireBits) | static_cast<unsigned>(wire));
}

std::string bytes_field(unsigned field, std::string_view bytes) {
  return key(field, Wire::bytes) + varint(bytes.size()) + std::string(bytes);
}

std::string double_field(unsigned field, double value) {
  return key(field, Wire::fixed64) + little_endian(std::bit_cast<std::uint64_t>(value));
}

std::string float_field(unsigned field, float value) {
  return key(field, Wire::fixed32) + little_endian(std::bit_cast<std::uint32_t>(value));
}

std::string record(std::string_view content) {
  const std::string length = little_endian(static_cast<std::uint64_t>(content.size()));
  return length + little_endian(masked_crc32c(length)) + std::string(content) +
         little_endian(masked_crc32c(content));
}

// A row's value under `tag`. Loss and norm are null where they were not finite: NaN, which
// TensorBoard marks. Another null is a field that this run does not write.
void add_scalar(std::vector<Scalar>& scalars, const Columns& columns, std::size_t row,
                std::string_view field, std::string tag) {
  const nlohmann::json& value = columns.of(field)[row];
  if (value.is_boolean()) {
    scalars.push_back({std::move(tag), value.get<bool>() ? 1.0 : 0.0});
  } else if (value.is_number()) {
    scalars.push_back({std::move(tag), value.get<double>()});
  } else if (field.ends_with("loss") || field == "grad_norm") {
    scalars.push_back({std::move(tag), std::numeric_limits<double>::quiet_NaN()});
  }
}

// An event file begins with the record of its version; that it is ours says its name.
OutputRules event_file_rules() {
  return {.option = "--tensorboard",
          .what = "an event file",
          .is_ours = [](const std::filesystem::path& path) {
            const std::string begin = first_bytes(path, version_record(0).size());
            return path.filename().string().ends_with(".tessera") &&
                   begin.find("brain.Event:2") != std::string::npos;
          }};
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) noexcept {
  static constexpr std::array<std::uint32_t, 256> kTable = crc_table();
  std::uint32_t crc = ~std::uint32_t{0};
  for (const char c : bytes) {
    crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xffU] ^ (crc >> kByteBits);
  }
  return ~crc;
}

std::uint32_t masked_crc32c(std::string_view bytes) noexcept {
  constexpr int kRotation = 15;
  constexpr std::uint32_t kDelta = 0xa282ead8U;
  return std::rotr(crc32c(bytes), kRotation) + kDelta;
}

std::string version_record(double wall_time) {
  return record(double_field(1, wall_time) + bytes_field(3, "brain.Event:2"));
}

std::string scalar_record(double wall_time, std::int64_t step, const std::vector<Scalar>& scalars) {
  constexpr unsigned kSummary = 5;
  std::string summary;
  for (const Scalar& scalar : scalars) {
    summary += bytes_field(
        1, bytes_field(1, scalar.tag) + float_field(2, static_cast<float>(scalar.value)));
  }
  return record(double_field(1, wall_time) + key(2, Wire::varint) +
                varint(static_cast<std::uint64_t>(step)) + bytes_field(kSummary, summary));
}

std::filesystem::path write_event_file(const RunRecord& run, const std::filesystem::path& folder) {
  const double begin = run.step_time.empty() ? 0
                       : run.steps.of("seconds")[0].is_number()
                           ? run.step_time[0] - run.steps.of("seconds")[0].get<double>()
                           : run.step_time[0];
  std::string content = version_record(begin);
  for (std::size_t row = 0; row < run.steps.rows(); ++row) {
    std::vector<Scalar> scalars;
    for (const char* field : {"loss", "grad_norm", "lr", "tokens_per_second", "seconds", "skipped",
                              "targets", "paged_in_bytes", "paged_out_bytes",
                              "exposed_update_seconds", "exposed_exchange_seconds"}) {
      add_scalar(scalars, run.steps, row, field, fmt::format("train/{}", field));
    }
    content +=
        scalar_record(run.step_time[row], run.steps.of("step")[row].get<std::int64_t>(), scalars);
  }
  for (std::size_t row = 0; row < run.evaluations.rows(); ++row) {
    std::vector<Scalar> scalars;
    const std::string& name = run.evaluation_name[row];
    const std::string group = name.empty() ? "eval" : "eval/" + name;
    add_scalar(scalars, run.evaluations, row, "eval_loss", group + "/loss");
    add_scalar(scalars, run.evaluations, row, "eval_accuracy", group + "/accuracy");
    add_scalar(scalars, run.evaluations, row, "bits_per_byte", group + "/bits_per_byte");
    content += scalar_record(run.evaluation_time[row],
                             run.evaluations.of("step")[row].get<std::int64_t>(), scalars);
  }
  std::filesystem::path file =
      folder / fmt::format("events.out.tfevents.{:.0f}.tessera", std::floor(begin));
  write_in_folder(file, event_file_rules(), content);
  return file;
}

}  // namespace tessera::report
