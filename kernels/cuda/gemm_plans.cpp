#include "kernels/cuda/gemm_plans.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <sstream>
#include <utility>

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
constexpr int kHexBase = 16;

cudaDataType_t library_type(DType dtype) {
  return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

int alignment_of(const void* data) {
  if (data == nullptr) {
    return kMaxAlignment;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  int alignment = kMaxAlignment;
  while (address % static_cast<std::uintptr_t>(alignment) != 0) {
    alignment /= 2;
  }
  return alignment;
}

std::string_view c_word(const GemmKey& key) {
  if (!key.reads_c) {
    return "none";
  }
  return key.in_place ? "d" : "other";
}

/// The shape as it stands in a table and in messages. `sms` belongs to version 2 of the table: the
/// multiprocessors that a GEMM kept to, 0 for all. Every GEMM uses all now; the field stays until
/// the next version, so that tables and their hashes, which checkpoints keep, stay what they were.
std::string key_text(const GemmKey& key) {
  return fmt::format(
      "m={} n={} k={} a={} b={} lda={} ldb={} ldd={} in={} out={} c={} bias={} sms=0 align={}",
      key.m, key.n, key.k, key.transpose_a == Transpose::yes ? "t" : "n",
      key.transpose_b == Transpose::yes ? "t" : "n", key.lda, key.ldb, key.ldd, dtype_name(key.in),
      dtype_name(key.out), c_word(key), key.has_bias ? 1 : 0, fmt::join(key.alignment, "/"));
}

std::string algorithm_hex(const cublasLtMatmulAlgo_t& algorithm) {
  std::array<unsigned char, sizeof(cublasLtMatmulAlgo_t)> bytes{};
  std::memcpy(bytes.data(), &algorithm, sizeof(algorithm));
  return fmt::format("{:02x}", fmt::join(bytes, ""));
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

constexpr std::string_view kTableTitle = "tessera gemm table 2";
constexpr std::string_view kCardWord = "card ";
constexpr std::string_view kLibraryWord = "library ";
constexpr std::string_view kEntryWord = "gemm ";

/// Reads the lines of a table; every error names the table and the line.
class TableReader {
 public:
  TableReader(std::string_view text, std::string_view name)
      : stream_(std::string(text)), name_(name) {}

  /// The next line without its comment; false at the end.
  bool next() {
    if (!std::getline(stream_, line_)) {
      return false;
    }
    ++number_;
    line_.erase(std::min(line_.find('#'), line_.size()));
    while (!line_.empty() && (line_.back() == ' ' || line_.back() == '\r')) {
      line_.pop_back();
    }
    return true;
  }

  [[nodiscard]] const std::string& line() const noexcept { return line_; }

  /// What follows `word` at the line's begin.
  [[nodiscard]] std::string rest_after(std::string_view word) const {
    if (line_.rfind(word, 0) != 0) {
      fail("begins with '" + std::string(word) + "'");
    }
    return line_.substr(word.size());
  }

  [[noreturn]] void fail(const std::string& expected) const {
    throw FormatError(fmt::format("GEMM table {}, line {}: expected a line that {}; has '{}'",
                                  name_, number_, expected, line_),
                      TESSERA_HERE);
  }

  /// Nothing where the line is of a GEMM that kept to some multiprocessors (`sms`, see key_text):
  /// earlier programs could tune those, and nobody asks for one.
  [[nodiscard]] std::optional<std::pair<GemmKey, GemmAlgorithm>> entry() const {
    std::map<std::string, std::string> fields;
    std::istringstream words(rest_after(kEntryWord));
    std::string word;
    while (words >> word) {
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos ||
          !fields.emplace(word.substr(0, equals), word.substr(equals + 1)).second) {
        fail("is 'gemm' and fields name=value, each once");
      }
    }
    const auto field = [&](const char* field_name) -> const std::string& {
      const auto found = fields.find(field_name);
      if (found == fields.end()) {
        fail(std::string("has a field ") + field_name);
      }
      return found->second;
    };
    const auto word_index = [&](const char* field_name, std::vector<std::string_view> allowed) {
      const auto found = std::find(allowed.begin(), allowed.end(), field(field_name));
      if (found == allowed.end()) {
        fail(fmt::format("has {} one of {}", field_name, fmt::join(allowed, ", ")));
      }
      return found - allowed.begin();
    };
    const auto transpose = [&](const char* field_name) {
      return word_index(field_name, {"n", "t"}) == 0 ? Transpose::no : Transpose::yes;
    };
    const auto dtype = [&](const char* field_name) {
      return word_index(field_name, {dtype_name(DType::f32), dtype_name(DType::bf16)}) == 0
                 ? DType::f32
                 : DType::bf16;
    };
    const auto c = word_index("c", {"none", "other", "d"});
    const GemmKey key{.m = count(field("m")),
                      .n = count(field("n")),
                      .k = count(field("k")),
                      .transpose_a = transpose("a"),
                      .transpose_b = transpose("b"),
                      .lda = count(field("lda")),
                      .ldb = count(field("ldb")),
                      .ldd = count(field("ldd")),
                      .in = dtype("in"),
                      .out = dtype("out"),
                      .reads_c = c != 0,
                      .in_place = c == 2,
                      .has_bias = word_index("bias", {"0", "1"}) == 1,
                      .alignment = alignments(field("align"))};
    const GemmAlgorithm chosen{algorithm(field("algo")), GemmChoice::given, 0.0};
    if (field("sms") != "0") {
      (void)count(field("sms"));
      return std::nullopt;
    }
    return std::pair(key, chosen);
  }

 private:
  [[nodiscard]] Index count(std::string_view text) const {
    Index value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size() || value <= 0) {
      fail("has positive numbers for its sizes");
    }
    return value;
  }

  [[nodiscard]] std::array<int, 5> alignments(const std::string& text) const {
    std::array<int, 5> result{};
    std::istringstream parts(text);
    std::string part;
    for (int& alignment : result) {
      if (!std::getline(parts, part, '/')) {
        fail("has five alignments a/b/c/d/bias");
      }
      alignment = static_cast<int>(std::min<Index>(count(part), kMaxAlignment));
    }
    return result;
  }

  [[nodiscard]] cublasLtMatmulAlgo_t algorithm(std::string_view hex) const {
    std::array<unsigned char, sizeof(cublasLtMatmulAlgo_t)> bytes{};
    if (hex.size() != 2 * bytes.size()) {
      fail(fmt::format("has {} hexadecimal digits in algo", 2 * bytes.size()));
    }
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const char* first = hex.data() + 2 * i;
      const auto [end, code] = std::from_chars(first, first + 2, bytes.at(i), kHexBase);
      if (code != std::errc() || end != first + 2) {
        fail("has hexadecimal digits in algo");
      }
    }
    cublasLtMatmulAlgo_t result{};
    std::memcpy(&result, bytes.data(), bytes.size());
    return result;
  }

  std::istringstream stream_;
  std::string name_;
  std::string line_;
  int number_ = 0;
};

/// FNV-1a, 64 bits: a name for a table, not a protection.
std::uint64_t hash_of(std::string_view text) {
  constexpr std::uint64_t kOffset = 14695981039346656037ULL;
  constexpr std::uint64_t kPrime = 1099511628211ULL;
  std::uint64_t hash = kOffset;
  for (const char letter : text) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * kPrime;
  }
  return hash;
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

GemmKey gemm_key(const GemmArgs& args) {
  const bool reads_c = args.beta != 0.0F;
  return {.m = args.m,
          .n = args.n,
          .k = args.k,
          .transpose_a = args.transpose_a,
          .transpose_b = args.transpose_b,
          .lda = args.lda,
          .ldb = args.ldb,
          .ldd = args.ldd,
          .in = args.a.dtype,
          .out = args.d.dtype,
          .reads_c = reads_c,
          .in_place = reads_c && args.c.data == args.d.data,
          .has_bias = args.bias.data != nullptr,
          .alignment = {alignment_of(args.a.data), alignment_of(args.b.data),
                        alignment_of(reads_c ? args.c.data : args.d.data),
                        alignment_of(args.d.data), alignment_of(args.bias.data)}};
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
    set_attribute(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, library_type(key.in));
  }
  plan.layout_a = key.transpose_b == Transpose::no ? make_layout(key.in, key.n, key.k, key.ldb)
                                                   : make_layout(key.in, key.k, key.n, key.ldb);
  plan.layout_b = key.transpose_a == Transpose::no ? make_layout(key.in, key.k, key.m, key.lda)
                                                   : make_layout(key.in, key.m, key.k, key.lda);
  plan.layout_d = make_layout(key.out, key.n, key.m, key.ldd);
  return plan;
}

GemmPlans::Operands GemmPlans::operands_of(const GemmArgs& args) {
  return {.a = args.a.data,
          .b = args.b.data,
          .c = args.beta != 0.0F ? args.c.data : args.d.data,
          .bias = args.bias.data,
          .d = args.d.data,
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
                          " bytes of workspace for the GEMM " + key_text(key),
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
    throw ConfigError("the GEMM table's entry " + key_text(key) +
                          " cannot be used here: leave the table out, or tune afresh",
                      TESSERA_HERE);
  }
}

cublasStatus_t GemmPlans::queue(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                                const Operands& operands, Stream& stream) const {
  const float alpha = 1.0F;
  return cublasLtMatmul(handle_, plan.operation.get(), &alpha, operands.b, plan.layout_a.get(),
                        operands.a, plan.layout_b.get(), &operands.beta, operands.c,
                        plan.layout_d.get(), operands.d, plan.layout_d.get(), &algorithm,
                        operands.workspace, operands.workspace_bytes, stream.cuda_handle());
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
    throw DeviceError("no algorithm that cuBLASLt proposes runs the GEMM " + key_text(key),
                      TESSERA_HERE);
  }
  return {best->algorithm, GemmChoice::timed, best->seconds};
}

GemmPlans::Plan GemmPlans::make_plan(const GemmKey& key, const Operands& operands, Stream& stream) {
  Plan plan = describe(key);
  if (key.has_bias) {
    set_attribute(plan.operation.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  }
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
  if (key.has_bias) {
    set_attribute(plan.operation.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  }
  const cublasStatus_t status = queue(plan, plan.algorithm.algorithm, operands, stream);
  if (status != CUBLAS_STATUS_SUCCESS) {
    check(status, ("cublasLtMatmul for the GEMM " + key_text(key)).c_str(), TESSERA_HERE);
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

std::string GemmPlans::header() const {
  return fmt::format("{}\n{}{}\n{}cublasLt {}\n", kTableTitle, kCardWord, card_, kLibraryWord,
                     cublasLtGetVersion());
}

std::string GemmPlans::table() const {
  std::string text = header();
  for (const auto& [key, chosen] : chosen_) {
    text += fmt::format("{}{} algo={} # {}\n", kEntryWord, key_text(key),
                        algorithm_hex(chosen.algorithm), algorithm_words(chosen));
  }
  return text;
}

std::uint64_t GemmPlans::hash() const {
  if (chosen_.empty()) {
    return 0;
  }
  std::string text = header();
  for (const auto& [key, chosen] : chosen_) {
    text += key_text(key) + algorithm_hex(chosen.algorithm) + "\n";
  }
  return hash_of(text);
}

void GemmPlans::use_table(std::string_view text, std::string_view name) {
  TableReader reader(text, name);
  if (!reader.next()) {
    return;
  }
  if (reader.line() != kTableTitle) {
    reader.fail("reads '" + std::string(kTableTitle) + "'");
  }
  const auto require_same = [&](std::string_view word, const std::string& here) {
    if (!reader.next()) {
      reader.fail("begins with '" + std::string(word) + "'");
    }
    if (const std::string there = reader.rest_after(word); there != here) {
      throw ConfigError(
          fmt::format("GEMM table {} was made for {}, and here is {}: leave it out, or "
                      "tune afresh",
                      name, there, here),
          TESSERA_HERE);
    }
  };
  require_same(kCardWord, card_);
  require_same(kLibraryWord, fmt::format("cublasLt {}", cublasLtGetVersion()));
  std::map<GemmKey, GemmAlgorithm> entries;
  while (reader.next()) {
    if (reader.line().empty()) {
      continue;
    }
    if (auto entry = reader.entry(); entry && !entries.insert(*std::move(entry)).second) {
      reader.fail("names a shape for the first time");
    }
  }
  for (const auto& [key, algorithm] : entries) {
    chosen_.insert_or_assign(key, algorithm);
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
