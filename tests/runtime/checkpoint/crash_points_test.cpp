// A process killed at any point of a save leaves a run that continues from a complete step: the new
// one once the folder has been renamed, the last one before.
#include <csignal>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "tests/runtime/checkpoint/saves.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

SaveOptions save_of(Index step) {
  SaveOptions options;
  options.step = step;
  options.retention = {1, 0};
  return options;
}

/// Saves in a process of its own, which kills itself when it reaches `phase`. Returns whether it
/// got there.
bool save_and_die(const std::filesystem::path& run, SaveOptions options, SavePhase phase) {
  const pid_t child = ::fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    options.hook = [&](SavePhase reached) {
      if (reached == phase) {
        (void)::raise(SIGKILL);
      }
    };
    try {
      static_cast<void>(save(run, options));
    } catch (const std::exception&) {
      ::_exit(2);
    }
    ::_exit(0);
  }
  int status = 0;
  BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

std::optional<StepFolder> newest(const std::filesystem::path& run) {
  return newest_whole(run, [](const StepFolder& folder) {
    BOOST_ERROR(folder.path.string() << " is " << state_name(folder.state));
  });
}

BOOST_AUTO_TEST_SUITE(crash_points)

BOOST_AUTO_TEST_CASE(a_save_killed_at_any_phase_leaves_a_complete_step) {
  for (int i = 0; i < kSavePhaseCount; ++i) {
    const auto phase = static_cast<SavePhase>(i);
    const TempFolder run;
    static_cast<void>(save(run.path(), save_of(1)));
    BOOST_TEST_CONTEXT("killed at phase " << i) {
      BOOST_REQUIRE(save_and_die(run.path(), save_of(2), phase));
      const auto found = newest(run.path());
      BOOST_REQUIRE(found);
      BOOST_TEST(found->step == (phase < SavePhase::renamed ? 1 : 2));
      // Before the run is sure of the new step, the old one is there.
      BOOST_TEST((phase >= SavePhase::trash_renamed ||
                  std::filesystem::exists(run / step_folder_name(1))));
      // The next run clears up and continues.
      static_cast<void>(remove_leftovers(run.path()));
      static_cast<void>(save(run.path(), save_of(3)));
      const std::vector<std::string> expected = {"LATEST", step_folder_name(3)};
      BOOST_TEST(names_in(run.path()) == expected, boost::test_tools::per_element());
      CheckpointReader reader(run / step_folder_name(3));
      BOOST_TEST(compare(reader, small_table(), 3, 3) == "");
    }
  }
}

// One step is kept beside the best.
SaveOptions judged(Index step, double loss) {
  SaveOptions options = save_of(step);
  options.retention.keep_best = "chat";
  options.evaluations = {{"chat", loss, "the same"}, {"code", -loss, "the same"}};
  return options;
}

std::string best_of(const std::filesystem::path& run) {
  return slurp(run / "BEST");
}

BOOST_AUTO_TEST_CASE(a_save_killed_at_any_phase_leaves_the_best_step_and_its_name) {
  for (int i = 0; i < kSavePhaseCount; ++i) {
    for (const double loss : {0.5, 1.5}) {
      const auto phase = static_cast<SavePhase>(i);
      const TempFolder run;
      static_cast<void>(save(run.path(), judged(1, 1)));
      static_cast<void>(save(run.path(), judged(2, 2)));
      BOOST_TEST(best_of(run.path()) == "step-00000001\n");
      BOOST_TEST_CONTEXT("killed at phase " << i << " of a save with loss " << loss) {
        BOOST_REQUIRE(save_and_die(run.path(), judged(3, loss), phase));
        // BEST names a complete step at every moment
        const std::string named = best_of(run.path()).substr(0, step_folder_name(1).size());
        ReadRetry retry;
        BOOST_TEST(
            (check_step(run / named, CheckDepth::blocks, retry).state == StepState::complete));
        // and the one with the lowest loss is found, by whoever continues
        const Index best = loss < 1 && phase >= SavePhase::renamed ? 3 : 1;
        const auto settled = settle_best(run.path(), "chat", judged(1, 1).run_id);
        BOOST_REQUIRE(settled);
        BOOST_TEST(settled->step == best);
        BOOST_TEST(best_of(run.path()) == step_folder_name(best) + "\n");
        static_cast<void>(remove_leftovers(run.path()));
        static_cast<void>(save(run.path(), judged(4, 9)));
        const std::vector<std::string> expected = {"BEST", "LATEST", step_folder_name(best),
                                                   step_folder_name(4)};
        BOOST_TEST(names_in(run.path()) == expected, boost::test_tools::per_element());
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_save_that_fails_at_any_phase_before_the_rename_leaves_nothing) {
  const TempFolder run;
  static_cast<void>(save(run.path(), save_of(1)));
  for (int i = 0; i <= static_cast<int>(SavePhase::folder_synced); ++i) {
    SaveOptions options = save_of(2);
    options.hook = [&](SavePhase reached) {
      if (reached == static_cast<SavePhase>(i)) {
        throw WriteError("no more", TESSERA_HERE);
      }
    };
    BOOST_CHECK_THROW(static_cast<void>(save(run.path(), options)), WriteError);
    const std::vector<std::string> expected = {"LATEST", step_folder_name(1)};
    BOOST_TEST(names_in(run.path()) == expected, boost::test_tools::per_element());
  }
  BOOST_TEST(newest(run.path())->step == 1);
}

BOOST_AUTO_TEST_CASE(a_first_save_that_dies_leaves_no_step) {
  const TempFolder run;
  BOOST_REQUIRE(save_and_die(run.path(), save_of(1), SavePhase::folder_synced));
  BOOST_TEST(!newest(run.path()));
  BOOST_TEST(find_steps(run.path(), CheckDepth::headers).size() == 1U);
}

BOOST_AUTO_TEST_CASE(a_save_killed_at_random_moments_leaves_a_complete_step) {
  constexpr int kKills = 20;
  constexpr useconds_t kLongest = 60'000;
  const TempFolder run;
  Index step = 1;
  static_cast<void>(save(run.path(), save_of(step)));
  for (int i = 0; i < kKills; ++i) {
    const pid_t child = ::fork();
    BOOST_REQUIRE(child >= 0);
    if (child == 0) {
      for (Index next = step + 1;; ++next) {
        try {
          static_cast<void>(save(run.path(), save_of(next)));
        } catch (const std::exception&) {
          ::_exit(2);
        }
      }
    }
    ::usleep(static_cast<useconds_t>(i) * kLongest / kKills);
    BOOST_REQUIRE(::kill(child, SIGKILL) == 0);
    int status = 0;
    BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
    BOOST_TEST(WIFSIGNALED(status));
    const auto found = newest(run.path());
    BOOST_REQUIRE(found);
    BOOST_TEST(found->step >= step);
    const std::optional<Index> announced =
        step_of_folder_name(slurp(run / "LATEST").substr(0, step_folder_name(1).size()));
    BOOST_REQUIRE(announced);
    BOOST_TEST(found->step >= *announced);
    step = found->step;
    static_cast<void>(remove_leftovers(run.path()));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
