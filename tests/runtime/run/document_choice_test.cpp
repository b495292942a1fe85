#include "runtime/run/document_choice.h"

#include <fstream>

#include <boost/test/unit_test.hpp>

#include "tests/runtime/checkpoint/saves.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

RunConfig continuing(const std::filesystem::path& out, ResumeKind kind = ResumeKind::automatic) {
  RunConfig config;
  config.out = out.string();
  config.checkpoint.resume = kind;
  return config;
}

std::string shown(const std::optional<DocumentMode>& mode) {
  return mode ? std::string(document_mode_name(*mode)) : "none";
}

// A step that stores these options of its run.
std::filesystem::path save_with(const std::filesystem::path& out, Index step,
                                const std::string& options_json) {
  SaveOptions options;
  options.step = step;
  options.options_json = options_json;
  return save(out, options).folder;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(document_choice)

BOOST_AUTO_TEST_CASE(a_run_goes_on_as_its_newest_step_says) {
  const TempFolder folder;
  const std::filesystem::path out = folder / "run";
  BOOST_TEST(shown(documents_of_step(continuing(out))) == "none");
  std::filesystem::create_directory(out);
  BOOST_TEST(shown(documents_of_step(continuing(out))) == "none");
  save_with(out, 1, R"({"documents": "joined"})");
  const std::filesystem::path newest = save_with(out, 2, R"({"documents": "separate"})");
  BOOST_TEST(shown(documents_of_step(continuing(out))) == "separate");
  BOOST_TEST(shown(documents_of_step(continuing(out, ResumeKind::none))) == "none");
  RunConfig chosen = continuing(folder / "other", ResumeKind::path);
  chosen.checkpoint.resume_path = newest.string();
  BOOST_TEST(shown(documents_of_step(chosen)) == "separate");
}

// Runs of before there was a choice did not store it.
BOOST_AUTO_TEST_CASE(a_step_that_does_not_tell_was_joined_and_an_imported_one_says_nothing) {
  const TempFolder folder;
  save_with(folder / "old", 3, R"({"seq": "16"})");
  BOOST_TEST(shown(documents_of_step(continuing(folder / "old"))) == "joined");
  save_with(folder / "imported", 0, "{}");
  BOOST_TEST(shown(documents_of_step(continuing(folder / "imported"))) == "none");
}

BOOST_AUTO_TEST_CASE(a_step_whose_manifest_cannot_be_read_is_passed_over) {
  const TempFolder folder;
  const std::filesystem::path out = folder / "run";
  save_with(out, 1, R"({"documents": "separate"})");
  const std::filesystem::path newest = save_with(out, 2, R"({"documents": "joined"})");
  for (const auto& file : std::filesystem::directory_iterator(newest)) {
    std::ofstream(file.path(), std::ios::trunc) << "damaged";
  }
  BOOST_TEST(shown(documents_of_step(continuing(out))) == "separate");
}

BOOST_AUTO_TEST_CASE(packing_is_told_in_a_sentence) {
  const PackingCounts counts = {
      .documents = 1204, .cut = 3, .left_out = 1, .sequences = 97, .tokens = 98'000};
  BOOST_TEST(packing_text(counts, 1024) ==
             "documents are separate: 1,204 in 97 sequences, 98.7% full (1,328 places of padding); "
             "3 longer than a sequence were cut; 1 of one token is left out");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
