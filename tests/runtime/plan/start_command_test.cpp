// The command line that a plan ends in: what was given, with the changes made, as a shell reads it.
#define BOOST_TEST_MODULE start_command
#include "runtime/plan/start_command.h"

#include <cstdlib>
#include <iterator>
#include <sstream>

#include <boost/test/unit_test.hpp>

#include "runtime/run/options.h"

namespace tessera::test {
namespace {

RunConfig parsed(const std::vector<std::string>& words) {
  std::vector<const char*> argv = {"train"};
  for (const std::string& word : words) {
    argv.push_back(word.c_str());
  }
  return parse_options(static_cast<int>(argv.size()), argv.data()).config;
}

RunConfig parsed(const char* text) {
  std::istringstream in(text);
  return parsed(std::vector<std::string>{std::istream_iterator<std::string>(in), {}});
}

}  // namespace

BOOST_AUTO_TEST_SUITE(start_commands)

BOOST_AUTO_TEST_CASE(
    options_that_differ_from_their_default_are_given_and_those_of_the_plan_left_out) {
  BOOST_TEST(start_command(parsed("--plan --model qwen3-8b --seq 4096 --micro-batch 4 --zero auto "
                                  "--device cuda --ranks 16 --ranks-per-node 8 --card h200 "
                                  "--host-memory 1TB --fast-attention"),
                           16) ==
             "mpirun -np 16 train --model qwen3-8b --seq 4096 --micro-batch 4 --global-batch 16 "
             "--device cuda --fast-attention "
             "--host-memory 1TB --data DATA.h5 --out FOLDER");
}

BOOST_AUTO_TEST_CASE(changes_take_the_place_of_what_was_given) {
  const std::vector<std::string> changes = {"--micro-batch 1", "no --grad-offload",
                                            "--offload-activations", "--resident-bytes auto"};
  BOOST_TEST(
      start_command(parsed("--plan --device cuda --micro-batch 8 --grad-offload 1GB --recompute "
                           "block --resident-bytes none --data a.h5 --out runs/a"),
                    2, changes) == "mpirun -np 2 train --data a.h5 --seq 512 --global-batch 16 "
                                   "--device cuda --recompute block --out runs/a "
                                   "--micro-batch 1 --offload-activations");
}

BOOST_AUTO_TEST_CASE(what_a_change_leaves_without_use_is_left_out) {
  RunConfig options = parsed("--plan --model qwen3-8b --batched-forward 8 --batched-backward "
                             "--out a --data b.h5");
  options.batch.batched_forward = 1;
  const std::vector<std::string> changes = {"--batched-forward 1"};
  BOOST_TEST(start_command(options, 1, changes) ==
             "mpirun -np 1 train --model qwen3-8b --data b.h5 --seq 512 --micro-batch 4 "
             "--global-batch 16 --out a");
}

BOOST_AUTO_TEST_CASE(names_with_blanks_and_quotes_are_one_word) {
  BOOST_TEST(start_command(parsed(std::vector<std::string>{"--plan", "--data", "my text.h5",
                                                           "it's.h5", "--out", "a b"}),
                           1) == "mpirun -np 1 train --data 'my text.h5' 'it'\\''s.h5' --seq 512 "
                                 "--micro-batch 4 --global-batch 16 --out 'a b'");
}

BOOST_AUTO_TEST_CASE(the_command_of_this_start_has_its_launcher_and_all_its_words) {
  const std::vector<const char*> argv = {"/a b/train", "--data", "it's.h5", "--lr=1e-3", ""};
  const auto command = [&](int ranks) {
    return launch_command(static_cast<int>(argv.size()), argv.data(), ranks);
  };
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_ID"}) {
    unsetenv(name);
  }
  const std::string words = R"('/a b/train' --data 'it'\''s.h5' --lr=1e-3 '')";
  BOOST_TEST(command(1) == words);
  BOOST_TEST(command(3) == "mpirun -np 3 " + words);
  setenv("SLURM_STEP_ID", "0", 1);
  BOOST_TEST(command(3) == "srun -n 3 " + words);
  setenv("PMI_SIZE", "3", 1);  // of srun --mpi=pmi2
  BOOST_TEST(command(3) == "srun -n 3 " + words);
  setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
  BOOST_TEST(command(1) == "mpirun -np 1 " + words);
  unsetenv("OMPI_COMM_WORLD_SIZE");
  unsetenv("SLURM_STEP_ID");
  BOOST_TEST(command(3) == "mpirun -np 3 " + words);  // of MPICH
  const std::vector<const char*> lines = {"train", "--sample-prompt", "two\nlines"};
  BOOST_TEST(launch_command(3, lines.data(), 1) ==
             "mpirun -np 1 train --sample-prompt $'two\\nlines'");
}

BOOST_AUTO_TEST_CASE(the_command_that_continues_a_run_does_not_refuse_its_steps) {
  const auto continued = [](std::vector<const char*> argv, ResumeKind resume) {
    RunConfig options;
    options.checkpoint.resume = resume;
    return continue_command(static_cast<int>(argv.size()), argv.data(), 2, options);
  };
  const std::string plain = "mpirun -np 2 train --out a --lr 1";
  BOOST_TEST(continued({"train", "--out", "a", "--resume", "none", "--lr", "1"},
                       ResumeKind::none) == plain);
  BOOST_TEST(continued({"train", "--out", "a", "--resume=none", "--lr", "1"}, ResumeKind::none) ==
             plain);
  BOOST_TEST(continued({"train", "--config", "run.ini"}, ResumeKind::none) ==
             "mpirun -np 2 train --config run.ini --resume auto");
  BOOST_TEST(continued({"train", "--out", "a", "--resume", "b"}, ResumeKind::path) ==
             "mpirun -np 2 train --out a --resume b");
}

BOOST_AUTO_TEST_CASE(prompts_have_a_name_each_and_no_dash_that_begins_an_option) {
  BOOST_TEST(
      start_command(parsed(std::vector<std::string>{"--plan", "--sample-every=2", "--sample-prompt",
                                                    "Once, upon", "--sample-prompt=- a"}),
                    1) == "mpirun -np 1 train --seq 512 --micro-batch 4 --global-batch 16 "
                          "--sample-every 2 --sample-prompt 'Once, upon' "
                          "--sample-prompt='- a' --data DATA.h5 --out FOLDER");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
