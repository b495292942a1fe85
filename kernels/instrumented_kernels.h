// An instrumented kernel table: an observer gets each call, what it is, what it computes and moves
// at least. For measurements; a run that is not measured has the backend's own table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel_table.h"

namespace tessera {

/// What a call must do whatever the implementation: `flops` of its GEMMs (0 in kernels that
/// have none), each input read once, each output written once. Workspaces are not counted.
struct KernelCost {
  double flops = 0;
  double bytes = 0;
  friend bool operator==(const KernelCost&, const KernelCost&) = default;
};

/// Attention counts the unmasked half of each product of T x T x D: two forward, five backward.
/// Rows of an embedding's table count as if each token were another one. What is quantised to both
/// layouts is read once: a transposed one alone counts as written only.
[[nodiscard]] KernelCost cost_of(const AccumulateArgs& args);
[[nodiscard]] KernelCost cost_of(const CastRowsArgs& args);
[[nodiscard]] KernelCost cost_of(const AdamWArgs& args);
[[nodiscard]] KernelCost cost_of(const AdapterGradientsArgs& args);
[[nodiscard]] KernelCost cost_of(const SgdArgs& args);
[[nodiscard]] KernelCost cost_of(const AttentionForwardArgs& args);
[[nodiscard]] KernelCost cost_of(const AttentionBackwardArgs& args);
[[nodiscard]] KernelCost cost_of(const AttentionCachedArgs& args);
[[nodiscard]] KernelCost cost_of(const EmbeddingForwardArgs& args);
[[nodiscard]] KernelCost cost_of(const EmbeddingBackwardArgs& args);
[[nodiscard]] KernelCost cost_of(const GemmArgs& args);
[[nodiscard]] KernelCost cost_of(const MuonMomentumArgs& args);
[[nodiscard]] KernelCost cost_of(const MuonNormalizeArgs& args);
[[nodiscard]] KernelCost cost_of(const MuonUpdateArgs& args);
[[nodiscard]] KernelCost cost_of(const AbsMaxArgs& args);
[[nodiscard]] KernelCost cost_of(const QuantizeArgs& args);
[[nodiscard]] KernelCost cost_of(const SumOfSquaresArgs& args);
[[nodiscard]] KernelCost cost_of(const LossSumArgs& args);
[[nodiscard]] KernelCost cost_of(const ColumnSumArgs& args);
[[nodiscard]] KernelCost cost_of(const RmsNormForwardArgs& args);
[[nodiscard]] KernelCost cost_of(const RmsNormBackwardArgs& args);
[[nodiscard]] KernelCost cost_of(const RotaryForwardArgs& args);
[[nodiscard]] KernelCost cost_of(const RotaryBackwardArgs& args);
[[nodiscard]] KernelCost cost_of(const SoftmaxCrossEntropyArgs& args);
[[nodiscard]] KernelCost cost_of(const SwigluForwardArgs& args);
[[nodiscard]] KernelCost cost_of(const SwigluBackwardArgs& args);
[[nodiscard]] KernelCost cost_of(const WidenNf4Args& args);
[[nodiscard]] KernelCost cost_of(const WriteParamsArgs& args);

/// Valid during the call of `begin`.
struct KernelCall {
  const char* name;  // of the table's entry: a literal
  KernelCost cost;
  // The arguments of those that a benchmark times alone; the others' are null.
  const GemmArgs* gemm = nullptr;
  const AttentionForwardArgs* attention_forward = nullptr;
  const AttentionBackwardArgs* attention_backward = nullptr;
};

class KernelObserver {
 public:
  virtual ~KernelObserver() = default;
  /// Before the kernel is queued in `stream`, and after.
  virtual void begin(const KernelCall& call, Stream& stream) = 0;
  virtual void end(Stream& stream) = 0;
};

/// The same kernels as `table`, reported to `observer`. Both must outlive the calls. One table of
/// the program is instrumented at a time: another call of this function replaces it.
[[nodiscard]] KernelTable instrumented(const KernelTable& table, KernelObserver& observer);

/// Names of all entries, in the table's order.
[[nodiscard]] std::vector<std::string_view> kernel_names();

}  // namespace tessera
