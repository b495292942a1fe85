#include "runtime/run/options.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <sstream>

#include <boost/program_options.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/input_file.h"
#include "kernels/base/quantity.h"
#include "runtime/run/command_words.h"
#include "runtime/run/config_file.h"

namespace tessera {
namespace {

namespace po = boost::program_options;

// What rates and factors go up to; beyond it f32 arithmetic has no use for them.
constexpr RealRange kRate = {0, 1e18};
constexpr RealRange kPart = {0, 1};
constexpr RealRange kNorm = {0, 1e30};
constexpr RealRange kHotness = {0, 1000};
constexpr RealRange kLatency = {0, 1e3};
constexpr CountRange kSteps = {1, kMostSteps};
constexpr CountRange kStepsOrNone = {0, kMostSteps};
// Each set of activations is a row of the memory plan; more would fill memory by themselves.
constexpr CountRange kSideBySide = {1, 4096};
constexpr CountRange kKept = {1, 1'000'000};
constexpr SizeRange kBytes = {0, kMostBytes};
constexpr SizeRange kSomeBytes = {1, kMostBytes};

// Shapes: the model, the data, the arithmetic: part of the effective configuration. Session: where
// output goes and how the job behaves. Both must be the same on every rank: they decide results, or
// which collectives there are and when, or they are rank 0's alone, which would ignore another
// rank's. Local: each rank obeys its own value, which changes neither results nor the order of
// collectives; give the reason beside it.
enum class Role : std::uint8_t { shapes, session, local };
enum class Form : std::uint8_t { value, flag, list };

// How the text of an option becomes a value of TrainOptions.
struct Setting {
  std::function<void(TrainOptions&, const std::string& text, const std::string& name)> set;
  std::function<bool(const TrainOptions&, const TrainOptions&)> is_equal;
  std::string range;  // of a number, for help
};

struct OptionSpec {
  const char* group;
  const char* name;
  const char* argument;
  const char* standard;  // the default, as text
  const char* help;
  Role role;
  Form form;
  Setting setting;
};

template <typename T>
struct Word {
  const char* text;
  T value;
};

// `access` gives the field of options, constant or not; `parse` makes its value of text and name.
template <typename Access, typename Parse>
Setting setting_of(const Access& access, const Parse& parse, const std::string& range = {}) {
  return {.set = [=](TrainOptions& o, const std::string& text,
                     const std::string& name) { access(o) = parse(text, name); },
          .is_equal = [=](const TrainOptions& a,
                          const TrainOptions& b) { return access(a) == access(b); },
          .range = range};
}

template <typename Field>
auto field_access(Field TrainOptions::*field) {
  return [field](auto& options) -> auto& {
    return options.*field;
  };
}

template <typename Field, typename Parse>
Setting parsed_into(Field TrainOptions::*field, const Parse& parse, std::string range = {}) {
  return setting_of(field_access(field), parse, std::move(range));
}

// Of a parser for what is neither this word nor has its value.
template <typename T, typename Parse>
auto or_word(const char* word, const T& value, const Parse& parse) {
  return [=](const std::string& text, const std::string& name) -> T {
    return text == word ? value : T(parse(text, name));
  };
}

template <typename T>
auto words(std::initializer_list<Word<T>> list) {
  return [all = std::vector<Word<T>>(list)](const std::string& text, const std::string& name) -> T {
    std::vector<std::string> names;
    for (const Word<T>& word : all) {
      if (text == word.text) {
        return word.value;
      }
      names.emplace_back(word.text);
    }
    throw ConfigError(fmt::format("{} '{}': choose {}", name, text, fmt::join(names, ", ")),
                      TESSERA_HERE);
  };
}

auto count_in(CountRange range) {
  return [range](const std::string& text, const std::string& name) {
    return parse_count(text, range, name);
  };
}

auto bytes_in(SizeRange range) {
  return [range](const std::string& text, const std::string& name) {
    return parse_bytes(text, range, name);
  };
}

auto real_in(RealRange range) {
  return [range](const std::string& text, const std::string& name) {
    return parse_real(text, range, name);
  };
}

template <typename Field>
Setting count_into(Field TrainOptions::*field, CountRange range) {
  return parsed_into(
      field,
      [range](const std::string& text, const std::string& name) {
        return static_cast<Field>(parse_count(text, range, name));
      },
      range_text(range));
}

Setting auto_count_into(std::optional<std::int64_t> TrainOptions::*field, CountRange range) {
  return parsed_into(field, or_word("auto", std::optional<std::int64_t>(), count_in(range)),
                     range_text(range));
}

Setting real_into(double TrainOptions::*field, RealRange range) {
  return parsed_into(field, real_in(range), range_text(range));
}

Setting adamw_into(double AdamWOptions::*field, RealRange range) {
  return setting_of(
      [field](auto& options) -> auto& { return options.optimizer.adamw.*field; }, real_in(range),
      range_text(range));
}

Setting bytes_into(std::size_t TrainOptions::*field, SizeRange range) {
  return parsed_into(field, bytes_in(range), range_text(range));
}

Setting text_into(std::string TrainOptions::*field) {
  return parsed_into(field, [](const std::string& text, const std::string&) { return text; });
}

Setting flag_into(bool TrainOptions::*field) {
  return parsed_into(field, [](const std::string& text, const std::string& name) {
    return parse_switch(text, name);
  });
}

template <typename T>
Setting choice_into(T TrainOptions::*field, std::initializer_list<Word<T>> list) {
  return parsed_into(field, words(list));
}

// A switch that chooses between two values.
template <typename T>
Setting flag_choice_into(T TrainOptions::*field, T on, T off) {
  return parsed_into(field, [=](const std::string& text, const std::string& name) {
    return parse_switch(text, name) ? on : off;
  });
}

ResidentBytes parse_resident(const std::string& text, const std::string& name) {
  if (text == "auto") {
    return {ResidentKind::automatic, 0};
  }
  if (text == "all") {
    return {ResidentKind::all, 0};
  }
  if (text == "none") {
    return {ResidentKind::none, 0};
  }
  if (text == "0") {
    throw ConfigError(name + " 0 could mean two things: write none (page everything) or all (page "
                             "nothing)",
                      TESSERA_HERE);
  }
  return {ResidentKind::bytes, parse_bytes(text, kSomeBytes, name)};
}

OptimizerKind parse_optimizer(const std::string& text, const std::string& name) {
  const std::optional<OptimizerKind> kind = find_optimizer(text);
  if (!kind) {
    throw ConfigError(fmt::format("{} '{}': choose {}", name, text, optimizer_names()),
                      TESSERA_HERE);
  }
  return *kind;
}

// The optimizer whose option it is; none: every one's.
std::optional<OptimizerKind> optimizer_of(std::string_view option) {
  if (option == "beta1" || option == "beta2" || option == "eps") {
    return OptimizerKind::adamw;
  }
  return option == "momentum" ? std::optional(OptimizerKind::sgd) : std::nullopt;
}

std::optional<StepRange> parse_steps(const std::string& text, const std::string& name) {
  if (text.empty()) {
    return std::nullopt;
  }
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) {
    throw ConfigError(
        fmt::format("{} {}: give the first and the last step, as in 10:12", name, text),
        TESSERA_HERE);
  }
  const StepRange steps = {parse_count(text.substr(0, colon), kSteps, name),
                           parse_count(text.substr(colon + 1), kSteps, name)};
  if (steps.first > steps.last) {
    throw ConfigError(fmt::format("{} {}: the first step is behind the last", name, text),
                      TESSERA_HERE);
  }
  return steps;
}

constexpr const char* kModelGroup = "Model and data";
constexpr const char* kLearningGroup = "Learning";
constexpr const char* kMachineGroup = "Ranks, device and memory";
constexpr const char* kEvalGroup = "Evaluation and output";
constexpr const char* kSaveGroup = "Checkpoints";
constexpr const char* kPlanGroup = "Memory plan";

const std::vector<OptionSpec>& specs() {
  using O = TrainOptions;
  static const std::vector<OptionSpec> table = {
      {kModelGroup, "model", "PRESET|config.json", "auto",
       "model preset, or a Hugging Face config.json; tiny and small take their vocabulary from the "
       "data; auto: the model of --init, else tiny",
       Role::shapes, Form::value, text_into(&O::model)},
      {kModelGroup,
       "data",
       "FILE[:WEIGHT]...",
       "",
       "token files of tokenize, with weights to mix them",
       Role::shapes,
       Form::list,
       {.set = [](O& o, const std::string& text, const std::string&) { o.data.push_back(text); },
        .is_equal = [](const O& a, const O& b) { return a.data == b.data; },
        .range = {}}},
      {kModelGroup, "seq", "TOKENS", "512", "tokens of one sequence", Role::shapes, Form::value,
       count_into(&O::seq, {1, kMostTokens})},
      {kModelGroup, "micro-batch", "SEQUENCES", "4",
       "sequences that go through the model at once on one rank; part of what fixes the bits",
       Role::shapes, Form::value, count_into(&O::micro_batch, {1, kMostSequences})},
      {kModelGroup, "global-batch", "SEQUENCES", "16",
       "sequences of one step over all ranks, a multiple of --micro-batch", Role::shapes,
       Form::value, count_into(&O::global_batch, {1, kMostSequences})},
      {kModelGroup, "seed", "N", "0", "seed of weights and data order", Role::shapes, Form::value,
       count_into(&O::seed, {0, kMostSeed})},
      {kModelGroup, "init", "FOLDER", "",
       "start from these weights with fresh moments: a run, a step, or a Hugging Face folder",
       Role::shapes, Form::value, text_into(&O::init)},
      {kModelGroup, "allow-tokenizer-mismatch", "", "false",
       "train although data, evaluation data, weights or vocabulary belong to other tokenizers",
       Role::session, Form::flag, flag_into(&O::allow_tokenizer_mismatch)},

      {kLearningGroup, "steps", "N", "1000", "steps in all", Role::shapes, Form::value,
       count_into(&O::steps, kSteps)},
      {kLearningGroup, "lr", "RATE", "3e-4", "peak learning rate", Role::shapes, Form::value,
       real_into(&O::lr, kRate)},
      {kLearningGroup, "schedule", "constant|cosine|wsd", "cosine", "learning rate after warm-up",
       Role::shapes, Form::value,
       choice_into<ScheduleKind>(&O::schedule, {{"constant", ScheduleKind::constant},
                                                {"cosine", ScheduleKind::cosine},
                                                {"wsd", ScheduleKind::wsd}})},
      {kLearningGroup, "warmup", "STEPS|auto", "auto",
       "steps of linear warm-up; auto: a fiftieth of --schedule-steps, at most 2000", Role::shapes,
       Form::value, auto_count_into(&O::warmup, kStepsOrNone)},
      {kLearningGroup, "decay-steps", "STEPS|auto", "auto",
       "last steps, in which wsd decays; auto: a tenth of --schedule-steps", Role::shapes,
       Form::value, auto_count_into(&O::decay_steps, kStepsOrNone)},
      {kLearningGroup, "schedule-steps", "STEPS|auto", "auto",
       "steps that the schedule spans; auto: --steps", Role::shapes, Form::value,
       auto_count_into(&O::schedule_steps, kStepsOrNone)},
      {kLearningGroup, "min-lr-ratio", "RATIO", "0.1", "last learning rate, as a part of --lr",
       Role::shapes, Form::value, real_into(&O::min_lr_ratio, kPart)},
      {kLearningGroup, "optimizer", "adamw|sgd", "adamw",
       "adamw, or sgd with momentum; weight decay is decoupled with adamw, and with sgd a part of "
       "the gradient, as torch.optim.SGD has it",
       Role::shapes, Form::value,
       setting_of(
           [](auto& options) -> auto& { return options.optimizer.kind; }, parse_optimizer)},
      {kLearningGroup, "weight-decay", "RATE|auto", "auto",
       "decay of matrices; auto: 0.1 with adamw, 0 with sgd", Role::shapes, Form::value,
       parsed_into(&O::weight_decay, or_word("auto", std::optional<double>(), real_in(kRate)),
                   range_text(kRate))},
      {kLearningGroup, "decay-all", "", "false", "decay norm gains and biases too", Role::shapes,
       Form::flag, flag_into(&O::decay_all)},
      {kLearningGroup, "beta1", "RATE", "0.9", "AdamW's decay of the first moment", Role::shapes,
       Form::value, adamw_into(&AdamWOptions::beta1, kPart)},
      {kLearningGroup, "beta2", "RATE", "0.95", "AdamW's decay of the second moment", Role::shapes,
       Form::value, adamw_into(&AdamWOptions::beta2, kPart)},
      {kLearningGroup, "eps", "VALUE", "1e-8", "AdamW's epsilon", Role::shapes, Form::value,
       adamw_into(&AdamWOptions::eps, kRate)},
      {kLearningGroup, "momentum", "RATE", "0.9", "SGD's momentum; 0: none", Role::shapes,
       Form::value,
       setting_of(
           [](auto& options) -> auto& { return options.optimizer.sgd.momentum; }, real_in(kPart),
           range_text(kPart))},
      {kLearningGroup, "clip", "NORM", "1.0",
       "largest norm of the global gradient, which is scaled down to it; lines and metrics show "
       "the "
       "norm before clipping; 0: no clipping",
       Role::shapes, Form::value, real_into(&O::clip, kNorm)},
      {kLearningGroup, "label-smoothing", "SHARE", "0",
       "share of each target that is spread evenly over the vocabulary, below 1; evaluations leave "
       "it out",
       Role::shapes, Form::value, real_into(&O::label_smoothing, kPart)},
      {kLearningGroup, "z-loss", "FACTOR", "0",
       "factor of the square of log(sum of exp(logits)), which is added to each target's loss and "
       "keeps logits small (1e-4 is usual); evaluations leave it out",
       Role::shapes, Form::value, real_into(&O::z_loss, kRate)},
      {kLearningGroup, "max-skipped", "N", "3",
       "steps in a row that may be skipped because loss or gradient is not finite", Role::session,
       Form::value, count_into(&O::max_skipped, kStepsOrNone)},

      {kMachineGroup, "device", "cpu|cuda", "cpu", "where a rank computes", Role::shapes,
       Form::value,
       choice_into<DeviceKind>(&O::device, {{"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}})},
      {kMachineGroup, "precision", "f32|bf16|auto", "auto",
       "parameters and activations; auto: bf16 on cuda, f32 on cpu (master weights are always f32)",
       Role::shapes, Form::value,
       choice_into<std::optional<DType>>(
           &O::precision, {{"auto", std::nullopt}, {"f32", DType::f32}, {"bf16", DType::bf16}})},
      {kMachineGroup, "threads", "N", "1", "threads of a CPU rank; part of what fixes the bits",
       Role::shapes, Form::value, count_into(&O::threads, {1, kMostThreads})},
      {kMachineGroup, "zero", "1|2", "2",
       "2: gradients are exchanged at every micro-step; 1: summed locally in f32, sent once a "
       "step, and "
       "results depend on the number of ranks",
       Role::shapes, Form::value,
       choice_into<ZeroStage>(&O::zero, {{"1", ZeroStage::one}, {"2", ZeroStage::two}})},
      {kMachineGroup, "sum-group", "N", "1",
       "consecutive micro-batches that are added first; where that many consecutive ranks share a "
       "node, they add them there, and only sums (f32) go to other nodes; part of what fixes the "
       "bits",
       Role::shapes, Form::value, count_into(&O::sum_group, {1, kMostSequences})},
      {kMachineGroup, "reduce", "ordered|native", "ordered",
       "ordered: the same bits on any number of ranks; native: the library's own order",
       Role::shapes, Form::value,
       choice_into<ReduceMode>(&O::reduce,
                               {{"ordered", ReduceMode::ordered}, {"native", ReduceMode::native}})},
      {kMachineGroup, "peer-copies", "auto|off", "auto",
       "auto: GPUs of one host that reach each other's memory exchange by their copy engines; off: "
       "by "
       "NCCL; the same bits",
       Role::session, Form::value,
       choice_into<bool>(&O::peer_copies, {{"auto", true}, {"off", false}})},
      {kMachineGroup, "recompute", "none|attention|mlp|block", "none",
       "what the backward pass computes again instead of keeping it; the same bits", Role::session,
       Form::value,
       parsed_into(&O::recompute, [](const std::string& text,
                                     const std::string&) { return parse_recompute(text); })},
      {kMachineGroup, "resident-bytes", "auto|all|none|BYTES", "auto",
       "device memory for optimizer state, buffers included; the rest is paged from pinned host "
       "memory",
       Role::session, Form::value,
       parsed_into(&O::resident, parse_resident, range_text(kSomeBytes))},
      {kMachineGroup, "page-bytes", "BYTES|auto", "auto",
       "size of a page of optimizer state; auto: 8 MiB, and 64 MiB on cuda where nothing is paged",
       Role::session, Form::value,
       parsed_into(&O::page_bytes, or_word("auto", std::size_t{0}, bytes_in(kBytes)),
                   range_text(kBytes))},
      {kMachineGroup, "grad-offload", "", "false",
       "keep the f32 sums of the shard's gradient in pinned host memory; the same bits, but each "
       "micro-batch moves all of them both ways",
       Role::session, Form::flag,
       flag_choice_into(&O::grads, GradPlacement::host, GradPlacement::device)},
      {kMachineGroup, "breadth-first", "N", "1",
       "micro-batches of each rank whose forward passes run side by side, unit by unit, at the "
       "beginning of a step, so that a long sweep of pages hides behind them; keeps their block "
       "inputs; the same bits",
       Role::session, Form::value, count_into(&O::breadth_first, kSideBySide)},
      {kMachineGroup, "logits-bytes", "BYTES|auto", "auto",
       "logits that exist at a time; auto: 128 MiB on cpu, 640 MiB on cuda; part of what fixes the "
       "bits",
       Role::shapes, Form::value,
       parsed_into(&O::logits_bytes, or_word("auto", std::size_t{0}, bytes_in(kBytes)),
                   range_text(kBytes))},
      {kMachineGroup, "tune-gemm", "FILE", "",
       "time cuBLAS's algorithms for this model's matrix products once and keep the choice in "
       "FILE; "
       "a run that is given the file repeats in bits (cuda only)",
       Role::session, Form::value, text_into(&O::tune_gemm)},
      {kMachineGroup, "attention", "cudnn|builtin", "cudnn",
       "attention on cuda in bf16: the library's, or our own slower kernel (always so in f32)",
       Role::shapes, Form::value,
       choice_into<AttentionMethod>(&O::attention, {{"cudnn", AttentionMethod::library},
                                                    {"builtin", AttentionMethod::builtin}})},
      {kMachineGroup, "attention-slice-bytes", "BYTES", kAttentionSlices,
       "workspace of attention's backward pass, which runs in slices that fit", Role::shapes,
       Form::value, bytes_into(&O::attention_slice_bytes, kBytes)},
      {kMachineGroup, "fast-attention", "", "false",
       "let cuDNN's backward pass add in an order that changes from run to run", Role::shapes,
       Form::flag,
       flag_choice_into(&O::attention_order, AttentionOrder::fast, AttentionOrder::deterministic)},
      {kMachineGroup, "timeout-seconds", "SECONDS", "600",
       "a rank without start or progress for so long ends the run with exit code 8", Role::session,
       Form::value, real_into(&O::timeout_seconds, {1, kMostSeconds})},

      {kEvalGroup, "out", "FOLDER", "", "metrics and checkpoints of this run", Role::session,
       Form::value, text_into(&O::out)},
      {kEvalGroup, "eval-data", "FILE", "", "token file for evaluation", Role::session, Form::value,
       text_into(&O::eval_data)},
      {kEvalGroup, "eval-every", "STEPS", "0", "steps between evaluations; 0: at the end only",
       Role::session, Form::value, count_into(&O::eval_every, kStepsOrNone)},
      {kEvalGroup, "eval-windows", "N", "64",
       "sequences of --seq tokens of the evaluation file that are used, spread evenly over it; 0: "
       "all",
       Role::session, Form::value, count_into(&O::eval_windows, {0, kMostSequences})},
      {kEvalGroup, "log-every", "STEPS", "1", "steps between progress lines in a file or pipe",
       Role::session, Form::value, count_into(&O::log_every, kSteps)},
      {kEvalGroup, "trace", "FIRST:LAST", "",
       "write the timeline of these steps, of all ranks, to OUT/trace.json, for "
       "https://ui.perfetto.dev and chrome://tracing",
       Role::session, Form::value, parsed_into(&O::trace, parse_steps, range_text(kSteps))},
      {kEvalGroup, "sample-every", "STEPS", "0",
       "steps between samples that the model writes; 0: none", Role::session, Form::value,
       count_into(&O::sample_every, kStepsOrNone)},
      {kEvalGroup, "sample-prompt", "TEXT", "", "what samples begin with", Role::session,
       Form::value, text_into(&O::sample_prompt)},
      {kEvalGroup, "sample-tokens", "N", "64", "tokens of a sample beside the prompt",
       Role::session, Form::value, count_into(&O::sample_tokens, {1, kMostTokens})},
      {kEvalGroup, "sample-temperature", "T", "0.8", "of samples; 0: always the likeliest token",
       Role::session, Form::value, real_into(&O::sample_temperature, kHotness)},
      {kEvalGroup, "verbose", "", "false", "say more: ranks, devices, choices", Role::session,
       Form::flag, flag_into(&O::verbose)},

      {kSaveGroup, "save-every", "STEPS", "0", "steps between saves; 0: at the end only",
       Role::session, Form::value, count_into(&O::save_every, kStepsOrNone)},
      {kSaveGroup, "save-at-end", "", "true", "save after the last step", Role::session, Form::flag,
       flag_into(&O::save_at_end)},
      {kSaveGroup, "keep", "N", "3", "newest checkpoints that are kept, 1 or more", Role::session,
       Form::value, count_into(&O::keep, kKept)},
      {kSaveGroup, "keep-every", "STEPS", "0",
       "checkpoints of multiples of so many steps are kept for ever; 0: none", Role::session,
       Form::value, count_into(&O::keep_every, kStepsOrNone)},
      {kSaveGroup, "save-staging", "auto|BYTES", "auto",
       "host memory for what a save still has to write when the next update comes; auto: the shard",
       Role::session, Form::value,
       parsed_into(&O::save_staging,
                   or_word("auto", std::optional<std::size_t>(), bytes_in(kBytes)),
                   range_text(kBytes))},
      {kSaveGroup, "on-save-failure", "continue|stop", "continue", "what a failed save does",
       Role::session, Form::value,
       choice_into<SaveFailure>(&O::on_save_failure,
                                {{"continue", SaveFailure::go_on}, {"stop", SaveFailure::stop}})},
      {kSaveGroup,
       "resume",
       "auto|none|PATH",
       "auto",
       "auto: continue what --out holds; none: --out must hold no steps; or a run or step folder",
       Role::session,
       Form::value,
       {.set =
            [](O& o, const std::string& text, const std::string&) {
              o.resume = text == "auto"   ? ResumeKind::automatic
                         : text == "none" ? ResumeKind::none
                                          : ResumeKind::path;
              o.resume_path = o.resume == ResumeKind::path ? text : "";
            },
        .is_equal =
            [](const O& a, const O& b) {
              return a.resume == b.resume && a.resume_path == b.resume_path;
            },
        .range = {}}},
      {kSaveGroup, "allow-data-change", "", "false",
       "continue although the data order is another one", Role::session, Form::flag,
       flag_into(&O::allow_data_change)},
      {kSaveGroup, "stop-file", "FILE", "",
       "when this file appears or is touched: finish the step, save, exit with 85", Role::session,
       Form::value, text_into(&O::stop_file)},
      {kSaveGroup, "max-seconds", "SECONDS", "0",
       "after so long: finish the step, save, exit with 85; 0: no limit",
       Role::local,  // the first rank whose time is over stops all, by the step's exchange
       Form::value, real_into(&O::max_seconds, {0, kMostSeconds})},

      {kPlanGroup, "plan", "", "false",
       "print the memory of each rank and node and end: needs neither GPU nor data", Role::session,
       Form::flag, flag_into(&O::plan)},
      {kPlanGroup, "ranks", "N", "1", "ranks to plan for", Role::session, Form::value,
       count_into(&O::ranks, {1, kMostRanks})},
      {kPlanGroup, "ranks-per-node", "N", "0",
       "ranks of one node to plan for, 0: all; or, in a run, consecutive ranks that --sum-group "
       "takes for a node, 0: those of a host",
       Role::session, Form::value, count_into(&O::ranks_per_node, {0, kMostRanks})},
      {kPlanGroup, "device-memory", "BYTES|auto", "auto",
       "memory of one device to plan for; auto: that of --card (h100: 80 GB, h200: 141 GB)",
       Role::session, Form::value,
       parsed_into(&O::device_memory,
                   or_word("auto", std::optional<std::size_t>(), bytes_in(kSomeBytes)),
                   range_text(kSomeBytes))},
      {kPlanGroup, "host-memory", "BYTES", "0",
       "memory of one node to plan for, or that a run may use; 0: this machine's",
       Role::local,  // nodes may differ in memory; a run that one of them cannot hold is refused
       Form::value, bytes_into(&O::host_memory, kBytes)},
      {kPlanGroup, "card", "h100|h200", "h100",
       "card to plan for: its memory, and its measured rates for the estimate of a step's time",
       Role::session, Form::value,
       choice_into<Card>(&O::card, {{"h100", Card::h100}, {"h200", Card::h200}})},
      {kPlanGroup, "network-bandwidth", "BYTES", "45GB",
       "bytes a second that one rank sends to other nodes while it receives as many, for the "
       "estimate (45GB: nine tenths of 400 Gb/s)",
       Role::session, Form::value, bytes_into(&O::network_bandwidth, kSomeBytes)},
      {kPlanGroup, "network-latency", "SECONDS", "5e-6",
       "what one message to another node takes beside its bytes, for the estimate", Role::session,
       Form::value, real_into(&O::network_latency, kLatency)},
      {kPlanGroup, "json", "", "false", "the plan as JSON", Role::session, Form::flag,
       flag_into(&O::json)},
  };
  return table;
}

// "help text (default 4; 1 to 1024)"
std::string help_of(const OptionSpec& spec) {
  std::vector<std::string> notes;
  if (spec.standard[0] != '\0') {
    notes.push_back(fmt::format("default {}", spec.standard));
  }
  if (!spec.setting.range.empty()) {
    notes.push_back(spec.setting.range);
  }
  return notes.empty() ? std::string(spec.help)
                       : fmt::format("{} ({})", spec.help, fmt::join(notes, "; "));
}

po::options_description described() {
  po::options_description all;
  po::options_description general("General");
  general.add_options()("help,h", "this text")("version", "version and build")(
      "config", po::value<std::string>()->value_name("FILE"),
      "file of `name = value` lines, as a run prints them at its start; the command line wins. '#' "
      "after a blank begins a comment; a value that holds '#', or begins or ends with a blank, "
      "stands in \"quotes\", with \\\" and \\\\ for those characters");
  all.add(general);
  std::vector<std::pair<std::string, po::options_description>> groups;
  for (const OptionSpec& spec : specs()) {
    if (groups.empty() || groups.back().first != spec.group) {
      groups.emplace_back(spec.group, po::options_description(spec.group));
    }
    po::options_description& group = groups.back().second;
    const std::string help = help_of(spec);
    if (spec.form == Form::list) {
      group.add_options()(
          spec.name,
          po::value<std::vector<std::string>>()->multitoken()->composing()->value_name(
              spec.argument),
          help.c_str());
    } else if (spec.form == Form::flag) {
      group.add_options()(spec.name, switch_value(), help.c_str());
    } else {
      group.add_options()(spec.name, po::value<std::string>()->value_name(spec.argument),
                          help.c_str());
    }
  }
  for (auto& [name, group] : groups) {
    all.add(group);
  }
  return all;
}

// What was given to each option, by its name. An option that is not given is not there.
using GivenValues = std::map<std::string, std::vector<std::string>, std::less<>>;

GivenValues given_on_command_line(const po::variables_map& values) {
  GivenValues given;
  for (const OptionSpec& spec : specs()) {
    if (const auto found = values.find(spec.name); found != values.end()) {
      given[spec.name] = spec.form == Form::list
                             ? found->second.as<std::vector<std::string>>()
                             : std::vector<std::string>{found->second.as<std::string>()};
    }
  }
  return given;
}

const OptionSpec* find_spec(std::string_view name) {
  const auto found = std::find_if(specs().begin(), specs().end(),
                                  [name](const OptionSpec& spec) { return spec.name == name; });
  return found == specs().end() ? nullptr : &*found;
}

std::vector<std::string> option_names() {
  std::vector<std::string> names;
  for (const OptionSpec& spec : specs()) {
    names.emplace_back(spec.name);
  }
  return names;
}

GivenValues read_config_file(const std::string& file) {
  if (std::error_code error; std::filesystem::exists(file, error) || error) {
    require_readable("--config", file, "a file of `name = value` lines");
  }
  if (const std::string failure = unreadable(file); !failure.empty()) {
    throw ConfigError(fmt::format("--config {}: cannot read this file: {}", file, failure),
                      TESSERA_HERE);
  }
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::string source = "--config " + file;
  GivenValues given;
  for (const ConfigEntry& entry : parse_config_text(text, source)) {
    const OptionSpec* spec = find_spec(entry.name);
    if (spec == nullptr) {
      throw ConfigError(
          fmt::format("{} line {}: there is no option {}{} (train --help lists them)", source,
                      entry.line, entry.name, suggestion(entry.name, option_names())),
          TESSERA_HERE);
    }
    std::vector<std::string>& values = given[entry.name];
    if (!values.empty() && spec->form != Form::list) {
      throw ConfigError(
          fmt::format("{} line {}: {} stands there a second time", source, entry.line, entry.name),
          TESSERA_HERE);
    }
    values.push_back(entry.value);
  }
  return given;
}

[[noreturn]] void refuse(const std::string& message) {
  throw ConfigError(message, TESSERA_HERE);
}

// What a run wants beside what a plan does.
void check_run(const TrainOptions& o) {
  if (o.json) {
    refuse("--json belongs to --plan");
  }
  if (o.data.empty()) {
    refuse("--data is missing: give one or more token files (make them with tokenize)");
  }
  if (o.out.empty()) {
    refuse("--out is missing: give the folder for metrics and checkpoints of this run");
  }
  if (o.eval_data.empty() && o.eval_every > 0) {
    refuse("--eval-every needs --eval-data");
  }
  if (o.trace && o.trace->first > o.steps) {
    refuse(fmt::format("--trace begins at step {} and --steps is {}: trace steps of this run",
                       o.trace->first, o.steps));
  }
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

void check_products(const TrainOptions& o) {
  constexpr Index kMostStepTokens = Index{1} << 40;
  constexpr Index kMostRunTokens = Index{1} << 62;
  check_product({{"--micro-batch", o.micro_batch}, {"--seq", o.seq}}, kMostTokens,
                "tokens of one micro-batch; give a smaller --micro-batch");
  check_product({{"--global-batch", o.global_batch}, {"--seq", o.seq}}, kMostStepTokens,
                "tokens of one step; give a smaller --global-batch");
  check_product({{"--steps", o.steps}, {"--global-batch", o.global_batch}, {"--seq", o.seq}},
                kMostRunTokens, "tokens of the whole run; give fewer --steps");
}

void check_together(const TrainOptions& o) {
  if (!o.tune_gemm.empty() && o.device == DeviceKind::cpu) {
    refuse("--tune-gemm chooses among cuBLAS's algorithms: it needs --device cuda");
  }
  if (o.global_batch % o.micro_batch != 0) {
    refuse(fmt::format("--global-batch {} is no multiple of --micro-batch {}", o.global_batch,
                       o.micro_batch));
  }
  check_products(o);
  if (o.optimizer.adamw.beta1 >= 1 || o.optimizer.adamw.beta2 >= 1) {
    refuse("--beta1 and --beta2 must be below 1");
  }
  if (o.optimizer.sgd.momentum >= 1) {
    refuse("--momentum must be below 1");
  }
  if (o.label_smoothing >= 1) {
    refuse("--label-smoothing 1 leaves nothing of the targets: give a share below 1");
  }
  if (o.device == DeviceKind::cpu && o.precision == DType::bf16) {
    refuse("--precision bf16 needs --device cuda: the CPU computes in f32");
  }
  if (o.reduce == ReduceMode::native && o.sum_group > 1) {
    refuse("--sum-group needs --reduce ordered: the library's reduction has its own order");
  }
  if (o.zero == ZeroStage::one && (o.sum_group > 1 || o.reduce == ReduceMode::native)) {
    refuse(
        "--zero 1 adds each rank's micro-batches locally: --sum-group and --reduce native go with "
        "--zero 2 only");
  }
  if (o.sample_every > 0 && o.sample_prompt.empty()) {
    refuse("--sample-every needs --sample-prompt: the text that samples begin with");
  }
  if (o.sample_every == 0 && !o.sample_prompt.empty()) {
    refuse("--sample-prompt needs --sample-every: the steps between samples");
  }
  if (o.zero == ZeroStage::one && o.grads == GradPlacement::host) {
    refuse(
        "--grad-offload goes with --zero 2 only: --zero 1 sums the whole gradient on the device");
  }
  if (!o.plan) {
    check_run(o);
  }
}

// Whether a text of another version is one that this one takes.
bool can_be_read(const OptionSpec& spec, const std::string& text) {
  try {
    TrainOptions ignored;
    spec.setting.set(ignored, text, spec.name);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

// What `auto` comes to beside it: "auto (20)". `options` are resolved.
std::string resolved_text(const OptionSpec& spec, const std::string& text,
                          const TrainOptions& options) {
  const std::string_view name = spec.name;
  std::string shown = text.empty() ? std::string(spec.standard) : text;
  if (shown != "auto") {
    return shown;
  }
  const std::string value = name == "warmup"           ? fmt::format("{}", *options.warmup)
                            : name == "decay-steps"    ? fmt::format("{}", *options.decay_steps)
                            : name == "schedule-steps" ? fmt::format("{}", *options.schedule_steps)
                            : name == "weight-decay"   ? fmt::format("{}", *options.weight_decay)
                            : name == "precision"      ? std::string(dtype_name(*options.precision))
                            : name == "logits-bytes"   ? format_bytes(options.logits_bytes)
                                                       : std::string();
  return value.empty() ? shown : fmt::format("{} ({})", shown, value);
}

// The values of an option as they are given, else its default.
std::vector<std::string> texts_of(const OptionSpec& spec, const GivenValues& given) {
  const auto found = given.find(spec.name);
  if (found == given.end()) {
    return spec.form == Form::list ? std::vector<std::string>{}
                                   : std::vector<std::string>{spec.standard};
  }
  for (const std::string& text : found->second) {
    if (text.empty()) {
      throw ConfigError(fmt::format("--{} is empty", spec.name), TESSERA_HERE);
    }
  }
  return found->second;
}

}  // namespace

ParsedOptions parse_options(int argc, const char* const* argv) {
  const po::variables_map values =
      read_words(words_of(argc, argv), described(), {}, "train --help", Abbreviations::refused);
  ParsedOptions parsed;
  if (values.count("help") != 0) {
    parsed.action = OptionsAction::help;
    return parsed;
  }
  if (values.count("version") != 0) {
    parsed.action = OptionsAction::version;
    return parsed;
  }
  GivenValues given = given_on_command_line(values);
  if (values.count("config") != 0) {
    given.merge(read_config_file(values["config"].as<std::string>()));
  }
  TrainOptions& options = parsed.options;
  for (const OptionSpec& spec : specs()) {
    const std::string name = std::string("--") + spec.name;
    // The table has --optimizer before what belongs to one of them.
    const std::optional<OptimizerKind> optimizer = optimizer_of(spec.name);
    const bool is_used = !optimizer || optimizer == options.optimizer.kind;
    const bool shapes = spec.role == Role::shapes && is_used;
    const std::vector<std::string> texts = texts_of(spec, given);
    for (const std::string& text : texts) {
      spec.setting.set(options, text, name);
      if (shapes && !text.empty()) {
        options.effective_lines += fmt::format("{} = {}\n", spec.name, config_value(text));
      }
    }
    if (!is_used && given.contains(spec.name)) {
      refuse(fmt::format("{} belongs to --optimizer {}, and this run's is {}: leave it out", name,
                         optimizer_name(*optimizer), optimizer_name(options.optimizer.kind)));
    }
    if (shapes) {
      options.effective.emplace_back(spec.name,
                                     spec.form == Form::list ? join_values(texts) : texts.front());
    }
    if (spec.role != Role::local) {
      options.agreed.emplace_back(spec.name, join_values(texts));
    }
  }
  check_together(options);
  return parsed;
}

std::vector<OptionAgreement> option_agreements() {
  std::vector<OptionAgreement> all;
  for (const OptionSpec& spec : specs()) {
    all.push_back({spec.name, spec.role != Role::local});
  }
  return all;
}

double start_seconds(int argc, const char* const* argv) {
  constexpr double kLeast = 10;
  try {
    const ParsedOptions parsed = parse_options(argc, argv);
    if (parsed.action == OptionsAction::run) {
      return std::max(parsed.options.timeout_seconds, kLeast);
    }
  } catch (const Error&) {  // refused in due course, by all ranks together
  }
  constexpr std::array kDefaults = {"train", "--plan"};  // which needs no other option
  return parse_options(std::ssize(kDefaults), kDefaults.data()).options.timeout_seconds;
}

std::string options_help() {
  std::string text =
      "Usage: mpirun -np RANKS train --model PRESET|config.json --data FILE... --out FOLDER "
      "[options]\n\nTrains a language model on all ranks together. Sizes take suffixes (64MiB, "
      "5GB).\n";
  std::ostringstream out;
  constexpr unsigned kLine = 100;
  po::options_description wide(kLine, kLine / 2);
  out << described();
  return text + out.str() +
         "\nSignals: USR1, USR2, TERM, INT, HUP (unless ignored) and XCPU save and exit with 85.\n";
}

std::string effective_text(const TrainOptions& options) {
  return options.effective_lines;
}

std::vector<std::string> idle_options(const TrainOptions& o, int ranks) {
  std::vector<std::string> idle;
  const Index of_rank = micro_batches_of(0, o.global_batch / o.micro_batch, ranks);
  if (o.breadth_first > of_rank) {
    idle.push_back(fmt::format(
        "--breadth-first {}: a rank's micro-batches of a step are {}, and no more run side by side",
        o.breadth_first, of_rank));
  }
  if (o.warmup && *o.warmup > o.steps) {
    idle.push_back(fmt::format(
        "--warmup {} goes on after --steps {}: the learning rate does not reach --lr {}", *o.warmup,
        o.steps, o.lr));
  }
  if (o.decay_steps && o.schedule != ScheduleKind::wsd) {
    idle.push_back(fmt::format(
        "--decay-steps {} belongs to --schedule wsd and does nothing in another", *o.decay_steps));
  }
  if (!o.save_at_end && (o.save_every == 0 || o.save_every > o.steps)) {
    idle.emplace_back("--save-at-end false, and no step of this run is one of --save-every: "
                      "nothing will be saved");
  }
  const auto never = [&](const char* option, Index every, const char* what) {
    if (every > o.steps) {
      idle.push_back(fmt::format("{} {} is beyond --steps {}: {}", option, every, o.steps, what));
    }
  };
  never("--eval-every", o.eval_every, "one evaluation, at the end");
  never("--sample-every", o.sample_every, "no sample is written");
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

Index sample_capacity(const TrainOptions& options) {
  return std::ssize(options.sample_prompt) + 1 + options.sample_tokens;
}

std::vector<OptionRow> option_rows() {
  std::vector<OptionRow> rows;
  for (const OptionSpec& spec : specs()) {
    rows.push_back(
        {spec.name, spec.argument, spec.standard, spec.setting.range, spec.form == Form::flag});
  }
  return rows;
}

TrainOptions resolved(TrainOptions o) {
  constexpr std::size_t kCpuLogits = std::size_t{128} << 20U;
  constexpr std::size_t kCudaLogits = std::size_t{640} << 20U;
  constexpr std::int64_t kWarmupPart = 50;
  constexpr std::int64_t kLongestWarmup = 2000;
  constexpr std::int64_t kDecayPart = 10;
  const std::int64_t span = o.schedule_steps.value_or(o.steps);
  o.schedule_steps = span;
  o.warmup = o.warmup.value_or(std::min(span / kWarmupPart, kLongestWarmup));
  o.decay_steps = o.decay_steps.value_or(span / kDecayPart);
  o.precision = compute_dtype(o);
  o.weight_decay = o.weight_decay.value_or(usual_decay(o.optimizer.kind));
  if (o.logits_bytes == 0) {
    o.logits_bytes = o.device == DeviceKind::cpu ? kCpuLogits : kCudaLogits;
  }
  return o;
}

LrSchedule schedule_of(const TrainOptions& options) {
  const TrainOptions o = resolved(options);
  return {.kind = o.schedule,
          .lr = o.lr,
          .warmup = *o.warmup,
          .total = *o.schedule_steps,
          .decay = *o.decay_steps,
          .min_ratio = o.min_lr_ratio};
}

TrainOptions stored_options(const StoredOptions& stored) {
  TrainOptions options;
  for (const OptionSpec& spec : specs()) {
    const std::string name = std::string("--") + spec.name;
    const auto found = stored.find(spec.name);
    if (spec.form == Form::list) {
      for (const std::string& text :
           found == stored.end() ? std::vector<std::string>{} : split_values(found->second)) {
        spec.setting.set(options, text, name);
      }
      continue;
    }
    spec.setting.set(options, spec.standard, name);
    if (found == stored.end()) {
      continue;
    }
    try {
      spec.setting.set(options, found->second, name);
    } catch (const ConfigError&) {  // of another version: compared as text
    }
  }
  return options;
}

std::vector<OptionChange> changed_options(const StoredOptions& stored, const TrainOptions& now) {
  const TrainOptions before = resolved(stored_options(stored));
  const TrainOptions after = resolved(now);
  std::vector<OptionChange> changes;
  for (const auto& [name, text] : now.effective) {
    const OptionSpec& spec = *find_spec(name);
    const auto found = stored.find(name);
    const bool is_stored = found != stored.end();
    const bool is_read = !is_stored || can_be_read(spec, found->second);
    if (is_read ? spec.setting.is_equal(before, after) : found->second == text) {
      continue;
    }
    const std::string old = is_stored ? found->second : std::string();
    changes.push_back({name, is_read ? resolved_text(spec, old, before) : old,
                       resolved_text(spec, text, after), is_stored});
  }
  return changes;
}

DType compute_dtype(const TrainOptions& options) {
  return options.precision.value_or(options.device == DeviceKind::cpu ? DType::f32 : DType::bf16);
}

RunSettings run_settings(const TrainOptions& o, const ModelConfig& config,
                         std::size_t device_bytes_free) {
  // fewer launches: those of 8 MiB fill a card badly
  constexpr std::size_t kResidentPages = std::size_t{64} << 20U;
  if (o.seq > config.max_position) {
    throw ConfigError(
        fmt::format("--seq {} exceeds the model's {} positions", o.seq, config.max_position),
        TESSERA_HERE);
  }
  if (o.sample_every > 0 && sample_capacity(o) > config.max_position) {
    throw ConfigError(fmt::format("--sample-prompt and --sample-tokens {} come to {} tokens, more "
                                  "than the model's {} positions",
                                  o.sample_tokens, sample_capacity(o), config.max_position),
                      TESSERA_HERE);
  }
  RunSettings settings;
  settings.trainer = {.global_batch = o.global_batch,
                      .micro_batch = o.micro_batch,
                      .clip_norm = o.clip,
                      .breadth_first = o.breadth_first};
  settings.scratch.batch = {o.micro_batch, o.seq};
  settings.scratch.precision = precision_of(compute_dtype(o));
  settings.scratch.recompute = o.recompute;
  settings.scratch.attention = {.method = settings.scratch.precision.activations == DType::bf16
                                              ? o.attention
                                              : AttentionMethod::builtin,
                                .order = o.attention_order,
                                .slice_bytes = o.attention_slice_bytes};
  settings.scratch.logits_bytes = resolved(o).logits_bytes;
  settings.scratch.decodes = o.sample_every > 0;
  settings.scratch.loss.terms = {.label_smoothing = static_cast<float>(o.label_smoothing),
                                 .z_loss = static_cast<float>(o.z_loss)};
  if (o.page_bytes != 0) {
    settings.paging.page_bytes = o.page_bytes;
  } else if (o.device == DeviceKind::cuda) {
    settings.paging.resident_page_bytes = kResidentPages;
  }
  switch (o.resident.kind) {
    case ResidentKind::automatic:
      settings.paging.max_device_bytes = device_bytes_free;
      break;
    case ResidentKind::all:
      settings.paging.max_device_bytes = 0;
      break;
    case ResidentKind::none:
      settings.paging.page_all = true;
      break;
    case ResidentKind::bytes:
      settings.paging.max_device_bytes = o.resident.bytes;
      break;
  }
  settings.optimizer = o.optimizer;
  settings.optimizer.decay = *resolved(o).weight_decay;
  settings.schedule = schedule_of(o);
  settings.decay_all = o.decay_all;
  settings.reduce = o.reduce;
  settings.zero = o.zero;
  settings.sum_group = o.sum_group;
  settings.grads = o.grads;
  settings.seed = o.seed;
  return settings;
}

}  // namespace tessera
