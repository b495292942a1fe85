// Options of train: bounds of every number, the memory plan of every bound, quotes in the file of
// --config, switches, near names, and what changes at resume.
#include "runtime/run/options.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "runtime/plan/memory_advice.h"
#include "runtime/plan/memory_plan.h"
#include "runtime/run/command_words.h"
#include "runtime/run/config_file.h"
#include "runtime/run/option_changes.h"
#include "runtime/run/option_checks.h"
#include "runtime/run/option_table.h"
#include "runtime/run/resume_compare.h"
#include "runtime/run/run_length.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

RunConfig parse(const std::vector<std::string>& words) {
  std::vector<const char*> argv = {"train"};
  std::transform(words.begin(), words.end(), std::back_inserter(argv),
                 [](const std::string& word) { return word.c_str(); });
  return parse_options(static_cast<int>(argv.size()), argv.data()).config;
}

// The sentence of a ConfigError; empty where there is none. Any other exception fails the test.
template <typename Body>
std::string refusal(const Body& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.message();
  }
  return {};
}

std::string refusal_of(const std::vector<std::string>& words) {
  return refusal([&] { (void)parse(words); });
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool is_refused(const std::vector<std::string>& words, const std::string& sentence) {
  const std::string reported = refusal_of(words);
  BOOST_TEST_INFO("reported: " << reported);
  return has(reported, sentence);
}

// Where train ends with 0 or 2: options that parse have a plan of finite sizes, or are refused.
void plan_or_refuse(const std::vector<std::string>& words, const ModelConfig& model) {
  (void)refusal([&] {
    const RunConfig options = parse(words);
    const int ranks = std::max(1, static_cast<int>(options.plan.ranks));  // 0: of mpirun
    const MemoryPlan plan(options, model, ranks,
                          {.device_bytes = std::size_t{80} << 30U,
                           .host_bytes = std::size_t{1} << 40U,
                           .ranks_per_node = ranks,
                           .node_ranks = ranks});
    constexpr std::size_t kAbsurd = std::size_t{1} << 62U;
    BOOST_TEST(plan.device_bytes() < kAbsurd);
    BOOST_TEST(plan.total(MemoryKind::pinned) < kAbsurd);
    BOOST_TEST(plan.total(MemoryKind::host) < kAbsurd);
    BOOST_TEST(plan.fits() == plan.refusal().empty());
    const std::string text = plan.text();
    BOOST_TEST(
        !has(text.substr(0, text.find(":\n  mpirun ")), "nan"));  // words that were given follow
    for (const std::string& idle : idle_options(options, ranks)) {
      BOOST_TEST(!idle.empty());
    }
  });
}

const std::vector<std::string>& hostile_numbers() {
  static const std::vector<std::string> numbers = {"0",
                                                   "-1",
                                                   "2147483648",
                                                   "4294967297",
                                                   "4611686018427387904",
                                                   "9223372036854775807",
                                                   "18446744073709551616",
                                                   "1e400",
                                                   "-1e400",
                                                   "nan",
                                                   "inf",
                                                   "0x10",
                                                   "1 2"};
  return numbers;
}

// The largest number of a range like "1 to 1024", one more, and the least.
std::vector<std::string> bounds_of(const std::string& range) {
  const std::string least = range.substr(0, range.find(' '));
  const std::string most = range.substr(range.rfind(' ') + 1);
  std::vector<std::string> numbers = {least, most};
  if (most.find_first_not_of("0123456789") == std::string::npos && most.size() < 19) {
    numbers.push_back(std::to_string(std::stoll(most) + 1));
  }
  return numbers;
}

std::vector<std::string> planned(const std::string& device) {
  return {"--plan", "--device", device};
}

std::vector<std::string> with(std::vector<std::string> words, const std::string& word) {
  words.push_back(word);
  return words;
}

ModelConfig small_model() {
  ModelConfig model = preset("tiny");
  model.vocab_size = 256;
  return model;
}

// Stored as a checkpoint does.
ManifestInfo written_by(const RunConfig& options, std::int64_t step) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, value] : options.texts.effective) {
    json[name] = value;
  }
  ManifestInfo info;
  info.step = step;
  info.config_json = "{}";
  info.data_hash = "one";
  info.options_json = json.dump();
  return info;
}

std::vector<std::string> notes(const ManifestInfo& info, const std::vector<std::string>& now,
                               const std::string& data_hash = "one") {
  return compare_run(
      info, "runs/a", parse(now),
      {.config_json = "{}", .data_hash = data_hash, .chunk_rows = 1, .gemm_table_hash = {}});
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) {
    all += text + "\n";
  }
  return all;
}

std::vector<std::string> joined_words(std::vector<std::string> a,
                                      const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(options)

BOOST_AUTO_TEST_CASE(every_number_has_bounds_that_help_and_refusals_name) {
  const std::string help = options_help();
  int numbers = 0;
  for (const OptionRow& row : option_table()) {
    const bool is_number =
        std::string("NRTV").find(row.argument.substr(0, 1)) != std::string::npos ||
        has(row.argument, "STEPS") || has(row.argument, "BYTES") || has(row.argument, "SECONDS") ||
        has(row.argument, "TOKENS") || has(row.argument, "SEQUENCES") ||
        has(row.argument, "SHARE") || has(row.argument, "PASSES") || has(row.argument, "FACTOR") ||
        has(row.argument, "FIRST:LAST");
    if (row.argument.empty() || row.argument == "TEXT" || !is_number) {
      BOOST_TEST(row.setting.range.empty(), row.name << " has a range and no number");
      continue;
    }
    ++numbers;
    BOOST_TEST_REQUIRE(!row.setting.range.empty(), row.name << " has no range");
    const std::string reported = refusal_of({"--plan", "--" + row.name + "=-1"});
    BOOST_TEST(has(reported, row.argument == "FIRST:LAST" ? "as in 10:12" : row.setting.range),
               row.name << ": " << reported);
    std::string flat;  // help breaks lines
    std::copy_if(help.begin(), help.end(), std::back_inserter(flat),
                 [](char c) { return c != ' ' && c != '\n'; });
    std::string range = row.setting.range;
    std::erase(range, ' ');
    BOOST_TEST(has(flat, range), row.name << ": " << row.setting.range << " is not in --help");
  }
  BOOST_TEST(numbers >= 35);
}

BOOST_AUTO_TEST_CASE(no_number_of_an_option_crashes_or_wraps) {
  for (const OptionRow& row : option_table()) {
    std::vector<std::string> values = hostile_numbers();
    if (!row.setting.range.empty()) {
      const std::vector<std::string> bounds = bounds_of(row.setting.range);
      values.insert(values.end(), bounds.begin(), bounds.end());
    }
    for (const std::string& value : values) {
      for (const char* device : {"cpu", "cuda"}) {
        BOOST_TEST_CONTEXT("--" << row.name << "=" << value << " on " << device) {
          BOOST_CHECK_NO_THROW(
              plan_or_refuse(with(planned(device), "--" + row.name + "=" + value), small_model()));
        }
      }
      if (!row.setting.range.empty() && row.argument != "FIRST:LAST") {
        const bool is_too_large = (value == "18446744073709551616" && row.name != "clip") ||
                                  value == "1e400" || value == "nan" || value == "inf" ||
                                  value == "0x10";
        BOOST_TEST(
            (!is_too_large || !refusal_of({"--plan", "--" + row.name + "=" + value}).empty()),
            "--" << row.name << "=" << value);
      }
    }
    BOOST_TEST(!refusal_of({"--plan", "--" + row.name + "="}).empty(), row.name << " empty");
  }
}

BOOST_AUTO_TEST_CASE(two_options_at_their_largest_do_not_overflow_a_plan) {
  std::vector<std::string> largest;
  for (const OptionRow& row : option_table()) {
    if (!row.setting.range.empty() && row.argument != "FIRST:LAST") {
      largest.push_back("--" + row.name + "=" +
                        row.setting.range.substr(row.setting.range.rfind(' ') + 1));
    }
  }
  ModelConfig deep = small_model();
  deep.max_position = Index{1} << 30;
  for (const std::string& a : largest) {
    for (const std::string& b : largest) {
      BOOST_TEST_CONTEXT(a << " " << b) {
        BOOST_CHECK_NO_THROW(plan_or_refuse(with(with(planned("cuda"), a), b), deep));
      }
    }
  }
  BOOST_TEST(is_refused({"--plan", "--micro-batch=2147483647", "--global-batch=2147483647"},
                        "--micro-batch 2147483647 times --seq 512: more than 2147483647 tokens"));
  BOOST_TEST(
      is_refused({"--plan", "--global-batch=2147483644", "--seq=40000"}, "tokens of one step"));
  BOOST_TEST(is_refused({"--plan", "--steps=1000000000000", "--global-batch=16000000"},
                        "tokens of the whole run"));
}

BOOST_AUTO_TEST_CASE(bases_that_no_run_has_are_refused) {
  BOOST_TEST(is_refused({"--plan", "--lora=4", "--base-dtype=bf16"},
                        "--base-dtype bf16 needs parameters of bf16"));
  BOOST_TEST(is_refused({"--plan", "--base-dtype=nf4"}, "--base-dtype needs --lora"));
  BOOST_TEST(
      is_refused({"--plan", "--lora=4", "--base-random"}, "--base-random needs --base-dtype nf4"));
  BOOST_TEST(is_refused({"--plan", "--lora=4", "--base-dtype=nf4", "--base-random", "--init=a"},
                        "and no --init"));
  BOOST_TEST(is_refused({"--plan", "--lora=4", "--base-dtype=nf4", "--base-random", "--export=a"},
                        "--export does not go with --base-random"));
  const RunConfig rounded =
      parse({"--plan", "--lora=4", "--base-dtype=bf16", "--precision=bf16-params"});
  BOOST_TEST((rounded.adapters.base == BaseStorage::params));
}

BOOST_AUTO_TEST_CASE(a_switch_takes_an_optional_true_or_false) {
  int switches = 0;
  for (const OptionRow& row : option_table()) {
    if (row.form != OptionForm::flag || row.name == "plan" || row.name == "json") {
      continue;
    }
    ++switches;
    const std::string name = "--" + row.name;
    const auto same_as = [&](const std::vector<std::string>& words, const std::string& value) {
      const auto text_of = [&](const RunConfig& options) {
        for (const auto& [key, text] : options.texts.agreed) {
          if (key == row.name) {
            return text;
          }
        }
        return std::string("missing");
      };
      return text_of(parse(words)) == value;
    };
    const std::vector<std::string> needed =
        row.name == "base-random"
            ? std::vector<std::string>{"--plan", "--lora=4", "--base-dtype=nf4"}
        : row.name == "rslora" || row.name == "train-embeddings"
            ? std::vector<std::string>{"--plan", "--lora=4"}
        : row.name == "batched-backward" ? std::vector<std::string>{"--plan", "--batched-forward=2"}
                                         : std::vector<std::string>{"--plan", "--recompute=block"};
    BOOST_TEST(same_as(joined_words(needed, {name}), "true"), name);
    BOOST_TEST(same_as(joined_words(needed, {name, "false"}), "false"), name);
    BOOST_TEST(same_as(joined_words({name, "true"}, needed), "true"), name);
    BOOST_TEST(same_as(joined_words(needed, {name + "=false"}), "false"), name);
    BOOST_TEST(is_refused({"--plan", name + "=yes"}, name + " 'yes': give true or false"));
  }
  BOOST_TEST(switches >= 6);
  BOOST_TEST(!parse({"--plan", "--save-at-end", "false"}).checkpoint.save_at_end);
}

BOOST_AUTO_TEST_CASE(a_word_without_an_option_is_named) {
  BOOST_TEST(is_refused({"--plan", "oops"}, "'oops' stands on the command line without an option"));
  BOOST_TEST(is_refused({"--plan", "--decay-all", "maybe"}, "'maybe' stands"));
  BOOST_TEST(is_refused({"--plan", "--seed", "-1"}, "--seed '-1' is not a whole number from 0"));
  BOOST_TEST(is_refused({"--plan", "--lr", "-.5"}, "--lr '-.5' is not a number from 0 to"));
}

BOOST_AUTO_TEST_CASE(near_names_and_those_of_other_frameworks_are_suggested) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"--batch-size", "--micro-batch or --global-batch?"},
      {"--batch_size", "--micro-batch or --global-batch?"},
      {"--learning-rate", "--lr?"},
      {"--gradient-accumulation-steps", "--global-batch?"},
      {"--max-steps", "--steps?"},
      {"--output-dir", "--out?"},
      {"--num-train-epochs", "--epochs?"},
      {"--global_batch", "--global-batch?"},
      {"--mirco-batch", "--micro-batch?"},
      {"--warmpu", "--warmup?"},
      {"--stpes", "--steps?"},
      {"--micro", "--micro-batch?"}};
  for (const auto& [given, wanted] : cases) {
    BOOST_TEST(is_refused({"--plan", given, "4"}, std::string("did you mean ") + wanted), given);
  }
  BOOST_TEST(!has(refusal_of({"--plan", "--zzzzzzzz", "4"}), "did you mean"));
  // a name of the table must lead somewhere, in one of the programs
  std::vector<std::string> known = {"max-tokens", "samples",   "prompt",
                                    "vocab",      "tokenizer", "end-token",
                                    "held-out",   "dtype",     "max-shard-bytes"};
  for (const OptionRow& row : option_table()) {
    known.push_back(row.name);
  }
  for (const ForeignName& foreign : foreign_names()) {
    for (const std::string_view ours : foreign.ours) {
      BOOST_TEST((std::find(known.begin(), known.end(), ours) != known.end()),
                 foreign.theirs << " leads to " << ours);
    }
  }
}

BOOST_AUTO_TEST_CASE(every_value_of_a_configuration_parses_back) {
  std::mt19937 random(20261129);
  const std::vector<std::string> pieces = {
      "#", " ", "\t", "\"",       "\\",           "'",    "=",    "a",    "n",    "x41", "\n", "\r",
      "[", "]", ";",  "\xC3\xA9", "\xE2\x82\xAC", "\xFF", "\xC3", "\x01", "\x7F", "\f",  "\v", "$",
      ","};
  const auto random_value = [&] {
    std::string value;
    const std::size_t length = 1 + random() % 8;
    for (std::size_t i = 0; i < length; ++i) {
      value += pieces[random() % pieces.size()];
    }
    return value;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> values(1 + random() % 3);
    std::generate(values.begin(), values.end(), random_value);
    std::string text = "# a comment\r\n\n";
    for (const std::string& value : values) {
      text += "data = " + config_value(value) + (random() % 2 == 0 ? "\n" : "  # why\n");
    }
    const std::vector<ConfigEntry> entries = parse_config_text(text, "--config x");
    BOOST_TEST_REQUIRE(entries.size() == values.size(), text);
    for (std::size_t i = 0; i < values.size(); ++i) {
      BOOST_TEST_REQUIRE(entries[i].value == values[i], text);
    }
    BOOST_TEST_REQUIRE((split_values(join_values(values)) == values), join_values(values));
  }
}

BOOST_AUTO_TEST_CASE(the_printed_configuration_is_a_file_of_config) {
  const TempFolder folder;
  const std::vector<std::string> given = {"--data",
                                          "my file #1.h5",
                                          R"(with "quotes"\.h5:0.5)",
                                          "\xFFraw.h5",
                                          "--out",
                                          "x",
                                          "--model",
                                          " a/b#c.json ",
                                          "--lr",
                                          "1e-3",
                                          "--fast-attention",
                                          "--eval-data",
                                          "held out.h5",
                                          "--eval-every",
                                          "5",
                                          "--save-every",
                                          "6",
                                          "--max-seconds",
                                          "90",
                                          "--steps",
                                          "7",
                                          "--logits-bytes",
                                          "128MiB"};
  const RunConfig first = parse(given);
  const std::string file = (folder.path() / "run #1.cfg").string();
  std::ofstream(file, std::ios::binary) << printed_text(first);
  const RunConfig second = parse({"--config", file});
  BOOST_TEST(printed_text(second) == printed_text(first));
  BOOST_TEST(second.data.files == first.data.files, boost::test_tools::per_element());
  BOOST_TEST(second.model.name == " a/b#c.json ");
  BOOST_TEST(second.out == "x");
  BOOST_TEST(second.eval.files.at(0).path == "held out.h5");
  BOOST_TEST(second.eval.every == 5);
  BOOST_TEST(second.checkpoint.save_every == 6);
  BOOST_TEST(second.launch.max_seconds == 90);
  BOOST_TEST(!has(printed_text(first), "sample-"));
  BOOST_TEST(has(printed_text(first), "data = \"my file #1.h5\"\n"));
  BOOST_TEST(has(printed_text(first), "data = \"\\xffraw.h5\"\n"));
  BOOST_TEST(has(printed_text(first), "lr = 1e-3\n"));
  // the command line wins, for lists too
  BOOST_TEST(parse({"--config", file, "--out", "x", "--data", "other.h5"}).data.files.size() == 1U);
}

std::vector<std::string> joined_words(std::vector<std::string> a,
                                      const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Several prompts, of any characters, stay what they are: in the configuration, for ranks, in a file.
BOOST_AUTO_TEST_CASE(prompts_of_any_characters_are_kept_apart) {
  const std::vector<std::string> run = {"--data=a.h5", "--out=x", "--sample-every=2"};
  const auto with_prompts = [&](const std::vector<std::string>& prompts) {
    std::vector<std::string> words = run;
    for (const std::string& prompt : prompts) {
      words.push_back("--sample-prompt=" + prompt);
    }
    return parse(words);
  };
  const std::vector<std::string> prompts = {
      "Once, upon", " a #1: ", "line\nand\ttab\r\n", "\"quoted\"",     "back\\slash\\n",
      "--out=y",    "1e-3",    "\xFF\x01",           "gr\u00fc\u00df", "Once, upon",
      "'"};
  const RunConfig config = with_prompts(prompts);
  BOOST_TEST(config.sample.prompts == prompts, boost::test_tools::per_element());
  const TempFolder folder;
  const std::string file = (folder.path() / "prompts.cfg").string();
  std::ofstream(file, std::ios::binary) << printed_text(config);
  const RunConfig read = parse({"--config", file});
  BOOST_TEST(read.sample.prompts == prompts, boost::test_tools::per_element());
  BOOST_TEST((read.texts.agreed == config.texts.agreed));
  BOOST_TEST(parse({"--config", file, "--sample-prompt", "b"}).sample.prompts.size() == 1U);
  const auto agreed = [&](const std::vector<std::string>& some) {
    return with_prompts(some).texts.agreed;
  };
  const std::vector<std::vector<std::string>> others = {{"a", "b"}, {"a b"},        {"a,b"},
                                                        {"a\nb"},   {"\"a\"", "b"}, {"\"a\" b"},
                                                        {"b", "a"}, {"a", "b", "b"}};
  for (const std::vector<std::string>& one : others) {
    for (const std::vector<std::string>& other : others) {
      BOOST_TEST((agreed(one) == agreed(other)) == (&one == &other));
    }
  }
  BOOST_TEST((agreed({"1e-3", "a"}) != agreed({"0.001", "a"})));
  // words of one prompt without quotes are not several
  BOOST_TEST(
      is_refused(joined_words(run, {"--sample-prompt", "Once", "upon"}), "'upon' stands on"));
  BOOST_TEST(is_refused(joined_words(run, {"--sample-prompt=a", "--sample-prompt", ""}),
                        "--sample-prompt is empty"));
  BOOST_TEST(refusal_of(joined_words(run, std::vector<std::string>(16, "--sample-prompt=a"))) ==
             "");
  BOOST_TEST(is_refused(joined_words(run, std::vector<std::string>(17, "--sample-prompt=a")),
                        "--sample-prompt is given 17 times: at most 16 samples"));
}

BOOST_AUTO_TEST_CASE(a_configuration_that_would_be_read_otherwise_is_refused_by_line) {
  const auto reported = [](const std::string& text) {
    return refusal([&] { (void)parse_config_text(text, "--config x"); });
  };
  BOOST_TEST(
      has(reported("lr = 1e-3\nout = runs/a#2\n"), "--config x line 2: '#' begins a comment only"));
  BOOST_TEST(
      has(reported("out = \"runs\n"), "line 1: the value begins with a quote that is not closed"));
  BOOST_TEST(has(reported("out = \"a\" b\n"), "words behind the closing quote"));
  BOOST_TEST(has(reported("out = \"a\\q\"\n"), "in quotes a backslash"));
  BOOST_TEST(has(reported("out\n"), "line 1: this is not `name = value`"));
  BOOST_TEST(has(reported("[section]\n"), "this is not `name = value`"));
  const TempFolder folder;
  const std::string file = (folder.path() / "run.cfg").string();
  std::ofstream(file) << "lr = 1e-3\nlr = 2e-3\n";
  BOOST_TEST(is_refused({"--plan", "--config", file}, "line 2: lr stands there a second time"));
  std::ofstream(file) << "\xEF\xBB\xBF# one\nbatch-size = 8\n";
  BOOST_TEST(is_refused({"--plan", "--config", file},
                        "line 2: there is no option batch-size; did you mean --micro-batch or "));
  std::ofstream(file) << "--lr = 1\n";
  BOOST_TEST(is_refused({"--plan", "--config", file},
                        "line 1: there is no option --lr; names stand here without dashes"));
  std::ofstream(file) << "lr = 2e-3  # the rate\r\nsave-at-end = false\r\n";
  BOOST_TEST(parse({"--plan", "--config", file}).schedule.lr == 2e-3);
}

BOOST_AUTO_TEST_CASE(settings_of_another_program_make_the_configuration_of_the_same_options) {
  const std::vector<std::string> settings = {"seq=64", "micro-batch=2", "device=cuda",
                                             "grad-offload", "resident-bytes=1MiB"};
  std::vector<std::string> words = {"--plan"};
  for (const std::string& setting : settings) {
    words.push_back("--" + setting);
  }
  const RunConfig config = config_of_settings(settings, "--options");
  const RunConfig same = parse(words);
  for (const OptionRow& row : option_table()) {
    BOOST_TEST((row.setting.is_equal(config, same) || row.name == "plan"), row.name);
  }
  BOOST_TEST(config.batch.seq == 64);
  BOOST_TEST((config.memory.grad_offload == GradOffload{OffloadKind::all, 0}));
  const auto reported = [](const std::string& setting) {
    return refusal([&] { (void)config_of_settings(std::vector{setting}, "--options"); });
  };
  BOOST_TEST(has(reported("sequence=1"), "--options: there is no option sequence"));
  BOOST_TEST(has(reported("seq"), "--options seq: give its value, as in seq=TOKENS"));
  BOOST_TEST(has(reported("seq="), "--seq is empty"));
  BOOST_TEST(
      has(reported("global-batch=3"), "--global-batch 3 is not a multiple of --micro-batch 4"));
}

BOOST_AUTO_TEST_CASE(gradient_sums_are_offloaded_as_a_whole_by_size_or_as_needed) {
  const auto given = [](const std::vector<std::string>& words) {
    return parse(words).memory.grad_offload;
  };
  BOOST_TEST((given({"--plan"}) == GradOffload{}));
  BOOST_TEST((given({"--plan", "--grad-offload"}) == GradOffload{OffloadKind::all, 0}));
  BOOST_TEST((given({"--grad-offload", "--plan"}) == GradOffload{OffloadKind::all, 0}));
  BOOST_TEST((given({"--plan", "--grad-offload=false"}) == GradOffload{}));
  BOOST_TEST(
      (given({"--plan", "--grad-offload", "auto"}) == GradOffload{OffloadKind::automatic, 0}));
  for (const char* words : {"--grad-offload=2KiB", "--grad-offload 2048"}) {
    std::vector<std::string> all = {"--plan"};
    const std::string text = words;
    const std::size_t blank = text.find(' ');
    all.push_back(text.substr(0, blank));
    if (blank != std::string::npos) {
      all.push_back(text.substr(blank + 1));
    }
    BOOST_TEST((given(all) == GradOffload{OffloadKind::bytes, 2048}), text);
  }
  BOOST_TEST(is_refused({"--plan", "--grad-offload=some"},
                        "--grad-offload 'some': choose true, false, auto, or bytes"));
  BOOST_TEST(is_refused({"--plan", "--grad-offload=2KB!"}, "--grad-offload"));

  // auto: as little as lets the run fit
  constexpr std::size_t kGB = 1'000'000'000;
  const auto on_host = [](std::size_t device_bytes) {
    const MemoryPlan plan(
        parse({"--plan", "--device=cuda", "--micro-batch=1", "--global-batch=8", "--seq=512",
               "--recompute=block", "--grad-offload=auto"}),
        preset("qwen3-8b"), 1,
        {.device_bytes = device_bytes, .host_bytes = std::size_t{1} << 50U, .ranks_per_node = 1});
    BOOST_TEST(plan.fits(), plan.refusal());
    std::size_t bytes = 0;
    for (const PlanLine& line : plan.lines()) {
      bytes += line.name == "gradient sums" && line.kind == MemoryKind::pinned ? line.bytes : 0;
    }
    return bytes;
  };
  BOOST_TEST(on_host(80 * kGB) == 0U);
  const std::size_t some = on_host(50 * kGB);
  const std::size_t more = on_host(40 * kGB);
  BOOST_TEST(some > 0U);
  BOOST_TEST(more >= some + 9 * kGB);
  BOOST_TEST(more <= some + 12 * kGB);  // whole blocks, and what they pass through
}

BOOST_AUTO_TEST_CASE(recomputation_is_a_level_or_levels_by_layer_or_auto) {
  const auto given = [](const char* text) {
    return parse({"--plan", std::string("--recompute=") + text}).memory.recompute;
  };
  BOOST_TEST((parse({"--plan"}).memory.recompute == RecomputeLevels(Recompute::none)));
  BOOST_TEST((given("block") == RecomputeLevels(Recompute::block)));
  BOOST_TEST((given("mlp:24") == parse_recompute("mlp:24", "")));
  BOOST_TEST((given("block:8,mlp") == parse_recompute("block:8,mlp", "")));
  BOOST_TEST(!given("auto").has_value());
  for (const char* text : {"mlp:0", "mlp:some", "blocks", "mlp,block", "none:4", "auto:4"}) {
    BOOST_TEST(is_refused({"--plan", std::string("--recompute=") + text},
                          fmt::format("--recompute {}", has(text, "mlp") ? text : "'")),
               text);
  }
  const std::string needed = "--offload-activations needs --recompute block, in some layers or all";
  for (const char* text : {"none", "mlp", "mlp:2,attention"}) {
    BOOST_TEST(
        is_refused({"--plan", "--offload-activations", std::string("--recompute=") + text}, needed),
        text);
  }
  for (const char* text : {"block", "block:2", "block:2,mlp", "auto"}) {
    (void)parse({"--plan", "--offload-activations", std::string("--recompute=") + text});
  }
}

// A row that set another row's field would change two options, and compare the wrong one.
BOOST_AUTO_TEST_CASE(every_option_has_a_field_of_its_own) {
  const auto value_for = [](const OptionRow& row) -> std::string {
    if (row.form == OptionForm::flag) {
      return row.standard == "true" ? "false" : "true";
    }
    if (row.argument == "FIRST:LAST") {
      return "3:4";
    }
    if (row.argument == "LAYERS|none") {
      return "0,3:4";
    }
    if (has(row.argument, "BYTES")) {
      return "12345";
    }
    if (!row.setting.range.empty()) {
      return row.setting.range == "0 to 1" ? "0.5" : "7";
    }
    const std::size_t last = row.argument.rfind('|');  // a word beside the default
    const std::string first = row.argument.substr(0, row.argument.find('|'));
    const std::string other = row.argument.substr(last + 1);
    return last == std::string::npos ? "text" : other == row.standard ? first : other;
  };
  const RunConfig plain = config_of_settings({}, "--options");
  for (const OptionRow& row : option_table()) {
    RunConfig changed = plain;
    row.setting.set(changed, value_for(row), "--" + row.name);
    for (const OptionRow& other : option_table()) {
      BOOST_TEST(other.setting.is_equal(plain, changed) == (other.name != row.name),
                 row.name << " and " << other.name);
    }
  }
}

// Words that meet what the row needs.
std::vector<std::string> what_it_needs(const OptionRow& row) {
  const std::vector<std::vector<std::string>> all = {{"--plan"},
                                                     {"--optimizer=sgd"},
                                                     {"--optimizer=muon"},
                                                     {"--schedule=wsd"},
                                                     {"--device=cuda"},
                                                     {"--recompute=block"},
                                                     {"--eval-data=held-out.h5"},
                                                     {"--sample-every=2"},
                                                     {"--reduce-group=2"},
                                                     {"--batched-forward=2"},
                                                     {"--precision=fp8"},
                                                     {"--lora=4"},
                                                     {"--lora=4", "--base-dtype=nf4"},
                                                     {"--export=model"},
                                                     {"--save-local=disk"}};
  for (const std::vector<std::string>& words : all) {
    RunConfig config = default_config();
    for (const std::string& word : words) {
      const std::size_t equals = word.find('=');
      const OptionRow& set = *find_option(word.substr(2, equals - 2));
      set.setting.set(config, equals == std::string::npos ? "true" : word.substr(equals + 1), word);
    }
    if (is_used(row, config)) {
      return words;
    }
  }
  BOOST_FAIL("nothing here meets what --" << row.name << " needs");
  return {};
}

// A text of another value than the default's.
std::string other_text(const OptionRow& row) {
  if (row.name == "keep-best") {
    return "evaluation";  // what --eval-data without a name is called
  }
  for (const char* text : {"2", "7", "0.5", "true", "off", "builtin", "h200", "1MiB", "row",
                           "spectral", "stored", "mlp", "gaussian", "nf4", "a"}) {
    RunConfig config = default_config();
    try {
      row.setting.set(config, text, row.name);
    } catch (const ConfigError&) {
      continue;
    }
    if (differs_from_default(row, config)) {
      return text;
    }
  }
  BOOST_FAIL("no other value of --" << row.name);
  return {};
}

// Walks the table: an option whose need is not met is refused or reported, and is quiet where it
// is.
BOOST_AUTO_TEST_CASE(every_option_that_does_nothing_is_refused_or_reported) {
  const std::vector<std::string> run = {"--data=a.h5", "--out=x"};
  int needy = 0;
  for (const OptionRow& row : option_table()) {
    if (row.need.is_met == nullptr || is_used(row, default_config())) {
      continue;
    }
    ++needy;
    const std::string option = fmt::format("--{}={}", row.name, other_text(row));
    const auto says = [&](const std::vector<std::string>& words) {
      return has(joined(idle_options(parse(words), 1)), fmt::format("--{} does nothing", row.name));
    };
    std::vector<std::string> needed = joined_words(run, what_it_needs(row));
    if (row.name != "sample-prompt" && needed.back().starts_with("--sample-every")) {
      needed.emplace_back("--sample-prompt=a");
    }
    if (row.name == "export-every") {
      needed.emplace_back("--save-every=1");
    }
    BOOST_TEST_CONTEXT(option) {
      if (row.need.is_strict) {
        BOOST_TEST(is_refused(with(run, option), fmt::format("--{} {}", row.name, row.need.text)));
        BOOST_TEST(refusal_of(with(needed, option)) == "", refusal_of(with(needed, option)));
      } else {
        BOOST_TEST(says(with(run, option)));
        BOOST_TEST(!says(with(needed, option)));
      }
      if (!row.need.is_strict) {  // the default asks for nothing
        BOOST_TEST(!says(with(run, fmt::format("--{}={}", row.name, row.standard))));
      }
    }
  }
  BOOST_TEST(needy >= 15);
  BOOST_TEST(is_refused(with(run, "--eval-every=3"), "--eval-every needs --eval-data"));
  BOOST_TEST(has(joined(idle_options(parse(with(run, "--beta1=0.8")), 1)), "--beta1") == false);
}

BOOST_AUTO_TEST_CASE(separate_documents_take_room_in_the_plan) {
  for (const char* device : {"--device=cpu", "--device=cuda"}) {
    const auto total = [&](const std::string& documents) {
      const RunConfig config =
          parse({"--plan", "--model=d12", "--seq=1024", "--precision=f32", device, documents});
      return MemoryPlan(config, preset("d12"), 1, {}).total(MemoryKind::pinned);
    };
    BOOST_TEST(total("--documents=separate") > total("--documents=joined"), device);
    BOOST_TEST(total("--documents=auto") == total("--documents=joined"), device);
  }
}

BOOST_AUTO_TEST_CASE(options_that_do_less_than_they_say_are_named) {
  const auto reported = [](const std::vector<std::string>& words) {
    return joined(idle_options(parse(joined_words({"--data=a.h5", "--out=x"}, words)), 1));
  };
  BOOST_TEST(
      has(reported({"--reduce-group=1000"}),
          "--reduce-group 1000: the micro-batches of a step are 4, and all of them are one group"));
  BOOST_TEST(!has(reported({"--reduce-group=2"}), "--reduce-group"));
  BOOST_TEST(has(reported({"--steps=20", "--keep-every=7"}), "--keep-every 7: no step that"));
  BOOST_TEST(
      has(reported({"--steps=20", "--keep-every=7", "--save-every=5"}), "--keep-every 7: no step"));
  BOOST_TEST(!has(reported({"--steps=21", "--keep-every=7"}), "--keep-every"));
  BOOST_TEST(!has(reported({"--steps=20", "--keep-every=6", "--save-every=4"}), "--keep-every"));
  BOOST_TEST(
      has(reported({"--steps=9", "--warmup=5", "--schedule-steps=3"}),
          "--warmup 5 continues after --schedule-steps 3: the learning rate does not reach"));
  BOOST_TEST(has(reported({"--steps=9", "--schedule-steps=3"}),
                 "--schedule-steps 3 ends before --steps 9: the steps behind it have the last "
                 "learning rate, 3e-05"));
  BOOST_TEST(has(reported({"--steps=9", "--schedule=wsd", "--decay-steps=10"}),
                 "--decay-steps 10 is more than the 9 steps of the schedule"));
  BOOST_TEST(is_refused({"--plan", "--schedule-steps=0"}, "--schedule-steps '0'"));
}

BOOST_AUTO_TEST_CASE(two_ways_to_write_a_number_are_one_value_for_ranks) {
  const auto agreed = [](const std::vector<std::string>& words) {
    return parse(joined_words({"--data=a.h5", "--out=x"}, words)).texts.agreed;
  };
  BOOST_TEST((agreed({"--lr=1e-3", "--page-bytes=8MiB", "--resident-bytes=1GiB", "--warmup=10"}) ==
              agreed({"--lr", "0.001", "--page-bytes=8388608", "--resident-bytes=1073741824",
                      "--warmup=010"})));
  BOOST_TEST((agreed({"--lr=1e-3"}) != agreed({"--lr=1.0000000001e-3"})));
  BOOST_TEST((agreed({"--sample-every=1", "--sample-prompt=1e-3"}) !=
              agreed({"--sample-every=1", "--sample-prompt=0.001"})));
}

BOOST_AUTO_TEST_CASE(an_option_that_is_unused_before_and_after_is_no_change) {
  const ManifestInfo info = written_by(parse({"--plan"}), 5);
  BOOST_TEST(joined(notes(info, {"--plan", "--fast-attention", "--attention=builtin"})) == "");
  BOOST_TEST(has(joined(notes(info, {"--plan", "--device=cuda", "--fast-attention"})),
                 "--fast-attention was false and is true"));
}

BOOST_AUTO_TEST_CASE(equal_values_in_other_words_are_no_change_at_resume) {
  const ManifestInfo info = written_by(parse({"--plan", "--logits-bytes", "128MiB", "--lr", "1e-3",
                                              "--attention-slice-bytes", "1MiB", "--steps", "100"}),
                                       100);
  BOOST_TEST(joined(notes(info, {"--plan", "--logits-bytes", "134217728", "--lr", "0.001",
                                 "--attention-slice-bytes", "1048576", "--steps", "100",
                                 "--precision", "f32", "--warmup", "2", "--schedule-steps", "100",
                                 "--decay-all=false", "--decay-steps", "10"})) == "");
  const std::string changes =
      joined(notes(info, {"--plan", "--logits-bytes", "64MiB", "--lr", "2e-3",
                          "--attention-slice-bytes", "1MiB", "--steps", "100", "--warmup", "5"}));
  BOOST_TEST(
      changes ==
      "--lr was 1e-3 and is 2e-3 from step 101 on\n"
      "--warmup was auto (2) and is 5 from step 101 on\n"
      "--logits-bytes was 128MiB and is 64MiB from step 101 on: the results change bit for bit\n");
}

BOOST_AUTO_TEST_CASE(a_larger_number_of_steps_that_moves_the_schedule_is_reported) {
  const std::vector<std::string> wsd = {"--plan", "--schedule", "wsd"};
  const ManifestInfo info = written_by(parse(with(wsd, "--steps=1000")), 1000);
  const std::string reported = joined(notes(info, with(wsd, "--steps=2000")));
  BOOST_TEST(
      reported ==
      "--steps was 1000 and is 2000, and the schedule follows it: it spans 2000 steps "
      "instead of 1000, warms up for 40 steps instead of 20, decays for 200 steps instead of "
      "100, and the learning rate of step 1001 is 0.0003 instead of 3e-05; --schedule-steps "
      "1000 keeps the schedule as it was\n");
  BOOST_TEST(joined(notes(info, with(wsd, "--steps=1000"))) == "");
  // An equal rate is not reported as a change.
  const ManifestInfo early = written_by(parse(with(with(wsd, "--warmup=5"), "--steps=1000")), 100);
  BOOST_TEST(joined(notes(early, with(with(wsd, "--warmup=5"), "--steps=2000"))) ==
             "--steps was 1000 and is 2000, and the schedule follows it: it spans 2000 steps "
             "instead of 1000, decays for 200 steps instead of 100; --schedule-steps 1000 keeps "
             "the schedule as it was\n");
  BOOST_TEST(joined(notes(info, with(with(wsd, "--steps=2000"), "--schedule-steps=1000"))) == "");
  const ManifestInfo constant =
      written_by(parse({"--plan", "--schedule=constant", "--warmup=0", "--steps=5"}), 5);
  BOOST_TEST(
      joined(notes(constant, {"--plan", "--schedule=constant", "--warmup=0", "--steps=9"})) == "");
}

RunConfig with_length(const std::string& length, Index pass_sequences, const WorkDone& done = {}) {
  return with_steps(parse({"--plan", "--global-batch=4", "--seq=32", length}), pass_sequences,
                    done);
}

BOOST_AUTO_TEST_CASE(passes_and_tokens_are_rounded_up_to_whole_steps) {
  BOOST_TEST(with_length("--epochs=1", 32).steps == 8);
  BOOST_TEST(with_length("--epochs=1", 33).steps == 9);
  BOOST_TEST(with_length("--epochs=0.001", 33).steps == 1);
  // decimal parts are taken for what they are written as: 0.1 * 120 is above 12 in a double
  for (int tenths = 1; tenths < 200; ++tenths) {
    const std::string epochs = fmt::format("--epochs={}.{}", tenths / 10, tenths % 10);
    BOOST_TEST(with_length(epochs, 120).steps == tenths * 3, epochs);
    BOOST_TEST(with_length(epochs, 119).steps == (tenths * 119 + 39) / 40, epochs);
  }
  BOOST_TEST(with_length("--tokens=128", 0).steps == 1);
  BOOST_TEST(with_length("--tokens=129", 0).steps == 2);
  BOOST_TEST(with_length("--tokens=1", 7).steps == 1);
  BOOST_TEST(with_length("--steps=5", 32).steps == 5);
  BOOST_TEST(with_length("--epochs=2", 0).steps == 0);  // not known yet
  BOOST_TEST(has(refusal([] { (void)with_length("--epochs=1e9", Index{1} << 40); }), "too many"));
  BOOST_TEST(has(refusal([] { (void)with_length("--epochs=1e6", Index{1} << 40); }), "more than"));
  // the schedule is that of the steps, and a checkpoint stores them
  const RunConfig config = with_length("--epochs=2.5", 400);
  BOOST_TEST(schedule_of(config).total == 250);
  BOOST_TEST(schedule_of(config).warmup == 5);
  const auto& stored = config.texts.effective;
  BOOST_TEST(std::count(stored.begin(), stored.end(),
                        std::pair<std::string, std::string>("steps", "250")) == 1);
}

BOOST_AUTO_TEST_CASE(a_continued_run_takes_what_its_batches_have_left_of_the_length) {
  BOOST_TEST(with_length("--epochs=2", 32, {5, 20}).steps == 16);   // the same batch
  BOOST_TEST(with_length("--epochs=2", 32, {4, 32}).steps == 12);   // 4 steps of 8
  BOOST_TEST(with_length("--epochs=2", 32, {12, 64}).steps == 12);  // done
  BOOST_TEST(with_length("--epochs=2", 33, {17, 68}).steps == 17);  // done, rounded up
  BOOST_TEST(with_length("--epochs=1", 32, {12, 64}).steps == 8);   // done long ago
  BOOST_TEST(with_length("--tokens=4096", 0, {10, 80}).steps == 22);
}

BOOST_AUTO_TEST_CASE(another_length_that_moves_the_schedule_is_reported) {
  const std::vector<std::string> wsd = {"--plan", "--schedule=wsd", "--global-batch=4"};
  const auto identity = [](Index sequences) {
    return RunIdentity{.config_json = "{}",
                       .data_hash = "one",
                       .chunk_rows = 1,
                       .gemm_table_hash = {},
                       .data_sequences = sequences};
  };
  ManifestInfo info = written_by(with_steps(parse(with(wsd, "--epochs=1")), 400), 50);
  info.windows_taken = 200;
  const auto reported = [&](const std::string& length, Index sequences) {
    return joined(compare_run(info, "runs/a", parse(with(wsd, length)), identity(sequences)));
  };
  BOOST_TEST(reported("--epochs=1", 400) == "");
  BOOST_TEST(has(reported("--epochs=2", 400),
                 "--epochs was 1 (100 steps) and is 2 (200 steps), and the schedule follows it: it "
                 "spans 200 steps instead of 100"));
  BOOST_TEST(has(reported("--epochs=1", 800), "--epochs 1 was 100 steps and is 200, and the"));
  BOOST_TEST(has(reported("--steps=200", 400),
                 "the length was --epochs 1 (100 steps) and is --steps 200, and the schedule"));
  BOOST_TEST(!has(reported("--steps=200", 400), "does not know"));
}

BOOST_AUTO_TEST_CASE(what_an_older_or_newer_checkpoint_does_not_tell_is_taken_for_the_default) {
  ManifestInfo info = written_by(parse({"--plan"}), 3);
  nlohmann::json json = nlohmann::json::parse(info.options_json);
  json.erase("steps");
  json.erase("seed");
  json.erase("reduce-group");
  json["speed"] = "9";
  json["zero"] = "stage-7";
  info.options_json = json.dump();
  const std::string reported = joined(notes(info, {"--plan", "--reduce-group", "2"}));
  BOOST_TEST(has(reported, "--zero was stage-7 and is auto from step 4 on"));
  BOOST_TEST(
      has(reported, "--reduce-group was 1 (the default: the checkpoint does not tell) and is 2"));
  BOOST_TEST(
      has(reported, "the checkpoint does not tell its --steps: the schedule spans the 1000"));
  BOOST_TEST(has(reported, "written with --speed 9, which this train does not know"));
  BOOST_TEST(!has(reported, "--seed"));
  info.options_json.clear();  // imported
  BOOST_TEST(joined(notes(info, {"--plan", "--lr", "5"})) == "");
}

// What a user of 0.1 wrote keeps its meaning: on a command line, in a file, as a setting, in a
// checkpoint.
BOOST_AUTO_TEST_CASE(an_old_name_is_taken_for_its_option_and_reported_once) {
  const TempFolder folder;
  const std::string file = (folder.path() / "run.cfg").string();
  const std::vector<std::string> run = {"--data=a.h5", "--eval-data=b.h5", "--out=x"};
  BOOST_TEST(old_names().size() >= 3U);
  for (const OldName& renamed : old_names()) {
    const std::string old_name(renamed.old_name);
    const std::string name(renamed.name);
    BOOST_TEST_CONTEXT(old_name) {
      const std::vector<std::string> note = {
          fmt::format("--{} is called --{} now; the old name works until 0.3", old_name, name)};
      const RunConfig now = parse(with(run, fmt::format("--{}=2", name)));
      const auto is_same = [&](const RunConfig& config) {
        return config.texts.agreed == now.texts.agreed &&
               config.texts.effective == now.texts.effective &&
               find_option(name)->setting.is_equal(config, now) && config.texts.notes == note;
      };
      BOOST_TEST(now.texts.notes.empty());
      BOOST_TEST(find_option(old_name) == nullptr);
      BOOST_TEST(!has(options_help(), "--" + old_name));
      BOOST_TEST(is_same(parse(with(run, fmt::format("--{}=2", old_name)))));
      const RunConfig of_words = parse(with(with(run, "--" + old_name), "2"));
      BOOST_TEST(is_same(of_words));
      BOOST_TEST(has(printed_text(of_words), name + " = 2\n"));
      BOOST_TEST(!has(printed_text(of_words), old_name));
      std::ofstream(file) << old_name << " = 2\n";
      BOOST_TEST(is_same(parse(with(run, "--config=" + file))));
      // the command line wins over the file, in whatever words
      std::ofstream(file) << old_name << " = 3\n";
      const RunConfig both =
          parse(with(with(run, fmt::format("--{}=2", old_name)), "--config=" + file));
      BOOST_TEST(is_same(both));
      std::ofstream(file) << old_name << " = 2\n" << name << " = 2\n";
      BOOST_TEST(is_refused(with(run, "--config=" + file), name + " stands there a second time"));
      const RunConfig setting = config_of_settings(
          std::vector{old_name + "=2", std::string("eval-data=b.h5")}, "--options");
      BOOST_TEST((setting.texts.notes == note));
      BOOST_TEST(find_option(name)->setting.is_equal(setting, now));
      BOOST_TEST(has(refusal([&] { (void)config_of_settings(std::vector{old_name}, "--options"); }),
                     "give its value, as in "));
      BOOST_TEST(
          is_refused(with(run, fmt::format("--{}=many", old_name)), "--" + name + " 'many'"));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_checkpoint_that_stores_an_old_name_is_compared_by_its_option) {
  ManifestInfo info = written_by(parse({"--plan", "--reduce-group", "2"}), 3);
  nlohmann::json json = nlohmann::json::parse(info.options_json);
  json["sum-group"] = json.at("reduce-group");  // old_name, as 0.1 stored it
  json.erase("reduce-group");
  info.options_json = json.dump();
  BOOST_TEST(joined(notes(info, {"--plan", "--reduce-group", "2"})) == "");
  BOOST_TEST(joined(notes(info, {"--plan", "--reduce-group", "4"})) ==
             "--reduce-group was 2 and is 4 from step 4 on: the results change bit for bit\n");
}

BOOST_AUTO_TEST_CASE(options_of_another_optimizer_are_refused_and_not_part_of_a_run) {
  const std::vector<std::string> sgd = {"--plan", "--optimizer", "sgd"};
  BOOST_TEST(
      is_refused(with(sgd, "--beta2=0.9"),
                 "--beta2 belongs to --optimizer adamw or muon, and this run has neither: leave it "
                 "out"));
  BOOST_TEST(is_refused(with(sgd, "--eps=1e-6"), "--eps belongs to --optimizer adamw"));
  BOOST_TEST(
      is_refused(with(sgd, "--moments=bf16"),
                 "--moments belongs to --optimizer adamw, which is not this run's: leave it out"));
  BOOST_TEST(is_refused({"--plan", "--momentum=0.9"}, "--momentum belongs to --optimizer sgd"));
  BOOST_TEST(
      is_refused({"--plan", "--optimizer=lion"}, "--optimizer 'lion': choose adamw, sgd, muon"));
  BOOST_TEST(is_refused(with(sgd, "--momentum=1"), "--momentum must be below 1"));
  // The printed configuration reads back, and has what the optimizer takes alone.
  const TempFolder folder;
  const std::string file = (folder.path() / "run.cfg").string();
  const RunConfig options = parse(with(sgd, "--momentum=0.8"));
  std::ofstream(file) << printed_text(options);
  BOOST_TEST(!has(printed_text(options), "beta1"));
  BOOST_TEST(printed_text(parse({"--plan", "--config", file})) == printed_text(options));
  BOOST_TEST(!has(printed_text(parse({"--plan"})), "momentum"));
  // Weight decay that is not given is the optimizer's own.
  const ModelConfig model = small_model();
  BOOST_TEST(run_settings(options, model, 0).optimizer.decay == 0);
  BOOST_TEST(run_settings(options, model, 0).optimizer.sgd.momentum == 0.8);
  BOOST_TEST(run_settings(parse({"--plan"}), model, 0).optimizer.decay == 0.1);
  BOOST_TEST(run_settings(parse(with(sgd, "--weight-decay=1e-4")), model, 0).optimizer.decay ==
             1e-4);
}

BOOST_AUTO_TEST_CASE(muon_has_its_own_options_and_those_of_adamw_but_moments) {
  const std::vector<std::string> muon = {"--plan", "--optimizer", "muon", "--lr", "1e-3"};
  for (const char* option :
       {"--muon-lr=1e-2", "--muon-momentum=0.9", "--muon-steps=6", "--muon-scale=spectral"}) {
    const std::string name = std::string(option).substr(0, std::string(option).find('='));
    BOOST_TEST(
        is_refused({"--plan", option},
                   name + " belongs to --optimizer muon, which is not this run's: leave it out"));
  }
  BOOST_TEST(is_refused(with(muon, "--moments=bf16"), "--moments belongs to --optimizer adamw"));
  BOOST_TEST(is_refused(with(muon, "--momentum=0.9"), "--momentum belongs to --optimizer sgd"));
  BOOST_TEST(is_refused(with(muon, "--muon-momentum=1"), "--muon-momentum must be below 1"));
  BOOST_TEST(is_refused(with(muon, "--muon-steps=0"), "--muon-steps"));
  BOOST_TEST(is_refused(with(muon, "--muon-scale=rows"), "choose rms, spectral"));
  const ModelConfig model = small_model();
  const RunSettings usual = run_settings(parse(muon), model, 0);
  BOOST_TEST((usual.optimizer.kind == OptimizerKind::muon));
  BOOST_TEST(usual.optimizer.muon.momentum == 0.95);
  BOOST_TEST(usual.optimizer.muon.steps == 5);
  BOOST_TEST((usual.optimizer.muon.scale == MuonScale::rms));
  BOOST_TEST(usual.optimizer.decay == 0.1);
  BOOST_TEST(usual.schedule.matrix_lr == 1e-3);
  const RunSettings given = run_settings(
      parse(with(
          with(with(with(with(muon, "--muon-lr=1e-2"), "--muon-momentum=0.9"), "--muon-steps=6"),
               "--muon-scale=spectral"),
          "--beta2=0.9")),
      model, 0);
  BOOST_TEST(given.schedule.matrix_lr == 1e-2);
  BOOST_TEST(given.schedule.lr == 1e-3);
  BOOST_TEST(given.optimizer.muon.momentum == 0.9);
  BOOST_TEST(given.optimizer.muon.steps == 6);
  BOOST_TEST((given.optimizer.muon.scale == MuonScale::spectral));
  BOOST_TEST(given.optimizer.adamw.beta2 == 0.9);
}

// 8 bytes per element of a hidden matrix; embedding and head as with AdamW.
BOOST_AUTO_TEST_CASE(the_state_of_muon_is_planned_by_its_own_size) {
  for (const int ranks : {1, 3}) {
    const MemoryPlan adamw(parse({"--plan"}), small_model(), ranks, {});
    const MemoryPlan muon(parse({"--plan", "--optimizer", "muon"}), small_model(), ranks, {});
    const auto bytes_of = [](const MemoryPlan& plan, const char* name) {
      std::size_t bytes = 0;
      for (const PlanLine& line : plan.lines()) {
        bytes += line.name == name ? line.bytes : 0;
      }
      return bytes;
    };
    BOOST_TEST(bytes_of(muon, "optimizer state") < bytes_of(adamw, "optimizer state"));
    BOOST_TEST(bytes_of(muon, "optimizer state") * 3 > bytes_of(adamw, "optimizer state") * 2);
    BOOST_TEST(bytes_of(muon, "orthogonalisation") > 0U);
    BOOST_TEST(bytes_of(adamw, "orthogonalisation") == 0U);
    const nlohmann::json state = nlohmann::json::parse(muon.json()).at("optimizer_state");
    BOOST_TEST(state.at("bytes_per_rank").get<std::size_t>() >= bytes_of(muon, "optimizer state"));
    BOOST_TEST(state.at("bytes_per_parameter").get<double>() < 12);
    BOOST_TEST(state.at("bytes_per_parameter").get<double>() > 8);
  }
}

BOOST_AUTO_TEST_CASE(another_optimizer_does_not_continue_a_state) {
  ManifestInfo info = written_by(parse({"--plan"}), 3);
  BOOST_TEST(refusal([&] {
               (void)notes(info, {"--plan", "--optimizer", "sgd"});
             }) ==
             "runs/a holds the state of optimizer adamw, and this run's is sgd: give --optimizer "
             "adamw to continue it, or another --out and --init runs/a to start from its weights");
  BOOST_TEST(refusal([&] {
               (void)notes(info, {"--plan", "--optimizer", "muon"});
             }) ==
             "runs/a holds the state of optimizer adamw, and this run's is muon: give --optimizer "
             "adamw to continue it, or another --out and --init runs/a to start from its weights");
  info.optimizer = OptimizerKind::sgd;
  BOOST_TEST(refusal([&] { (void)notes(info, {"--plan"}); }) != "");
  info.optimizer.reset();  // weights alone belong to any
  info.options_json.clear();
  BOOST_TEST(joined(notes(info, {"--plan", "--optimizer", "sgd"})) == "");
  // 839538f stored --weight-decay 0.1, which auto comes to.
  info = written_by(parse({"--plan", "--weight-decay", "0.1"}), 3);
  BOOST_TEST(joined(notes(info, {"--plan"})) == "");
  BOOST_TEST(has(joined(notes(info, {"--plan", "--weight-decay", "0.2"})),
                 "--weight-decay was 0.1 and is 0.2 from step 4 on"));
}

BOOST_AUTO_TEST_CASE(the_state_of_sgd_is_planned_by_its_own_size) {
  const auto state_of = [](const std::vector<std::string>& words) {
    const MemoryPlan plan(parse(words), small_model(), 1, {});
    for (const PlanLine& line : plan.lines()) {
      if (line.name == "optimizer state") {
        return line.bytes;
      }
    }
    return std::size_t{0};
  };
  BOOST_TEST(state_of({"--plan", "--optimizer", "sgd"}) * 3 == state_of({"--plan"}) * 2);
}

BOOST_AUTO_TEST_CASE(another_order_of_data_says_what_differs) {
  const ManifestInfo info =
      written_by(parse({"--plan", "--data", "a b.h5:1", "c.h5:2", "--seed", "1"}), 3);
  const auto reported = [&](const std::vector<std::string>& now) {
    return refusal([&] { (void)notes(info, now, "two"); });
  };
  const std::vector<std::string> same = {"--plan", "--data", "a b.h5:1", "c.h5:2"};
  BOOST_TEST(has(reported(with(same, "--seed=5")),
                 "runs/a was trained on another order of data (--seed was 1 and is 5): give the "
                 "same again, a new --out for a run of its own, or --allow-data-change"));
  BOOST_TEST(has(reported(with(with(same, "--seed=1"), "--seq=64")), "(--seq was 512 and is 64)"));
  BOOST_TEST(has(reported({"--plan", "--seed=1", "--data", "a b.h5:1", "c.h5:3"}),
                 "the weights of --data were \"a b.h5:1\" c.h5:2 and are \"a b.h5:1\" c.h5:3"));
  BOOST_TEST(
      has(reported({"--plan", "--seed=1", "--data", "d.h5"}), "--data was \"a b.h5:1\" c.h5:2"));
  BOOST_TEST(
      has(reported(with(same, "--seed=1")), "the files of --data, or their contents, changed"));
}

BOOST_AUTO_TEST_CASE(the_memory_of_a_device_is_that_of_its_card) {
  const auto bytes = [](const std::vector<std::string>& words) {
    return planned_device_bytes(parse(words));
  };
  BOOST_TEST(bytes({"--plan"}) == 80'000'000'000U);
  BOOST_TEST(bytes({"--plan", "--card", "h200"}) == 141'000'000'000U);
  BOOST_TEST(bytes({"--plan", "--card", "h200", "--device-memory", "40GB"}) == 40'000'000'000U);
}

BOOST_AUTO_TEST_CASE(a_plan_that_does_not_fit_always_says_what_to_do) {
  const auto plan = [](const std::vector<std::string>& words, const char* model, int ranks,
                       std::size_t device_bytes) {
    return MemoryPlan(parse(words), preset(model), ranks,
                      {.device_bytes = device_bytes,
                       .host_bytes = std::size_t{1} << 50U,
                       .ranks_per_node = ranks,
                       .node_ranks = ranks});
  };
  constexpr std::size_t kGB = 1'000'000'000;
  const std::vector<std::string> least = {
      "--plan", "--device",    "cuda",  "--micro-batch",    "1",    "--global-batch", "8", "--seq",
      "64",     "--recompute", "block", "--resident-bytes", "none", "--grad-offload"};
  std::vector<std::string> whole = with(least, "--zero=2");
  whole.emplace_back("--params=device");
  const std::string parameters = plan(whole, "qwen3-32b", 8, 60 * kGB).refusal();
  BOOST_TEST(has(parameters, "the parameters alone take 65.5"), parameters);
  BOOST_TEST(has(parameters, "give --zero auto and --params auto"), parameters);
  for (const std::size_t gigabytes : {1, 2, 4, 8, 16, 24}) {
    for (const char* model : {"d12", "qwen3-4b", "qwen3-8b"}) {
      const MemoryPlan tight = plan(least, model, 1, gigabytes * kGB);
      if (!tight.fits()) {
        BOOST_TEST(!has(tight.refusal(), ": ."), tight.refusal());
        BOOST_TEST(!tight.refusal().ends_with(": "), tight.refusal());
      }
    }
  }
}

// Whole copies where they fit, then shards, then shards on the host; what is given stays.
BOOST_AUTO_TEST_CASE(parameters_are_stored_as_what_fits_allows) {
  constexpr std::size_t kGB = 1'000'000'000;
  const std::vector<std::string> usual = {"--plan",
                                          "--device=cuda",
                                          "--micro-batch=1",
                                          "--seq=512",
                                          "--global-batch=16",
                                          "--recompute=block",
                                          "--grad-offload=auto"};
  const auto plan = [&](const std::vector<std::string>& words, std::size_t device_bytes, int ranks,
                        std::size_t host_bytes = std::size_t{1} << 50U) {
    return MemoryPlan(
        parse(words), preset("qwen3-8b"), ranks,
        {.device_bytes = device_bytes, .host_bytes = host_bytes, .ranks_per_node = ranks});
  };
  const auto is = [](const MemoryPlan& made, ZeroStage zero, ParamPlacement params) {
    BOOST_TEST(made.fits(), made.refusal());
    BOOST_TEST((made.settings().zero == zero && made.settings().params == params),
               made.params_text());
  };
  is(plan(usual, 80 * kGB, 8), ZeroStage::two, ParamPlacement::device);
  is(plan(usual, 14 * kGB, 8), ZeroStage::three, ParamPlacement::device);
  is(plan(usual, 14 * kGB, 1), ZeroStage::two, ParamPlacement::host);
  is(plan(with(usual, "--zero=3"), 80 * kGB, 8), ZeroStage::three, ParamPlacement::device);
  is(plan(with(usual, "--params=host"), 80 * kGB, 8), ZeroStage::two, ParamPlacement::host);
  BOOST_TEST(!plan(with(with(usual, "--zero=2"), "--params=device"), 14 * kGB, 8).fits());
  // nothing fits: the least that is missing
  const MemoryPlan none = plan(usual, kGB, 8);
  BOOST_TEST(!none.fits());
  BOOST_TEST(none.missing_bytes() <
             plan(with(with(usual, "--zero=2"), "--params=device"), kGB, 8).missing_bytes());
  // 32B on 16 cards of 80 GB
  const MemoryPlan large(
      parse({"--plan", "--device=cuda", "--seq=4096", "--global-batch=128", "--recompute=block"}),
      preset("qwen3-32b"), 16,
      {.device_bytes = 80 * kGB, .host_bytes = 1000 * kGB, .ranks_per_node = 8, .node_ranks = 8});
  is(large, ZeroStage::three, ParamPlacement::device);
  BOOST_TEST(has(large.text(), "each rank stores 1/16 of them on its device"));
  // on CPUs a device is its host
  const RunConfig cpu = parse({"--plan", "--seq=64"});
  const MemoryPlan small(cpu, preset("qwen3-0.6b"), 4,
                         {.device_bytes = 0, .host_bytes = 0, .ranks_per_node = 4});
  const std::size_t less = small.node_bytes() - small.node_bytes() / 10;
  is(MemoryPlan(cpu, preset("qwen3-0.6b"), 4,
                {.device_bytes = 0, .host_bytes = less, .ranks_per_node = 4}),
     ZeroStage::three, ParamPlacement::device);
}

BOOST_AUTO_TEST_CASE(samples_that_gather_all_parameters_for_each_token_say_how_long_they_take) {
  const auto plan = [](const char* params, const char* tokens, const char* device,
                       const std::vector<std::string>& more = {}) {
    return MemoryPlan(
        parse(joined_words({"--plan", "--device", device, "--seq", "512", "--micro-batch", "1",
                            "--global-batch", "8", "--params", params, "--sample-every", "5",
                            "--sample-prompt", "a", "--sample-tokens", tokens},
                           more)),
        preset("qwen3-8b"), 1, {});
  };
  // 13.9 GB of blocks from the host at 32 GB/s: 0.43 s a token, and as much for the prompt
  const MemoryPlan host = plan("host", "64", "cuda");
  BOOST_TEST(has(host.params_text(), "one of 64 tokens takes about 28 s"), host.params_text());
  BOOST_TEST(host.sample_refusal() == "");
  const std::string refusal = plan("host", "2000", "cuda").sample_refusal();
  BOOST_TEST(has(refusal, "--sample-tokens 2000: with parameters in shards"), refusal);
  const std::size_t give = refusal.find("give ");
  BOOST_REQUIRE(give != std::string::npos);
  const std::string fewer = refusal.substr(give + 5, refusal.find(" or fewer") - give - 5);
  BOOST_TEST(plan("host", fewer.c_str(), "cuda").sample_refusal() == "");
  BOOST_TEST(plan("device", "2000", "cuda").sample_refusal() == "");
  BOOST_TEST(plan("host", "2000", "cpu").sample_refusal() == "");  // nothing is estimated
  // Four prompts take the blocks that one takes, and the longest one's tiles.
  const std::vector<std::string> prompts = {"--sample-prompt=b", "--sample-prompt", "c d",
                                            "--sample-prompt=c d"};
  const MemoryPlan four = plan("host", "64", "cuda", prompts);
  BOOST_TEST(four.estimate().sample_seconds == host.estimate().sample_seconds);
  BOOST_TEST(has(four.params_text(), "Samples: the 4 prompts gather all blocks together, once for "
                                     "a token of each, so that 64 tokens each take about 28 s"),
             four.params_text());
  BOOST_TEST(plan("host", "64", "cuda", {"--sample-prompt=" + std::string(16, 'b')})
                 .estimate()
                 .sample_seconds > host.estimate().sample_seconds);
  BOOST_TEST(has(plan("host", "2000", "cuda", prompts).sample_refusal(),
                 "and the 4 samples side by side would take about"));
  // Each text has keys and values of its own, and rows between blocks.
  const auto generation = [](const MemoryPlan& of) {
    std::size_t bytes = 0;
    for (const PlanLine& line : of.lines()) {
      bytes += line.name == "generation" && line.kind == MemoryKind::device ? line.bytes : 0;
    }
    return bytes;
  };
  const ModelConfig model = preset("qwen3-8b");
  constexpr std::size_t kTokens = 80;  // 64, the prompt's and one, in tiles of 16
  const std::size_t of_text =
      2 * (kTokens * static_cast<std::size_t>(model.num_layers * 2 * model.num_kv_heads *
                                              model.head_dim) +
           16 * static_cast<std::size_t>(model.hidden_size));
  BOOST_TEST(generation(four) == generation(host) + 3 * of_text);
}

// What is proposed fits devices and nodes: the plan of the proposed options and ranks is the proof.
BOOST_AUTO_TEST_CASE(what_a_refusal_proposes_fits_device_and_host) {
  constexpr std::size_t kGB = 1'000'000'000;
  const std::vector<std::string> usual = {"--plan", "--device=cuda", "--seq=4096",
                                          "--global-batch=4096", "--micro-batch=8"};
  int refused = 0;
  int fitting = 0;
  for (const std::size_t device : {24 * kGB, 80 * kGB}) {
    for (const std::size_t host : {32 * kGB, 128 * kGB, 512 * kGB}) {
      for (const char* model : {"qwen3-1.7b", "qwen3-8b", "qwen3-32b"}) {
        for (const char* more : {"--recompute=none", "--resident-bytes=all", "--grad-offload"}) {
          const MemoryLimits limits = {
              .device_bytes = device, .host_bytes = host, .ranks_per_node = 2, .node_ranks = 2};
          const RunConfig options = parse(with(usual, more));
          if (MemoryPlan(options, preset(model), 2, limits).fits()) {
            continue;
          }
          ++refused;
          for (const MemoryProposal& proposal :
               memory_proposals(options, preset(model), 2, limits)) {
            std::vector<std::string> words = with(usual, more);
            for (const std::string& change : proposal.changes) {
              const bool is_removal = change.starts_with("no ");
              const std::string option = is_removal ? change.substr(3) : change;
              const std::string name = option.substr(0, option.find(' '));
              std::erase_if(words, [&](const std::string& word) {
                return word.substr(0, word.find('=')) == name;
              });
              if (!is_removal) {
                words.push_back(option);
                std::replace(words.back().begin(), words.back().end(), ' ', '=');
              }
            }
            const MemoryPlan planned(parse(words), preset(model), proposal.ranks, limits);
            BOOST_TEST(planned.fits() == proposal.fits,
                       fmt::format("{}: {}", fmt::join(words, " "), planned.refusal()));
            fitting += proposal.fits ? 1 : 0;
          }
        }
      }
    }
  }
  BOOST_TEST(refused > 10);
  BOOST_TEST(fitting > 10);
}

BOOST_AUTO_TEST_CASE(an_estimate_over_a_network_says_that_none_was_measured) {
  const auto text = [](int of_node) {
    return MemoryPlan(parse({"--plan", "--device", "cuda"}), preset("d12"), 8,
                      {.device_bytes = 0,
                       .host_bytes = 0,
                       .ranks_per_node = of_node,
                       .node_ranks = of_node})
        .text();
  };
  BOOST_TEST(has(text(4), "No network was measured"));
  BOOST_TEST(!has(text(8), "network"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
