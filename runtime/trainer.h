// One training step, and nothing else: no option parsing, no files, no printing.
#pragma once

#include "collectives/communicator.h"
#include "runtime/data/data_loader.h"
#include "optim/grad_workspace.h"
#include "optim/paged_adamw.h"
#include "optim/param_gather.h"

namespace tessera {

class LrSchedule;
class Transformer;

struct TrainerOptions {
  int micro_steps = 1;     // batches whose gradients are summed before an update
  double clip_norm = 1.0;  // L2 norm of the global gradient; 0 turns clipping off
};

/// What a step did. Equal on every rank.
struct StepReport {
  std::int64_t step = 0;  // 1 at the first
  double loss = 0;        // nats per target, mean over the global batch
  double grad_norm = 0;   // before clipping
  double lr = 0;
  Index targets = 0;     // over the global batch
  bool skipped = false;  // the gradient was not finite: no parameter changed
  double seconds = 0;
};

/// What a trainer works with. The job makes the parts, in this order; all outlive the trainer.
struct TrainerParts {
  Communicator& comm;
  Transformer& model;
  DataLoader& data;
  ShardState& shard;
  ParamGather& params;
  GradWorkspace& grads;
  PagedAdamW& optimizer;
  const LrSchedule& schedule;
  Stream& compute;
};

class Trainer {
 public:
  Trainer(const TrainerOptions& options, const TrainerParts& parts);

  /// One optimizer step over micro_steps batches. Collective.
  StepReport step();

  /// Mean loss over `batches` batches of `data`, without gradients. Collective.
  [[nodiscard]] double evaluate(DataLoader& data, int batches);

  /// Step counter, data position, shard. Loading then stepping gives the same bits on the CPU as
  /// never having stopped.
  void save(StateWriter& out) const;
  void load(StateReader& in);

 private:
  TrainerOptions options_;
  TrainerParts parts_;
  std::int64_t step_ = 0;
};

}  // namespace tessera
