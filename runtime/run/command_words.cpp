#include "runtime/run/command_words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/quantity.h"
#include "kernels/base/terminal.h"

namespace tessera {
namespace {

namespace po = boost::program_options;

// Takes words that belong to no option where a program has no use for them. No user can write it.
constexpr const char* kStrayWords = "\x01";

bool is_whole_number(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isdigit(static_cast<unsigned char>(c)) != 0;
  });
}

bool is_negative_number(std::string_view text) {
  return text.size() > 1 && text[0] == '-' &&
         (std::isdigit(static_cast<unsigned char>(text[1])) != 0 || text[1] == '.');
}

enum class Takes : std::uint8_t { nothing, truth, truth_or_size, optional_number, one, several };

Takes takes(const po::option_description& option) {
  const po::value_semantic& value = *option.semantic();
  if (value.max_tokens() == 0) {
    return Takes::nothing;
  }
  if (value.max_tokens() > 1) {
    return Takes::several;
  }
  if (value.min_tokens() == 1) {
    return Takes::one;
  }
  const std::string name = value.name();
  if (name.find(kSwitchOrSizeArgument) != std::string::npos) {
    return Takes::truth_or_size;
  }
  return name.find(kSwitchArgument) != std::string::npos ? Takes::truth : Takes::optional_number;
}

// Of the word behind an option: whether it is its value, where boost would take it for an option,
// or could take any word for the value of a switch.
bool belongs_to(Takes kind, std::string_view next) {
  switch (kind) {
    case Takes::truth:
      return next == "true" || next == "false";
    case Takes::truth_or_size:
      return next == "true" || next == "false" || next == "auto" ||
             is_whole_number(next.substr(0, 1));
    case Takes::optional_number:
      return is_whole_number(next);
    case Takes::one:
      return is_negative_number(next);
    case Takes::nothing:
    case Takes::several:
      break;
  }
  return false;
}

// `--name value` as `--name=value` where boost needs it, and a switch alone as `--name=true`, which
// boost would give the next word.
std::vector<std::string> joined(const std::vector<std::string>& words,
                                const po::options_description& options,
                                Abbreviations abbreviations) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") {
      result.insert(result.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
      break;
    }
    const bool is_bare =
        word.size() > 2 && word.starts_with("--") && word.find('=') == std::string::npos;
    const po::option_description* option =
        is_bare ? options.find_nothrow(word.substr(2), abbreviations == Abbreviations::taken)
                : nullptr;
    const Takes kind = option == nullptr ? Takes::nothing : takes(*option);
    if (i + 1 < words.size() && belongs_to(kind, words[i + 1])) {
      result.push_back(word + "=" + words[i + 1]);
      ++i;
    } else {
      result.push_back(kind == Takes::truth || kind == Takes::truth_or_size ? word + "=true"
                                                                            : word);
    }
  }
  return result;
}

// Insertions, removals, replacements and swaps of neighbours that make `a` of `b`.
std::size_t edits_between(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<std::size_t> table((a.size() + 1) * width);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& {
    return table[i * width + j];
  };
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        at(i, j) = i + j;
        continue;
      }
      const std::size_t differs = a[i - 1] == b[j - 1] ? 0 : 1;
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, at(i - 1, j - 1) + differs});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      }
    }
  }
  return table.back();
}

// As options are written here: without dashes before it, in lower case, with dashes inside.
std::string plain_name(std::string_view name) {
  std::string plain(name.substr(std::min(name.find_first_not_of('-'), name.size())));
  plain.resize(std::min(plain.find('='), plain.size()));
  for (char& c : plain) {
    c = c == '_' || c == '.' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return plain;
}

// Of `known`, those with the fewest edits, if those are few for the length of the name.
std::vector<std::string> nearest(const std::string& name, const std::vector<std::string>& known) {
  constexpr std::size_t kLettersOfAnEdit = 3;
  std::size_t fewest = std::max<std::size_t>(1, name.size() / kLettersOfAnEdit);
  std::vector<std::string> found;
  for (const std::string& each : known) {
    const std::size_t edits = edits_between(name, each);
    if (edits > fewest || edits >= each.size()) {
      continue;
    }
    if (edits < fewest) {
      found.clear();
      fewest = edits;
    }
    found.push_back(each);
  }
  return found;
}

std::vector<std::string> candidates(const std::string& name,
                                    const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), name) != known.end()) {
    return {name};  // --global_batch
  }
  std::vector<std::string> found;
  for (const ForeignName& foreign : foreign_names()) {
    if (foreign.theirs == name) {
      std::copy_if(
          known.begin(), known.end(), std::back_inserter(found), [&](const std::string& ours) {
            return std::find(foreign.ours.begin(), foreign.ours.end(), ours) != foreign.ours.end();
          });
    }
  }
  constexpr std::size_t kLettersOfAStart = 3;
  if (found.empty() && name.size() >= kLettersOfAStart) {
    std::copy_if(known.begin(), known.end(), std::back_inserter(found),
                 [&](const std::string& ours) { return ours.starts_with(name + "-"); });
  }
  if (found.empty()) {
    found = nearest(name, known);
  }
  if (found.empty() && name.size() >= kLettersOfAStart) {
    std::copy_if(known.begin(), known.end(), std::back_inserter(found),
                 [&](const std::string& ours) { return ours.ends_with("-" + name); });
  }
  return found;
}

std::vector<std::string> names_of(const po::options_description& options,
                                  const po::positional_options_description& positions) {
  std::vector<std::string> names;
  for (const auto& option : options.options()) {
    const std::string name = option->long_name();
    const bool is_word = positions.max_total_count() > 0 && positions.name_for_position(0) == name;
    if (!name.empty() && name != kStrayWords && !is_word) {
      names.push_back(name);
    }
  }
  return names;
}

[[noreturn]] void refuse(const std::string& message) {
  throw ConfigError(message, TESSERA_HERE);
}

template <typename Number, typename Range, typename Parse>
po::typed_value<std::string>* number_value(Number& target, Range range, const char* name,
                                           Parse parse) {
  auto* value =
      po::value<std::string>()->notifier([&target, range, name, parse](const std::string& text) {
        target = static_cast<Number>(parse(text, range, std::string("--") + name));
      });
  const bool is_default = target >= static_cast<Number>(range.least) &&
                          static_cast<double>(target) <= static_cast<double>(range.most);
  return is_default ? value->default_value(fmt::format("{}", target)) : value;
}

}  // namespace

po::options_description option_group(const std::string& name) {
  const auto columns = static_cast<unsigned>(help_width());
  return {name, columns, columns / 2};
}

bool parse_switch(std::string_view text, std::string_view what) {
  if (text != "true" && text != "false") {
    refuse(fmt::format("{} '{}': give true or false, or the switch alone for true", what, text));
  }
  return text == "true";
}

po::typed_value<std::string>* switch_value() {
  return po::value<std::string>()->implicit_value("true")->value_name(kSwitchArgument);
}

po::typed_value<std::string>* switch_or_size_value() {
  return switch_value()->value_name(kSwitchOrSizeArgument);
}

po::typed_value<std::string>* switch_value(bool& target, const char* name) {
  return switch_value()->notifier([&target, name](const std::string& text) {
    target = parse_switch(text, std::string("--") + name);
  });
}

po::typed_value<std::string>* count_value(Index& target, CountRange range, const char* name) {
  return number_value(target, range, name, parse_count);
}

po::typed_value<std::string>* count_value(int& target, CountRange range, const char* name) {
  return number_value(target, range, name, parse_count);
}

po::typed_value<std::string>* real_value(double& target, RealRange range, const char* name) {
  return number_value(target, range, name, parse_real);
}

// Hugging Face's Trainer, PyTorch, Megatron-LM, DeepSpeed, nanoGPT, llm.c, torchtitan, lit-gpt; and
// what another program of ours calls it.
const std::vector<ForeignName>& foreign_names() {
  static const std::vector<ForeignName> names = {
      {"batch-size", {"micro-batch", "global-batch"}},
      {"train-batch-size", {"global-batch"}},
      {"global-batch-size", {"global-batch"}},
      {"total-batch-size", {"global-batch"}},
      {"micro-batch-size", {"micro-batch"}},
      {"train-micro-batch-size-per-gpu", {"micro-batch"}},
      {"device-batch-size", {"micro-batch"}},
      {"per-device-train-batch-size", {"micro-batch"}},
      {"per-device-batch-size", {"micro-batch"}},
      {"gradient-accumulation-steps", {"global-batch"}},
      {"gradient-accumulation", {"global-batch"}},
      {"grad-accum-steps", {"global-batch"}},
      {"accumulate-grad-batches", {"global-batch"}},
      {"learning-rate", {"lr"}},
      {"max-lr", {"lr"}},
      {"min-lr", {"min-lr-ratio"}},
      {"final-lr", {"min-lr-ratio"}},
      {"lr-scheduler", {"schedule"}},
      {"lr-scheduler-type", {"schedule"}},
      {"lr-schedule", {"schedule"}},
      {"lr-decay-style", {"schedule"}},
      {"scheduler", {"schedule"}},
      {"warmup-steps", {"warmup"}},
      {"warmup-iters", {"warmup"}},
      {"warmup-ratio", {"warmup"}},
      {"lr-warmup-iters", {"warmup"}},
      {"lr-warmup-steps", {"warmup"}},
      {"num-warmup-steps", {"warmup"}},
      {"lr-decay-iters", {"schedule-steps"}},
      {"max-steps", {"steps"}},
      {"num-steps", {"steps"}},
      {"training-steps", {"steps"}},
      {"train-iters", {"steps"}},
      {"max-iters", {"steps"}},
      {"num-iterations", {"steps"}},
      {"iterations", {"steps"}},
      {"epoch", {"epochs"}},
      {"passes", {"epochs"}},
      {"train-tokens", {"tokens"}},
      {"total-tokens", {"tokens"}},
      {"num-tokens", {"tokens"}},
      {"max-epochs", {"epochs"}},
      {"num-epochs", {"epochs"}},
      {"num-train-epochs", {"epochs"}},
      {"adam-beta1", {"beta1"}},
      {"adam-beta2", {"beta2"}},
      {"adam-epsilon", {"eps"}},
      {"adam-eps", {"eps"}},
      {"epsilon", {"eps"}},
      {"wd", {"weight-decay"}},
      {"max-grad-norm", {"clip"}},
      {"clip-grad", {"clip"}},
      {"clip-grad-norm", {"clip"}},
      {"grad-clip", {"clip"}},
      {"gradient-clipping", {"clip"}},
      {"gradient-clip-val", {"clip"}},
      {"output", {"out"}},
      {"output-dir", {"out"}},
      {"output-file", {"out"}},
      {"output-prefix", {"out"}},
      {"out-dir", {"out"}},
      {"save", {"out", "save-every"}},
      {"save-dir", {"out"}},
      {"checkpoint-dir", {"out"}},
      {"logging-dir", {"out"}},
      {"log-dir", {"out"}},
      {"model-name", {"model"}},
      {"model-name-or-path", {"init", "model"}},
      {"pretrained", {"init"}},
      {"pretrained-model", {"init"}},
      {"pretrained-checkpoint", {"init"}},
      {"init-from", {"init"}},
      {"finetune", {"init"}},
      {"load", {"resume", "init"}},
      {"load-checkpoint", {"resume"}},
      {"resume-from", {"resume"}},
      {"resume-from-checkpoint", {"resume"}},
      {"ckpt-path", {"resume", "init"}},
      {"dataset", {"data"}},
      {"data-path", {"data"}},
      {"data-dir", {"data"}},
      {"train-data", {"data"}},
      {"train-data-path", {"data"}},
      {"train-file", {"data"}},
      {"input-bin", {"data"}},
      {"val-data", {"eval-data"}},
      {"valid-data", {"eval-data"}},
      {"valid-data-path", {"eval-data"}},
      {"validation-file", {"eval-data"}},
      {"input-val-bin", {"eval-data"}},
      {"eval-steps", {"eval-every"}},
      {"eval-interval", {"eval-every"}},
      {"val-interval", {"eval-every"}},
      {"val-loss-every", {"eval-every"}},
      {"eval-iters", {"eval-sequences"}},
      {"val-max-steps", {"eval-sequences"}},
      {"max-eval-samples", {"eval-sequences"}},
      {"save-steps", {"save-every"}},
      {"save-interval", {"save-every"}},
      {"checkpoint-every", {"save-every"}},
      {"save-total-limit", {"keep"}},
      {"logging-steps", {"log-every"}},
      {"log-interval", {"log-every"}},
      {"seq-len", {"seq"}},
      {"seq-length", {"seq"}},
      {"sequence-length", {"seq"}},
      {"max-seq-len", {"seq"}},
      {"max-seq-length", {"seq"}},
      {"max-length", {"seq", "max-tokens"}},
      {"block-size", {"seq"}},
      {"context-length", {"seq"}},
      {"cutoff-len", {"seq"}},
      {"bf16", {"precision"}},
      {"fp16", {"precision"}},
      {"mixed-precision", {"precision"}},
      {"torch-dtype", {"precision", "dtype"}},
      {"dtype", {"precision"}},
      {"gpu", {"device"}},
      {"gradient-checkpointing", {"recompute"}},
      {"activation-checkpointing", {"recompute"}},
      {"recompute-granularity", {"recompute"}},
      {"recompute-num-layers", {"recompute"}},
      {"recompute-activations", {"recompute"}},
      {"zero-stage", {"zero"}},
      {"stage", {"zero"}},
      {"fsdp", {"zero"}},
      {"full-shard", {"zero"}},
      {"cpu-offload", {"resident-bytes", "grad-offload"}},
      {"offload", {"resident-bytes", "grad-offload"}},
      {"offload-optimizer", {"resident-bytes"}},
      {"offload-param", {"params"}},
      {"offload-params", {"params"}},
      {"fsdp-offload-params", {"params"}},
      {"optimizer-cpu-offload", {"resident-bytes"}},
      {"distributed-timeout-minutes", {"timeout-seconds"}},
      {"ddp-timeout", {"timeout-seconds"}},
      {"profile", {"trace"}},
      {"random-seed", {"seed"}},
      {"data-seed", {"seed"}},
      {"num-gpus", {"ranks"}},
      {"gpus", {"ranks"}},
      {"world-size", {"ranks"}},
      {"nproc-per-node", {"ranks", "ranks-per-node"}},
      {"num-threads", {"threads"}},
      {"num-workers", {"threads"}},
      {"workers", {"threads"}},
      {"num-proc", {"threads"}},
      {"max-new-tokens", {"max-tokens", "sample-tokens"}},
      {"max-tokens", {"sample-tokens"}},
      {"sample-tokens", {"max-tokens"}},
      {"sample-prompt", {"prompt"}},
      {"num-return-sequences", {"samples"}},
      {"num-samples", {"samples"}},
      {"start", {"prompt"}},
      {"input", {"prompt"}},
      {"text", {"prompt"}},
      {"vocab-size", {"vocab"}},
      {"tokenizer-name", {"tokenizer"}},
      {"tokenizer-model", {"tokenizer"}},
      {"tokenizer-type", {"tokenizer"}},
      {"eos-token-id", {"end-token"}},
      {"eod", {"end-token"}},
      {"val-split", {"held-out"}},
      {"test-size", {"held-out"}},
      {"val-fraction", {"held-out"}},
      {"max-shard-size", {"max-shard-bytes"}},
  };
  return names;
}

std::string suggestion(std::string_view unknown, const std::vector<std::string>& known) {
  const std::vector<std::string> found = candidates(plain_name(unknown), known);
  constexpr std::size_t kMostNamed = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(found.size(), kMostNamed); ++i) {
    text += (i == 0 ? "; did you mean --" : " or --") + found[i];
  }
  return text.empty() ? text : text + "?";
}

std::vector<std::string> words_of(int argc, const char* const* argv) {
  return argc > 1 ? std::vector<std::string>(argv + 1, argv + argc) : std::vector<std::string>();
}

po::variables_map read_words(const std::vector<std::string>& arguments,
                             const po::options_description& options,
                             const po::positional_options_description& positions,
                             std::string_view help, Abbreviations abbreviations) {
  po::options_description all;
  all.add(options);
  po::positional_options_description words = positions;
  const bool takes_words = positions.max_total_count() > 0;
  if (!takes_words) {
    all.add_options()(kStrayWords, po::value<std::vector<std::string>>());
    words.add(kStrayWords, -1);
  }
  const int style = abbreviations == Abbreviations::taken
                        ? po::command_line_style::unix_style
                        : po::command_line_style::unix_style &
                              ~static_cast<int>(po::command_line_style::allow_guessing);
  po::variables_map values;
  try {
    po::store(po::command_line_parser(joined(arguments, options, abbreviations))
                  .options(all)
                  .positional(words)
                  .style(style)
                  .run(),
              values);
  } catch (const po::unknown_option& error) {
    const std::string name = error.get_option_name();
    refuse(fmt::format("there is no option {}{} ({} lists them)", name,
                       suggestion(name, names_of(options, positions)), help));
  } catch (const po::error& error) {
    refuse(fmt::format("{} ({} lists the options)", error.what(), help));
  }
  if (!takes_words && values.contains(kStrayWords)) {
    refuse(fmt::format("'{}' stands on the command line without an option before it: options begin "
                       "with -- ({} lists them)",
                       values[kStrayWords].as<std::vector<std::string>>().front(), help));
  }
  return values;
}

}  // namespace tessera
