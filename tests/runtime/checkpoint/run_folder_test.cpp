// What a run keeps, what becomes of its folders, and what a save that fails leaves behind.
#include <algorithm>
#include <fstream>
#include <limits>
#include <regex>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>
#include <sys/mount.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "tests/runtime/checkpoint/saves.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

using Steps = std::vector<Index>;

Steps removed(const std::vector<StepFacts>& facts, const RetentionOptions& options,
              Index just_written, const Steps& damaged = {}) {
  return steps_to_remove(facts, options, just_written, [&](Index step) {
    return std::find(damaged.begin(), damaged.end(), step) == damaged.end();
  });
}

/// Complete steps whose parameters are finite.
std::vector<StepFacts> good(const Steps& steps) {
  std::vector<StepFacts> facts;
  for (const Index step : steps) {
    facts.push_back({step, true, true});
  }
  return facts;
}

CommitResult save_step(const std::filesystem::path& run, Index step,
                       const RetentionOptions& retention, bool is_poisoned = false) {
  SaveOptions options;
  options.step = step;
  options.retention = retention;
  options.is_poisoned = is_poisoned;
  return save(run, options);
}

std::size_t open_files() {
  return names_in("/proc/self/fd").size();
}

/// "VmRSS" or "RssShmem" of this process, in kB.
Index memory_kb(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(what + ":")) {
      return std::stoll(line.substr(what.size() + 1));
    }
  }
  return -1;
}

/// A file system of some bytes; not mounted where this process may not.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& size)
      : is_mounted_(::mount("tessera", folder_.path().c_str(), "tmpfs", 0,
                            ("size=" + size).c_str()) == 0) {}
  ~SmallDisk() {
    if (is_mounted_) {
      static_cast<void>(::umount2(folder_.path().c_str(), MNT_DETACH));
    }
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  [[nodiscard]] bool is_mounted() const { return is_mounted_; }
  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TempFolder folder_;
  bool is_mounted_;
};

template <typename Work>
std::string write_error_of(Work work) {
  try {
    work();
  } catch (const WriteError& error) {
    return error.message();
  }
  return {};
}

BOOST_AUTO_TEST_SUITE(run_folder)

// Names of folders take its first digits, and readers its 36 characters.
BOOST_AUTO_TEST_CASE(an_identifier_is_a_random_uuid_in_lower_case) {
  const std::regex form("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}");
  const std::string first = new_uuid();
  BOOST_TEST(std::regex_match(first, form), first);
  BOOST_TEST(first != new_uuid());
}

BOOST_AUTO_TEST_CASE(the_newest_steps_stay_by_number_not_by_name) {
  BOOST_TEST(removed(good({9998, 9999, 10000}), {2, 0}, 10000) == Steps{9998},
             boost::test_tools::per_element());
  BOOST_TEST(removed(good({99999999, 100000000}), {1, 0}, 100000000) == Steps{99999999},
             boost::test_tools::per_element());
  BOOST_TEST(removed(good({1, 2, 3}), {3, 0}, 3).empty());
}

BOOST_AUTO_TEST_CASE(multiples_stay_for_ever) {
  BOOST_TEST(removed(good({10, 15, 20, 25, 30, 35}), {1, 10}, 35) == (Steps{15, 25}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_step_just_written_stays_even_below_others) {
  BOOST_TEST(removed(good({20, 30, 40}), {1, 0}, 20) == Steps{30},
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_last_finite_step_stays) {
  std::vector<StepFacts> facts = good({10, 20});
  for (const Index step : {30, 40, 50}) {
    facts.push_back({step, true, false});
  }
  BOOST_TEST(removed(facts, {2, 0}, 50) == (Steps{10, 30}), boost::test_tools::per_element());
}

// As good(), with losses of the set "chat"; 0: not evaluated.
std::vector<StepFacts> judged(const Steps& steps, const std::vector<double>& losses,
                              const std::string& over = "the same") {
  std::vector<StepFacts> facts = good(steps);
  for (std::size_t i = 0; i < facts.size(); ++i) {
    if (losses[i] != 0) {
      facts[i].evaluation = SavedEvaluation{"chat", losses[i], over};
    }
  }
  return facts;
}

BOOST_AUTO_TEST_CASE(the_step_with_the_lowest_loss_stays) {
  const RetentionOptions one = {1, 0, "chat"};
  BOOST_TEST(removed(judged({10, 20, 30, 40}, {3, 1, 2, 4}), one, 40) == (Steps{10, 30}),
             boost::test_tools::per_element());
  // of equal ones the first; steps without an evaluation are never the best
  BOOST_TEST(removed(judged({10, 20, 30, 40}, {1, 1, 0, 0}), one, 40) == (Steps{20, 30}),
             boost::test_tools::per_element());
  // a damaged one is not the best, and stays as damaged ones do
  BOOST_TEST(removed(judged({10, 20, 30, 40}, {1, 3, 2, 4}), one, 40, {10}) == Steps{20},
             boost::test_tools::per_element());
  // losses over other data do not compare with those of the newest
  std::vector<StepFacts> facts = judged({30, 40}, {2, 3});
  for (const StepFacts& other : judged({10, 20}, {0.5, 1}, "another file")) {
    facts.push_back(other);
  }
  BOOST_TEST(removed(facts, one, 40) == (Steps{10, 20}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_evaluations_found_is_kept_in_the_manifest) {
  const TempFolder run;
  SaveOptions options;
  options.evaluations = {{"chat", 1.0 / 3, R"("a" of b)"}, {"code", 2e-308, ""}};
  const CommitResult saved = save(run.path(), options);
  const auto found = parse_evaluations(CheckpointReader(saved.folder).info().evaluations_json);
  BOOST_REQUIRE(found.size() == 2U);
  BOOST_TEST(found[0].name == "chat");
  BOOST_TEST(found[0].loss == 1.0 / 3);
  BOOST_TEST(found[0].over == R"("a" of b)");
  BOOST_TEST(found[1].loss == 2e-308);
  for (const char* text : {"", "{", "[]", R"({"a":1})", R"({"a":{"loss":"1","over":""}})"}) {
    BOOST_TEST(parse_evaluations(text).empty(), text);
  }
}

BOOST_AUTO_TEST_CASE(damaged_steps_neither_count_nor_go) {
  std::vector<StepFacts> facts = good({10, 20, 40});
  facts.push_back({30, false, false});
  facts.push_back({5, false, true});
  BOOST_TEST(removed(facts, {2, 0}, 40) == Steps{10}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(steps_whose_data_is_damaged_neither_count_nor_go) {
  BOOST_TEST(removed(good({10, 20, 30, 40}), {2, 0}, 40, {30}) == Steps{10},
             boost::test_tools::per_element());
  BOOST_TEST(removed(good({10, 20, 30, 40}), {2, 0}, 40, {10, 30}).empty());
  BOOST_TEST(removed(good({10, 20}), {1, 0}, 20, {10}).empty());
  // nor is a damaged one the last finite one
  std::vector<StepFacts> facts = good({10, 20});
  facts.push_back({30, true, false});
  BOOST_TEST(removed(facts, {1, 0}, 30, {20}).empty());
}

BOOST_AUTO_TEST_CASE(only_steps_on_which_a_deletion_depends_are_read) {
  Steps asked;
  const auto is_whole = [&](Index step) {
    asked.push_back(step);
    return true;
  };
  const auto ask = [&](const Steps& steps, const RetentionOptions& options) {
    asked.clear();
    static_cast<void>(steps_to_remove(good(steps), options, steps.back(), is_whole));
    return asked;
  };
  BOOST_TEST(ask({1, 2, 3}, {3, 0}).empty());
  BOOST_TEST(ask({10, 11, 20, 30, 31}, {2, 10}) == (Steps{31, 30, 11}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(keeping_nothing_is_refused) {
  BOOST_CHECK_THROW(check(RetentionOptions{0, 0}), ConfigError);
  BOOST_CHECK_THROW(check(RetentionOptions{1, -1}), ConfigError);
  const TempFolder run;
  BOOST_CHECK_THROW(static_cast<void>(save_step(run.path(), 1, {0, 0})), ConfigError);
}

BOOST_AUTO_TEST_CASE(retention_deletes_after_the_commit) {
  const TempFolder run;
  for (const Index step : {9998, 9999, 10000}) {
    static_cast<void>(save_step(run.path(), step, {2, 0}));
  }
  const std::vector<std::string> expected = {"LATEST", "step-00009999", "step-00010000"};
  BOOST_TEST(names_in(run.path()) == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_poisoned_run_keeps_its_last_finite_step) {
  const TempFolder run;
  static_cast<void>(save_step(run.path(), 1, {1, 0}));
  for (const Index step : {2, 3, 4}) {
    static_cast<void>(save_step(run.path(), step, {1, 0}, true));
  }
  const std::vector<std::string> expected = {"LATEST", "step-00000001", "step-00000004"};
  BOOST_TEST(names_in(run.path()) == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(names_of_steps_are_exact) {
  BOOST_TEST(step_folder_name(7) == "step-00000007");
  BOOST_TEST(step_of_folder_name("step-00000007").value() == 7);
  BOOST_TEST(step_of_folder_name("step-123456789").value() == 123456789);
  for (const char* name : {"step-7", "step-0000000x", "step-000000007", "step-", "step--0000007",
                           "Step-00000007", "step-00000007 ", "step-99999999999999999999999"}) {
    BOOST_TEST(!step_of_folder_name(name), name);
  }
}

BOOST_AUTO_TEST_CASE(a_branch_that_is_left_is_set_aside) {
  const TempFolder run;
  for (const Index step : {20, 30, 40}) {
    static_cast<void>(save_step(run.path(), step, {10, 0}));
  }
  ReadRetry none(std::chrono::milliseconds{0});
  const auto renamed = supersede_after(run.path(), 20, none);
  BOOST_REQUIRE_EQUAL(renamed.size(), 2U);
  BOOST_TEST(renamed[0].old_name == "step-00000030");
  BOOST_TEST(renamed[0].new_name == ".superseded-step-00000030.1");
  BOOST_TEST(slurp(run / "LATEST") == "step-00000020\n");
  const auto newest = newest_whole(run.path());
  BOOST_REQUIRE(newest);
  BOOST_TEST(newest->step == 20);
  // The new branch reaches 30 as well, is left in its turn, and nothing is lost.
  static_cast<void>(save_step(run.path(), 30, {1, 0}));
  static_cast<void>(save_step(run.path(), 35, {10, 0}));
  const auto again = supersede_after(run.path(), 30, none);
  BOOST_REQUIRE_EQUAL(again.size(), 1U);
  BOOST_TEST(supersede_after(run.path(), 29, none)[0].new_name == ".superseded-step-00000030.2");
  for (const StepFolder& folder : find_steps(run.path(), CheckDepth::headers)) {
    BOOST_TEST(state_name(folder.state) == "superseded");
    BOOST_TEST(folder.step >= 30);
    BOOST_TEST(damage_free(folder.path), folder.path);
  }
}

BOOST_AUTO_TEST_CASE(a_step_that_exists_is_not_replaced) {
  const TempFolder run;
  const std::filesystem::path folder = save_step(run.path(), 3, {1, 0}).folder;
  const std::string before = slurp(folder / kChecksumsName);
  const std::string message = write_error_of([&] {
    static_cast<void>(save_step(run.path(), 3, {1, 0}));
  });
  BOOST_TEST(message.find("step-00000003: File exists") != std::string::npos, message);
  BOOST_TEST(slurp(folder / kChecksumsName) == before);
  const std::vector<std::string> expected = {"LATEST", "step-00000003"};
  BOOST_TEST(names_in(run.path()) == expected, boost::test_tools::per_element());
  // An empty folder is not replaced either.
  std::filesystem::create_directory(run / "step-00000004");
  BOOST_TEST(write_error_of([&] { static_cast<void>(save_step(run.path(), 4, {1, 0})); }) != "");
}

BOOST_AUTO_TEST_CASE(leftovers_are_listed_and_removed) {
  const TempFolder run;
  static_cast<void>(save_step(run.path(), 3, {1, 0}));
  std::filesystem::create_directory(run / ".tmp-step-00000004.0123abcd");
  spill(run / ".tmp-step-00000004.0123abcd/shard", "x");
  std::filesystem::create_directory(run / ".trash-step-00000002.0123abcd");
  spill(run / ".tmp-LATEST.01234567", "x");
  const std::vector<StepFolder> found = find_steps(run.path(), CheckDepth::headers);
  BOOST_REQUIRE_EQUAL(found.size(), 4U);
  BOOST_TEST(state_name(found[0].state) == "complete");
  BOOST_TEST(state_name(found[2].state) == "temporary");
  BOOST_TEST(found[2].step == 4);
  BOOST_TEST(remove_leftovers(run.path()).removed.size() == 3U);
  const std::vector<std::string> expected = {"LATEST", "step-00000003"};
  BOOST_TEST(names_in(run.path()) == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(names_that_no_save_gives_are_the_users) {
  const TempFolder run;
  const std::vector<std::string> users = {".tmp-",
                                          ".tmp-LATEST",
                                          ".tmp-mine",
                                          ".tmp-mine.0123abcd",
                                          ".tmp-step-00000004",
                                          ".tmp-step-00000004.0123",
                                          ".tmp-step-00000004.0123ABCD",
                                          ".tmp-step-4.0123abcd",
                                          ".trash-LATEST.0123abcd",
                                          ".trash-old"};
  for (const std::string& name : users) {
    std::filesystem::create_directory(run / name);
  }
  BOOST_TEST(find_steps(run.path(), CheckDepth::headers).empty());
  BOOST_TEST(remove_leftovers(run.path()).removed.empty());
  BOOST_TEST(names_in(run.path()) == users, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_leftover_that_cannot_be_removed_stops_nobody) {
  const TempFolder run;
  const std::filesystem::path stuck = run / ".trash-step-00000002.0123abcd";
  std::filesystem::create_directory(stuck);
  spill(stuck / "shard", "x");
  std::filesystem::create_directory(run / ".tmp-step-00000004.0123abcd");
  constexpr uid_t kNobody = 65534;
  const bool is_root = ::geteuid() == 0;  // who may remove everything
  for (const std::filesystem::path& path :
       {run.path(), stuck, run / ".tmp-step-00000004.0123abcd"}) {
    BOOST_REQUIRE(!is_root || ::chown(path.c_str(), kNobody, kNobody) == 0);
  }
  std::filesystem::permissions(
      stuck, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  BOOST_REQUIRE(!is_root || ::seteuid(kNobody) == 0);
  const Leftovers leftovers = remove_leftovers(run.path());
  BOOST_REQUIRE(!is_root || ::seteuid(0) == 0);
  std::filesystem::permissions(stuck, std::filesystem::perms::owner_all);
  BOOST_TEST(leftovers.removed.size() == 1U);
  BOOST_TEST(leftovers.problems.size() == 1U);
}

BOOST_AUTO_TEST_CASE(a_step_that_holds_a_users_file_is_not_removed) {
  const TempFolder run;
  static_cast<void>(save_step(run.path(), 1, {1, 0}));
  spill(run / "step-00000001/analysis.txt", "x");
  for (const Index step : {2, 3}) {
    static_cast<void>(save_step(run.path(), step, {1, 0}));
  }
  const std::vector<std::string> expected = {"LATEST", "step-00000001", "step-00000003"};
  BOOST_TEST(names_in(run.path()) == expected, boost::test_tools::per_element());
  BOOST_TEST(slurp(run / "step-00000001/analysis.txt") == "x");
}

BOOST_AUTO_TEST_CASE(a_run_below_the_name_of_a_step_is_refused) {
  for (const char* path : {"runs/step-00000020", "runs/step-00000020/", "/a/step-123456789/run"}) {
    BOOST_CHECK_THROW(require_no_step_name("--out", path), ConfigError);
  }
  for (const char* path : {"runs/step-20", "runs/a", "step", "runs/step-00000020x"}) {
    BOOST_CHECK_NO_THROW(require_no_step_name("--out", path));
  }
}

BOOST_AUTO_TEST_CASE(steps_of_another_run_are_neither_counted_nor_removed) {
  const TempFolder theirs;
  const TempFolder run;
  for (const Index step : {1, 2}) {
    SaveOptions other;
    other.step = step;
    other.run_id = "3f0f5a3a-0000-4000-8000-000000000002";
    static_cast<void>(save(theirs.path(), other));
    std::filesystem::rename(theirs / step_folder_name(step), run / step_folder_name(step));
  }
  for (const Index step : {3, 4, 5}) {
    static_cast<void>(save_step(run.path(), step, {1, 0}));
  }
  const std::vector<std::string> expected = {"LATEST", "step-00000001", "step-00000002",
                                             "step-00000005"};
  BOOST_TEST(names_in(run.path()) == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_run_folder_is_made_with_its_parents) {
  const TempFolder folder;
  make_run_folder(folder / "a/b/c");
  BOOST_TEST(std::filesystem::is_directory(folder / "a/b/c"));
  make_run_folder(folder / "a/b/c");
  spill(folder / "file", "x");
  BOOST_CHECK_THROW(make_run_folder(folder / "file"), ConfigError);
  BOOST_CHECK_THROW(make_run_folder(folder / "file/below"), ConfigError);
  BOOST_TEST(write_error_of([&] { make_run_folder("/proc/tessera"); }) != "");
}

BOOST_AUTO_TEST_CASE(a_full_disk_fails_the_save_and_leaves_the_last_one) {
  const SmallDisk disk("500k");
  if (!disk.is_mounted()) {
    BOOST_TEST_MESSAGE("skipped: this process may not mount a tmpfs");
    return;
  }
  const std::filesystem::path first = save_step(disk.path(), 1, {1, 0}).folder;
  spill(disk.path() / "other", std::string(150'000, 'x'));
  const std::size_t files = open_files();
  for (int i = 0; i < 5; ++i) {
    const std::string message = write_error_of([&] {
      static_cast<void>(save_step(disk.path(), 2, {1, 0}));
    });
    BOOST_TEST(message.find("shard-0000") != std::string::npos, message);
    BOOST_TEST(message.find("no space left on the device") != std::string::npos, message);
    const std::vector<std::string> expected = {"LATEST", "other", "step-00000001"};
    BOOST_TEST(names_in(disk.path()) == expected, boost::test_tools::per_element());
    BOOST_TEST(damage_free(first));
  }
  BOOST_TEST(open_files() == files);
  std::filesystem::remove(disk.path() / "other");
  static_cast<void>(save_step(disk.path(), 2, {1, 0}));
  BOOST_TEST(slurp(disk.path() / "LATEST") == "step-00000002\n");
}

BOOST_AUTO_TEST_CASE(a_disk_that_fills_up_at_any_phase_leaves_the_last_one) {
  const SmallDisk disk("1m");
  if (!disk.is_mounted()) {
    BOOST_TEST_MESSAGE("skipped: this process may not mount a tmpfs");
    return;
  }
  const std::filesystem::path first = save_step(disk.path(), 1, {1, 0}).folder;
  for (const SavePhase phase : {SavePhase::shard_synced, SavePhase::manifest_written,
                                SavePhase::run_synced, SavePhase::latest_written}) {
    SaveOptions options;
    options.step = 2;
    options.retention = {1, 0};
    options.hook = [&](SavePhase reached) {
      if (reached == phase) {  // takes all that is left
        std::ofstream file(disk.path() / "other", std::ios::app);
        const std::string page(4096, 'x');
        while (file.write(page.data(), static_cast<std::streamsize>(page.size())).flush()) {
        }
      }
    };
    if (phase < SavePhase::renamed) {
      BOOST_TEST(write_error_of([&] { static_cast<void>(save(disk.path(), options)); }) != "");
      BOOST_TEST(damage_free(first));
      std::filesystem::remove(disk.path() / "other");
      const std::vector<std::string> expected = {"LATEST", "step-00000001"};
      BOOST_TEST(names_in(disk.path()) == expected, boost::test_tools::per_element());
    } else {  // it is committed: LATEST is a hint
      const CommitResult result = save(disk.path(), options);
      BOOST_TEST(damage_free(result.folder));
      std::filesystem::remove(disk.path() / "other");
      BOOST_TEST(result.removed == Steps{1}, boost::test_tools::per_element());
      remove_folder(result.folder);
      static_cast<void>(remove_leftovers(disk.path()));
      static_cast<void>(save_step(disk.path(), 1, {1, 0}));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_file_size_limit_fails_the_save_and_not_the_process) {
  const TempFolder run;
  const std::filesystem::path first = save_step(run.path(), 1, {1, 0}).folder;
  const std::size_t files = open_files();
  // Below HDF5's header, within the arrays, between shard and manifest.
  for (const rlim_t limit : {rlim_t{1000}, rlim_t{50000}, rlim_t{97000}}) {
    std::string message;
    {
      const FileSizeLimit small(limit);
      message = write_error_of([&] { static_cast<void>(save_step(run.path(), 2, {1, 0})); });
    }
    BOOST_TEST(message.find("shard-0000") != std::string::npos, message);
    const std::vector<std::string> expected = {"LATEST", "step-00000001"};
    BOOST_TEST(names_in(run.path()) == expected, boost::test_tools::per_element());
    BOOST_TEST(damage_free(first));
  }
  BOOST_TEST(open_files() == files);
  static_cast<void>(save_step(run.path(), 2, {1, 0}));
}

BOOST_AUTO_TEST_CASE(many_saves_leave_memory_and_open_files_flat) {
  const TempFolder run;
  constexpr Index kSaves = 200;
  constexpr Index kWarm = 20;
  constexpr Index kMostGrowthKb = 2048;
  std::size_t files = 0;
  Index resident = 0;
  for (Index step = 1; step <= kSaves; ++step) {
    static_cast<void>(save_step(run.path(), step, {3, 0}));
    if (step % kWarm == 0) {
      BOOST_TEST(damage_free(run / step_folder_name(step)));
    }
    if (step == kWarm) {
      files = open_files();
      resident = memory_kb("VmRSS");
    }
  }
  BOOST_TEST(names_in(run.path()).size() == 4U);
  BOOST_TEST(open_files() == files);
#ifndef __SANITIZE_ADDRESS__  // which keeps freed memory for a while
  BOOST_TEST(memory_kb("VmRSS") <= resident + kMostGrowthKb);
#endif
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
