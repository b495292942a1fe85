#include "runtime/monitor/progress_report.h"

#include <cstring>

#include <fmt/format.h>

#include "kernels/base/progress.h"

namespace tessera {
namespace {

void copy_name(const char* from, std::array<char, ProgressSnapshot::kNameLength>& to) noexcept {
  if (from != nullptr) {
    std::strncpy(to.data(), from, to.size() - 1);
  }
}

}  // namespace

ProgressSnapshot progress_snapshot() noexcept {
  const ProgressRecord& record = progress();
  ProgressSnapshot snapshot;
  snapshot.step = record.step.load(std::memory_order_relaxed);
  snapshot.beats = record.beats.load(std::memory_order_relaxed);
  snapshot.collective_number = record.collective_number.load(std::memory_order_relaxed);
  snapshot.collective_bytes = record.collective_bytes.load(std::memory_order_relaxed);
  copy_name(record.phase.load(std::memory_order_relaxed), snapshot.phase);
  copy_name(record.collective.load(std::memory_order_relaxed), snapshot.collective);
  return snapshot;
}

std::string to_text(const ProgressSnapshot& snapshot) {
  std::string text = fmt::format("step {}, phase {}", snapshot.step, snapshot.phase.data());
  if (snapshot.collective[0] != '\0') {
    text += fmt::format(", in collective {} number {} ({} bytes)", snapshot.collective.data(),
                        snapshot.collective_number, snapshot.collective_bytes);
  }
  return text;
}

}  // namespace tessera
