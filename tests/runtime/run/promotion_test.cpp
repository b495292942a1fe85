// How a local save becomes a step of the run's folder, on one rank: whole, given up, or not at all
// because its copy is damaged or the folder takes nothing.
#include "runtime/run/promotion.h"

#include <chrono>
#include <thread>

#include <boost/test/unit_test.hpp>

#include "tests/runtime/checkpoint/saves.h"
#include "tests/support/run/alone.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

class Bench {
 public:
  Bench() : promotion_(comm_) {
    SaveOptions options;
    options.step = 7;
    options.world_size = 1;
    local_ = written(host_.path(), options);
    static_cast<void>(place_checkpoint(local_));
  }

  void begin() {
    CommitRequest commit = local_;
    commit.run_folder = run_.path();
    commit.save_folder = run_.path() / save_folder_name({local_.info.save_id, local_.info.step});
    promotion_.begin({7, local_.info.save_id, 0, 1, step()}, std::move(commit));
  }

  // As steps do.
  PromotionEnd end() {
    for (;;) {
      while (promotion_.state() == WriterState::busy) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      const WriterState state = promotion_.state();
      if (std::optional<PromotionEnd> end =
              promotion_.advance(state == WriterState::done, state == WriterState::failed)) {
        BOOST_TEST(!promotion_.under_way());
        BOOST_TEST((promotion_.state() == WriterState::idle));
        return *end;
      }
    }
  }

  Promotion& promotion() { return promotion_; }
  [[nodiscard]] std::filesystem::path step() const { return host_ / step_folder_name(7); }
  [[nodiscard]] const std::filesystem::path& run() const { return run_.path(); }

 private:
  Alone comm_;
  TempFolder host_;
  TempFolder run_;
  CommitRequest local_;
  Promotion promotion_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(promotion)

BOOST_AUTO_TEST_CASE(a_local_save_becomes_a_step_and_stays_where_it_was) {
  Bench bench;
  bench.begin();
  BOOST_TEST(bench.promotion().under_way());
  BOOST_TEST(bench.promotion().step() == 7);
  BOOST_TEST(!bench.promotion().advance(false, false));  // a step in which nothing has ended
  BOOST_TEST(bench.end().stands);
  BOOST_TEST(damage_free(bench.run() / step_folder_name(7)));
  BOOST_TEST(damage_free(bench.step()));
}

BOOST_AUTO_TEST_CASE(what_is_given_up_leaves_nothing_and_can_begin_again) {
  Bench bench;
  bench.begin();
  bench.promotion().give_up();
  const PromotionEnd end = bench.end();
  BOOST_TEST(!end.stands);
  BOOST_TEST(end.given_up);
  BOOST_TEST(!end.is_local_fault);
  BOOST_TEST(names_in(bench.run()).empty());
  bench.begin();
  BOOST_TEST(bench.end().stands);
}

BOOST_AUTO_TEST_CASE(a_damaged_copy_is_the_local_saves_fault) {
  Bench bench;
  const std::filesystem::path shard = bench.step() / shard_file_name(0, 1);
  std::string content = slurp(shard);
  content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 1);
  spill(shard, content);
  bench.begin();
  const PromotionEnd end = bench.end();
  BOOST_TEST(!end.stands);
  BOOST_TEST(end.is_local_fault);
  BOOST_TEST(end.message.starts_with("rank 0: "), end.message);
  BOOST_TEST(names_in(bench.run()).empty());
}

BOOST_AUTO_TEST_CASE(a_folder_that_takes_nothing_is_not) {
  Bench bench;
  std::filesystem::create_directory(bench.run() /
                                    step_folder_name(7));  // the rename finds it taken
  bench.begin();
  const PromotionEnd end = bench.end();
  BOOST_TEST(!end.stands);
  BOOST_TEST(!end.is_local_fault);
  BOOST_TEST(!end.given_up);
  BOOST_TEST(names_in(bench.run()) == std::vector<std::string>{step_folder_name(7)},
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(one_that_goes_out_of_scope_under_way_ends_its_thread) {
  Bench bench;
  bench.begin();
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
