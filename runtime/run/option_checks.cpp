#include "runtime/run/option_checks.h"

#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/quantity.h"

namespace tessera {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw ConfigError(message, TESSERA_HERE);
}

// Throws where a product of options would not fit; `limit` is the largest that does.
void check_product(std::initializer_list<std::pair<const char*, Index>> factors, Index limit,
                   const char* what) {
  Index left = limit;
  std::vector<std::string> names;
  for (const auto& [name, value] : factors) {
    names.push_back(fmt::format("{} {}", name, value));
    left /= value;
  }
  if (left == 0) {
    refuse(fmt::format("{}: more than {} {}", fmt::join(names, " times "), limit, what));
  }
}

void check_products(const RunConfig& c) {
  constexpr Index kMostStepTokens = Index{1} << 40;
  constexpr Index kMostRunTokens = Index{1} << 62;
  check_product({{"--micro-batch", c.batch.micro_batch}, {"--seq", c.batch.seq}}, kMostTokens,
                "tokens of one micro-batch; give a smaller --micro-batch");
  check_product({{"--global-batch", c.batch.global_batch}, {"--seq", c.batch.seq}}, kMostStepTokens,
                "tokens of one step; give a smaller --global-batch");
  check_product(
      {{"--steps", c.steps}, {"--global-batch", c.batch.global_batch}, {"--seq", c.batch.seq}},
      kMostRunTokens, "tokens of the whole run; give fewer --steps");
}

}  // namespace

void check_together(const RunConfig& c) {
  if (!c.compute.tune_gemm.empty() && c.compute.device == DeviceKind::cpu) {
    refuse("--tune-gemm chooses among cuBLAS's algorithms: it needs --device cuda");
  }
  if (c.batch.global_batch % c.batch.micro_batch != 0) {
    refuse(fmt::format("--global-batch {} is no multiple of --micro-batch {}", c.batch.global_batch,
                       c.batch.micro_batch));
  }
  check_products(c);
  if (c.optimizer.rule.adamw.beta1 >= 1 || c.optimizer.rule.adamw.beta2 >= 1) {
    refuse("--beta1 and --beta2 must be below 1");
  }
  if (c.optimizer.rule.sgd.momentum >= 1) {
    refuse("--momentum must be below 1");
  }
  if (c.loss.label_smoothing >= 1) {
    refuse("--label-smoothing 1 leaves nothing of the targets: give a share below 1");
  }
  if (c.compute.device == DeviceKind::cpu && c.compute.precision == DType::bf16) {
    refuse("--precision bf16 needs --device cuda: the CPU computes in f32");
  }
  if (c.parallel.reduce == ReduceMode::native && c.parallel.sum_group > 1) {
    refuse("--sum-group needs --reduce ordered: the library's reduction has its own order");
  }
  if (c.parallel.zero == ZeroStage::one &&
      (c.parallel.sum_group > 1 || c.parallel.reduce == ReduceMode::native)) {
    refuse(
        "--zero 1 adds each rank's micro-batches locally: --sum-group and --reduce native go with "
        "--zero 2 only");
  }
  if (c.sample.every > 0 && c.sample.prompt.empty()) {
    refuse("--sample-every needs --sample-prompt: the text that samples begin with");
  }
  if (c.sample.every == 0 && !c.sample.prompt.empty()) {
    refuse("--sample-prompt needs --sample-every: the steps between samples");
  }
  if (c.parallel.zero == ZeroStage::one && c.memory.grads == GradPlacement::host) {
    refuse(
        "--grad-offload goes with --zero 2 only: --zero 1 sums the whole gradient on the device");
  }
}

void check_run(const RunConfig& c) {
  if (c.plan.json) {
    refuse("--json belongs to --plan");
  }
  if (c.data.files.empty()) {
    refuse("--data is missing: give one or more token files (make them with tokenize)");
  }
  if (c.out.empty()) {
    refuse("--out is missing: give the folder for metrics and checkpoints of this run");
  }
  if (c.eval.file.empty() && c.eval.every > 0) {
    refuse("--eval-every needs --eval-data");
  }
  if (c.monitor.trace && c.monitor.trace->first > c.steps) {
    refuse(fmt::format("--trace begins at step {} and --steps is {}: trace steps of this run",
                       c.monitor.trace->first, c.steps));
  }
}

std::vector<std::string> idle_options(const RunConfig& c, int ranks) {
  std::vector<std::string> idle;
  const Index of_rank = micro_batches_of(0, c.batch.global_batch / c.batch.micro_batch, ranks);
  if (c.batch.breadth_first > of_rank) {
    idle.push_back(fmt::format(
        "--breadth-first {}: a rank's micro-batches of a step are {}, and no more run side by side",
        c.batch.breadth_first, of_rank));
  }
  if (c.schedule.warmup && *c.schedule.warmup > c.steps) {
    idle.push_back(fmt::format(
        "--warmup {} goes on after --steps {}: the learning rate does not reach --lr {}",
        *c.schedule.warmup, c.steps, c.schedule.lr));
  }
  if (c.schedule.decay_steps && c.schedule.kind != ScheduleKind::wsd) {
    idle.push_back(
        fmt::format("--decay-steps {} belongs to --schedule wsd and does nothing in another",
                    *c.schedule.decay_steps));
  }
  if (!c.checkpoint.save_at_end &&
      (c.checkpoint.save_every == 0 || c.checkpoint.save_every > c.steps)) {
    idle.emplace_back("--save-at-end false, and no step of this run is one of --save-every: "
                      "nothing will be saved");
  }
  const auto never = [&](const char* option, Index every, const char* what) {
    if (every > c.steps) {
      idle.push_back(fmt::format("{} {} is beyond --steps {}: {}", option, every, c.steps, what));
    }
  };
  never("--eval-every", c.eval.every, "one evaluation, at the end");
  never("--sample-every", c.sample.every, "no sample is written");
  return idle;
}

void require_readable(std::string_view option, const std::filesystem::path& path,
                      std::string_view wanted) {
  if (::access(path.c_str(), R_OK) == 0) {
    return;
  }
  const int code = errno;
  if (code == ENOENT || code == ENOTDIR) {
    throw ConfigError(
        fmt::format("{} {}: {}; give {}", option, path.string(), std::strerror(code), wanted),
        TESSERA_HERE);
  }
  throw FormatError(
      fmt::format("{}: cannot read {}: {}", option, path.string(), std::strerror(code)),
      TESSERA_HERE);
}

}  // namespace tessera
