// Which step the nodes' own disks give back, what is copied from them, and what is deleted there.
#include "runtime/checkpoint/local_saves.h"

#include <csignal>
#include <fstream>

#include <boost/test/unit_test.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "tests/runtime/checkpoint/saves.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

const std::string kRun = "3f0f5a3a-0000-4000-8000-000000000001";

SeenShard seen(int rank, Index step, const std::string& save_id, Index shard, Index shards = 3) {
  return {rank, {step, save_id, shard, shards, "/disk/step"}};
}

/// The shards that three hosts have of a save: each its own and the one before.
void add_save(std::vector<SeenShard>& all, Index step, const std::string& save_id) {
  for (int host = 0; host < 3; ++host) {
    all.push_back(seen(host, step, save_id, host));
    all.push_back(seen(host, step, save_id, (host + 2) % 3));
  }
}

std::vector<SeenShard> without(std::vector<SeenShard> all, const std::vector<int>& hosts) {
  std::erase_if(all, [&](const SeenShard& each) {
    return std::find(hosts.begin(), hosts.end(), each.rank) != hosts.end();
  });
  return all;
}

/// A step of two ranks as a host has it that has only some of the shards.
std::filesystem::path host_step(const std::filesystem::path& host, Index step,
                                const std::vector<Index>& shards) {
  SaveOptions options;
  options.step = step;
  options.world_size = 2;
  options.retention = {.keep = 100};
  save(host, options);
  std::filesystem::path folder = host / step_folder_name(step);
  for (Index rank = 0; rank < 2; ++rank) {
    if (std::find(shards.begin(), shards.end(), rank) == shards.end()) {
      std::filesystem::remove(folder / shard_file_name(rank, 2));
    }
  }
  return folder;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(local_saves)

BOOST_AUTO_TEST_CASE(any_one_host_may_be_missing_and_two_that_follow_one_another_may_not) {
  std::vector<SeenShard> all;
  add_save(all, 20, "a");
  add_save(all, 10, "b");
  for (int host = 0; host < 3; ++host) {
    const std::vector<SeenShard> left = without(all, {host});
    const auto assembly = newest_assembly(left, 0);
    BOOST_TEST_REQUIRE(assembly.has_value());
    BOOST_TEST(assembly->step == 20);
    BOOST_TEST(assembly->save_id == "a");
    BOOST_TEST_REQUIRE(assembly->shards.size() == 3U);
    for (Index rank = 0; rank < 3; ++rank) {
      BOOST_TEST(left[assembly->shards[static_cast<std::size_t>(rank)]].shard.rank == rank);
    }
    BOOST_TEST(!newest_assembly(without(all, {host, (host + 1) % 3}), 0).has_value());
  }
}

BOOST_AUTO_TEST_CASE(a_step_is_of_one_save_and_newer_than_what_is_there) {
  std::vector<SeenShard> all;
  add_save(all, 10, "b");
  // of step 20 two saves were made, and neither is whole
  for (Index shard = 0; shard < 3; ++shard) {
    all.push_back(seen(0, 20, shard == 1 ? "c" : "d", shard));
  }
  BOOST_TEST(newest_assembly(all, 0).value().step == 10);
  BOOST_TEST(newest_assembly(all, 9).value().step == 10);
  BOOST_TEST(!newest_assembly(all, 10).has_value());
  all.push_back(seen(2, 20, "d", 1));
  BOOST_TEST(newest_assembly(all, 10).value().save_id == "d");
  BOOST_TEST(!newest_assembly({}, 0).has_value());
}

BOOST_AUTO_TEST_CASE(ranks_that_see_the_same_disk_take_turns) {
  std::vector<SeenShard> all;
  for (int rank = 0; rank < 4; ++rank) {
    for (Index shard = 0; shard < 8; ++shard) {
      all.push_back(seen(rank, 7, "a", shard, 8));
    }
  }
  std::vector<int> work(4);
  const Assembly assembly = newest_assembly(all, 0).value();
  for (const std::size_t number : assembly.shards) {
    ++work[static_cast<std::size_t>(all[number].rank)];
  }
  BOOST_TEST(work == std::vector<int>(4, 2), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(lists_survive_the_way_to_other_ranks_as_text) {
  const std::vector<LocalShard> shards = {{7, "a-b", 0, 2, "/a folder/step-00000007"},
                                          {12, "c", 1, 2, "/b"}};
  BOOST_TEST((local_shards_of(to_text(shards)) == shards));
  BOOST_TEST(local_shards_of("").empty());
  for (const char* text : {"7", "7 a x 2 /b", "7 a 1 2", "7 a 1 2 "}) {
    BOOST_CHECK_THROW((void)local_shards_of(text), FormatError);
  }
}

BOOST_AUTO_TEST_CASE(a_host_lists_its_own_run_and_names_what_it_cannot_use) {
  const TempFolder disk;
  const std::filesystem::path host = disk.path() / "host";
  const std::filesystem::path step = host_step(host, 4, {1});
  host_step(host, 8, {0, 1});
  const std::string run_id = CheckpointReader(step).info().run_id;
  BOOST_TEST(list_local_shards(disk.path(), run_id).shards.size() == 3U);
  BOOST_TEST(list_local_shards(disk.path(), run_id).problems.empty());
  BOOST_TEST(list_local_shards(disk.path(), kRun + "x").shards.empty());
  BOOST_TEST(list_local_shards(disk.path() / "not there", run_id).shards.empty());
  const std::filesystem::path shard = host / step_folder_name(8) / shard_file_name(0, 2);
  std::filesystem::resize_file(shard, 100);
  std::ofstream(step / kChecksumsName) << "nothing";
  const LocalListing listing = list_local_shards(disk.path(), run_id);
  BOOST_TEST_REQUIRE(listing.shards.size() == 1U);
  BOOST_TEST(listing.shards[0].rank == 1);
  BOOST_TEST_REQUIRE(listing.problems.size() == 2U);
  BOOST_TEST(listing.problems[1].find("has 100 bytes") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(two_halves_make_the_step_and_a_damaged_shard_is_not_copied) {
  const TempFolder disk;
  const TempFolder out;
  SaveOptions options;
  options.step = 4;
  options.world_size = 2;
  save(disk.path() / "host", options);
  const std::filesystem::path step = disk.path() / "host" / step_folder_name(4);
  const CheckpointReader reader(step);
  for (Index rank = 0; rank < 2; ++rank) {
    copy_local_shard({4, reader.info().save_id, rank, 2, step}, out.path());
    const std::string name = shard_file_name(rank, 2);
    BOOST_TEST(
        (read_whole_file(step / name, 1U << 30U) == read_whole_file(out.path() / name, 1U << 30U)));
    std::filesystem::remove(out.path() / name);
  }
  BOOST_CHECK_THROW(copy_local_shard({4, "another", 0, 2, step}, out.path()), FormatError);
  std::fstream file(step / shard_file_name(1, 2), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(
      reader.array_bytes(1, reader.arrays().arrays().back().array).offset));
  file.put('\x55');
  file.put('\x55');
  file.close();
  BOOST_CHECK_THROW(copy_local_shard({4, reader.info().save_id, 1, 2, step}, out.path()),
                    FormatError);
  BOOST_TEST(std::filesystem::is_empty(out.path()));
}

// Saves step 1 into a run, and step 2 on a node's disk.
CommitRequest local_step_2(const std::filesystem::path& run, const std::filesystem::path& host) {
  SaveOptions options;
  options.step = 1;
  options.retention = {1, 0};
  static_cast<void>(save(run, options));
  options.step = 2;
  CommitRequest local = written(host, options);
  static_cast<void>(place_checkpoint(local));
  return local;
}

// In a process of its own, which kills itself where `dies` says so.
void promote_and_die(const CommitRequest& local, const std::filesystem::path& run,
                     const SaveHook& hook, const std::function<void()>& moved = {}) {
  const pid_t child = ::fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    try {
      static_cast<void>(promote(local, run, hook, moved));
    } catch (const std::exception&) {
      ::_exit(2);
    }
    ::_exit(0);
  }
  int status = 0;
  BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
  BOOST_TEST((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
}

BOOST_AUTO_TEST_CASE(a_promotion_killed_at_any_phase_leaves_a_complete_step_and_the_local_one) {
  const auto check = [](const CommitRequest& local, const std::filesystem::path& run, Index step) {
    const auto found = newest_whole(run);
    BOOST_REQUIRE(found);
    BOOST_TEST(found->step == step);
    BOOST_TEST(damage_free(local.run_folder / step_folder_name(2)));
    // the next process clears up, and promotes it
    static_cast<void>(remove_leftovers(run));
    if (step == 1) {
      static_cast<void>(promote(local, run));
    }
    CheckpointReader reader(run / step_folder_name(2));
    BOOST_TEST(compare(reader, small_table(), 3, 2) == "");
  };
  for (int i = static_cast<int>(SavePhase::manifest_written); i < kSavePhaseCount; ++i) {
    const auto phase = static_cast<SavePhase>(i);
    if (phase == SavePhase::best_renamed) {
      continue;  // without --keep-best
    }
    const TempFolder run;
    const TempFolder host;
    const CommitRequest local = local_step_2(run.path(), host.path());
    BOOST_TEST_CONTEXT("killed at phase " << i) {
      promote_and_die(local, run.path(), [&](SavePhase reached) {
        if (reached == phase) {
          (void)::raise(SIGKILL);
        }
      });
      check(local, run.path(), phase < SavePhase::renamed ? 1 : 2);
    }
  }
  for (const int pieces : {1, 2, 3, 5}) {
    const TempFolder run;
    const TempFolder host;
    const CommitRequest local = local_step_2(run.path(), host.path());
    BOOST_TEST_CONTEXT("killed at piece " << pieces) {
      promote_and_die(local, run.path(), {}, [left = pieces]() mutable {
        if (--left == 0) {
          (void)::raise(SIGKILL);
        }
      });
      check(local, run.path(), 1);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_step_is_the_same_byte_for_byte_wherever_it_came_from) {
  const TempFolder run;
  const TempFolder host;
  const CommitRequest local = local_step_2(run.path(), host.path());
  BOOST_TEST(promote(local, run.path()).problems.empty());
  const std::filesystem::path from = host / step_folder_name(2);
  const std::filesystem::path to = run / step_folder_name(2);
  const std::vector<std::string> names = names_in(from);
  BOOST_TEST(names == names_in(to), boost::test_tools::per_element());
  for (const std::string& name : names) {
    BOOST_TEST((slurp(from / name) == slurp(to / name)), name);
  }
}

BOOST_AUTO_TEST_CASE(the_newest_two_stay_and_steps_of_a_branch_that_was_left_go) {
  const TempFolder disk;
  for (const Index step : {2, 4, 6, 9}) {
    host_step(disk.path(), step, {0});
  }
  std::filesystem::create_directory(disk.path() / ".tmp-step-00000008.0123abcd");
  std::filesystem::create_directory(disk.path() / "mine");
  keep_two_steps(disk.path(), 6);
  std::vector<std::string> names;
  for (const auto& path : list_folder(disk.path())) {
    names.push_back(path.filename().string());
  }
  std::ranges::sort(names);
  const std::vector<std::string> expected = {"mine", "step-00000004", "step-00000006"};
  names.erase(std::remove(names.begin(), names.end(), std::string(kLatestName)), names.end());
  BOOST_TEST(names == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_step_that_is_promoted_stays_beside_the_newest_two) {
  const TempFolder disk;
  for (const Index step : {2, 4, 6, 9}) {
    host_step(disk.path(), step, {0});
  }
  keep_two_steps(disk.path(), 9, 2);
  std::vector<Index> left;
  for (const NamedStep& step : named_steps(disk.path())) {
    left.push_back(step.step);
  }
  BOOST_TEST(left == (std::vector<Index>{2, 6, 9}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_record_names_one_folder_and_nothing_else_is_taken_for_it) {
  const TempFolder out;
  BOOST_TEST(!read_local_record(out.path()).has_value());
  const LocalRecord record = new_local_record(kRun);
  write_local_record(out.path(), record);
  BOOST_TEST((read_local_record(out.path()) == record));
  write_local_record(out.path(), new_local_record(kRun));
  BOOST_TEST((read_local_record(out.path()) != record));
  BOOST_TEST(remove_local_record(out.path()));
  BOOST_TEST(!remove_local_record(out.path()));
  for (const char* text : {"", "{}", R"({"run_id":"a","folder":"../b"})",
                           R"({"run_id":"a","folder":"tessera-/../b"})", R"({"run_id":1})"}) {
    std::ofstream(out.path() / "local-saves.json") << text;
    BOOST_CHECK_THROW((void)read_local_record(out.path()), FormatError);
    BOOST_CHECK_THROW(write_local_record(out.path(), record), Error);
  }
}

BOOST_AUTO_TEST_CASE(folders_in_one_another_are_refused_links_followed) {
  const TempFolder folder;
  const std::filesystem::path base = folder.path();
  std::filesystem::create_directories(base / "out");
  std::filesystem::create_directory_symlink(base / "out", base / "link");
  for (const char* local : {"out", "out/", "out/x/y", "link", "link/x", "out/../out", "."}) {
    BOOST_CHECK_THROW(require_apart(base / local, base / "out"), ConfigError);
  }
  for (const char* local : {"outer", "local", "out/../local"}) {
    BOOST_CHECK_NO_THROW(require_apart(base / local, base / "out"));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
