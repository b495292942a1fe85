// When a run evaluates, saves and stops: a training loop of one rank, whose clock is set by the
// test.
#include "runtime/run/train_loop.h"

#include <fstream>
#include <set>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/file_status.h"
#include "model/model_config.h"
#include "runtime/checkpoint/layout.h"
#include "runtime/run/options.h"
#include "tests/runtime/data/token_files.h"
#include "tests/support/run/alone.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

constexpr int kRestart = 85;  // jobs/guide/failures.md
constexpr Index kVocabulary = 61;

double& now() {
  static double seconds = 0;
  return seconds;
}
double test_clock() {
  return now();
}

// One rank; `after_step` is called between two steps.
class Stepped final : public Alone {
 public:
  explicit Stepped(std::function<void(Index)> after_step) : after_step_(std::move(after_step)) {}
  void check_health() override { after_step_(++steps_); }

 private:
  std::function<void(Index)> after_step_;
  Index steps_ = 0;
};

ModelConfig a_model() {
  ModelConfig model = preset("tiny");
  model.vocab_size = kVocabulary;
  model.hidden_size = 16;
  model.intermediate_size = 24;
  model.num_layers = 1;
  return model;
}

// What is in OUT after a run.
struct Outcome {
  int status = 0;
  std::vector<Index> steps;        // with a line of their own
  std::vector<Index> evaluations;  // after which steps
  std::vector<Index> losses_logged;
  std::vector<Index> saved;      // steps whose folder is there
  std::set<std::string> events;  // "save 4": name and step
};

class LoopBench {
 public:
  LoopBench() {
    now() = 0;
    write_tokens(folder_ / "data.h5", {counting(600, kVocabulary)}, kVocabulary);
    write_tokens(folder_ / "eval.h5", {counting(100, kVocabulary)}, kVocabulary);
  }

  // Options as train takes them, beside those that all runs here have; each step takes so long.
  Outcome run(std::vector<std::string> more, StopOptions stops, double step_seconds,
              const std::function<void(Index)>& after_step = {}) {
    const std::filesystem::path out = folder_ / "out";
    std::filesystem::create_directories(out);
    for (const std::string& setting :
         {"data=" + (folder_ / "data.h5").string(), "eval-data=" + (folder_ / "eval.h5").string(),
          "out=" + out.string(), std::string("seq=8"), std::string("micro-batch=2"),
          std::string("global-batch=4")}) {
      more.push_back(setting);
    }
    const RunConfig config = resolved(config_of_settings(more, "a test"));
    Stepped comm([&](Index step) {
      now() += step_seconds;
      if (after_step) {
        after_step(step);
      }
    });
    Arena arena({}, ArenaMode::allocate);
    const ModelConfig model = a_model();
    RunData data(config, model, kVocabulary, comm, arena);
    TrainingRun run(model, run_settings(config, model, 0), comm, data.loader(), arena);
    CheckpointSaver saver({.run_folder = out, .retention = {.keep = 100}}, comm, run.shard(),
                          run.optimizer(), arena);
    run.initialize_weights();
    run.trainer().gather_parameters();
    stops.clock = test_clock;
    StopRequests requests(stops, 0);
    TrainLoop loop(config,
                   {.identity = {.config_json = to_config_json(model),
                                 .data_hash = data.loader().data_hash(),
                                 .chunk_rows = 1,
                                 .gemm_table_hash = {},
                                 .data_sequences = data.pass().sequences},
                    .run_id = "3f0f5a3a-0000-4000-8000-000000000001",
                    .weights = {"the initial weights", true}},
                   run, data, {.saver = saver, .stops = requests});
    Outcome outcome;
    outcome.status = loop.run();
    read(out, outcome);
    return outcome;
  }

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_.path(); }

 private:
  static void read(const std::filesystem::path& out, Outcome& outcome) {
    std::ifstream lines(out / "metrics.jsonl");
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json row = nlohmann::json::parse(line);
      const Index step = row.at("step");
      if (row.contains("event")) {
        outcome.events.insert(fmt::format("{} {}", row.at("event").get<std::string>(), step));
      } else if (row.contains("eval_loss")) {
        outcome.evaluations.push_back(step);
      } else {
        outcome.steps.push_back(step);
      }
    }
    for (const auto& entry : std::filesystem::directory_iterator(out)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("step-") && path_exists(entry.path() / kManifestName)) {
        outcome.saved.push_back(std::stoll(name.substr(5)));
      }
    }
    std::ranges::sort(outcome.saved);
  }

  TempFolder folder_;
};

using Steps = std::vector<Index>;

}  // namespace

BOOST_AUTO_TEST_SUITE(train_loop)

BOOST_AUTO_TEST_CASE(evaluations_and_saves_come_when_they_are_due_and_at_the_end) {
  LoopBench bench;
  const Outcome outcome =
      bench.run({"steps=7", "eval-every=2", "save-every=3", "log-every=5"}, {}, 1);
  BOOST_TEST(outcome.status == 0);
  BOOST_TEST(outcome.steps == (Steps{1, 2, 3, 4, 5, 6, 7}));
  BOOST_TEST(outcome.evaluations == (Steps{2, 4, 6, 7}));
  BOOST_TEST(outcome.saved == (Steps{3, 6, 7}));
  for (const char* event : {"save 3", "save 6", "save 7"}) {
    BOOST_TEST(outcome.events.contains(event), event);
  }
  BOOST_TEST(!outcome.events.contains("stop 7"));
}

BOOST_AUTO_TEST_CASE(a_run_that_saves_nothing_leaves_no_step) {
  LoopBench bench;
  const Outcome outcome = bench.run({"steps=3", "save-at-end=false"}, {}, 1);
  BOOST_TEST(outcome.status == 0);
  BOOST_TEST(outcome.steps == (Steps{1, 2, 3}));
  BOOST_TEST(outcome.saved == Steps{});
}

// A step takes 1000 s, beside which a save takes no time. Step 10 begins at 9000 s: after it there
// is no room for another one and the end of the processes, 1 s.
BOOST_AUTO_TEST_CASE(a_time_limit_ends_after_the_last_step_that_fits_and_saves_it) {
  LoopBench bench;
  const Outcome outcome = bench.run({"steps=100", "eval-every=5"}, {.max_seconds = 10'001}, 1000);
  BOOST_TEST(outcome.status == kRestart);
  BOOST_TEST(outcome.steps.back() == 10);
  BOOST_TEST(outcome.evaluations == (Steps{5}));  // whoever wants to stop does not wait for it
  BOOST_TEST(outcome.events.contains("dropped 10"));
  BOOST_TEST(outcome.events.contains("stop 10"));
  // The first save is not the last: one is made for trial when a tenth of the time, 1000.1 s, is
  // over, which is so when step 3 begins.
  BOOST_TEST(outcome.saved == (Steps{3, 10}));
}

BOOST_AUTO_TEST_CASE(there_is_no_trial_where_a_save_was_measured) {
  LoopBench bench;
  const Outcome outcome = bench.run({"steps=100", "save-every=1"}, {.max_seconds = 5'001}, 1000);
  BOOST_TEST(outcome.status == kRestart);
  BOOST_TEST(outcome.steps.back() == 5);
  BOOST_TEST(outcome.saved == (Steps{1, 2, 3, 4, 5}));
}

BOOST_AUTO_TEST_CASE(a_limit_that_the_run_does_not_reach_changes_nothing_but_the_trial) {
  LoopBench bench;
  const Outcome outcome = bench.run({"steps=4"}, {.max_seconds = 20'000}, 1000);
  BOOST_TEST(outcome.status == 0);
  BOOST_TEST(outcome.steps == (Steps{1, 2, 3, 4}));
  BOOST_TEST(outcome.saved == (Steps{3, 4}));
}

// The end of a job leaves 20 s for the processes where --max-seconds leaves 1.
BOOST_AUTO_TEST_CASE(the_end_of_the_job_leaves_more_time) {
  const auto last_step = [](const StopOptions& stops) {
    LoopBench bench;
    const Outcome outcome = bench.run({"steps=100"}, stops, 1000);
    BOOST_TEST(outcome.status == kRestart);
    return outcome.steps.back();
  };
  BOOST_TEST(last_step({.max_seconds = 6'010}) == 7);
  BOOST_TEST(last_step({.job_seconds = 6'010}) == 6);
  BOOST_TEST(last_step({.max_seconds = 3'001, .job_seconds = 6'010}) == 3);
}

// The file is looked for once a second. Steps begin at 0, 0.4, 0.8 and 1.2 s.
BOOST_AUTO_TEST_CASE(a_stop_file_ends_after_the_step_that_sees_it) {
  LoopBench bench;
  const std::filesystem::path file = bench.folder() / "stop";
  const Outcome outcome = bench.run({"steps=100"}, {.stop_file = file}, 0.4, [&](Index step) {
    if (step == 1) {
      std::ofstream(file).close();
    }
  });
  BOOST_TEST(outcome.status == kRestart);
  BOOST_TEST(outcome.steps == (Steps{1, 2, 3, 4}));
  BOOST_TEST(outcome.saved == (Steps{4}));
  BOOST_TEST(outcome.events.contains("stop 4"));
  BOOST_TEST(!path_exists(file));  // so that the next run does not stop at once
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
