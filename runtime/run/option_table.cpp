#include "runtime/run/option_table.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "model/model_config.h"
#include "optim/sharded_params.h"
#include "runtime/run/adapter_rows.h"
#include "runtime/run/option_needs.h"
#include "runtime/run/option_setting.h"
#include "runtime/run/option_values.h"

namespace tessera {
namespace {

// What rates and factors go up to; beyond it f32 arithmetic has no use for them.
constexpr RealRange kRate = {0, 1e18};
constexpr RealRange kPart = {0, 1};
constexpr RealRange kNorm = {0, 1e30};
constexpr RealRange kHotness = {0, 1000};
constexpr RealRange kLatency = {0, 1e3};
constexpr RealRange kPasses = {1e-9, 1e9};
constexpr CountRange kStepsOrNone = {0, kMostSteps};
// Each set of activations is a row of the memory plan; more would fill memory by themselves.
constexpr CountRange kSideBySide = {1, 4096};
constexpr Index kMostBlocks = 100'000;
constexpr CountRange kKept = {1, 1'000'000};
constexpr CountRange kIterations = {1, 100};
constexpr SizeRange kBytes = {0, kMostBytes};

constexpr const char* kModelGroup = "Model and data";
constexpr const char* kLearningGroup = "Learning";
constexpr const char* kMachineGroup = "Ranks, device and memory";
constexpr const char* kEvalGroup = "Evaluation and output";
constexpr const char* kSaveGroup = "Checkpoints";

// The version that refuses them.
constexpr const char* kOldNamesEnd = "0.3";
constexpr std::array<OldName, 3> kOldNames = {{{"breadth-first", "batched-forward"},
                                               {"eval-windows", "eval-sequences"},
                                               {"sum-group", "reduce-group"}}};

}  // namespace

const std::vector<OptionRow>& option_table() {
  using C = RunConfig;
  static const std::string model_help =
      fmt::format("{}, or a Hugging Face config.json; tiny and small take their vocabulary from "
                  "the data; auto: the model of --init, else tiny",
                  fmt::join(preset_names(), ", "));
  static const std::vector<OptionRow> rows = {
      {kModelGroup, "model", "PRESET|config.json", "auto", model_help, OptionRole::shapes,
       OptionForm::value, kAlways, text_into(at(&C::model, &ModelChoice::name))},
      {kModelGroup,
       "data",
       "FILE|FOLDER|LIST[:WEIGHT]...",
       "",
       "token files of tokenize, folders of them (all but *.held-out.h5, by name), or lists "
       "(.list: a "
       "file a line, from the list's folder on), with weights to mix them",
       OptionRole::shapes,
       OptionForm::list,
       kAlways,
       {.set = [](C& c, const std::string& text,
                  const std::string&) { c.data.files.push_back(text); },
        .is_equal = [](const C& a, const C& b) { return a.data.files == b.data.files; },
        .number = nullptr,
        .range = {}}},
      {kModelGroup, "seq", "TOKENS", "512", "tokens of one sequence", OptionRole::shapes,
       OptionForm::value, kAlways, count_into(at(&C::batch, &BatchConfig::seq), {1, kMostTokens})},
      {kModelGroup, "documents", "auto|joined|separate", "auto",
       "separate: documents do not see each other: whole ones are packed into sequences by best "
       "fit, longer ones are cut, and positions count from a document's beginning; joined: they "
       "follow each other without regard; auto: as the run began, else separate for chats and "
       "data with a mask",
       OptionRole::shapes, OptionForm::value, kAlways,
       choice_into<std::optional<DocumentMode>>(at(&C::data, &DataConfig::documents),
                                                {{"auto", std::nullopt},
                                                 {"joined", DocumentMode::joined},
                                                 {"separate", DocumentMode::separate}})},
      {kModelGroup, "micro-batch", "SEQUENCES", "4",
       "sequences that go through the model at once on one rank; another value changes results bit "
       "for bit",
       OptionRole::shapes, OptionForm::value, kAlways,
       count_into(at(&C::batch, &BatchConfig::micro_batch), {1, kMostSequences})},
      {kModelGroup, "global-batch", "SEQUENCES", "16",
       "sequences of one step over all ranks, a multiple of --micro-batch", OptionRole::shapes,
       OptionForm::value, kAlways,
       count_into(at(&C::batch, &BatchConfig::global_batch), {1, kMostSequences})},
      {kModelGroup, "seed", "N", "0", "seed of weights and data order", OptionRole::shapes,
       OptionForm::value, kAlways, count_into(at(&C::seed), {0, kMostSeed})},
      {kModelGroup, "init", "FOLDER", "",
       "start from these weights with fresh moments: a run, a step, or a Hugging Face folder",
       OptionRole::shapes, OptionForm::value, kAlways,
       text_into(at(&C::model, &ModelChoice::init))},
      {kModelGroup, "allow-tokenizer-mismatch", "", "false",
       "train although data, evaluation data, weights or vocabulary belong to other tokenizers",
       OptionRole::session, OptionForm::flag, kAlways,
       flag_into(at(&C::data, &DataConfig::allow_tokenizer_mismatch))},

      {kLearningGroup, "steps", "N", "1000", "steps in all; or give --epochs or --tokens",
       OptionRole::shapes, OptionForm::value, kNoOtherLength, count_into(at(&C::steps), kSteps)},
      {kLearningGroup, "epochs", "PASSES", "",
       "in place of --steps: passes over all sequences of --data, 0.5 is half a pass; rounded up "
       "to "
       "whole steps",
       OptionRole::shapes, OptionForm::value, kNoTokens,
       parsed_into(at(&C::length, &LengthConfig::epochs), or_none(real_in(kPasses)),
                   range_text(kPasses))},
      {kLearningGroup, "tokens", "N", "",
       "in place of --steps: tokens that go through the model, --global-batch times --seq a step, "
       "masked ones included (10B: 10 billion; also K, M, T); rounded up to whole steps",
       OptionRole::shapes, OptionForm::value, kNoEpochs,
       parsed_into(at(&C::length, &LengthConfig::tokens), or_none(parse_tokens),
                   range_text(kRunTokens))},
      {kLearningGroup, "lr", "RATE", "3e-4", "peak learning rate", OptionRole::shapes,
       OptionForm::value, kAlways, real_into(at(&C::schedule, &ScheduleConfig::lr), kRate)},
      {kLearningGroup, "schedule", "constant|cosine|wsd", "cosine", "learning rate after warm-up",
       OptionRole::shapes, OptionForm::value, kAlways,
       choice_into<ScheduleKind>(at(&C::schedule, &ScheduleConfig::kind),
                                 {{"constant", ScheduleKind::constant},
                                  {"cosine", ScheduleKind::cosine},
                                  {"wsd", ScheduleKind::wsd}})},
      {kLearningGroup, "warmup", "STEPS|auto", "auto",
       "steps of linear warm-up; auto: a fiftieth of --schedule-steps, at most 2000",
       OptionRole::shapes, OptionForm::value, kAlways,
       auto_count_into(at(&C::schedule, &ScheduleConfig::warmup), kStepsOrNone)},
      {kLearningGroup, "decay-steps", "STEPS|auto", "auto",
       "last steps, in which wsd decays; auto: a tenth of --schedule-steps", OptionRole::shapes,
       OptionForm::value, kWsd,
       auto_count_into(at(&C::schedule, &ScheduleConfig::decay_steps), kStepsOrNone)},
      {kLearningGroup, "schedule-steps", "STEPS|auto", "auto",
       "steps that the schedule spans; auto: all of the run", OptionRole::shapes, OptionForm::value,
       kAlways, auto_count_into(at(&C::schedule, &ScheduleConfig::span), kSteps)},
      {kLearningGroup, "min-lr-ratio", "RATIO", "0.1", "last learning rate, as a part of --lr",
       OptionRole::shapes, OptionForm::value, kDecay,
       real_into(at(&C::schedule, &ScheduleConfig::min_ratio), kPart)},
      {kLearningGroup, "optimizer", "adamw|muon|sgd", "adamw",
       "adamw; muon, which orthogonalises the momentum of hidden matrices (q, k, v, gate and up "
       "each apart) and leaves embedding, head, norm gains and biases to AdamW; or sgd with "
       "momentum; weight decay is decoupled with adamw and muon, and with sgd a part of the "
       "gradient, as torch.optim.SGD has it",
       OptionRole::shapes, OptionForm::value, kAlways,
       parsed_into(at(&C::optimizer, &OptimizerConfig::rule, &OptimizerOptions::kind),
                   parse_optimizer)},
      {kLearningGroup, "weight-decay", "RATE|auto", "auto",
       "decay of matrices; auto: 0.1 with adamw and muon, 0 with sgd", OptionRole::shapes,
       OptionForm::value, kAlways,
       parsed_into(at(&C::optimizer, &OptimizerConfig::weight_decay),
                   or_word("auto", std::optional<double>(), real_in(kRate)), range_text(kRate))},
      {kLearningGroup, "decay-all", "", "false", "decay norm gains and biases too",
       OptionRole::shapes, OptionForm::flag, kAlways,
       flag_into(at(&C::optimizer, &OptimizerConfig::decay_all))},
      {kLearningGroup, "beta1", "RATE", "0.9", "AdamW's decay of the first moment",
       OptionRole::shapes, OptionForm::value, kAdamWPart,
       real_into(at(&C::optimizer, &OptimizerConfig::rule, &OptimizerOptions::adamw,
                    &AdamWOptions::beta1),
                 kPart)},
      {kLearningGroup, "beta2", "RATE", "0.95", "AdamW's decay of the second moment",
       OptionRole::shapes, OptionForm::value, kAdamWPart,
       real_into(at(&C::optimizer, &OptimizerConfig::rule, &OptimizerOptions::adamw,
                    &AdamWOptions::beta2),
                 kPart)},
      {kLearningGroup, "eps", "VALUE", "1e-8", "AdamW's epsilon", OptionRole::shapes,
       OptionForm::value, kAdamWPart,
       real_into(
           at(&C::optimizer, &OptimizerConfig::rule, &OptimizerOptions::adamw, &AdamWOptions::eps),
           kRate)},
      {kLearningGroup, "moments", "f32|bf16|8bit", "f32",
       "what AdamW's moments are stored in: 4, 2 or 1 bytes each; bf16 and 8bit (in blocks of 256 "
       "elements with a scale) are rounded stochastically, the same on any number of ranks",
       OptionRole::shapes, OptionForm::value, kAdamW,
       parsed_into(at(&C::optimizer, &OptimizerConfig::rule, &OptimizerOptions::adamw,
                      &AdamWOptions::moments),
                   parse_moments)},
      {kLearningGroup, "muon-lr", "RATE|auto", "auto",
       "Muon's learning rate of hidden matrices, on the same schedule; auto: --lr",
       OptionRole::shapes, OptionForm::value, kMuon,
       parsed_into(at(&C::optimizer, &OptimizerConfig::muon_lr),
                   or_word("auto", std::optional<double>(), real_in(kRate)), range_text(kRate))},
      {kLearningGroup, "muon-momentum", "RATE", "0.95", "Muon's momentum, as Nesterov has it",
       OptionRole::shapes, OptionForm::value, kMuon,
       real_into(at(&C::optimizer, &OptimizerConfig::rule, &OptimizerOptions::muon,
                    &MuonOptions::momentum),
                 kPart)},
      {kLearningGroup, "muon-steps", "N", "5",
       "Newton-Schulz iterations that orthogonalise a matrix", OptionRole::shapes,
       OptionForm::value, kMuon,
       count_into(
           at(&C::optimizer, &OptimizerConfig::rule, &OptimizerOptions::muon, &MuonOptions::steps),
           kIterations)},
      {kLearningGroup, "muon-scale", "rms|spectral", "rms",
       "what an orthogonalised matrix is multiplied by: rms: 0.2 sqrt(max(rows, columns)), so that "
       "updates have the size of AdamW's; spectral: sqrt(max(1, rows / columns))",
       OptionRole::shapes, OptionForm::value, kMuon,
       choice_into<MuonScale>(
           at(&C::optimizer, &OptimizerConfig::rule, &OptimizerOptions::muon, &MuonOptions::scale),
           {{"rms", MuonScale::rms}, {"spectral", MuonScale::spectral}})},
      {kLearningGroup, "momentum", "RATE", "0.9", "SGD's momentum; 0: none", OptionRole::shapes,
       OptionForm::value, kSgd,
       real_into(
           at(&C::optimizer, &OptimizerConfig::rule, &OptimizerOptions::sgd, &SgdOptions::momentum),
           kPart)},
      {kLearningGroup, "clip", "NORM", "1.0",
       "largest norm of the global gradient, which is scaled down to it; lines and metrics show "
       "the "
       "norm before clipping; 0: no clipping",
       OptionRole::shapes, OptionForm::value, kAlways,
       real_into(at(&C::optimizer, &OptimizerConfig::clip), kNorm)},
      {kLearningGroup, "label-smoothing", "SHARE", "0",
       "share of each target that is spread evenly over the vocabulary, below 1; evaluations leave "
       "it out",
       OptionRole::shapes, OptionForm::value, kAlways,
       real_into(at(&C::loss, &LossConfig::label_smoothing), kPart)},
      {kLearningGroup, "z-loss", "FACTOR", "0",
       "factor of the square of log(sum of exp(logits)), which is added to each target's loss and "
       "keeps logits small (1e-4 is usual); evaluations leave it out",
       OptionRole::shapes, OptionForm::value, kAlways,
       real_into(at(&C::loss, &LossConfig::z_loss), kRate)},
      {kLearningGroup, "max-skipped", "N", "3",
       "steps in a row that may be skipped because loss or gradient is not finite",
       OptionRole::session, OptionForm::value, kAlways,
       count_into(at(&C::optimizer, &OptimizerConfig::max_skipped), kStepsOrNone)},

      {kMachineGroup, "device", "cpu|cuda", "cpu", "where a rank computes", OptionRole::shapes,
       OptionForm::value, kAlways,
       choice_into<DeviceKind>(at(&C::compute, &ComputeConfig::device),
                               {{"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}})},
      {kMachineGroup, "precision", "f32|bf16|bf16-params|fp8|auto", "auto",
       "parameters and activations; auto: bf16 on cuda, f32 on cpu (master weights are always "
       "f32); bf16-params, on cpu: f32 with parameters that hold values of bf16, as a run on cuda "
       "stores them; fp8: as auto, with the blocks' GEMMs in 8 bits while training",
       OptionRole::shapes, OptionForm::value, kAlways,
       choice_into<std::optional<Precision>>(at(&C::compute, &ComputeConfig::precision),
                                             {{"auto", std::nullopt},
                                              {"f32", Precision::f32},
                                              {"bf16", Precision::bf16},
                                              {"bf16-params", Precision::bf16_params},
                                              {"fp8", Precision::fp8}})},
      {kMachineGroup, "fp8-recipe", "tensor|row|block", "tensor",
       "what of an operand shares a scale in --precision fp8; row and block are not in this "
       "version",
       OptionRole::shapes, OptionForm::value, kFp8,
       parsed_into(at(&C::compute, &ComputeConfig::recipe), parse_recipe)},
      {kMachineGroup, "fp8-skip", "LAYERS|none", "none",
       "blocks, counted from 0, that --precision fp8 leaves in bf16 (f32 on cpu), as in 0,26:27",
       OptionRole::shapes, OptionForm::value, kFp8,
       parsed_into(at(&C::compute, &ComputeConfig::not_quantized),
                   or_word("none", std::vector<LayerRange>(), parse_layers))},
      {kMachineGroup, "fp8-weights", "stored|one-layout|at-use|auto", "auto",
       "where the blocks' weights of 8 bits are: stored: those of all blocks on the device, in "
       "both "
       "layouts, made once after each update (with --params host, or with shards, nothing else of "
       "a "
       "block comes while training); one-layout: the same in the forward pass's layout alone, half "
       "the "
       "memory: backward passes transpose one block at a time; at-use: made anew by each pass, one "
       "block at a time; auto: stored where they fit, else one-layout with --params host or shards "
       "where that fits; bit-identical",
       OptionRole::session, OptionForm::value, kFp8,
       choice_into<std::optional<CodeStorage>>(at(&C::compute, &ComputeConfig::fp8_weights),
                                               {{"stored", CodeStorage::stored},
                                                {"one-layout", CodeStorage::one_layout},
                                                {"at-use", CodeStorage::at_use},
                                                {"auto", std::nullopt}})},
      {kMachineGroup, "threads", "N", "1",
       "threads of a CPU rank; another value changes results bit for bit", OptionRole::shapes,
       OptionForm::value, kAlways,
       count_into(at(&C::compute, &ComputeConfig::threads), {1, kMostThreads})},
      {kMachineGroup, "zero", "1|2|3|auto", "auto",
       "2: gradients are exchanged at every micro-step; 3: and each rank stores its shard of the "
       "parameters alone, blocks are gathered ahead of use, bit-identical to 2; auto: 2 where it "
       "fits, else 3; 1: gradients are summed locally in f32, sent once a step, and results depend "
       "on the number of ranks",
       OptionRole::shapes, OptionForm::value, kAlways,
       choice_into<std::optional<ZeroStage>>(at(&C::parallel, &ParallelConfig::zero),
                                             {{"1", ZeroStage::one},
                                              {"2", ZeroStage::two},
                                              {"3", ZeroStage::three},
                                              {"auto", std::nullopt}})},
      {kMachineGroup, "params", "device|host|auto", "auto",
       "where parameters are stored: host: each rank's shard in pinned host memory, from where "
       "blocks come ahead of use, bit-identical; auto: host where nothing else fits the device",
       OptionRole::session, OptionForm::value, kAlways,
       choice_into<std::optional<ParamPlacement>>(at(&C::memory, &MemoryConfig::params),
                                                  {{"device", ParamPlacement::device},
                                                   {"host", ParamPlacement::host},
                                                   {"auto", std::nullopt}})},
      {kMachineGroup, "param-blocks", "N|auto", "auto",
       "blocks of parameters in shards, or on the host, that are on the device at a time, 3 or "
       "more: "
       "more of them hide passes that use blocks faster than they come; auto: what makes the step "
       "shortest by the estimate, of what is left of the device; bit-identical",
       OptionRole::session, OptionForm::value, kAlways,
       auto_count_into(at(&C::memory, &MemoryConfig::param_blocks),
                       {ShardedParams::kLeastBlocks, kMostBlocks})},
      {kMachineGroup, "reduce-group", "N", "1",
       "consecutive micro-batches that are added first; where that many consecutive ranks share a "
       "node, they add them there, and only sums (f32) go to other nodes; another value changes "
       "results bit for bit",
       OptionRole::shapes, OptionForm::value, kAlways,
       count_into(at(&C::parallel, &ParallelConfig::reduce_group), {1, kMostSequences})},
      {kMachineGroup, "reduce", "ordered|native", "ordered",
       "ordered: bit-identical on any number of ranks; native: the library's own order, so that "
       "results depend on the number of ranks",
       OptionRole::shapes, OptionForm::value, kAlways,
       choice_into<ReduceMode>(at(&C::parallel, &ParallelConfig::reduce),
                               {{"ordered", ReduceMode::ordered}, {"native", ReduceMode::native}})},
      {kMachineGroup, "peer-copies", "auto|off", "auto",
       "auto: GPUs of one host that reach each other's memory exchange by their copy engines; off: "
       "by "
       "NCCL; bit-identical",
       OptionRole::session, OptionForm::value, kCuda,
       choice_into<bool>(at(&C::parallel, &ParallelConfig::peer_copies),
                         {{"auto", true}, {"off", false}})},
      {kMachineGroup, "recompute", "none|LEVEL[:LAYERS],...|auto", "none",
       "what the backward pass computes again instead of keeping it, by LEVEL: attention, mlp or "
       "block, which is both; in all layers, or in so many of the first ones: mlp:24; block:8,mlp "
       "is block in 8 and mlp in the others; auto: of the mixes that fit the memory, the one with "
       "the shortest estimated step; bit-identical",
       OptionRole::session, OptionForm::value, kAlways,
       parsed_into(at(&C::memory, &MemoryConfig::recompute),
                   or_word("auto", std::optional<RecomputeLevels>(),
                           [](const std::string& text, const std::string& name) {
                             return parse_recompute(text, name);
                           }))},
      {kMachineGroup, "offload-activations", "", "false",
       "keep the inputs of blocks in pinned host memory between the forward and the backward pass, "
       "copied behind the blocks' own work; needs --recompute block, in some layers or all; "
       "bit-identical",
       OptionRole::session, OptionForm::flag, kRecomputedBlocks,
       flag_choice_into(at(&C::memory, &MemoryConfig::inputs), InputPlacement::host,
                        InputPlacement::device)},
      {kMachineGroup, "resident-bytes", "auto|all|none|BYTES", "auto",
       "device memory for optimizer state, buffers included; the rest is paged from pinned host "
       "memory",
       OptionRole::session, OptionForm::value, kAlways,
       parsed_into(at(&C::memory, &MemoryConfig::resident), parse_resident,
                   range_text(kSomeBytes))},
      {kMachineGroup, "master-weights", "auto|f32|packed", "auto",
       "how optimizer state stores master weights: f32, or packed beside bf16 parameters, exactly, "
       "2 bytes per element less; auto: packed where state is paged and parameters are bf16; "
       "bit-identical",
       OptionRole::session, OptionForm::value, kAlways,
       choice_into<MasterStorage>(at(&C::memory, &MemoryConfig::masters),
                                  {{"auto", MasterStorage::automatic},
                                   {"f32", MasterStorage::f32},
                                   {"packed", MasterStorage::packed}})},
      {kMachineGroup, "page-bytes", "BYTES|auto", "auto",
       "size of a page of optimizer state; auto: 8 MiB, and 64 MiB on cuda where nothing is paged",
       OptionRole::session, OptionForm::value, kAlways,
       parsed_into(at(&C::memory, &MemoryConfig::page_bytes),
                   or_word("auto", std::size_t{0}, bytes_in(kBytes)), range_text(kBytes))},
      {kMachineGroup, "grad-offload", kSwitchOrSizeArgument, "false",
       "keep the f32 sums of the shard's gradient in pinned host memory: all of them, at least "
       "BYTES, "
       "or with auto as little as lets the run fit its device; bit-identical, but each micro-batch "
       "moves what is there both ways",
       OptionRole::session, OptionForm::flag_or_size, kAlways,
       parsed_into(at(&C::memory, &MemoryConfig::grad_offload), parse_offload,
                   range_text(kSomeBytes))},
      {kMachineGroup, "batched-forward", "N", "1",
       "micro-batches of each rank whose forward passes run side by side, unit by unit, at the "
       "beginning of a step, so that a long pass over paged optimizer state hides behind them; "
       "keeps their block inputs, and recomputes all else of them at every --recompute; "
       "bit-identical",
       OptionRole::session, OptionForm::value, kAlways,
       count_into(at(&C::batch, &BatchConfig::batched_forward), kSideBySide)},
      {kMachineGroup, "batched-backward", "", "false",
       "let backward passes run side by side as well, and all micro-batches of a step in groups of "
       "--batched-forward, so that a block's parameters come twice for each group; keeps their "
       "gradients of block outputs; not for tied embeddings; bit-identical",
       OptionRole::session, OptionForm::flag, kBatched,
       flag_into(at(&C::batch, &BatchConfig::batched_backward))},
      {kMachineGroup, "logits-bytes", "BYTES|auto", "auto",
       "logits that exist at a time; auto: 128 MiB on cpu, 640 MiB on cuda; another value changes "
       "results bit for bit",
       OptionRole::shapes, OptionForm::value, kAlways,
       parsed_into(at(&C::compute, &ComputeConfig::logits_bytes),
                   or_word("auto", std::size_t{0}, bytes_in(kBytes)), range_text(kBytes))},
      {kMachineGroup, "tune-gemm", "FILE", "",
       "time cuBLAS's algorithms for this model's GEMMs once and keep the choice in "
       "FILE; "
       "a run that is given the file repeats in bits (cuda only)",
       OptionRole::session, OptionForm::value, kTuning,
       text_into(at(&C::compute, &ComputeConfig::tune_gemm))},
      {kMachineGroup, "attention", "cudnn|builtin", "cudnn",
       "attention on cuda in bf16: the library's, or our own slower kernel (always so in f32)",
       OptionRole::shapes, OptionForm::value, kCudaBf16,
       choice_into<AttentionMethod>(
           at(&C::compute, &ComputeConfig::attention),
           {{"cudnn", AttentionMethod::library}, {"builtin", AttentionMethod::builtin}})},
      {kMachineGroup, "attention-slice-bytes", "BYTES", kAttentionSlices,
       "workspace of attention's backward pass, which runs in slices, or tiles of long sequences, "
       "that fit",
       OptionRole::shapes, OptionForm::value, kCudnn,
       bytes_into(at(&C::compute, &ComputeConfig::attention_slice_bytes), kBytes)},
      {kMachineGroup, "fast-attention", "", "false",
       "let cuDNN's backward pass add in an order that changes from run to run", OptionRole::shapes,
       OptionForm::flag, kCudnn,
       flag_choice_into(at(&C::compute, &ComputeConfig::attention_order), AttentionOrder::fast,
                        AttentionOrder::deterministic)},
      {kMachineGroup, "timeout-seconds", "SECONDS", "600",
       "a rank without start or progress for so long ends the run with exit code 8",
       OptionRole::session, OptionForm::value, kAlways,
       real_into(at(&C::launch, &LaunchConfig::timeout_seconds), {1, kMostSeconds})},

      {kEvalGroup, "out", "FOLDER", "", "metrics and checkpoints of this run", OptionRole::session,
       OptionForm::value, kAlways, text_into(at(&C::out))},
      {kEvalGroup,
       "eval-data",
       "[NAME=]FILE...",
       "",
       "token file for evaluation; several are evaluated one by one and need names, of letters, "
       "digits, '-', '_' and '.', as in chat=chats.h5 code=code.h5",
       OptionRole::session,
       OptionForm::list,
       kAlways,
       {.set = [](C& c, const std::string& text,
                  const std::string&) { c.eval.files.push_back(parse_eval_file(text)); },
        .is_equal = [](const C& a, const C& b) { return a.eval.files == b.eval.files; },
        .number = nullptr,
        .range = {}}},
      {kEvalGroup, "eval-every", "STEPS", "0", "steps between evaluations; 0: at the end only",
       OptionRole::session, OptionForm::value, kEvalEvery,
       count_into(at(&C::eval, &EvalConfig::every), kStepsOrNone)},
      {kEvalGroup, "eval-sequences", "N", "64",
       "sequences of --seq tokens of each evaluation file that are used, spread evenly over it; "
       "0: all",
       OptionRole::session, OptionForm::value, kEval,
       count_into(at(&C::eval, &EvalConfig::sequences), {0, kMostSequences})},
      {kEvalGroup, "log-every", "STEPS", "1", "steps between progress lines in a file or pipe",
       OptionRole::session, OptionForm::value, kAlways,
       count_into(at(&C::monitor, &MonitorConfig::log_every), kSteps)},
      {kEvalGroup, "trace", "FIRST:LAST", "",
       "write the timeline of these steps, of all ranks, to OUT/trace.json, for "
       "https://ui.perfetto.dev and chrome://tracing",
       OptionRole::session, OptionForm::value, kAlways,
       parsed_into(at(&C::monitor, &MonitorConfig::trace), parse_steps, range_text(kSteps))},
      {kEvalGroup, "sample-every", "STEPS", "0",
       "steps between samples that the model writes; 0: none", OptionRole::session,
       OptionForm::value, kAlways, count_into(at(&C::sample, &SampleConfig::every), kStepsOrNone)},
      {kEvalGroup,
       "sample-prompt",
       "TEXT",
       "",
       "what a sample begins with; give it several times for one of each, which are written side "
       "by "
       "side",
       OptionRole::session,
       OptionForm::repeated,
       kSamplePrompt,
       {.set = [](C& c, const std::string& text,
                  const std::string&) { c.sample.prompts.push_back(text); },
        .is_equal = [](const C& a, const C& b) { return a.sample.prompts == b.sample.prompts; },
        .number = nullptr,
        .range = {}}},
      {kEvalGroup, "sample-tokens", "N", "64", "tokens of a sample beside the prompt",
       OptionRole::session, OptionForm::value, kSample,
       count_into(at(&C::sample, &SampleConfig::tokens), {1, kMostTokens})},
      {kEvalGroup, "sample-temperature", "T", "0.8", "of samples; 0: always the likeliest token",
       OptionRole::session, OptionForm::value, kSample,
       real_into(at(&C::sample, &SampleConfig::temperature), kHotness)},
      {kMachineGroup, "require-fast-network", "", "false",
       "end with 2 where ranks of several hosts talk through sockets and a host has a faster "
       "network",
       OptionRole::session, OptionForm::flag, kAlways,
       flag_into(at(&C::launch, &LaunchConfig::require_fast_network))},
      {kEvalGroup, "verbose", "", "false", "say more: ranks, devices, choices", OptionRole::session,
       OptionForm::flag, kAlways, flag_into(at(&C::verbose))},

      {kSaveGroup, "save-every", "STEPS", "0", "steps between saves; 0: at the end only",
       OptionRole::session, OptionForm::value, kAlways,
       count_into(at(&C::checkpoint, &CheckpointConfig::save_every), kStepsOrNone)},
      {kSaveGroup, "save-at-end", "", "true", "save after the last step", OptionRole::session,
       OptionForm::flag, kAlways, flag_into(at(&C::checkpoint, &CheckpointConfig::save_at_end))},
      {kSaveGroup, "keep", "N", "3", "newest checkpoints that are kept, 1 or more",
       OptionRole::session, OptionForm::value, kAlways,
       count_into(at(&C::checkpoint, &CheckpointConfig::keep), kKept)},
      {kSaveGroup, "keep-every", "STEPS", "0",
       "checkpoints of multiples of so many steps are kept permanently; 0: none",
       OptionRole::session, OptionForm::value, kAlways,
       count_into(at(&C::checkpoint, &CheckpointConfig::keep_every), kStepsOrNone)},
      {kSaveGroup, "keep-best", "SET", "",
       "keep the checkpoint with the lowest loss of this evaluation set beyond --keep, and name it "
       "in "
       "OUT/BEST; the set (without a name: 'evaluation') is evaluated before each save of "
       "--save-every and at the end",
       OptionRole::session, OptionForm::value, kEvalStrict,
       text_into(at(&C::checkpoint, &CheckpointConfig::keep_best))},
      {kSaveGroup, "save-staging", "auto|BYTES", "auto",
       "host memory for what a save still has to write when the next update comes; auto: the shard",
       OptionRole::session, OptionForm::value, kAlways,
       parsed_into(at(&C::checkpoint, &CheckpointConfig::staging),
                   or_word("auto", std::optional<std::size_t>(), bytes_in(kBytes)),
                   range_text(kBytes))},
      {kSaveGroup, "save-local", "DIR", "",
       "also save to this folder on each node's own disk, with a copy on another node: a run that "
       "loses a node continues from there; the newest two are kept, and saves to --out are copied "
       "from them",
       OptionRole::session, OptionForm::value, kAlways,
       text_into(at(&C::checkpoint, &CheckpointConfig::local_folder))},
      {kSaveGroup, "save-local-every", "STEPS", "", "steps between saves to --save-local",
       OptionRole::session, OptionForm::value, kLocalSaves,
       parsed_into(at(&C::checkpoint, &CheckpointConfig::local_every),
                   or_word("", Index{0}, count_in(kSteps)), range_text(kSteps))},
      {kSaveGroup, "on-save-failure", "continue|stop", "continue",
       "what a failed save or export does", OptionRole::session, OptionForm::value, kAlways,
       choice_into<SaveFailure>(at(&C::checkpoint, &CheckpointConfig::on_failure),
                                {{"continue", SaveFailure::go_on}, {"stop", SaveFailure::stop}})},
      {kSaveGroup, "export", "HF_FOLDER", "",
       "write the model as a Hugging Face folder after the last step, in the background like a "
       "save: "
       "bf16 safetensors, config, generation config and tokenizer; with --lora the adapters as "
       "PEFT's folder; an earlier export of this run is "
       "replaced",
       OptionRole::session, OptionForm::value, kAlways,
       text_into(at(&C::model_export, &ExportConfig::folder))},
      {kSaveGroup, "export-every", "STEPS", "0",
       "steps between exports, a multiple of --save-every, since they go with saves; 0: after the "
       "last step alone",
       OptionRole::session, OptionForm::value, kExport,
       count_into(at(&C::model_export, &ExportConfig::every), kStepsOrNone)},
      {kSaveGroup,
       "resume",
       "auto|none|PATH",
       "auto",
       "auto: continue what --out holds; none: --out must hold no steps; or a run or step folder",
       OptionRole::session,
       OptionForm::value,
       kAlways,
       {.set =
            [](C& c, const std::string& text, const std::string&) {
              c.checkpoint.resume = text == "auto"   ? ResumeKind::automatic
                                    : text == "none" ? ResumeKind::none
                                                     : ResumeKind::path;
              c.checkpoint.resume_path = c.checkpoint.resume == ResumeKind::path ? text : "";
            },
        .is_equal =
            [](const C& a, const C& b) {
              return a.checkpoint.resume == b.checkpoint.resume &&
                     a.checkpoint.resume_path == b.checkpoint.resume_path;
            },
        .number = nullptr,
        .range = {}}},
      {kSaveGroup, "allow-data-change", "", "false",
       "continue even if the data or its order changed", OptionRole::session, OptionForm::flag,
       kAlways, flag_into(at(&C::data, &DataConfig::allow_change))},
      {kSaveGroup, "stop-file", "FILE", "",
       "when this file appears or is touched: finish the step, save, exit with 85",
       OptionRole::session, OptionForm::value, kAlways,
       text_into(at(&C::launch, &LaunchConfig::stop_file))},
      {kSaveGroup, "max-seconds", "SECONDS", "0",
       "after so long: finish the step, save, exit with 85; 0: no limit",
       OptionRole::local,  // the first rank whose time is over stops all, by the step's exchange
       OptionForm::value, kAlways,
       real_into(at(&C::launch, &LaunchConfig::max_seconds), {0, kMostSeconds})},

      {kPlanGroup, "plan", "", "false",
       "print the memory of each rank and node, the time of a step and of the run, and the command "
       "that starts it, and end: needs neither GPU nor data",
       OptionRole::session, OptionForm::flag, kAlways, flag_into(at(&C::plan, &PlanConfig::print))},
      {kPlanGroup, "fit", "", "false",
       "of --plan: try micro-batches, levels of --recompute and --batched-forward (those that are "
       "given stay), and print the fastest that fit; plans for cuda where --device is not given",
       OptionRole::session, OptionForm::flag, kJson, flag_into(at(&C::plan, &PlanConfig::fit))},
      {kPlanGroup, "scale", "", "false",
       "of --plan: print the estimate for 1 to 512 ranks, each with as many micro-batches a step "
       "as among --ranks (the global batch grows with them), on nodes of --ranks-per-node; plans "
       "for cuda where --device is not given",
       OptionRole::session, OptionForm::flag, kJson, flag_into(at(&C::plan, &PlanConfig::scale))},
      {kPlanGroup, "ranks", "N", "0", "ranks to plan for; 0: those that mpirun started",
       OptionRole::session, OptionForm::value, kPlan,
       count_into(at(&C::plan, &PlanConfig::ranks), {0, kMostRanks})},
      {kPlanGroup, "ranks-per-node", "N", "0",
       "ranks of one node to plan for, 0: 8 on cuda, all on cpu; or, in a run, consecutive ranks "
       "that "
       "--reduce-group takes for a node, 0: those of a host",
       OptionRole::session, OptionForm::value, kNodes,
       count_into(at(&C::parallel, &ParallelConfig::ranks_per_node), {0, kMostRanks})},
      {kPlanGroup, "device-memory", "BYTES|auto", "auto",
       "memory of one device to plan for, or that a run may use, by the driver's count, with what "
       "CUDA and its libraries take; auto: that of --card (h100: 80 GB, h200: 141 GB), or all",
       OptionRole::session, OptionForm::value, kPlanOrCuda,
       parsed_into(at(&C::plan, &PlanConfig::device_bytes),
                   or_word("auto", std::optional<std::size_t>(), bytes_in(kSomeBytes)),
                   range_text(kSomeBytes))},
      {kPlanGroup, "host-memory", "BYTES", "0",
       "memory of one node to plan for, or that a run may use; 0: this machine's, or, in a plan "
       "for "
       "--device cuda, any",
       OptionRole::local,  // nodes may differ in memory; a run that one of them cannot hold is
                           // refused
       OptionForm::value, kAlways, bytes_into(at(&C::memory, &MemoryConfig::host_bytes), kBytes)},
      {kPlanGroup, "card", "a100|h100|h200|b200", "h100",
       "card to plan for: its memory, and its rates for the estimate of a step's time: measured "
       "for "
       "h100 and h200, assumed for a100 (of 80 GB) and b200; plans for cuda where --device is not "
       "given",
       OptionRole::session, OptionForm::value, kPlan,
       choice_into<Card>(at(&C::plan, &PlanConfig::card), {{"a100", Card::a100},
                                                           {"h100", Card::h100},
                                                           {"h200", Card::h200},
                                                           {"b200", Card::b200}})},
      {kPlanGroup, "network-bandwidth", "BYTES", "45GB",
       "bytes a second that one rank sends to other nodes while it receives as many, for the "
       "estimate (45GB: nine tenths of 400 Gb/s)",
       OptionRole::session, OptionForm::value, kPlan,
       bytes_into(at(&C::plan, &PlanConfig::network_bandwidth), kSomeBytes)},
      {kPlanGroup, "network-latency", "SECONDS", "5e-6",
       "what one message to another node takes beside its bytes, for the estimate",
       OptionRole::session, OptionForm::value, kPlan,
       real_into(at(&C::plan, &PlanConfig::network_latency), kLatency)},
      {kPlanGroup, "json", "", "false", "the plan as JSON", OptionRole::session, OptionForm::flag,
       kJson, flag_into(at(&C::plan, &PlanConfig::json))},
  };
  static const std::vector<OptionRow> table = with_adapter_rows(rows, kLearningGroup);
  return table;
}

const OptionRow* find_option(std::string_view name) {
  const auto found = std::find_if(option_table().begin(), option_table().end(),
                                  [name](const OptionRow& row) { return row.name == name; });
  return found == option_table().end() ? nullptr : &*found;
}

std::vector<std::string> option_names() {
  std::vector<std::string> names;
  for (const OptionRow& row : option_table()) {
    names.push_back(row.name);
  }
  return names;
}

std::span<const OldName> old_names() {
  return kOldNames;
}

std::string current_name(std::string_view name) {
  const auto* const found =
      std::find_if(kOldNames.begin(), kOldNames.end(),
                   [name](const OldName& option) { return option.old_name == name; });
  return std::string(found == kOldNames.end() ? name : found->name);
}

std::string old_name_note(std::string_view name) {
  const std::string now = current_name(name);
  return now == name ? std::string()
                     : fmt::format("--{} is called --{} now; the old name works until {}", name,
                                   now, kOldNamesEnd);
}

const RunConfig& default_config() {
  static const RunConfig config = [] {
    RunConfig of_defaults;
    for (const OptionRow& row : option_table()) {
      if (!takes_several(row.form)) {
        row.setting.set(of_defaults, row.standard, "--" + row.name);
      }
    }
    return of_defaults;
  }();
  return config;
}

bool differs_from_default(const OptionRow& row, const RunConfig& config) {
  return !row.setting.is_equal(config, default_config());
}

bool is_used(const OptionRow& row, const RunConfig& config) {
  return row.need.is_met == nullptr || row.need.is_met(config);
}

}  // namespace tessera
