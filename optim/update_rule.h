// How an optimizer changes one page of a shard: which arrays it keeps, and the arithmetic. A
// further optimizer is one more file that implements UpdateRule, and one row of the table in
// update_rule.cpp.
//
// An optimizer that orthogonalises hidden matrices (Muon) passes over a unit's pages twice. The first
// pass updates momentum and leaves the matrices' directions; they are orthogonalised as whole matrices
// (orthogonalizer.h); the second pass updates their master weights.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/kernel_table.h"
#include "model/param_layout.h"
#include "optim/state_layout.h"

namespace tessera {

/// What one update of all parameters needs.
struct UpdateStep {
  std::int64_t updates;  // 1 at the first update; sets AdamW's bias corrections
  double lr;
  double grad_scale;     // multiplies every gradient: the clip factor
  double matrix_lr = 0;  // of hidden matrices, where they are orthogonalised
};

/// Runs of one page that share a decay rule, in element order, covering the page.
struct DecayRun {
  Index count;
  bool decays;
  bool in_matrix = false;  // of a hidden matrix, which the optimizer orthogonalises
};

/// Elements [begin, end) of a page: a run of one hidden matrix.
struct MatrixRun {
  Index begin;
  Index end;
  Index rows;  // of the matrix
  Index columns;
  /// [end - begin] f32 or bf16: written by the first pass, orthogonalised for the second.
  TensorView direction;
};

/// One page on the device.
struct PageArgs {
  UnitId unit;           // whose elements these are
  Index first;           // the first one's number in the unit
  Index count;           // elements
  TensorView state;      // [layout.bytes(count)] u8, read and written
  ConstTensorView grad;  // [count] f32, read; data null for queue_params
  TensorView params;     // [count] bf16 or f32, written: the master weights, rounded to
                         // OptimizerOptions::param_values; read too where masters are packed
  std::span<const DecayRun> decay_runs;
  const StateLayout& layout;  // the rule's, of this kind of page
  std::span<const MatrixRun> matrix_runs = {};
};

/// Calls `update(begin, end, decays)` for each run of a page's elements, in their order.
template <typename Update>
void for_each_decay_run(const PageArgs& page, const Update& update) {
  Index begin = 0;
  for (const DecayRun& run : page.decay_runs) {
    update(begin, begin + run.count, run.decays);
    begin += run.count;
  }
}

enum class OptimizerKind : std::uint8_t { adamw, sgd, muon };

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  MomentType moments = MomentType::f32;
};

struct SgdOptions {
  double momentum = 0.9;
};

/// What the orthogonalised matrix is multiplied by, beside the learning rate.
enum class MuonScale : std::uint8_t {
  rms,      // 0.2 sqrt(max(rows, columns)): updates of AdamW's size (arXiv:2502.16982, section 2.2)
  spectral  // sqrt(max(1, rows / columns)): of the spectral norm (Jordan et al. 2024)
};

struct MuonOptions {
  double momentum = 0.95;
  int steps = 5;  // of Newton and Schulz
  MuonScale scale = MuonScale::rms;
};

/// Which optimizer, and the numbers of each.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double decay = 0.1;               // of weights; each rule says how
  DType param_values = DType::f32;  // that parameters are rounded to (PrecisionPolicy)
  bool packs_masters = false;       // beside parameters of bf16 values: 2 bytes in place of 4
  std::uint64_t rounding_seed = 0;  // of moments in fewer bits
  AdamWOptions adamw;               // also of what Muon leaves to AdamW
  SgdOptions sgd;
  MuonOptions muon = {};
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  UpdateRule(const UpdateRule&) = delete;
  UpdateRule& operator=(const UpdateRule&) = delete;

  /// The arrays of a page.
  [[nodiscard]] const StateLayout& layout() const noexcept { return layout_; }
  /// Those of a page that holds elements of hidden matrices alone: the first ones of layout(). Empty
  /// where the optimizer does not orthogonalise them, and one pass over a unit's pages is all.
  [[nodiscard]] const StateLayout& matrix_layout() const noexcept { return matrix_layout_; }
  /// Queues the update of one page and the writing of its parameters in `stream`. The result for an
  /// element depends on that element alone, so that pages may be of any size.
  virtual void queue(const PageArgs& page, const UpdateStep& step, Stream& stream) const = 0;
  /// The second pass: queues the update of the master weights of page.matrix_runs, and the writing of
  /// their parameters. Of the state it reads and writes the master weights alone. Requires:
  /// matrix_layout() has arrays.
  virtual void queue_matrices(const PageArgs& page, const UpdateStep& step, Stream& stream) const;
  /// Queues the writing of a page's parameters from its master weights as they are. Nothing where
  /// masters are packed: whoever wrote them wrote the parameters.
  void queue_params(const PageArgs& page, Stream& stream) const;

 protected:
  /// Keeps a reference to `kernels`.
  UpdateRule(const KernelTable& kernels, const OptimizerOptions& options);
  [[nodiscard]] const KernelTable& kernels() const noexcept { return kernels_; }
  [[nodiscard]] const OptimizerOptions& options() const noexcept { return options_; }

 private:
  const KernelTable& kernels_;
  OptimizerOptions options_;
  StateLayout layout_;
  StateLayout matrix_layout_;
};

/// "adamw", ...
[[nodiscard]] std::string_view optimizer_name(OptimizerKind kind) noexcept;
/// The optimizer of this name, if there is one.
[[nodiscard]] std::optional<OptimizerKind> find_optimizer(std::string_view name) noexcept;
/// "adamw, ...": all names, for messages.
[[nodiscard]] std::string optimizer_names();
/// The weight decay of a run that gives none.
[[nodiscard]] double usual_decay(OptimizerKind kind) noexcept;
/// The arrays that it keeps, all in f32: those of a checkpoint.
[[nodiscard]] const StateLayout& state_layout(OptimizerKind kind);
/// The same as these options store them.
[[nodiscard]] StateLayout state_layout(const OptimizerOptions& options);
/// UpdateRule::matrix_layout of these options.
[[nodiscard]] StateLayout matrix_state_layout(const OptimizerOptions& options);
/// Keeps a reference to `kernels`.
[[nodiscard]] std::unique_ptr<UpdateRule> make_update_rule(const KernelTable& kernels,
                                                           const OptimizerOptions& options);

}  // namespace tessera
