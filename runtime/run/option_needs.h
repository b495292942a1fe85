// What options need of the rest of the command line, for option_table.cpp. What is there for a run's
// own sake, or permits something, needs nothing.
#pragma once

#include "runtime/run/option_table.h"

namespace tessera {

inline constexpr OptionNeed kAlways;
inline constexpr const char* kOneLength =
    "cannot be given with another length: of --steps, --epochs and --tokens give one";
inline constexpr OptionNeed kNoOtherLength = {
    [](const RunConfig& c) { return !c.length.epochs && !c.length.tokens; }, kOneLength, true};
inline constexpr OptionNeed kNoTokens = {[](const RunConfig& c) { return !c.length.tokens; },
                                         kOneLength, true};
inline constexpr OptionNeed kNoEpochs = {[](const RunConfig& c) { return !c.length.epochs; },
                                         kOneLength, true};
inline constexpr OptionNeed kAdamW = {
    [](const RunConfig& c) { return c.optimizer.rule.kind == OptimizerKind::adamw; },
    "belongs to --optimizer adamw, which is not this run's: leave it out", true};
inline constexpr OptionNeed kAdamWPart = {
    [](const RunConfig& c) { return c.optimizer.rule.kind != OptimizerKind::sgd; },
    "belongs to --optimizer adamw or muon, and this run has neither: leave it out", true};
inline constexpr OptionNeed kMuon = {
    [](const RunConfig& c) { return c.optimizer.rule.kind == OptimizerKind::muon; },
    "belongs to --optimizer muon, which is not this run's: leave it out", true};
inline constexpr OptionNeed kSgd = {
    [](const RunConfig& c) { return c.optimizer.rule.kind == OptimizerKind::sgd; },
    "belongs to --optimizer sgd, which is not this run's: leave it out", true};
inline constexpr OptionNeed kWsd = {
    [](const RunConfig& c) { return c.schedule.kind == ScheduleKind::wsd; },
    "needs --schedule wsd"};
inline constexpr OptionNeed kDecay = {
    [](const RunConfig& c) { return c.schedule.kind != ScheduleKind::constant; },
    "needs a --schedule that decays: cosine or wsd"};
[[nodiscard]] constexpr bool is_cuda(const RunConfig& c) {
  return c.compute.device == DeviceKind::cuda;
}
[[nodiscard]] inline bool is_cuda_bf16(const RunConfig& c) {
  return is_cuda(c) && compute_dtype(c) == DType::bf16;
}
inline constexpr OptionNeed kCuda = {is_cuda, "needs --device cuda"};
inline constexpr OptionNeed kTuning = {
    is_cuda, "chooses among cuBLAS's algorithms: it needs --device cuda", true};
inline constexpr OptionNeed kCudaBf16 = {is_cuda_bf16,
                                         "needs --device cuda and --precision bf16 or fp8"};
inline constexpr OptionNeed kFp8 = {
    [](const RunConfig& c) { return precision_choice(c) == Precision::fp8; },
    "needs --precision fp8", true};
inline constexpr OptionNeed kCudnn = {
    [](const RunConfig& c) {
      return is_cuda_bf16(c) && c.compute.attention == AttentionMethod::library;
    },
    "needs --attention cudnn, on --device cuda in --precision bf16 or fp8"};
inline constexpr OptionNeed kRecomputedBlocks = {
    [](const RunConfig& c) {
      return !c.memory.recompute || c.memory.recompute->has(Recompute::block);
    },
    "needs --recompute block, in some layers or all, or auto: the backward pass of other levels "
    "takes more than a block's input",
    true};
inline constexpr OptionNeed kBatched = {
    [](const RunConfig& c) { return c.batch.batched_forward > 1; },
    "needs --batched-forward: the micro-batches that pass side by side", true};
inline constexpr OptionNeed kEval = {[](const RunConfig& c) { return !c.eval.files.empty(); },
                                     "needs --eval-data"};
inline constexpr OptionNeed kEvalStrict = {
    [](const RunConfig& c) { return !c.eval.files.empty(); },
    "needs --eval-data: the evaluation set whose loss says which checkpoint is the best", true};
inline constexpr OptionNeed kEvalEvery = {
    [](const RunConfig& c) { return c.eval.every == 0 || c.plan.print || !c.eval.files.empty(); },
    "needs --eval-data", true};
inline constexpr OptionNeed kSample = {[](const RunConfig& c) { return c.sample.every > 0; },
                                       "needs --sample-every"};
inline constexpr OptionNeed kSamplePrompt = {[](const RunConfig& c) { return c.sample.every > 0; },
                                             "needs --sample-every: the steps between samples",
                                             true};
inline constexpr OptionNeed kExport = {
    [](const RunConfig& c) { return !c.model_export.folder.empty(); }, "needs --export", true};
inline constexpr OptionNeed kLocalSaves = {
    [](const RunConfig& c) { return !c.checkpoint.local_folder.empty(); },
    "needs --save-local: the folder on each node's own disk", true};
[[nodiscard]] constexpr bool is_plan(const RunConfig& c) {
  return c.plan.print;
}
inline constexpr OptionNeed kPlan = {is_plan, "belongs to --plan"};
inline constexpr OptionNeed kJson = {is_plan, "belongs to --plan", true};
inline constexpr OptionNeed kPlanOrCuda = {
    [](const RunConfig& c) { return is_plan(c) || is_cuda(c); },
    "belongs to --plan, or, in a run, to --device cuda"};
inline constexpr OptionNeed kNodes = {
    [](const RunConfig& c) { return c.plan.print || c.parallel.reduce_group > 1; },
    "belongs to --plan, or, in a run, to --reduce-group"};

}  // namespace tessera
