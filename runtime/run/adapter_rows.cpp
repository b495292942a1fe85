#include "runtime/run/adapter_rows.h"

#include <algorithm>

#include "runtime/run/option_needs.h"
#include "runtime/run/option_setting.h"

namespace tessera {
namespace {

constexpr RealRange kAlphas = {kLeastAdapterAlpha, kMostAdapterAlpha};
constexpr CountRange kAdapterRanks = {1, kMostAdapterRank};

constexpr OptionNeed kNoInitAdapter = {
    [](const RunConfig& c) { return c.adapters.init_folder.empty(); },
    "cannot be given with --init-adapter, whose folder says it", true};
constexpr OptionNeed kLoraAlone = {
    [](const RunConfig& c) { return c.adapters.rank && c.adapters.init_folder.empty(); },
    "needs --lora, the rank of adapters, and no --init-adapter, whose folder says it", true};
constexpr OptionNeed kLoraOrInit = {
    [](const RunConfig& c) { return c.adapters.rank || !c.adapters.init_folder.empty(); },
    "needs --lora, the rank of adapters, or --init-adapter", true};

constexpr OptionNeed kNf4Base = {
    [](const RunConfig& c) { return c.adapters.base == BaseStorage::nf4 && c.model.init.empty(); },
    "needs --base-dtype nf4, whose base it makes, and no --init", true};

}  // namespace

std::vector<OptionRow> with_adapter_rows(std::vector<OptionRow> rows, const std::string& group) {
  using C = RunConfig;
  const std::vector<OptionRow> own = {
      {group, "lora", "RANK", "",
       "train adapters of this rank beside linear layers (LoRA) and leave the model as it is: "
       "--init "
       "names it; gradients, optimizer state and checkpoints are the adapters' alone",
       OptionRole::shapes, OptionForm::value, kNoInitAdapter,
       parsed_into(at(&C::adapters, &AdapterOptions::rank), or_none(count_in(kAdapterRanks)),
                   range_text(kAdapterRanks))},
      {group, "lora-alpha", "FACTOR|auto", "auto",
       "alpha: adapters are multiplied by alpha / RANK; auto: twice the rank", OptionRole::shapes,
       OptionForm::value, kLoraAlone,
       parsed_into(at(&C::adapters, &AdapterOptions::alpha),
                   or_word("auto", std::optional<double>(), real_in(kAlphas)),
                   range_text(kAlphas))},
      {group, "lora-targets", "all|NAME,...|attention|mlp", "all",
       "linear layers that have an adapter: q_proj, k_proj, v_proj, o_proj (attention), gate_proj, "
       "up_proj, down_proj (mlp)",
       OptionRole::shapes, OptionForm::value, kLoraAlone,
       parsed_into(at(&C::adapters, &AdapterOptions::targets), parse_projections)},
      {group, "lora-init", "kaiming|gaussian", "kaiming",
       "how A begins, as PEFT has it: uniform up to 1 / sqrt(inputs), or normal with deviation 1 / "
       "RANK; B begins with zeros",
       OptionRole::shapes, OptionForm::value, kLoraAlone,
       choice_into<AdapterInit>(
           at(&C::adapters, &AdapterOptions::init),
           {{"kaiming", AdapterInit::kaiming}, {"gaussian", AdapterInit::gaussian}})},
      {group, "rslora", "", "false",
       "rank-stabilised: multiply adapters by alpha / sqrt(RANK) in place of alpha / RANK",
       OptionRole::shapes, OptionForm::flag, kLoraAlone,
       flag_into(at(&C::adapters, &AdapterOptions::rank_stabilized))},
      {group, "train-embeddings", "", "false",
       "train embedding and LM head as a whole beside the adapters", OptionRole::shapes,
       OptionForm::flag, kLoraOrInit,
       flag_into(at(&C::adapters, &AdapterOptions::trains_embeddings))},
      {group, "base-dtype", "auto|bf16|nf4", "auto",
       "nf4: store the matrices of the frozen base's blocks in 4 bits (QLoRA) and widen a block "
       "just before it is used; auto: as the run that is continued has it; else as parameters "
       "are, or nf4 where --init is a folder of `convert quantise`",
       OptionRole::shapes, OptionForm::value, kLoraOrInit,
       choice_into<std::optional<BaseStorage>>(
           at(&C::adapters, &AdapterOptions::base),
           {{"auto", std::nullopt}, {"bf16", BaseStorage::params}, {"nf4", BaseStorage::nf4}})},
      {group, "base-random", "", "false",
       "for measurements: a base of random codes in the model's shape, made in seconds; adapters "
       "of "
       "it are of no use",
       OptionRole::shapes, OptionForm::flag, kNf4Base,
       flag_into(at(&C::adapters, &AdapterOptions::random_base))},
      {group, "init-adapter", "PEFT_FOLDER", "",
       "continue from these adapters with fresh moments: adapter_config.json says their rank, "
       "alpha "
       "and layers",
       OptionRole::session, OptionForm::value, kAlways,
       text_into(at(&C::adapters, &AdapterOptions::init_folder))},
  };
  const auto last = std::find_if(rows.rbegin(), rows.rend(),
                                 [&group](const OptionRow& row) { return row.group == group; });
  rows.insert(last.base(), own.begin(), own.end());
  return rows;
}

}  // namespace tessera
