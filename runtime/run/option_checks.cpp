#include "runtime/run/option_checks.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hub_name.h"
#include "kernels/base/quantity.h"
#include "runtime/run/option_table.h"
#include "runtime/run/run_length.h"

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
  if (c.steps > 0) {
    check_product(
        {{"--steps", c.steps}, {"--global-batch", c.batch.global_batch}, {"--seq", c.batch.seq}},
        kMostRunTokens, "tokens of the whole run; give fewer --steps");
  }
}

// "--steps 20", "the 20 steps of --epochs 2".
std::string steps_text(const RunConfig& c) {
  const std::string option = length_text(c);
  return c.length.epochs || c.length.tokens ? fmt::format("the {} of {}", counted(c.steps, "step"),
                                                          option.substr(0, option.find(" (")))
                                            : option;
}

// Whether a step that is saved on the way or at the end is one that --keep-every keeps permanently.
bool keeps_any_step(const RunConfig& c) {
  const Index every = c.checkpoint.keep_every;
  const Index save_every = c.checkpoint.save_every;
  // the least common multiple is a step of the run, in numbers that do not overflow
  const bool on_the_way =
      save_every > 0 && every / std::gcd(save_every, every) <= c.steps / save_every;
  return on_the_way || (c.checkpoint.save_at_end && c.steps % every == 0);
}

// A sentence for each option that was given and needs what was not.
std::vector<std::string> useless_options(const RunConfig& c) {
  std::vector<std::string> sentences;
  for (const OptionRow& row : option_table()) {
    if (!row.need.is_strict && !is_used(row, c) && differs_from_default(row, c)) {
      sentences.push_back(fmt::format("--{} does nothing here: it {}", row.name, row.need.text));
    }
  }
  return sentences;
}

// The same of those that depend on the steps of the run.
void add_idle_by_steps(const RunConfig& c, std::vector<std::string>& idle) {
  const std::int64_t span = c.schedule.span.value_or(c.steps);
  if (c.schedule.warmup && *c.schedule.warmup > std::min(span, c.steps)) {
    idle.push_back(fmt::format(
        "--warmup {} continues after {}: the learning rate does not reach --lr {}",
        *c.schedule.warmup,
        span < c.steps ? fmt::format("--schedule-steps {}", span) : steps_text(c), c.schedule.lr));
  }
  if (span < c.steps && c.schedule.kind != ScheduleKind::constant) {
    idle.push_back(fmt::format("--schedule-steps {} ends before {}: the steps behind it have the "
                               "last learning rate, {:.3g}",
                               span, steps_text(c), c.schedule.lr * c.schedule.min_ratio));
  }
  if (c.schedule.kind == ScheduleKind::wsd && c.schedule.decay_steps.value_or(0) > span) {
    idle.push_back(fmt::format("--decay-steps {} is more than the {} steps of the schedule: the "
                               "learning rate decays from the first step on",
                               *c.schedule.decay_steps, span));
  }
  if (c.checkpoint.keep_every > 0 && !keeps_any_step(c)) {
    idle.push_back(fmt::format("--keep-every {}: no step that this run saves is a multiple of it",
                               c.checkpoint.keep_every));
  }
  if (!c.checkpoint.save_at_end &&
      (c.checkpoint.save_every == 0 || c.checkpoint.save_every > c.steps)) {
    idle.emplace_back("--save-at-end false, and no step of this run is one of --save-every: "
                      "nothing will be saved");
  }
  const auto never = [&](const char* option, Index every, const char* what) {
    if (every > c.steps) {
      idle.push_back(fmt::format("{} {} is beyond {}: {}", option, every, steps_text(c), what));
    }
  };
  never("--eval-every", c.eval.every, "one evaluation, at the end");
  never("--save-local-every", c.checkpoint.local_every, "no local save");
  never("--export-every", c.model_export.every, "one export, after the last step");
  never("--sample-every", c.sample.every, "no sample is written");
}

void refuse_control_characters(std::string_view option, const std::string& path) {
  if (std::any_of(path.begin(), path.end(),
                  [](unsigned char byte) { return std::iscntrl(byte) != 0; })) {
    refuse(fmt::format(
        "{} holds a control character, such as the end of a line: give a name without", option));
  }
}

void check_eval_files(const std::vector<EvalFile>& files) {
  for (std::size_t i = 0; i < files.size() && files.size() > 1; ++i) {
    if (files[i].name.empty()) {
      refuse(fmt::format("--eval-data {}: of {} files each needs a name; write NAME={}",
                         files[i].path, files.size(), files[i].path));
    }
    for (std::size_t k = 0; k < i; ++k) {
      if (files[k].name == files[i].name) {
        refuse(fmt::format("--eval-data gives the name {} to {} and to {}: give each its own",
                           files[i].name, files[k].path, files[i].path));
      }
    }
  }
}

void check_keep_best(const RunConfig& c) {
  const std::string& best = c.checkpoint.keep_best;
  std::vector<std::string> names;
  names.reserve(c.eval.files.size());
  for (const EvalFile& file : c.eval.files) {
    names.push_back(set_label(file.name));
  }
  if (!best.empty() && std::find(names.begin(), names.end(), best) == names.end()) {
    refuse(
        fmt::format("--keep-best {}: there is no evaluation set of this name; --eval-data has {}",
                    best, fmt::join(names, ", ")));
  }
  if (!best.empty() && !c.checkpoint.save_at_end && c.checkpoint.save_every == 0) {
    refuse(fmt::format("--keep-best {} needs saves: give --save-every, or leave out --save-at-end "
                       "false",
                       best));
  }
}

void check_adapters(const RunConfig& c) {
  if (!c.adapters.rank && c.adapters.init_folder.empty()) {
    return;
  }
  const char* option = c.adapters.rank ? "--lora" : "--init-adapter";
  if (precision_choice(c) == Precision::fp8) {
    refuse(fmt::format("{} does not go with --precision fp8: give another precision", option));
  }
  if (c.optimizer.rule.kind == OptimizerKind::muon) {
    refuse(fmt::format("{} does not go with --optimizer muon, which is for whole matrices: give "
                       "adamw or sgd",
                       option));
  }
  if (c.adapters.base == BaseStorage::params &&
      precision_of(precision_choice(c)).param_values != DType::bf16) {
    refuse("--base-dtype bf16 needs parameters of bf16: leave it out, and the base is in f32 as "
           "--precision has it, or give --precision bf16-params");
  }
  if (!c.model_export.folder.empty() && c.adapters.random_base) {
    refuse("--export does not go with --base-random: adapters of a random base are of no use");
  }
  if (!c.model_export.folder.empty() && c.adapters.trains_embeddings) {
    refuse("--export of adapters writes PEFT's folder, which keeps embeddings elsewhere: leave out "
           "--export or --train-embeddings; `convert merge` makes a whole model of a checkpoint");
  }
}

}  // namespace

void check_together(const RunConfig& c) {
  if (c.batch.global_batch % c.batch.micro_batch != 0) {
    refuse(fmt::format("--global-batch {} is not a multiple of --micro-batch {}",
                       c.batch.global_batch, c.batch.micro_batch));
  }
  check_products(c);
  check_eval_files(c.eval.files);
  check_keep_best(c);
  check_adapters(c);
  if (c.optimizer.rule.adamw.beta1 >= 1 || c.optimizer.rule.adamw.beta2 >= 1) {
    refuse("--beta1 and --beta2 must be below 1");
  }
  if (c.optimizer.rule.sgd.momentum >= 1) {
    refuse("--momentum must be below 1");
  }
  if (c.optimizer.rule.muon.momentum >= 1) {
    refuse("--muon-momentum must be below 1");
  }
  if (c.loss.label_smoothing >= 1) {
    refuse("--label-smoothing 1 leaves nothing of the targets: give a share below 1");
  }
  if (c.compute.device == DeviceKind::cpu && c.compute.precision == Precision::bf16) {
    refuse("--precision bf16 needs --device cuda: the CPU computes in f32; bf16-params rounds the "
           "parameters alone");
  }
  if (c.compute.device == DeviceKind::cuda && c.compute.precision == Precision::bf16_params) {
    refuse("--precision bf16-params is for --device cpu: on cuda give bf16");
  }
  if (c.parallel.reduce == ReduceMode::native && c.parallel.reduce_group > 1) {
    refuse("--reduce-group needs --reduce ordered: the library's reduction has its own order");
  }
  if (c.parallel.zero == ZeroStage::one &&
      (c.parallel.reduce_group > 1 || c.parallel.reduce == ReduceMode::native)) {
    refuse("--zero 1 adds each rank's micro-batches locally: --reduce-group and --reduce native do "
           "not go with it");
  }
  if (c.plan.fit && c.plan.scale) {
    refuse("--fit and --scale print two tables: give one of them");
  }
  if (c.sample.every > 0 && c.sample.prompts.empty()) {
    refuse("--sample-every needs --sample-prompt: the text that samples begin with");
  }
  if (c.sample.prompts.size() > kMostSamplePrompts) {
    refuse(
        fmt::format("--sample-prompt is given {} times: at most {} samples are written at a time",
                    c.sample.prompts.size(), kMostSamplePrompts));
  }
  if (!c.checkpoint.local_folder.empty() && c.checkpoint.local_every == 0) {
    refuse(fmt::format("--save-local {} needs --save-local-every: the steps between saves there",
                       c.checkpoint.local_folder));
  }
  refuse_control_characters("--save-local", c.checkpoint.local_folder);
  if (c.model_export.every > 0 &&
      (c.checkpoint.save_every == 0 || c.model_export.every % c.checkpoint.save_every != 0)) {
    refuse(
        fmt::format("--export-every {} is not a multiple of --save-every {}: an export goes with "
                    "the save of its step",
                    c.model_export.every, c.checkpoint.save_every));
  }
  if (c.parallel.zero == ZeroStage::one && c.memory.grad_offload.kind != OffloadKind::none) {
    refuse("--grad-offload does not go with --zero 1, which sums the whole gradient on the device");
  }
}

void check_run(const RunConfig& c) {
  if (c.data.files.empty()) {
    refuse("--data is missing: give one or more token files (make them with tokenize)");
  }
  if (c.out.empty()) {
    refuse("--out is missing: give the folder for metrics and checkpoints of this run");
  }
  refuse_control_characters("--out", c.out);
  require_room_for_folder(c.out, fmt::format("--out {}", c.out));
  check_steps(c);
}

void check_steps(const RunConfig& c) {
  check_products(c);
  if (c.monitor.trace && c.steps > 0 && c.monitor.trace->first > c.steps) {
    refuse(fmt::format("--trace begins at step {}, beyond {}: trace steps of this run",
                       c.monitor.trace->first, steps_text(c)));
  }
}

std::vector<std::string> idle_options(const RunConfig& c, int ranks) {
  std::vector<std::string> idle = useless_options(c);
  const Index of_rank = micro_batches_of(0, c.batch.global_batch / c.batch.micro_batch, ranks);
  if (c.parallel.zero == ZeroStage::three && ranks == 1) {
    idle.emplace_back("--zero 3: one rank stores all parameters, as with --zero 2");
  }
  if (c.batch.batched_forward > of_rank) {
    idle.push_back(fmt::format("--batched-forward {}: a rank's micro-batches of a step are {}, and "
                               "no more run side by side",
                               c.batch.batched_forward, of_rank));
  }
  const Index micro_batches = c.batch.global_batch / c.batch.micro_batch;
  if (c.parallel.reduce_group > micro_batches) {
    idle.push_back(fmt::format(
        "--reduce-group {}: the micro-batches of a step are {}, and all of them are one group",
        c.parallel.reduce_group, micro_batches));
  }
  if (c.steps > 0) {
    add_idle_by_steps(c, idle);
  }
  return idle;
}

void require_readable(std::string_view option, const std::filesystem::path& path,
                      std::string_view wanted, PathKind kind) {
  if (::access(path.c_str(), R_OK) == 0) {
    std::error_code ignored;
    const bool is_folder = std::filesystem::is_directory(path, ignored);
    if (kind != PathKind::any && is_folder != (kind == PathKind::folder)) {
      throw ConfigError(fmt::format("{} {}: it is {}; give {}", option, path.string(),
                                    is_folder ? "a folder" : "a file", wanted),
                        TESSERA_HERE);
    }
    return;
  }
  const int code = errno;
  if (code == ENOENT || code == ENOTDIR) {
    throw ConfigError(fmt::format("{} {}: {}; give {}{}", option, path.string(),
                                  std::strerror(code), wanted, hub_hint(path)),
                      TESSERA_HERE);
  }
  throw FormatError(
      fmt::format("{}: cannot read {}: {}", option, path.string(), std::strerror(code)),
      TESSERA_HERE);
}

}  // namespace tessera
