// What a process is doing, as text: for the failure message and the watchdog's report.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace tessera {

/// A copy of progress.h's record without pointers, so that it can be stored in memory that
/// processes share.
struct ProgressSnapshot {
  static constexpr std::size_t kNameLength = 64;

  std::int64_t step = 0;
  std::uint64_t beats = 0;
  std::int64_t collective_number = 0;
  std::int64_t collective_bytes = 0;
  std::array<char, kNameLength> phase{};       // ends with a zero
  std::array<char, kNameLength> collective{};  // empty outside of a collective
};

/// This process, now. Thread-safe; allocates nothing.
[[nodiscard]] ProgressSnapshot progress_snapshot() noexcept;

/// "step 7, phase forward, in collective all_gather number 123 (4096 bytes)".
[[nodiscard]] std::string to_text(const ProgressSnapshot& snapshot);

}  // namespace tessera
