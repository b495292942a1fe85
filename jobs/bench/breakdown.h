// The budget of a training step, kernel by kernel: how often each runs, what it must compute and
// move, its floor by rates measured in the same run, and what it took.
//
//   floor  of a GEMM               its time alone, with the best algorithm that is proposed
//          of attention            its time alone, in the order that the run uses
//          of every other kernel   its bytes at 90% of the rate of a large copy; a tensor that is
//                                  quantised is read once and written twice
//          of abs_max              0: it can be taken where the tensor is written
//          of what moves data between ranks, host and device: 0, as it can overlap the rest
#pragma once

#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "collectives/communicator.h"
#include "jobs/bench/measure.h"
#include "kernels/base/output_file.h"
#include "kernels/base/trace.h"
#include "kernels/instrumented_kernels.h"
#include "model/model_config.h"

namespace tessera::bench {

/// One row of the budget: the calls of one kind in one stream. Sums are of one step.
struct BudgetRow {
  std::string stream;
  std::string name;    // "gate/up forward", "rms_norm backward"
  std::string kernel;  // entry of the table; empty for what is none
  std::string shape;   // of products and attention
  double calls = 0;
  double flops = 0;
  double bytes = 0;
  double seconds = 0;        // between events, less an empty pair of them each
  double alone_seconds = 0;  // of all calls, as used; 0 where it is not timed alone
  double best_seconds = 0;   // the same, best algorithm; of attention the fast order
  double floor_seconds = 0;
};

/// Where the compute stream stood still.
struct BudgetWaits {
  struct Named {
    std::string name;
    double count = 0;
    double seconds = 0;
  };
  std::vector<Named> named;  // waits and copies that have a name in the timeline
  double gaps = 0;           // between one piece of work and the next; sums of one step
  double gap_seconds = 0;
  double largest_gap_seconds = 0;
};

/// Watches whole steps of one rank: a kernel table's calls, and the ranges of the timeline.
class StepRecorder final : public KernelObserver, public TraceSink {
 public:
  /// Keeps references; `traffic` is asked for the bytes of collectives.
  StepRecorder(const ModelConfig& config, const Communicator& comm, Stream& compute);
  ~StepRecorder() override;
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  /// Around a step. The first step is not counted: it makes the events. Listens to the timeline
  /// meanwhile.
  void begin_step();
  /// `paged_in`, `paged_out`: bytes of the step's sweep.
  void end_step(double seconds, double paged_in, double paged_out);

  void begin(const KernelCall& call, Stream& stream) override;
  void end(Stream& stream) override;
  std::int64_t begin(const TraceLabel& label, Stream& stream) override;
  std::int64_t begin(const TraceLabel& label, const char* lane) override;
  void end(std::int64_t number, Stream* stream) noexcept override;

  /// Rows without floors, as means over the steps.
  [[nodiscard]] std::vector<BudgetRow> rows() const;
  [[nodiscard]] BudgetWaits waits() const;
  /// Means of the recorded steps: by the host's clock, and by the compute stream's events.
  [[nodiscard]] double step_seconds() const;
  [[nodiscard]] double stream_seconds() const;
  [[nodiscard]] double event_pair_seconds() const noexcept { return pair_seconds_; }
  [[nodiscard]] int steps() const noexcept { return steps_; }

  /// Times the products and attention alone, on memory of their own, and gives `rows`, those of
  /// `rows()`, their floors. The run, and its streams, may have ended. On CUDA the products' shapes
  /// are tuned from then on.
  void measure_floors(std::vector<BudgetRow>& rows, DType dtype, Device device,
                      double copy_bytes_per_second) const;

 private:
  struct Group {
    std::string stream;
    std::string_view name;  // of the kernel, or of the range
    bool is_kernel = false;
    bool again = false;            // a forward kernel in the backward pass
    std::optional<GemmArgs> gemm;  // data null
    std::optional<AttentionForwardArgs> attention_forward;
    std::optional<AttentionBackwardArgs> attention_backward;
    double calls = 0;
    double flops = 0;
    double bytes = 0;
    double seconds = 0;
  };
  struct Mark {
    std::size_t group;
    std::size_t from;  // event
    std::size_t to;
    std::int64_t traffic;  // bytes sent before
    bool ended;
  };

  [[nodiscard]] std::size_t record(Stream& stream);
  [[nodiscard]] std::size_t group_of(const KernelCall& call, const Stream& stream);
  [[nodiscard]] std::size_t group_of(const TraceLabel& label, const Stream& stream);
  [[nodiscard]] std::string name_of(const Group& group) const;
  void fold_step(double paged_in, double paged_out);

  const ModelConfig& config_;
  const Communicator& comm_;
  Stream& compute_;
  double pair_seconds_ = 0;
  bool backward_ = false;
  std::deque<Event> events_;
  std::size_t used_ = 0;
  std::size_t begun_ = 0;  // event
  std::vector<Group> groups_;
  std::vector<Mark> marks_;
  std::optional<std::size_t> call_;  // the kernel under way
  int steps_ = -1;                   // counted; -1 before the first
  double step_seconds_ = 0;
  double stream_seconds_ = 0;
  double gaps_ = 0;
  double gap_seconds_ = 0;
  double largest_gap_ = 0;
};

/// What is shown beside the rows.
struct BudgetFacts {
  std::string device;
  std::string model;
  FlopUnit unit{};
  int ranks = 1;
  Index seq = 0;
  Index micro_batch = 0;
  Index global_batch = 0;
  double plain_step_seconds = 0;  // median, not recorded, all ranks
  double recorded_step_seconds = 0;
  double stream_seconds = 0;
  double event_pair_seconds = 0;
  double copy_bytes_per_second = 0;
  int steps = 0;
  std::vector<double> rank_kernel_seconds;  // of each rank's compute stream
  // Cards of one kind differ by some percent, and the slowest makes the step: its floor counts.
  std::vector<double> rank_floor_seconds;
  double fast_floor_seconds = 0;  // the largest of all ranks
};

/// What the compute stream's kernels take.
[[nodiscard]] double kernel_seconds(const std::vector<BudgetRow>& rows);

/// Sum of the rows' floors.
[[nodiscard]] double floor_seconds(const std::vector<BudgetRow>& rows);

/// The same, with attention's backward pass in the fast order where that is faster.
[[nodiscard]] double fast_floor_seconds(const std::vector<BudgetRow>& rows);

void print_budget(const BudgetFacts& facts, const std::vector<BudgetRow>& rows,
                  const BudgetWaits& waits);
/// What `--json FILE` may take the place of: an older budget. A pipe is written to.
[[nodiscard]] OutputRules budget_file_rules();
[[nodiscard]] nlohmann::ordered_json budget_json(const BudgetFacts& facts,
                                                 const std::vector<BudgetRow>& rows,
                                                 const BudgetWaits& waits);

}  // namespace tessera::bench
