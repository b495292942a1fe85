#define BOOST_TEST_MODULE startup_check
#include "runtime/startup_check.h"

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_control.h"
#include "collectives/mpi_session.h"
#include "kernels/device/error.h"
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
                 ") has lr = 1e-3: start every rank with the same program, options and data");
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
  prepare_out_folder(session(), out, {});
  session().control().barrier();
  BOOST_TEST(fs::is_directory(out));
  BOOST_TEST(fs::is_empty(out));
}

BOOST_AUTO_TEST_CASE(a_folder_with_something_in_it_is_refused_unless_allowed) {
  const SharedFolder shared;
  if (session().rank() == 0) {
    std::ofstream(shared / "metrics.jsonl") << "{}";
  }
  const std::string message =
      refusal<ConfigError>([&] { prepare_out_folder(session(), shared / "", {}); });
  BOOST_TEST(contains(message, "is not empty (it has metrics.jsonl)"));
  BOOST_CHECK_NO_THROW(
      prepare_out_folder(session(), shared / "", {.contents = OutContents::may_be_there}));
  session().control().barrier();
  BOOST_TEST(std::distance(fs::directory_iterator(shared / ""), fs::directory_iterator()) == 1);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_made_or_written_is_refused) {
  const SharedFolder shared;
  if (session().rank() == 0) {
    std::ofstream(shared / "file") << "x";
  }
  session().control().barrier();
  BOOST_TEST(contains(
      refusal<WriteError>([&] { prepare_out_folder(session(), shared / "file", {}); }), "file"));
  BOOST_TEST(
      contains(refusal<WriteError>([&] { prepare_out_folder(session(), shared / "file/x", {}); }),
               "cannot make the output folder"));
  // even root cannot write here
  const std::string message = refusal<WriteError>(
      [&] { prepare_out_folder(session(), "/proc/self/fdinfo", {OutContents::may_be_there}); });
  BOOST_TEST(contains(message, "cannot write to the output folder /proc/self/fdinfo"));
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
    prepare_out_folder(session(), out,
                       {.contents = OutContents::must_be_empty, .patience_seconds = 0.5});
  });
  BOOST_TEST(contains(message, "rank " + std::to_string(last) + " (" + session().host() + ")"));
  BOOST_TEST(contains(message, "is not the folder that rank 0 has under this name"));
  session().control().barrier();
  BOOST_TEST(fs::is_empty(out));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
