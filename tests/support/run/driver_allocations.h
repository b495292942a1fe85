// Counts what a process asks the CUDA driver for, whoever asks: we, cuBLAS, cuDNN or NCCL.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace tessera::test {

/// While it lives, calls of the driver that allocate device or pinned memory or register host
/// memory are counted, through CUPTI's callbacks, on all threads. One at a time.
class DriverAllocations {
 public:
  DriverAllocations();
  ~DriverAllocations();
  DriverAllocations(const DriverAllocations&) = delete;
  DriverAllocations& operator=(const DriverAllocations&) = delete;

  /// Why nothing is counted (no CUPTI here); empty otherwise.
  [[nodiscard]] const std::string& why_not() const noexcept { return why_not_; }
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }

 private:
  friend struct DriverCallback;
  std::string why_not_;
  std::atomic<std::int64_t> count_{0};
  void* library_ = nullptr;
  void* subscriber_ = nullptr;
};

}  // namespace tessera::test
