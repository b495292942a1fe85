// cuBLASLt's descriptors and algorithm for each shape of GEMM that was seen, made once,
// so that a step after the first creates nothing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/device/cuda/cuda_check.h"
#include "kernels/gemm.h"
#include "kernels/gemm_table.h"
#include "kernels/gemm_tuning.h"

namespace tessera::cuda {

/// How an algorithm came to be chosen: by the library, by its time here, or out of a table.
enum class GemmChoice : std::uint8_t { proposed, timed, given };

struct GemmAlgorithm {
  cublasLtMatmulAlgo_t algorithm;
  GemmChoice choice;
  double seconds;  // of one GEMM when it was timed; 0: unknown
};

struct DescriptorDeleter {
  void operator()(cublasLtMatmulDesc_t handle) const noexcept;
  void operator()(cublasLtMatrixLayout_t handle) const noexcept;
  void operator()(cublasLtMatmulPreference_t handle) const noexcept;
};
template <typename Handle>
using DescriptorOwner = std::unique_ptr<std::remove_pointer_t<Handle>, DescriptorDeleter>;

/// The GEMMs of one device. Not thread-safe: gemm_plans.cpp has one lock for all.
class GemmPlans {
 public:
  explicit GemmPlans(int ordinal);
  // The library's handle is left to the end of the process: destroying it then could come after the
  // CUDA runtime has gone.
  ~GemmPlans() = default;
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;

  /// Queues the GEMM. Requires: args were checked; the device is current.
  void run(const GemmArgs& args, Stream& stream);

  void set_tuning(GemmTuning mode);
  [[nodiscard]] std::string table() const;
  void use_table(std::string_view text, std::string_view name);
  [[nodiscard]] std::uint64_t hash() const;

 private:
  struct Plan {
    DescriptorOwner<cublasLtMatmulDesc_t> operation;
    // In the library's column-major words, where its A is our b and its B our a.
    DescriptorOwner<cublasLtMatrixLayout_t> layout_a;
    DescriptorOwner<cublasLtMatrixLayout_t> layout_b;
    DescriptorOwner<cublasLtMatrixLayout_t> layout_d;
    GemmAlgorithm algorithm;
  };
  struct Operands {
    const void* a;
    const void* b;
    const void* c;
    const void* bias;
    const void* scales_a;
    const void* scales_b;
    void* d;
    float alpha;
    float beta;
    void* workspace;
    std::size_t workspace_bytes;
  };

  [[nodiscard]] static Plan describe(const GemmKey& key);
  [[nodiscard]] static Operands operands_of(const GemmArgs& args);
  [[nodiscard]] Plan make_plan(const GemmKey& key, const Operands& operands, Stream& stream);
  [[nodiscard]] std::vector<cublasLtMatmulAlgo_t> proposals(const GemmKey& key, const Plan& plan,
                                                            std::size_t wanted) const;
  void require_usable(const GemmKey& key, const Plan& plan) const;
  [[nodiscard]] GemmAlgorithm fastest(const GemmKey& key, const Plan& plan, Operands operands,
                                      Stream& stream) const;
  [[nodiscard]] cublasStatus_t queue(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                                     const Operands& operands, Stream& stream) const;
  /// The pointers that are part of the operation's description.
  static void point_to(const GemmKey& key, const Plan& plan, const Operands& operands);
  [[nodiscard]] GemmTableOrigin origin() const;
  [[nodiscard]] GemmTableEntries entries() const;

  int ordinal_;
  cublasLtHandle_t handle_ = nullptr;
  std::string card_;
  GemmTuning tuning_ = GemmTuning::off;
  std::map<GemmKey, Plan> plans_;
  std::map<GemmKey, GemmAlgorithm> chosen_;  // timed or given: the table
};

/// Queues the GEMM on the plans of the current device.
void run_gemm(const GemmArgs& args, Stream& stream);

}  // namespace tessera::cuda
