#include "kernels/cuda/gemm_plans.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <mutex>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/device/device_backend.h"

namespace tessera::cuda {
namespace {

// Proposals that tuning times. cuBLASLt sorts them by its own estimate; beyond these it offers
// little.
constexpr std::size_t kCandidates = 16;
// Each candidate is timed in rounds over all of them, so that a change of the clock meets all
// alike.
constexpr int kRounds = 3;
constexpr double kRoundSeconds = 1e-3;
constexpr int kMaxRepeats = 50;
// A later proposal must be faster by more than this, else noise would choose between equals.
constexpr double kWorthwhile = 0.99;

constexpr double kMicrosecondsPerSecond = 1e6;

cudaDataType_t library_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::e4m3:
      return CUDA_R_8F_E4M3;
    case DType::e5m2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_32F;
  }
}

/// One field of an algorithm for people to read; 0 where the library does not tell.
int algorithm_field(const cublasLtMatmulAlgo_t& algorithm,
                    cublasLtMatmulAlgoConfigAttributes_t field) {
  std::uint32_t value = 0;
  std::size_t written = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, field, &value, sizeof(value), &written);
  return status == CUBLAS_STATUS_SUCCESS ? static_cast<int>(value) : 0;
}

std::string algorithm_words(const GemmAlgorithm& chosen) {
  const cublasLtMatmulAlgo_t& algorithm = chosen.algorithm;
  std::string words = fmt::format("id={} tile={} stages={} split_k={}",
                                  algorithm_field(algorithm, CUBLASLT_ALGO_CONFIG_ID),
                                  algorithm_field(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
                                  algorithm_field(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
                                  algorithm_field(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
  if (chosen.seconds > 0.0) {
    words += fmt::format(" {:.1f} us", chosen.seconds * kMicrosecondsPerSecond);
  }
  return words;
}

void set_attribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                   const auto& value) {
  TESSERA_CHECK_CUBLAS(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
}

void set_preference(cublasLtMatmulPreference_t preference,
                    cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
  TESSERA_CHECK_CUBLAS(
      cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
}

/// Column-major: `rows` elements are adjacent, columns `ld` apart.
DescriptorOwner<cublasLtMatrixLayout_t> make_layout(DType dtype, Index rows, Index columns,
                                                    Index ld) {
  cublasLtMatrixLayout_t layout = nullptr;
  TESSERA_CHECK_CUBLAS(cublasLtMatrixLayoutCreate(&layout, library_type(dtype),
                                                  static_cast<std::uint64_t>(rows),
                                                  static_cast<std::uint64_t>(columns), ld));
  return DescriptorOwner<cublasLtMatrixLayout_t>(layout);
}

/// The plans of every device this process uses, and the lock of all of them.
struct Registry {
  std::mutex lock;
  std::map<int, GemmPlans> devices;

  GemmPlans& of(int ordinal) {
    TESSERA_CHECK_CUDA(cudaSetDevice(ordinal));
    return devices.try_emplace(ordinal, ordinal).first->second;
  }
};

Registry& registry() {
  static Registry the_registry;
  return the_registry;
}

}  // namespace

void DescriptorDeleter::operator()(cublasLtMatmulDesc_t handle) const noexcept {
  (void)cublasLtMatmulDescDestroy(handle);  // host memory: nothing to be done about a failure
}
void DescriptorDeleter::operator()(cublasLtMatrixLayout_t handle) const noexcept {
  (void)cublasLtMatrixLayoutDestroy(handle);
}
void DescriptorDeleter::operator()(cublasLtMatmulPreference_t handle) const noexcept {
  (void)cublasLtMatmulPreferenceDestroy(handle);
}

GemmPlans::GemmPlans(int ordinal)
    : ordinal_(ordinal), card_(device_info({DeviceKind::cuda, ordinal}).name) {
  TESSERA_CHECK_CUBLAS(cublasLtCreate(&handle_));
}

// A row-major [m, n] is a column-major [n, m]: d^T = op(b)^T op(a)^T. So the library's A is our b,
// its B our a, its rows our n; a matrix stored as the GEMM needs it is not transposed; and a
// bias over our columns is one over its rows, which is what CUBLASLT_EPILOGUE_BIAS adds.
GemmPlans::Plan GemmPlans::describe(const GemmKey& key) {
  // f32 without TF32; f32 accumulation for bf16.
  cublasLtMatmulDesc_t operation = nullptr;
  TESSERA_CHECK_CUBLAS(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  Plan plan{DescriptorOwner<cublasLtMatmulDesc_t>(operation), nullptr, nullptr, nullptr,
            GemmAlgorithm{{}, GemmChoice::proposed, 0.0}};
  const cublasOperation_t operation_a =
      key.transpose_b == Transpose::no ? CUBLAS_OP_N : CUBLAS_OP_T;
  const cublasOperation_t operation_b =
      key.transpose_a == Transpose::no ? CUBLAS_OP_N : CUBLAS_OP_T;
  set_attribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, operation_a);
  set_attribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, operation_b);
  if (key.has_bias) {
    set_attribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    const bool is_scaled = key.scale_a != ScaleMode::none;  // then the bias is bf16
    set_attribute(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                  library_type(is_scaled ? DType::bf16 : key.in_a));
  }
  if (key.scale_a == ScaleMode::row) {
#if CUBLAS_VERSION >= 120900
    const std::int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    set_attribute(operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
    set_attribute(operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
#else
    throw ConfigError("GEMMs with a scale for each row need cuBLAS 12.9 or later: build with it",
                      TESSERA_HERE);
#endif
  }
  if (key.accumulation == Accumulation::fast) {
    set_attribute(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
  }
  plan.layout_a = key.transpose_b == Transpose::no ? make_layout(key.in_b, key.n, key.k, key.ldb)
                                                   : make_layout(key.in_b, key.k, key.n, key.ldb);
  plan.layout_b = key.transpose_a == Transpose::no ? make_layout(key.in_a, key.k, key.m, key.lda)
                                                   : make_layout(key.in_a, key.m, key.k, key.lda);
  plan.layout_d = make_layout(key.out, key.n, key.m, key.ldd);
  return plan;
}

GemmPlans::Operands GemmPlans::operands_of(const GemmArgs& args) {
  return {.a = args.a.data,
          .b = args.b.data,
          .c = args.beta != 0.0F ? args.c.data : args.d.data,
          .bias = args.bias.data,
          .scales_a = args.a.scales.data,
          .scales_b = args.b.scales.data,
          .d = args.d.data,
          .alpha = args.alpha,
          .beta = args.beta,
          .workspace = args.workspace.data,
          .workspace_bytes = gemm_workspace_bytes(DeviceKind::cuda)};
}

std::vector<cublasLtMatmulAlgo_t> GemmPlans::proposals(const GemmKey& key, const Plan& plan,
                                                       std::size_t wanted) const {
  cublasLtMatmulPreference_t created = nullptr;
  TESSERA_CHECK_CUBLAS(cublasLtMatmulPreferenceCreate(&created));
  const DescriptorOwner<cublasLtMatmulPreference_t> preference(created);
  const std::uint64_t workspace_bytes = gemm_workspace_bytes(DeviceKind::cuda);
  set_preference(created, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  // Parts of a split sum are kept in f32 and added in order. Not INPLACE, whose order is that of
  // arrival, nor OUTPUT_TYPE, which rounds each part.
  const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  set_preference(created, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  const auto aligned = [&](cublasLtMatmulPreferenceAttributes_t attribute, int bytes) {
    set_preference(created, attribute, static_cast<std::uint32_t>(bytes));
  };
  const auto [of_a, of_b, of_c, of_d, of_bias] = key.alignment;
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, of_b);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, of_a);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of_c);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of_d);

  std::vector<cublasLtMatmulHeuristicResult_t> results(wanted);
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, plan.operation.get(), plan.layout_a.get(), plan.layout_b.get(), plan.layout_d.get(),
      plan.layout_d.get(), created, static_cast<int>(wanted), results.data(), &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
    found = 0;
  } else {
    check(status, "cublasLtMatmulAlgoGetHeuristic", TESSERA_HERE);
  }
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (std::size_t i = 0; i < static_cast<std::size_t>(found); ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= workspace_bytes) {
      algorithms.push_back(results[i].algo);
    }
  }
  if (algorithms.empty()) {
    throw DeviceError("cuBLASLt has no algorithm within " + std::to_string(workspace_bytes) +
                          " bytes of workspace for the GEMM " + to_text(key),
                      TESSERA_HERE);
  }
  return algorithms;
}

void GemmPlans::require_usable(const GemmKey& key, const Plan& plan) const {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(
      handle_, plan.operation.get(), plan.layout_a.get(), plan.layout_b.get(), plan.layout_d.get(),
      plan.layout_d.get(), &plan.algorithm.algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > gemm_workspace_bytes(DeviceKind::cuda)) {
    throw ConfigError("the GEMM table's entry " + to_text(key) +
                          " cannot be used here: leave the table out, or tune afresh",
                      TESSERA_HERE);
  }
}

cublasStatus_t GemmPlans::queue(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                                const Operands& operands, Stream& stream) const {
  return cublasLtMatmul(handle_, plan.operation.get(), &operands.alpha, operands.b,
                        plan.layout_a.get(), operands.a, plan.layout_b.get(), &operands.beta,
                        operands.c, plan.layout_d.get(), operands.d, plan.layout_d.get(),
                        &algorithm, operands.workspace, operands.workspace_bytes,
                        stream.cuda_handle());
}

GemmAlgorithm GemmPlans::fastest(const GemmKey& key, const Plan& plan, Operands operands,
                                 Stream& stream) const {
  const Device device{DeviceKind::cuda, ordinal_};
  // d is written over by the GEMM itself afterwards, but where it is an input too it must stay.
  DeviceBuffer scratch;
  if (key.in_place) {
    const Index elements = (key.m - 1) * key.ldd + key.n;
    scratch = DeviceBuffer(device, MemoryKind::device, key.out, Shape{elements},
                           "the result of a GEMM that is tuned");
    copy_async(ConstTensorView(operands.d, key.out, Shape{elements}, device), scratch.view(),
               stream);
    operands.d = scratch.view().data;
    operands.c = operands.d;
  }
  Event start(device, "gemm_tuning.start");
  Event end(device, "gemm_tuning.end");
  const auto seconds_each = [&](const cublasLtMatmulAlgo_t& algorithm, int repeats) {
    start.record(stream);
    for (int i = 0; i < repeats; ++i) {
      TESSERA_CHECK_CUBLAS(queue(plan, algorithm, operands, stream));
    }
    end.record(stream);
    end.synchronize();
    return end.seconds_since(start) / repeats;
  };

  struct Candidate {
    cublasLtMatmulAlgo_t algorithm;
    int repeats;
    double seconds;
  };
  std::vector<Candidate> candidates;
  for (const cublasLtMatmulAlgo_t& algorithm : proposals(key, plan, kCandidates)) {
    if (queue(plan, algorithm, operands, stream) ==
        CUBLAS_STATUS_SUCCESS) {  // and loads the kernel
      const double once = seconds_each(algorithm, 1);
      const int repeats =
          once > kRoundSeconds
              ? 1
              : std::min(kMaxRepeats, 1 + static_cast<int>(kRoundSeconds / std::max(once, 1e-6)));
      candidates.push_back({algorithm, repeats, std::numeric_limits<double>::infinity()});
    }
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Candidate& candidate : candidates) {
      candidate.seconds =
          std::min(candidate.seconds, seconds_each(candidate.algorithm, candidate.repeats));
    }
  }
  const Candidate* best = nullptr;
  for (const Candidate& candidate : candidates) {
    if (best == nullptr || candidate.seconds < kWorthwhile * best->seconds) {
      best = &candidate;
    }
  }
  if (best == nullptr) {
    throw DeviceError("no algorithm that cuBLASLt proposes runs the GEMM " + to_text(key),
                      TESSERA_HERE);
  }
  return {best->algorithm, GemmChoice::timed, best->seconds};
}

void GemmPlans::point_to(const GemmKey& key, const Plan& plan, const Operands& operands) {
  if (key.has_bias) {
    set_attribute(plan.operation.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  }
  if (key.scale_a != ScaleMode::none) {
    set_attribute(plan.operation.get(), CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.scales_b);
    set_attribute(plan.operation.get(), CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.scales_a);
  }
}

GemmPlans::Plan GemmPlans::make_plan(const GemmKey& key, const Operands& operands, Stream& stream) {
  Plan plan = describe(key);
  point_to(key, plan, operands);
  if (const auto known = chosen_.find(key); known != chosen_.end()) {
    plan.algorithm = known->second;
    require_usable(key, plan);
  } else if (tuning_ == GemmTuning::on) {
    plan.algorithm = fastest(key, plan, operands, stream);
    chosen_.emplace(key, plan.algorithm);
  } else {
    plan.algorithm = {proposals(key, plan, 1).front(), GemmChoice::proposed, 0.0};
  }
  return plan;
}

void GemmPlans::run(const GemmArgs& args, Stream& stream) {
  const GemmKey key = gemm_key(args);
  const Operands operands = operands_of(args);
  auto found = plans_.find(key);
  if (found == plans_.end()) {
    found = plans_.emplace(key, make_plan(key, operands, stream)).first;
  }
  const Plan& plan = found->second;
  point_to(key, plan, operands);
  const cublasStatus_t status = queue(plan, plan.algorithm.algorithm, operands, stream);
  if (status != CUBLAS_STATUS_SUCCESS) {
    check(status, ("cublasLtMatmul for the GEMM " + to_text(key)).c_str(), TESSERA_HERE);
  }
}

void GemmPlans::set_tuning(GemmTuning mode) {
  tuning_ = mode;
  if (mode == GemmTuning::on) {
    std::erase_if(plans_, [](const auto& entry) {
      return entry.second.algorithm.choice == GemmChoice::proposed;
    });
  }
}

GemmTableOrigin GemmPlans::origin() const {
  return {.card = card_, .library = fmt::format("cublasLt {}", cublasLtGetVersion())};
}

GemmTableEntries GemmPlans::entries() const {
  static_assert(sizeof(GemmAlgorithmBytes) == sizeof(cublasLtMatmulAlgo_t));
  GemmTableEntries entries;
  for (const auto& [key, chosen] : chosen_) {
    entries.emplace(key, GemmTableEntry{std::bit_cast<GemmAlgorithmBytes>(chosen.algorithm),
                                        algorithm_words(chosen)});
  }
  return entries;
}

std::string GemmPlans::table() const {
  return write_gemm_table(origin(), entries());
}

std::uint64_t GemmPlans::hash() const {
  return hash_of(origin(), entries());
}

void GemmPlans::use_table(std::string_view text, std::string_view name) {
  for (const auto& [key, entry] : read_gemm_table(text, name, origin())) {
    chosen_.insert_or_assign(
        key, GemmAlgorithm{std::bit_cast<cublasLtMatmulAlgo_t>(entry.algorithm), GemmChoice::given,
                           0.0});
    plans_.erase(key);
  }
}

void run_gemm(const GemmArgs& args, Stream& stream) {
  Registry& all = registry();
  const std::lock_guard guard(all.lock);
  all.of(stream.device().ordinal).run(args, stream);
}

const GemmTuner& gemm_tuner() {
  static constexpr GemmTuner tuner = {
      .set_tuning =
          [](int ordinal, GemmTuning mode) {
            const std::lock_guard guard(registry().lock);
            registry().of(ordinal).set_tuning(mode);
          },
      .table = [](int ordinal) -> std::string {
        const std::lock_guard guard(registry().lock);
        return registry().of(ordinal).table();
      },
      .use_table =
          [](int ordinal, std::string_view text, std::string_view name) {
            const std::lock_guard guard(registry().lock);
            registry().of(ordinal).use_table(text, name);
          },
      .hash = [](int ordinal) -> std::uint64_t {
        const std::lock_guard guard(registry().lock);
        return registry().of(ordinal).hash();
      },
  };
  return tuner;
}

}  // namespace tessera::cuda
