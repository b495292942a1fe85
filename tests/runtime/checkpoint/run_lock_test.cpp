// Who may write to an output folder.
#include "runtime/checkpoint/run_lock.h"

#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <boost/test/unit_test.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {

using namespace std::chrono_literals;

BOOST_AUTO_TEST_SUITE(run_lock)

BOOST_AUTO_TEST_CASE(a_second_run_is_refused_with_who_holds_the_folder) {
  const TempFolder folder;
  RunLock first(folder.path(), "process 7 on a host", 0ms);
  BOOST_TEST(first.holds());
  const std::string holder = "(process 7 on a host)";
  BOOST_CHECK_EXCEPTION(RunLock(folder.path(), "second", 200ms), WriteError,
                        [&](const WriteError& error) {
                          return error.message().find(holder) != std::string::npos &&
                                 error.message().find(folder.path().string()) != std::string::npos;
                        });
  const RunLock moved = std::move(first);
  BOOST_CHECK_THROW(RunLock(folder.path(), "second", 0ms), WriteError);
}

BOOST_AUTO_TEST_CASE(the_lock_ends_with_its_holder) {
  const TempFolder folder;
  { const RunLock first(folder.path(), "first", 0ms); }
  BOOST_TEST(RunLock(folder.path(), "second", 0ms).holds());
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock held(folder.path(), "child", 0ms);
    ::_exit(held.holds() ? 0 : 1);  // without a destructor, as a killed process
  }
  int status = -1;
  BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
  BOOST_TEST(status == 0);
  BOOST_TEST(RunLock(folder.path(), "second", 0ms).holds());
}

// A start that is refused leaves no file, unless it was there; one that begins leaves it.
BOOST_AUTO_TEST_CASE(a_file_that_was_made_for_it_goes_unless_it_is_kept) {
  const TempFolder folder;
  const std::filesystem::path file = folder / ".lock";
  {
    RunLock refused(folder.path(), "refused", 0ms);
    const RunLock moved = std::move(refused);
    BOOST_TEST(std::filesystem::exists(file));
  }
  BOOST_TEST(!std::filesystem::exists(file));
  {
    RunLock begun(folder.path(), "begun", 0ms);
    BOOST_CHECK_THROW(RunLock(folder.path(), "second", 0ms), WriteError);
    begun.keep();
  }
  BOOST_TEST(std::filesystem::exists(file));
  { const RunLock refused(folder.path(), "refused", 0ms); }
  BOOST_TEST(std::filesystem::exists(file));
}

// Who waits for a lock whose file goes with its holder has one that a third run sees.
BOOST_AUTO_TEST_CASE(a_lock_that_was_waited_for_has_the_name_that_others_look_for) {
  const TempFolder folder;
  std::optional<RunLock> refused(std::in_place, folder.path(), "refused", 0ms);
  std::optional<RunLock> waiting;
  std::thread waits([&] { waiting.emplace(folder.path(), "waiting", 10s); });
  std::this_thread::sleep_for(300ms);
  refused.reset();
  waits.join();
  BOOST_TEST(waiting->holds());
  BOOST_CHECK_EXCEPTION(RunLock(folder.path(), "third", 0ms), WriteError,
                        [](const WriteError& error) {
                          return error.message().find("(waiting)") != std::string::npos;
                        });
}

// Neither a folder nor a missing place is a lock: without one two runs would write into one folder.
BOOST_AUTO_TEST_CASE(a_folder_that_went_with_its_lock_is_made_again) {
  const TempFolder parent;
  const std::filesystem::path folder = parent.path() / "run";
  std::filesystem::create_directory(folder);
  std::optional<RunLock> refused(std::in_place, folder, "refused", 0ms);
  std::optional<RunLock> waiting;
  std::thread waits([&] { waiting.emplace(folder, "waiting", 10s); });
  std::this_thread::sleep_for(300ms);
  refused.reset();            // removes the file that it made
  std::error_code not_empty;  // where the waiting one was quicker
  std::filesystem::remove(folder, not_empty);
  waits.join();
  BOOST_TEST(waiting->holds());
  BOOST_CHECK_THROW(RunLock(folder, "third", 0ms), WriteError);
}

BOOST_AUTO_TEST_CASE(what_is_not_a_file_is_refused) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / ".lock");
  BOOST_CHECK_THROW(RunLock(folder.path(), "first", 0ms), WriteError);
  BOOST_CHECK_THROW(RunLock(folder.path() / "missing", "first", 0ms), WriteError);
  BOOST_TEST(!RunLock().holds());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
