#include "runtime/run/trainer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/fixed_point.h"
#include "kernels/base/progress.h"
#include "kernels/base/trace.h"
#include "optim/clip.h"

namespace tessera {
namespace {

// Units whose updates are queued ahead of the one that the forward pass asks for: enough that the
// streams never wait for the host, few enough that the first kernel is not behind thousands of
// pages.
constexpr UnitId kUnitsAhead = 2;

Index count_ones(const TensorView& flags) {
  const auto* begin = data_as<std::uint8_t>(flags);
  return std::count(begin, begin + flags.count(), std::uint8_t{1});
}

bool is_counting(const QuantizedBlocks* quantized) {
  return quantized != nullptr && quantized->is_counting();
}

StepExchange::Words words_of(const TensorView& view) {
  return StepExchange::Words(data_as<std::int64_t>(view), kFixedPointWords);
}

}  // namespace

Trainer::Trainer(const TrainerOptions& options, const TrainerParts& parts)
    : options_(options),
      parts_(parts),
      exchange_(parts.comm),
      next_update_(parts.shard.layout().unit_count()),
      norm_copied_(parts.compute.device(), "norm.copied"),
      loss_copied_(parts.compute.device(), "loss.copied") {
  TESSERA_REQUIRE(options.micro_batch >= 1 && options.global_batch >= 1 &&
                      options.global_batch % options.micro_batch == 0,
                  "the global batch is a multiple of the micro-batch");
  parts_.params.set_pending_updates(
      {.before_acquire =
           [this](UnitId unit) {
             queue_updates_up_to(unit + kUnitsAhead);
             if (last_round_ && next_update_ == parts_.shard.layout().unit_count()) {
               parts_.optimizer.prefetch();
             }
           },
       .are_queued = [this](UnitId unit) { return unit < next_update_; }});
}

void Trainer::gather_parameters() {
  // Packed masters were written together with their parameters: no page is fetched for them.
  const bool are_written = parts_.optimizer.stores_params();
  if (!are_written) {
    parts_.optimizer.begin_sweep();
  }
  for (UnitId unit = 0; unit < parts_.shard.layout().unit_count(); ++unit) {
    if (!are_written) {
      parts_.optimizer.write_params(unit, parts_.params.local_shard(unit));
    }
    parts_.params.all_gather(unit, parts_.optimizer.update_stream());
  }
}

void Trainer::queue_updates_up_to(UnitId last) {
  const UnitId units = parts_.shard.layout().unit_count();
  for (; next_update_ <= last && next_update_ < units; ++next_update_) {
    parts_.optimizer.update(next_update_, update_, parts_.params.local_shard(next_update_));
    parts_.params.all_gather(next_update_, parts_.optimizer.update_stream());
  }
}

void Trainer::synchronize() {
  queue_updates_up_to(parts_.shard.layout().unit_count());
  parts_.optimizer.synchronize();
  parts_.communication.synchronize();
  parts_.compute.synchronize();
}

void Trainer::prepare_first_batches() {
  enter_phase("data");
  const Index targets = agree(parts_.comm, [this] {
    parts_.data.prefetch(position_.sequences);
    return parts_.data.prefetched_targets();
  });
  std::array<std::int64_t, 2> sums = {targets, parts_.data.prefetched_padding()};
  parts_.comm.sum(sums);
  targets_ = sums[0];
  padding_ = sums[1];
  prefetched_ = true;
}

DeviceBatch Trainer::copy_batch(const Batch& batch, Index set) {
  const TraceRange range({TraceCategory::data, "copy batch", {}}, parts_.compute);
  TrainingScratch& scratch = parts_.scratch;
  copy_async(batch.inputs, scratch.inputs(), parts_.compute);
  copy_async(batch.targets, scratch.targets(), parts_.compute);
  copy_async(batch.token_order, scratch.token_order(), parts_.compute);
  DeviceBatch copied = {scratch.inputs(), scratch.targets(), scratch.token_order()};
  if (batch.document_begins.data != nullptr) {
    const Index count = batch.document_begins.count();
    copied.documents = {.begins = scratch.document_begins(set).slice(0, count),
                        .positions = scratch.positions(set),
                        .host_begins = {data_as<std::int32_t>(batch.document_begins),
                                        static_cast<std::size_t>(count)}};
    copy_async(batch.document_begins, scratch.document_begins(set).slice(0, count), parts_.compute);
    copy_async(batch.positions, scratch.positions(set), parts_.compute);
  }
  return copied;
}

// Rounds first .. first + most - 1 of a step, in each of which a rank has one micro-batch or none.
class Trainer::Rounds final : public MicroBatchGroup {
 public:
  Rounds(Trainer& trainer, Index first, Index own, Index most)
      : MicroBatchGroup(own, most), trainer_(trainer), first_(first) {}
  DeviceBatch batch(Index i) override {
    return trainer_.copy_batch(trainer_.parts_.data.batch(first_ + i), i);
  }
  void begins_backward(Index i) override { trainer_.parts_.grads.begin_micro_step(first_ + i); }
  void has_losses(Index /*i*/) override {
    const TraceRange range({TraceCategory::compute, "loss sum", {}}, trainer_.parts_.compute);
    TrainingScratch& scratch = trainer_.parts_.scratch;
    trainer_.parts_.kernels.loss_sum({.losses = scratch.losses(), .words = scratch.loss_words()},
                                     trainer_.parts_.compute);
  }

 private:
  Trainer& trainer_;
  Index first_;
};

void Trainer::run_micro_steps() {
  const Index micro_batches = options_.global_batch / options_.micro_batch;
  const Index ranks = parts_.comm.world_size();
  const Index own = micro_batches_of(parts_.comm.rank(), micro_batches, ranks);
  // Of rank 0, which has most: units are acquired in the same order on every rank.
  const Index all = micro_batches_of(0, micro_batches, ranks);
  const Index together = std::min(options_.batched_forward, all);
  const bool updates = options_.update == UpdateMode::all;
  last_round_ = false;
  for (Index first = 0; first < all;) {
    // Backward passes one at a time: what the first group hides, the update, is over behind it.
    const bool is_group = together > 1 && (first == 0 || options_.batched_backward);
    const Index most = is_group ? std::min(together, all - first) : 1;
    Rounds rounds(*this, first, std::clamp<Index>(own - first, 0, most), most);
    first += most;
    if (!is_group) {
      last_round_ = updates && first == all;
      run_round(rounds);
      continue;
    }
    parts_.model.forward_together(rounds, gates(), parts_.compute);
    if (options_.batched_backward) {
      last_round_ = updates && first == all;
      parts_.model.backward_together(rounds, parts_.scratch.scale(), parts_.scratch.losses(),
                                     gates(), parts_.grads, parts_.compute);
      continue;
    }
    for (Index i = 0; i < most; ++i) {
      last_round_ = updates && first == all && i + 1 == most;
      run_backward(rounds, i);
    }
  }
}

// Forward, loss and backward have ranges of their own in a trace, unit by unit.
void Trainer::run_round(Rounds& round) {
  round.begins_backward(0);
  if (round.own() == 0) {
    const TraceRange range({TraceCategory::exposed, "idle", {}}, parts_.compute);
    parts_.model.idle_forward(gates(), parts_.compute);
    parts_.model.idle_backward(gates(), parts_.grads, parts_.compute);
    return;
  }
  parts_.model.forward_backward(round.batch(0), parts_.scratch.scale(), parts_.scratch.losses(),
                                gates(), parts_.grads, parts_.compute);
  round.has_losses(0);
}

// Micro-batch i of rounds whose forward passes are done.
void Trainer::run_backward(Rounds& rounds, Index i) {
  rounds.begins_backward(i);
  if (i >= rounds.own()) {
    const TraceRange range({TraceCategory::exposed, "idle", {}}, parts_.compute);
    parts_.model.idle_backward(gates(), parts_.grads, parts_.compute);
    return;
  }
  parts_.model.backward_of(i, rounds.batch(i), parts_.scratch.scale(), parts_.scratch.losses(),
                           gates(), parts_.grads, parts_.compute);
  rounds.has_losses(i);
}

// The step's sums to the host and over the ranks: the one place where the host waits. `start`: of
// the step, by host_seconds.
void Trainer::run_exchange(StepReport& report, double start,
                           const std::function<void(StepExchange&)>& contribute) {
  TrainingScratch& scratch = parts_.scratch;
  const TraceRange waiting({TraceCategory::exposed, "norm and exchange", {}}, parts_.compute);
  copy_async(parts_.grads.norm_words(), scratch.host_norm_words(), parts_.communication);
  norm_copied_.record(parts_.communication);
  copy_async(scratch.loss_words(), scratch.host_loss_words(), parts_.compute);
  const bool counts = is_counting(scratch.quantized());
  if (counts) {
    copy_async(scratch.quantized()->counts(), scratch.quantized()->host_counts(), parts_.compute);
  }
  loss_copied_.record(parts_.compute);

  exchange_.clear();
  {
    enter_phase("data");
    const TraceRange range({TraceCategory::data, "next targets", {}}, "host");
    try {
      exchange_.add_next_targets(parts_.data.prefetched_targets());
      exchange_.add_counter(kPadding, parts_.data.prefetched_padding());
    } catch (...) {  // this step is whole: all ranks hear of it, and the next one throws
      data_failure_ = failure_of(std::current_exception());
      exchange_.add_counter(kDataFailures, 1);
    }
  }
  {
    enter_phase("norm");
    const TraceRange range({TraceCategory::host, "norm", {}}, "host");
    norm_copied_.synchronize();
    loss_copied_.synchronize();
  }
  exchange_.add_grad_squares(words_of(scratch.host_norm_words()));
  exchange_.add_loss(words_of(scratch.host_loss_words()));
  if (counts) {
    const auto* counted = data_as<std::int64_t>(scratch.quantized()->host_counts());
    for (std::size_t i = 0; i < QuantizeCounts{}.size(); ++i) {
      exchange_.add_counter(kQuantized + i, counted[i]);
    }
  }
  report_waits(report);
  report.computing_seconds =
      host_seconds() - start - report.exposed_update_seconds - report.exposed_exchange_seconds;
  exchange_.set_times(
      {report.computing_seconds, report.exposed_update_seconds, report.exposed_exchange_seconds});
  if (contribute) {
    contribute(exchange_);
  }
  enter_phase("exchange");
  const TraceRange range({TraceCategory::exchange, "exchange", {}}, "host");
  exchange_.run();
}

StepReport Trainer::step(const std::function<void(StepExchange&)>& contribute,
                         const std::function<void(const StepExchange&)>& heard) {
  if (next_is_unreadable_) {
    settle(parts_.comm, data_failure_);
  }
  const double start = host_seconds();
  TrainingScratch& scratch = parts_.scratch;
  StepReport report;
  report.step = position_.step + 1;
  progress().step.store(report.step, std::memory_order_relaxed);
  const TraceRange whole({TraceCategory::host, "step", {}}, "host");
  {
    const TraceRange on_host({TraceCategory::data, "data", {}}, "host");
    const TraceRange range({TraceCategory::data, "data", {}}, parts_.compute);
    if (!prefetched_) {
      prepare_first_batches();
    }
    parts_.data.take();
    parts_.data.prefetch(position_.sequences + options_.global_batch);
  }
  report.targets = targets_;
  report.padding = padding_;
  report.lr = parts_.schedule.at(report.step);

  *data_as<float>(scratch.host_scale()) =
      targets_ == 0 ? 0.0F : static_cast<float>(1 / static_cast<double>(targets_));
  copy_async(scratch.host_scale(), scratch.scale(), parts_.compute);
  zero_async(scratch.loss_words(), parts_.compute);
  if (is_counting(scratch.quantized())) {
    zero_async(scratch.quantized()->counts(), parts_.compute);
  }
  parts_.grads.begin_step(options_.global_batch / options_.micro_batch);
  {
    const TraceRange range({TraceCategory::host, "forward and backward", {}}, "host");
    run_micro_steps();
  }
  run_exchange(report, start, contribute);
  report_paging(report);

  report.grad_norm = exchange_.grad_norm();
  report.loss = targets_ == 0 ? 0 : exchange_.loss_sum() / static_cast<double>(targets_);
  report.skipped = !exchange_.finite();
  report.nonfinite_losses = words_of(scratch.host_loss_words())[kFixedPointLimbs];
  report.stop = exchange_.stop_reason();
  if (is_counting(scratch.quantized())) {
    report.quantized.emplace();
    for (std::size_t i = 0; i < report.quantized->size(); ++i) {
      (*report.quantized)[i] = exchange_.counter(kQuantized + i);
    }
  }
  next_is_unreadable_ = exchange_.counter(kDataFailures) > 0;
  report.next_is_unreadable = next_is_unreadable_;
  targets_ = exchange_.next_targets();
  padding_ = exchange_.counter(kPadding);
  ++position_.step;
  position_.sequences += options_.global_batch;
  if (report.skipped) {
    ++position_.skipped;
  } else if (report.targets > 0 && options_.update == UpdateMode::all) {
    ++position_.updates;
    update_ = {position_.updates, report.lr, clip_factor(report.grad_norm, options_.clip_norm),
               parts_.schedule.matrices_at(report.step)};
    const TraceRange range({TraceCategory::exposed, "page in", {}}, parts_.compute);
    parts_.optimizer.begin_sweep();
    next_update_ = 0;
    swept_ = true;
  }
  if (heard) {
    heard(exchange_);
  }
  enter_phase("between steps");
  report.seconds = host_seconds() - start;
  return report;
}

void Trainer::report_paging(StepReport& report) {
  report.paging = parts_.optimizer.report();
  if (!std::exchange(swept_, false)) {
    report.paging.bytes_in = 0;
    report.paging.bytes_out = 0;
    report.paging.seconds = 0;
  }
}

// The host has waited for the step's work on both streams.
void Trainer::report_waits(StepReport& report) {
  report.exposed_update_seconds = parts_.params.take_exposed_seconds();
  if (parts_.base != nullptr) {
    report.exposed_update_seconds += parts_.base->take_exposed_seconds();
  }
  report.exposed_exchange_seconds = parts_.grads.slots().take_exposed_seconds();
  if (parts_.compute.device().kind == DeviceKind::cuda) {
    // The last exchanges run behind the last gradient.
    report.exposed_exchange_seconds += std::max(0.0, norm_copied_.seconds_since(loss_copied_));
  }
}

// Two take turns: one may be counted while the next is on its way.
TensorView Trainer::host_correct(Index micro_batch) {
  const TensorView both = parts_.scratch.host_correct();
  const Index tokens = both.shape[1];
  return both.slice(micro_batch % 2 * tokens, (micro_batch % 2 + 1) * tokens);
}

EvalReport Trainer::evaluate(Index micro_batches, const std::function<Batch(Index)>& batch_of,
                             const std::function<bool()>& continues) {
  enter_phase("evaluation");
  const TraceRange whole({TraceCategory::host, "evaluation", {}}, "host");
  TrainingScratch& scratch = parts_.scratch;
  // A rank without a micro-batch still takes part in the gathers of the last update.
  {
    const TraceRange range({TraceCategory::exposed, "update", {}}, parts_.compute);
    queue_updates_up_to(parts_.shard.layout().unit_count());
  }
  zero_async(scratch.loss_words(), parts_.compute);
  Index targets = 0;
  Index correct = 0;
  Index computed = 0;  // micro-batches of this rank
  std::optional<Failure> failure;
  for (Index first = 0; first < micro_batches; first += parts_.comm.world_size()) {
    if (continues && !continues()) {
      enter_phase("between steps");
      return {.loss = std::nullopt, .dropped = true};
    }
    enter_phase("evaluation");
    const Index number = first + parts_.comm.rank();
    std::optional<Batch> batch;
    if (number < micro_batches && !failure) {
      try {
        batch = batch_of(number);
      } catch (...) {  // the others hear of it in the exchange
        failure = failure_of(std::current_exception());
      }
    }
    if (!batch) {  // the last ones are fewer than the ranks; a rank that failed still takes part
      parts_.model.idle_evaluation(gates(), parts_.compute);
      continue;
    }
    targets += batch->target_count;
    const DeviceBatch copied = copy_batch(*batch);
    loss_copied_.record(parts_.compute);
    parts_.model.forward(copied, scratch.losses(), scratch.correct(), gates(), parts_.compute);
    parts_.kernels.loss_sum({.losses = scratch.losses(), .words = scratch.loss_words()},
                            parts_.compute);
    copy_async(scratch.correct(), host_correct(computed), parts_.compute);
    loss_copied_.synchronize();  // the batch's memory may be reused, and the one before is complete
    correct += computed == 0 ? 0 : count_ones(host_correct(computed - 1));
    ++computed;
  }
  copy_async(scratch.loss_words(), scratch.host_loss_words(), parts_.compute);
  loss_copied_.record(parts_.compute);
  loss_copied_.synchronize();
  correct += computed == 0 ? 0 : count_ones(host_correct(computed - 1));
  exchange_.clear();
  exchange_.add_loss(words_of(scratch.host_loss_words()));
  exchange_.add_next_targets(targets);
  exchange_.add_counter(kCorrect, correct);
  exchange_.add_counter(kDataFailures, failure ? 1 : 0);
  exchange_.run();
  if (exchange_.counter(kDataFailures) > 0) {
    settle(parts_.comm, failure);
  }
  EvalReport report;
  report.targets = exchange_.next_targets();
  report.correct = exchange_.counter(kCorrect);
  if (report.targets > 0) {
    report.loss = exchange_.loss_sum() / static_cast<double>(report.targets);
  }
  enter_phase("between steps");
  return report;
}

void Trainer::set_options(const TrainerOptions& options) {
  TESSERA_REQUIRE(options.micro_batch == options_.micro_batch &&
                      options.global_batch % options.micro_batch == 0 &&
                      options.batched_backward == options_.batched_backward,
                  "the same micro-batch, which divides the global batch, and the same kind of "
                  "groups");
  synchronize();
  options_ = options;
}

void Trainer::count_quantized(bool on) {
  if (parts_.scratch.quantized() != nullptr) {
    parts_.scratch.quantized()->set_counting(on);
  }
}

void Trainer::continue_from(const TrainingPosition& position) {
  TESSERA_REQUIRE(!prefetched_, "before the first step");
  position_ = position;
}

}  // namespace tessera
