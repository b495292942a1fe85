// Every kernel of the table, ready to run on a middling shape, for tests of what holds for all of
// them.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/test_bench.h"

namespace tessera::test {

/// Runs on float types of f32. Shapes are large enough for the CPU kernels to use several threads.
class EveryKernel {
 public:
  struct Entry {
    std::string name;
    std::function<void()> run;                  // queues the kernel once
    std::vector<TestTensor*> read_and_written;  // to fill again before the next run
    std::vector<TestTensor*> written;
  };

  explicit EveryKernel(TestBench& bench);
  ~EveryKernel() = default;
  EveryKernel(const EveryKernel&) = delete;
  EveryKernel& operator=(const EveryKernel&) = delete;

  [[nodiscard]] const std::vector<Entry>& entries() const noexcept { return entries_; }
  /// Everything that the kernel writes, after one run from the same state as every run.
  [[nodiscard]] std::vector<double> results_of(const Entry& entry);

 private:
  TestTensor& normal(const Shape& shape, double deviation = 1, double mean = 0);
  TestTensor& poisoned(DType dtype, const Shape& shape);
  void add(std::string name, std::function<void(const KernelTable&, Stream&)> run,
           std::vector<TestTensor*> read_and_written, std::vector<TestTensor*> written);
  void add_optimizer();
  void add_attention();
  void add_embedding();
  void add_gemm();
  void add_adapter();
  void add_quantize();
  void add_nf4();
  void add_reductions();
  void add_rms_norm();
  void add_rotary();
  void add_loss();
  void add_swiglu();

  TestBench& bench_;
  std::deque<TestTensor> tensors_;  // does not move its elements
  std::vector<Entry> entries_;
};

}  // namespace tessera::test
