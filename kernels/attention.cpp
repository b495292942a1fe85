#include "kernels/attention.h"

#include <algorithm>
#include <string>

#include "kernels/cpu/attention_workspace.h"
#include "kernels/device/error.h"

namespace tessera {
namespace {

// Bytes of the rows of d_out . out, in f32, that every backward pass on CUDA needs.
std::size_t row_products_bytes(const AttentionShape& shape) {
  return static_cast<std::size_t>(shape.batch * shape.query_heads * shape.sequence) * sizeof(float);
}

// cuDNN's deterministic backward pass keeps T x T scores in bf16 for the heads of one slice; the
// smallest slice is the query heads of one key/value head of one sequence.
std::size_t library_bytes(const AttentionShape& shape, const AttentionOptions& options) {
  constexpr std::size_t kBFloat16Bytes = 2;
  const auto head_bytes = static_cast<std::size_t>(shape.sequence) *
                          static_cast<std::size_t>(shape.sequence) * kBFloat16Bytes;
  const auto group = static_cast<std::size_t>(shape.query_heads / shape.kv_heads);
  if (group * head_bytes > options.slice_bytes) {
    throw ConfigError("attention: a slice of " + std::to_string(options.slice_bytes) +
                          " bytes holds not even the scores of one key/value head, " +
                          std::to_string(group * head_bytes) + " bytes for sequences of " +
                          std::to_string(shape.sequence) + "; give more, or shorten the sequences",
                      TESSERA_HERE);
  }
  const std::size_t groups = static_cast<std::size_t>(shape.batch * shape.kv_heads);
  const std::size_t in_slice = std::min(groups, options.slice_bytes / (group * head_bytes));
  return in_slice * group * head_bytes + row_products_bytes(shape);
}

}  // namespace

std::size_t attention_workspace_bytes(DeviceKind kind, const AttentionShape& shape, DType dtype,
                                      const AttentionOptions& options) {
  TESSERA_REQUIRE(shape.batch > 0 && shape.sequence > 0 && shape.kv_heads > 0 &&
                      shape.head_dim > 0 && shape.query_heads > 0 &&
                      shape.query_heads % shape.kv_heads == 0,
                  "attention takes positive extents, and query heads a multiple of kv heads");
  if (kind == DeviceKind::cpu) {
    return cpu::attention_workspace_bytes(shape);
  }
  if (options.method == AttentionMethod::library && dtype == DType::bf16) {
    return library_bytes(shape, options);
  }
  return row_products_bytes(shape);
}

}  // namespace tessera
