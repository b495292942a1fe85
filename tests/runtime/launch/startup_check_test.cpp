#define BOOST_TEST_MODULE startup_check
#include "runtime/launch/startup_check.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_control.h"
#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "runtime/launch/same_weights.h"
#include "runtime/launch/start_agreement.h"
#include "runtime/run/option_table.h"
#include "runtime/run/options.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

template <typename Kind, typename Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const Kind& error) {
    return error.message();
  }
  BOOST_ERROR("nothing was thrown");
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// One folder for all ranks, made by rank 0.
class SharedFolder {
 public:
  SharedFolder() {
    if (session().rank() == 0) {
      mine_ = std::make_unique<TempFolder>();
    }
    path_ = session().control().gather_text(mine_ ? mine_->path().string() : "").front();
  }
  ~SharedFolder() { session().control().barrier(); }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  [[nodiscard]] fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::unique_ptr<TempFolder> mine_;
  fs::path path_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(startup_check)

BOOST_AUTO_TEST_CASE(equal_values_pass) {
  const std::vector<NamedValue> values = {{"model", "tiny"}, {"", ""}, {"odd", "3 4\n5=6 {}%"}};
  BOOST_CHECK_NO_THROW(require_same_start(session(), values));
  BOOST_CHECK_NO_THROW(require_same_start(session(), {}));
}

BOOST_AUTO_TEST_CASE(the_first_value_that_differs_is_named) {
  if (session().world_size() == 1) {
    return;
  }
  const int last = session().world_size() - 1;
  const bool other = session().rank() == last;
  const std::vector<NamedValue> values = {
      {"model", "tiny 1\nx"}, {"lr", other ? "1e-4" : "1e-3"}, {"data", other ? "b" : "a"}};
  const std::string host = session().host();
  BOOST_TEST(refusal<ConfigError>([&] { require_same_start(session(), values); }) ==
             "rank " + std::to_string(last) + " (" + host + ") has lr = 1e-4, rank 0 (" + host +
                 ") has lr = 1e-3; data differs too: start every rank with the same program, "
                 "options and data");
}

BOOST_AUTO_TEST_CASE(a_value_that_one_rank_lacks_is_named) {
  if (session().world_size() == 1) {
    return;
  }
  std::vector<NamedValue> values = {{"model", "tiny"}};
  if (session().rank() == 1) {
    values.push_back({"decay-all", "1"});
  }
  BOOST_TEST(contains(refusal<ConfigError>([&] { require_same_start(session(), values); }),
                      "has decay-all = 1, rank 0 (" + session().host() + ") has no decay-all:"));
}

BOOST_AUTO_TEST_CASE(another_order_is_refused) {
  if (session().world_size() == 1) {
    return;
  }
  std::vector<NamedValue> values = {{"a", "1"}, {"b", "2"}};
  if (session().rank() == 1) {
    std::swap(values[0], values[1]);
  }
  BOOST_CHECK_THROW(require_same_start(session(), values), ConfigError);
}

BOOST_AUTO_TEST_CASE(all_ranks_that_differ_are_named_by_value) {
  if (session().world_size() < 4) {
    return;
  }
  const int rank = session().rank();
  const std::string host = session().host();
  const std::vector<NamedValue> values = {{"lr", rank == 0   ? "1"
                                                 : rank == 2 ? "3"
                                                             : "2"},
                                          {"seed", rank == 0 ? "1" : "2"}};
  const std::string others = session().world_size() == 4 ? "1,3" : "1,3-7";
  BOOST_TEST(
      refusal<ConfigError>([&] { require_same_start(session(), values); }) ==
      "ranks " + others + " (" + host + ") have lr = 2, rank 2 (" + host +
          ") has lr = 3, rank 0 (" + host +
          ") has lr = 1; seed differs too: start every rank with the same program, options and "
          "data");
}

BOOST_AUTO_TEST_CASE(a_long_value_is_shown_where_it_differs) {
  if (session().world_size() == 1) {
    return;
  }
  const std::string path(100'000, 'p');
  const std::vector<NamedValue> values = {
      {"data", path + (session().rank() == 1 ? "theirs" : "ours")}};
  const std::string reported = refusal<ConfigError>([&] { require_same_start(session(), values); });
  BOOST_TEST(contains(reported, "theirs"));
  BOOST_TEST(contains(reported, "ours"));
  BOOST_TEST(reported.size() < 700U);
}

// Two valid values for each option of the table, under which the run that is described stays one.
const std::map<std::string, std::pair<std::string, std::string>>& value_pairs() {
  static const std::map<std::string, std::pair<std::string, std::string>> pairs = {
      {"model", {"tiny", "small"}},
      {"data", {"a.h5", "b.h5"}},
      {"seq", {"32", "64"}},
      {"documents", {"joined", "separate"}},
      {"micro-batch", {"4", "2"}},
      {"global-batch", {"16", "32"}},
      {"seed", {"0", "1"}},
      {"init", {"a", "b"}},
      {"steps", {"10", "20"}},
      {"lr", {"1e-3", "2e-3"}},
      {"schedule", {"cosine", "wsd"}},
      {"warmup", {"auto", "3"}},
      {"decay-steps", {"auto", "3"}},
      {"schedule-steps", {"auto", "30"}},
      {"min-lr-ratio", {"0.1", "0.2"}},
      {"optimizer", {"adamw", "sgd"}},
      {"weight-decay", {"0.1", "0.2"}},
      {"decay-all", {"false", "true"}},
      {"beta1", {"0.9", "0.8"}},
      {"beta2", {"0.95", "0.99"}},
      {"eps", {"1e-8", "1e-6"}},
      {"moments", {"f32", "bf16"}},
      {"muon-lr", {"1e-3", "2e-3"}},
      {"muon-momentum", {"0.95", "0.9"}},
      {"muon-steps", {"5", "6"}},
      {"muon-scale", {"rms", "spectral"}},
      {"momentum", {"0.9", "0.8"}},
      {"clip", {"1.0", "0.5"}},
      {"max-skipped", {"3", "4"}},
      {"device", {"cpu", "cuda"}},
      {"precision", {"auto", "f32"}},
      {"fp8-recipe", {"tensor", "row"}},
      {"fp8-skip", {"none", "0"}},
      {"threads", {"1", "2"}},
      {"zero", {"2", "1"}},
      {"params", {"device", "host"}},
      {"reduce-group", {"1", "2"}},
      {"reduce", {"ordered", "native"}},
      {"peer-copies", {"auto", "off"}},
      {"recompute", {"mlp:1", "block:1,mlp"}},
      {"resident-bytes", {"auto", "none"}},
      {"master-weights", {"auto", "f32"}},
      {"page-bytes", {"auto", "64KiB"}},
      {"grad-offload", {"false", "true"}},
      {"batched-forward", {"1", "2"}},
      {"param-blocks", {"3", "4"}},
      {"fp8-weights", {"stored", "at-use"}},
      {"logits-bytes", {"auto", "1MiB"}},
      {"tune-gemm", {"a", "b"}},
      {"attention", {"cudnn", "builtin"}},
      {"attention-slice-bytes", {"2400MiB", "9000MiB"}},
      {"fast-attention", {"false", "true"}},
      {"timeout-seconds", {"600", "60"}},
      {"out", {"a", "b"}},
      {"eval-data", {"a.h5", "b.h5"}},
      {"eval-every", {"0", "2"}},
      {"eval-sequences", {"64", "32"}},
      {"log-every", {"1", "2"}},
      {"trace", {"1:2", "2:3"}},
      {"sample-every", {"1", "2"}},
      {"sample-prompt", {"a", "b"}},
      {"sample-tokens", {"64", "32"}},
      {"sample-temperature", {"0.8", "0"}},
      {"verbose", {"false", "true"}},
      {"require-fast-network", {"false", "true"}},
      {"save-every", {"0", "2"}},
      {"save-at-end", {"true", "false"}},
      {"keep", {"3", "4"}},
      {"keep-every", {"0", "2"}},
      {"keep-best", {"a", "b"}},
      {"export", {"a", "b"}},
      {"export-every", {"2", "4"}},
      {"epochs", {"1", "2"}},
      {"tokens", {"100000", "200000"}},
      {"lora", {"8", "16"}},
      {"lora-alpha", {"16", "32"}},
      {"lora-targets", {"all", "q_proj,v_proj"}},
      {"lora-init", {"kaiming", "gaussian"}},
      {"rslora", {"false", "true"}},
      {"base-dtype", {"auto", "nf4"}},
      {"base-random", {"false", "true"}},
      {"train-embeddings", {"false", "true"}},
      {"init-adapter", {"a", "b"}},
      {"label-smoothing", {"0", "0.1"}},
      {"z-loss", {"0", "1e-4"}},
      {"save-staging", {"auto", "1MiB"}},
      {"save-local", {"a", "b"}},
      {"save-local-every", {"2", "4"}},
      {"offload-activations", {"false", "true"}},
      {"batched-backward", {"false", "true"}},
      {"on-save-failure", {"continue", "stop"}},
      {"resume", {"auto", "none"}},
      {"allow-data-change", {"false", "true"}},
      {"allow-tokenizer-mismatch", {"false", "true"}},
      {"stop-file", {"a", "b"}},
      {"max-seconds", {"0", "9"}},
      {"plan", {"true", "false"}},
      {"ranks", {"1", "2"}},
      {"ranks-per-node", {"0", "1"}},
      {"device-memory", {"80GB", "40GB"}},
      {"host-memory", {"0", "64GB"}},
      {"card", {"h100", "h200"}},
      {"network-bandwidth", {"45GB", "20GB"}},
      {"network-latency", {"5e-6", "1e-6"}},
      {"fit", {"false", "true"}},
      {"scale", {"false", "true"}},
      {"json", {"false", "true"}}};
  return pairs;
}

ParsedOptions with_value(const std::string& name, const std::string& value) {
  std::vector<std::string> words = {"train", "--data", "d.h5", "--out", "o"};
  if (name == "data" || name == "out") {
    const auto standing = std::find(words.begin(), words.end(), "--" + name);
    words.erase(standing, standing + 2);
  }
  const auto needs = [&](const char* option, const char* word) {
    words.insert(words.end(), {option, word});
  };
  if (name == "eval-every") {
    needs("--eval-data", "e.h5");
  }
  if (name == "export-every") {
    needs("--export", "model");
    needs("--save-every", "2");
  }
  if (name == "save-local") {
    needs("--save-local-every", "2");
  }
  if (name == "save-local-every") {
    needs("--save-local", "disk");
  }
  if (name == "keep-best") {
    needs("--eval-data", "a=a.h5");
    needs("--eval-data", "b=b.h5");
  }
  if (name == "sample-every" || name == "sample-tokens" || name == "sample-temperature") {
    needs("--sample-prompt", "p");
  }
  if (name == "sample-prompt" || name == "sample-tokens" || name == "sample-temperature") {
    needs("--sample-every", "1");
  }
  if (name == "offload-activations") {
    needs("--recompute", "block");
  }
  if (name == "tune-gemm") {
    needs("--device", "cuda");
  }
  if (name.starts_with("fp8-")) {
    needs("--precision", "fp8");
  }
  if (name == "batched-backward") {
    needs("--batched-forward", "2");
  }
  if (name.starts_with("muon-")) {
    needs("--optimizer", "muon");
  }
  if (name == "momentum") {
    needs("--optimizer", "sgd");
  }
  if (name.starts_with("lora-") || name.starts_with("base-") || name == "rslora" ||
      name == "train-embeddings") {
    needs("--lora", "8");
  }
  if (name == "base-random") {
    needs("--base-dtype", "nf4");
  }
  if (name == "json" || name == "fit" || name == "scale") {
    needs("--plan", "true");
  }
  words.insert(words.end(), {"--" + name, value});
  std::vector<const char*> argv;
  argv.reserve(words.size());
  for (const std::string& word : words) {
    argv.push_back(word.c_str());
  }
  return parse_options(static_cast<int>(argv.size()), argv.data());
}

// Numbers are compared, and shown, in one way of writing them.
std::string compared_text(const std::string& name, const std::string& value) {
  const ParsedOptions parsed = with_value(name, value);
  const auto& agreed = parsed.config.texts.agreed;
  const auto found = std::find_if(agreed.begin(), agreed.end(),
                                  [&name](const auto& each) { return each.first == name; });
  BOOST_TEST_REQUIRE((found != agreed.end()));
  return found->second;
}

// Walks the table of options: a new one must be given a pair above, and be refused or be reported
// apart.
BOOST_AUTO_TEST_CASE(every_option_that_must_agree_is_refused_by_name_where_ranks_differ) {
  const int last = session().world_size() - 1;
  if (last > 1) {
    return;  // two ranks show it
  }
  std::size_t may_differ = 0;
  for (const OptionRow& option : option_table()) {
    BOOST_TEST_CONTEXT("--" << option.name) {
      const auto pair = value_pairs().find(option.name);
      BOOST_TEST_REQUIRE((pair != value_pairs().end()), "give two values for it above");
      const auto& [first, second] = pair->second;
      BOOST_TEST_REQUIRE(first != second);
      const auto mine = start_values(
          with_value(option.name, last > 0 && session().rank() == last ? second : first));
      const bool must_agree = option.role != OptionRole::local;
      if (!must_agree || last == 0) {
        may_differ += must_agree ? 0 : 1;
        BOOST_CHECK_NO_THROW(require_same_start(session(), mine));
        continue;
      }
      const std::string reported =
          refusal<ConfigError>([&] { require_same_start(session(), mine); });
      BOOST_TEST(contains(reported, "rank " + std::to_string(last) + " (" + session().host() +
                                        ") has --" + option.name + " = " +
                                        compared_text(option.name, second)));
      BOOST_TEST(contains(reported, "rank 0 (" + session().host() + ") has --" + option.name +
                                        " = " + compared_text(option.name, first)));
    }
  }
  BOOST_TEST(may_differ == 2U, "--max-seconds and --host-memory: whoever adds one says why");
}

BOOST_AUTO_TEST_CASE(ranks_that_are_asked_for_other_things_are_refused) {
  if (session().world_size() == 1) {
    return;
  }
  ParsedOptions parsed = with_value("seed", "1");
  if (session().rank() == 1) {
    parsed.action = OptionsAction::help;
  }
  BOOST_TEST(
      contains(refusal<ConfigError>([&] { require_same_start(session(), start_values(parsed)); }),
               "has what is asked for = --help, rank 0 (" + session().host() +
                   ") has what is asked for = a run"));
}

BOOST_AUTO_TEST_CASE(a_variable_that_changes_how_libraries_compute_must_agree) {
  if (session().world_size() == 1) {
    return;
  }
  const ParsedOptions parsed = with_value("seed", "1");
  if (session().rank() == 1) {
    BOOST_TEST_REQUIRE(setenv("ONEDNN_MAX_CPU_ISA", "SSE41", 1) == 0);
  } else {
    BOOST_TEST_REQUIRE(unsetenv("ONEDNN_MAX_CPU_ISA") == 0);
  }
  BOOST_TEST(
      contains(refusal<ConfigError>([&] { require_same_start(session(), start_values(parsed)); }),
               "has environment variable ONEDNN_MAX_CPU_ISA = SSE41"));
  BOOST_TEST_REQUIRE(unsetenv("ONEDNN_MAX_CPU_ISA") == 0);
}

BOOST_AUTO_TEST_CASE(ranks_on_different_devices_are_reported_by_kind) {
  const std::vector<std::string> mixed = {"H100", "H100", "H200", "H100"};
  BOOST_TEST(contains(different_devices_text(mixed), "(H100 on ranks 0-1,3, H200 on rank 2)"));
  BOOST_TEST(different_devices_text(std::vector<std::string>(3, "H100")).empty());
}

BOOST_AUTO_TEST_CASE(every_field_of_the_model_must_agree) {
  const ModelConfig base = preset("qwen3-0.6b");
  const std::vector<std::pair<std::string, ModelConfig>> others = [&] {
    std::vector<std::pair<std::string, ModelConfig>> changed;
    const auto add = [&](const char* name, auto field, auto value) {
      ModelConfig config = base;
      config.*field = value;
      changed.emplace_back(name, config);
    };
    add("model_type", &ModelConfig::model_type, "qwen2");
    add("vocab_size", &ModelConfig::vocab_size, 7);
    add("hidden_size", &ModelConfig::hidden_size, 7);
    add("intermediate_size", &ModelConfig::intermediate_size, 7);
    add("num_hidden_layers", &ModelConfig::num_layers, 7);
    add("num_attention_heads", &ModelConfig::num_heads, 7);
    add("num_key_value_heads", &ModelConfig::num_kv_heads, 7);
    add("head_dim", &ModelConfig::head_dim, 7);
    add("attention_bias", &ModelConfig::attention_bias, !base.attention_bias);
    add("tie_word_embeddings", &ModelConfig::tie_embeddings, !base.tie_embeddings);
    add("rope_theta", &ModelConfig::rope_theta, 7.5);
    add("rms_norm_eps", &ModelConfig::rms_norm_eps, 7e-5);
    add("initializer_range", &ModelConfig::initializer_range, 7.0);
    add("max_position_embeddings", &ModelConfig::max_position, 7);
    add("sliding_window", &ModelConfig::sliding_window, 7);
    changed.back().second.sliding_layers.assign(static_cast<std::size_t>(base.num_layers), true);
    add("rope_scaling", &ModelConfig::rope,
        RopeScaling{.type = RopeType::linear,
                    .factor = 7,
                    .attention_factor = {},
                    .mscale = {},
                    .mscale_all_dim = {}});
    return changed;
  }();
  if (session().world_size() == 1) {
    return;
  }
  for (const auto& [name, config] : others) {
    const auto values = model_values(session().rank() == 1 ? config : base);
    const std::string reported =
        refusal<ConfigError>([&] { require_same_start(session(), values); });
    BOOST_TEST(contains(reported, name + " of the model"), name << ": " << reported);
  }
}

BOOST_AUTO_TEST_CASE(the_build_id_names_version_compiler_commit_and_program) {
  const std::string id = build_id();
  BOOST_TEST(id.starts_with("tessera "));
  BOOST_TEST(contains(id, __VERSION__));
  BOOST_TEST(contains(id, "commit "));
  BOOST_TEST(!contains(id, "program 0000000000000000"));
  BOOST_TEST(id == build_id());
}

BOOST_AUTO_TEST_CASE(the_output_folder_is_made_and_left_empty) {
  const SharedFolder shared;
  const fs::path out = shared / "runs/a b, 100% ü";
  {
    MadeFolders made = prepare_out_folder(session(), out, {});
    made.keep();
  }
  session().control().barrier();
  BOOST_TEST(fs::is_directory(out));
  BOOST_TEST(fs::is_empty(out));
}

BOOST_AUTO_TEST_CASE(folders_of_a_start_that_is_refused_go_again) {
  const SharedFolder shared;
  const auto make_and_leave = [&](const fs::path& out) {
    const MadeFolders made = prepare_out_folder(session(), out, {OutContents::may_be_there});
    session().control().barrier();
    BOOST_TEST(fs::is_directory(out));
    session().control().barrier();
  };
  make_and_leave(shared / "runs/today/a/");
  session().control().barrier();
  BOOST_TEST(!fs::exists(shared / "runs"));
  session().control().barrier();
  if (session().rank() == 0) {
    fs::create_directory(shared / "runs");
  }
  session().control().barrier();
  make_and_leave(shared / "runs/today");
  session().control().barrier();
  BOOST_TEST(fs::is_empty(shared / "runs"));
}

BOOST_AUTO_TEST_CASE(a_folder_with_something_in_it_is_refused_unless_allowed) {
  const SharedFolder shared;
  if (session().rank() == 0) {
    std::ofstream(shared / "metrics.jsonl") << "{}";
  }
  const std::string message =
      refusal<ConfigError>([&] { std::ignore = prepare_out_folder(session(), shared / "", {}); });
  BOOST_TEST(contains(message, "is not empty (it has metrics.jsonl)"));
  BOOST_CHECK_NO_THROW(std::ignore = prepare_out_folder(session(), shared / "",
                                                        {.contents = OutContents::may_be_there}));
  session().control().barrier();
  BOOST_TEST(std::distance(fs::directory_iterator(shared / ""), fs::directory_iterator()) == 1);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_made_or_written_is_refused) {
  const SharedFolder shared;
  if (session().rank() == 0) {
    std::ofstream(shared / "file") << "x";
  }
  session().control().barrier();
  BOOST_TEST(contains(refusal<ConfigError>([&] {
                        std::ignore = prepare_out_folder(session(), shared / "file", {});
                      }),
                      "is there and is not a folder: give another one"));
  BOOST_TEST(contains(refusal<ConfigError>([&] {
                        std::ignore = prepare_out_folder(session(), shared / "file/x", {});
                      }),
                      "file is not a folder: give another one"));
  // even root cannot write here
  const std::string message = refusal<WriteError>([&] {
    std::ignore = prepare_out_folder(session(), "/proc/self/fdinfo", {OutContents::may_be_there});
  });
  BOOST_TEST(contains(message, "cannot write to the output folder /proc/self/fdinfo"));
}

// Every slice is read by a rank that sees other files, and none where there is one file.
BOOST_AUTO_TEST_CASE(slices_are_checked_by_ranks_that_see_other_files) {
  const auto checking = [](const std::vector<std::string>& sources) {
    return checking_ranks(sources);
  };
  using Ranks = std::vector<int>;
  BOOST_TEST(checking({"a"}) == (Ranks{-1}), boost::test_tools::per_element());
  BOOST_TEST(checking({"a", "a", "a"}) == (Ranks{-1, -1, -1}), boost::test_tools::per_element());
  BOOST_TEST(checking({"a", "b"}) == (Ranks{1, 0}), boost::test_tools::per_element());
  BOOST_TEST(checking({"a", "a", "b", "b"}) == (Ranks{2, 3, 0, 1}),
             boost::test_tools::per_element());
  BOOST_TEST(checking({"a", "b", "a", "c", "a"}) == (Ranks{1, 3, 1, 0, 1}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_folder_that_is_another_one_elsewhere_is_refused_by_host) {
  if (session().world_size() == 1) {
    return;
  }
  const SharedFolder shared;
  const int last = session().world_size() - 1;
  const fs::path out = shared / (session().rank() == last ? "theirs" : "ours");
  fs::create_directories(out);
  const std::string message = refusal<ConfigError>([&] {
    std::ignore = prepare_out_folder(
        session(), out, {.contents = OutContents::must_be_empty, .timeout_seconds = 0.5});
  });
  BOOST_TEST(contains(message, "rank " + std::to_string(last) + " (" + session().host() + ")"));
  BOOST_TEST(contains(message, "is not the folder that rank 0 has under this name"));
  session().control().barrier();
  BOOST_TEST(fs::is_empty(out));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
