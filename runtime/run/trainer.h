// One training step, and evaluation, and nothing else: no option parsing, no files, no printing.
//
//   batches prefetched -> for each micro-step: forward, loss, backward into the gradient workspace
//   -> one exchange of integers -> AdamW over the shard and the gather of parameters, unit by unit,
//   queued by the next forward pass as it comes to need them
#pragma once

#include <functional>
#include <optional>
#include <tuple>

#include "collectives/communicator.h"
#include "collectives/step_exchange.h"
#include "optim/grad_workspace.h"
#include "optim/lr_schedule.h"
#include "optim/page_sweep.h"
#include "optim/param_store.h"
#include "runtime/data/batch_source.h"
#include "runtime/launch/agree.h"
#include "runtime/run/training_scratch.h"

namespace tessera {

/// Counter of the step's exchange: ranks that could not read their batches. The others are the
/// caller's.
inline constexpr std::size_t kDataFailures = StepExchange::kCounters - 1;
/// Counter of an evaluation's exchange: targets that were the likeliest token.
inline constexpr std::size_t kCorrect = StepExchange::kCounters - 2;
/// The first of the counters of values that were quantised: QuantizeCounts.
inline constexpr std::size_t kQuantized = kCorrect - std::tuple_size_v<QuantizeCounts>;
/// Counter of the step's exchange: padding of the next step.
inline constexpr std::size_t kPadding = kQuantized - 1;

enum class UpdateMode : std::uint8_t { all, none };

struct TrainerOptions {
  Index global_batch = 1;  // sequences of one step, all ranks
  Index micro_batch = 1;   // sequences of one micro-batch; divides global_batch
  double clip_norm = 1.0;  // L2 norm of the global gradient; 0 turns clipping off
  /// Micro-batches of each rank whose forward passes run side by side, unit by unit, at the
  /// beginning of a step, while the update of the last one continues. Bit-identical for any number.
  Index batched_forward = 1;
  /// Their backward passes run side by side too, and all other micro-batches go in such groups, so
  /// that a block's parameters are asked for twice for each group. Bit-identical.
  bool batched_backward = false;
  /// For benchmarks of what the update costs: `none` leaves the parameters as they are.
  UpdateMode update = UpdateMode::all;
};

/// What a step did. Equal on every rank but for `nonfinite_losses`, and from `seconds` on.
struct StepReport {
  std::int64_t step = 0;  // 1 at the first
  double loss = 0;        // nats per target, mean over the global batch, label smoothing and
                          // z-loss included; means nothing without targets
  double grad_norm = 0;   // before clipping
  double lr = 0;
  Index targets = 0;     // over the global batch; 0: no parameter changed, and it is not skipped
  Index padding = 0;     // places of it that no document takes, where documents are separate
  bool skipped = false;  // loss or gradient was not finite: no parameter changed
  std::optional<StopReason> stop;  // some rank was asked to stop
  /// Of this step, all ranks; only while they are counted (Trainer::count_quantized).
  std::optional<QuantizeCounts> quantized;
  bool next_is_unreadable = false;  // the next step will throw: its batches could not be read
  Index nonfinite_losses = 0;       // sums of this rank's losses that were not finite
  double seconds = 0;               // host time on this rank
  /// Of this rank: the sweep that ran during this step (the last step's update), and how long the
  /// compute stream stood still for it and the gather, and for the exchange of gradients.
  PagingReport paging;
  double exposed_update_seconds = 0;
  double exposed_exchange_seconds = 0;
  double computing_seconds = 0;  // until it met the other ranks, without these waits
};

struct EvalReport {
  std::optional<double> loss;  // plain cross entropy, nats per target; none without targets
  Index targets = 0;
  Index correct = 0;     // of them, those that were the likeliest token
  bool dropped = false;  // it was not finished, and the numbers mean nothing
  /// Share of the targets that were the likeliest token. Requires: targets.
  [[nodiscard]] double accuracy() const noexcept {
    return static_cast<double>(correct) / static_cast<double>(targets);
  }
};

/// Where a run stands: all of its state but the shard.
struct TrainingPosition {
  std::int64_t step = 0;     // steps completed
  std::int64_t updates = 0;  // of them, those that changed parameters
  std::int64_t skipped = 0;  // of them, those that were not finite
  Index sequences = 0;       // sequences taken by all ranks
  friend bool operator==(const TrainingPosition&, const TrainingPosition&) = default;
};

/// What a trainer works with. The job makes the parts; all outlive the trainer.
struct TrainerParts {
  const KernelTable& kernels;
  Communicator& comm;
  Transformer& model;
  BatchSource& data;
  ShardState& shard;
  ParamStore& params;  // what is trained
  ParamStore* base;    // frozen, with params beside it; null: params is the model
  GradWorkspace& grads;
  PageSweep& optimizer;
  TrainingScratch& scratch;
  const LrSchedule& schedule;
  Stream& compute;
  Stream& communication;
};

class Trainer {
 public:
  Trainer(const TrainerOptions& options, const TrainerParts& parts);

  /// Writes every parameter from the master weights and gathers it: once, after initialisation or
  /// loading. Collective.
  void gather_parameters();

  /// One optimizer step. Collective. `contribute` adds what others want to say in the step's
  /// exchange (stop votes, writers); `heard` reads it. Either may be empty. Throws, agreed on all
  /// ranks and before anything has changed, what went wrong with reading this step's batches.
  StepReport step(const std::function<void(StepExchange&)>& contribute = {},
                  const std::function<void(const StepExchange&)>& heard = {});

  /// Mean plain cross entropy, and how many targets were the likeliest token, over `micro_batches`
  /// micro-batches; `batch_of(i)` gives number i, which is asked for
  /// on the rank i mod W alone and stays valid until the call after the next. `continues` is asked
  /// before every W of them, and gives the same answer on every rank; at the first false the
  /// evaluation is dropped. Changes nothing about training. Throws, agreed on all ranks, what
  /// `batch_of` threw on one of them. Collective.
  [[nodiscard]] EvalReport evaluate(Index micro_batches,
                                    const std::function<Batch(Index)>& batch_of,
                                    const std::function<bool()>& continues = {});

  /// For benchmarks that compare several options in one run, between steps. Requires: the same
  /// micro-batch and batched_backward; no more micro-batches side by side than were planned.
  void set_options(const TrainerOptions& options);

  /// Whether the next steps count the values that are quantised. Nothing where none are.
  void count_quantized(bool on);

  /// Queues what is left of the last step's update and waits until parameters and state are
  /// complete.
  void synchronize();

  [[nodiscard]] const TrainingPosition& position() const noexcept { return position_; }
  /// Continues from `position`; the shard's state has been loaded. Requires: before the first step.
  void continue_from(const TrainingPosition& position);

 private:
  class Rounds;
  void queue_updates_up_to(UnitId last);
  /// What the model computes with.
  [[nodiscard]] ModelParams gates() const {
    return parts_.base == nullptr ? ModelParams(parts_.params)
                                  : ModelParams(*parts_.base, &parts_.params);
  }
  void run_micro_steps();
  void run_round(Rounds& round);
  void run_backward(Rounds& rounds, Index i);
  void run_exchange(StepReport& report, double start,
                    const std::function<void(StepExchange&)>& contribute);
  /// `set`: of the micro-batches that run together.
  [[nodiscard]] DeviceBatch copy_batch(const Batch& batch, Index set = 0);
  void report_waits(StepReport& report);
  void report_paging(StepReport& report);
  [[nodiscard]] TensorView host_correct(Index micro_batch);
  void prepare_first_batches();

  TrainerOptions options_;
  TrainerParts parts_;
  StepExchange exchange_;
  TrainingPosition position_;
  Index targets_ = 0;  // of the step whose batches are prefetched, as padding_
  Index padding_ = 0;
  bool prefetched_ = false;
  bool next_is_unreadable_ = false;      // on some rank
  std::optional<Failure> data_failure_;  // and why, if it is this one
  UpdateStep update_{};                  // of the step whose updates are being queued
  UnitId next_update_ = 0;               // first unit whose update is not queued yet
  bool last_round_ = false;              // of the step: the next sweep's first pages may come
  bool swept_ = false;                   // the sweep of the last step's update runs during this one
  Event norm_copied_;
  Event loss_copied_;
};

}  // namespace tessera
