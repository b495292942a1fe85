// The program as a user runs it.
#include <algorithm>
#include <cmath>
#include <sstream>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/tensor_statistics.h"
#include "tests/runtime/checkpoint/saves.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

using Json = nlohmann::json;

RunResult inspect(std::vector<std::string> arguments) {
  return run_program("inspect", std::move(arguments));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

CommitResult save_as(const std::filesystem::path& run, Index step, Index world_size) {
  SaveOptions options;
  options.step = step;
  options.world_size = world_size;
  return save(run, options);
}

/// Changes one bit of a shard's first moment.
void damage(const std::filesystem::path& folder) {
  const Checksums sums = parse_checksums(slurp(folder / kChecksumsName), "");
  std::string content = slurp(folder / sums.shards[0].file);
  content[sums.shards[0].arrays[1].offset] ^= 1;
  spill(folder / sums.shards[0].file, content);
}

BOOST_AUTO_TEST_SUITE(inspect_program)

BOOST_AUTO_TEST_CASE(a_run_shows_its_steps_and_the_newest_complete_one) {
  const TempFolder run;
  for (const Index step : {1, 2, 3, 4}) {
    static_cast<void>(save_as(run.path(), step, 2));
  }
  std::filesystem::remove(run / "step-00000004/shard-00001-of-00002.h5");
  std::filesystem::resize_file(run / "step-00000002/manifest.h5", 100);
  std::filesystem::rename(run / "step-00000001", run / ".superseded-step-00000001.1");
  std::filesystem::create_directory(run / ".tmp-step-00000009.01234567");
  const RunResult result = inspect({run.path().string()});
  BOOST_TEST(result.status == 0, result.err);
  BOOST_TEST(result.err == "");
  const std::vector<std::string> lines = lines_of(result.out);
  const auto line_of = [&](const std::string& start) {
    const auto found = std::find_if(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.rfind("  " + start, 0) == 0;
    });
    return found == lines.end() ? "no line " + start : *found;
  };
  BOOST_TEST(has(line_of("step-00000002"), "damaged"));
  BOOST_TEST(has(line_of("step-00000002"),
                 "manifest.h5 does not match CHECKSUMS: it is damaged or from another save"));
  BOOST_TEST(has(line_of("step-00000003"), "complete"));
  BOOST_TEST(has(line_of("step-00000003"), "newest, shown below"));
  BOOST_TEST(has(line_of("step-00000004"), "incomplete"));
  BOOST_TEST(has(line_of("step-00000004"), "shard-00001-of-00002.h5 is missing"));
  BOOST_TEST(has(line_of(".superseded-step-00000001.1"), "superseded"));
  BOOST_TEST(has(line_of(".tmp-step-00000009.01234567"), "temporary"));
  BOOST_TEST(has(line_of("block.0.mlp.gate_up"), "[100, 24]"));
  BOOST_TEST(has(line_of("block.0.mlp.gate_up"), "0-1"));
  BOOST_TEST(has(line_of("head.weight"), "is embedding.weight"));
  BOOST_TEST(has(line_of("block.1 "), "0: [0, 3072)  1: [3072, 5588)"));
  BOOST_TEST(has(line_of("step 3"), "3 updates, 0 skipped"));
}

BOOST_AUTO_TEST_CASE(a_run_begins_with_model_tokens_losses_and_size) {
  const TempFolder run;
  SaveOptions options;
  options.step = 7;
  options.options_json = R"({"model": "tiny", "seq": "32"})";
  options.evaluations = {{"chat", 1.25, "all of it"}};
  static_cast<void>(save(run.path(), options));
  spill(run / "metrics.jsonl", "{\"step\":6,\"loss\":2.5}\nno JSON\n{\"step\":7,\"loss\":2.25}\n"
                               "{\"step\":8,\"loss\":2.0}\n{\"step\":7,\"eval_loss\":1.25}\n{\"st");
  const RunResult result = inspect({run.path().string()});
  BOOST_TEST(result.status == 0, result.err);
  const std::vector<std::string> lines = lines_of(result.out);
  BOOST_TEST(lines[0] == run.path().string() + ": tiny, after step 7");
  BOOST_TEST(lines[1] ==
             "  56 sequences seen: 1,792 tokens of input at --seq 32, padding included");
  BOOST_TEST(lines[2] == "  last losses: 2.2500 in step 7, chat 1.2500");
  BOOST_TEST(has(lines[3], " on disk, in 1 step"));
  const Json summary = Json::parse(inspect({run.path().string(), "--json"}).out)["summary"];
  BOOST_TEST(summary["tokens"] == 1792);
  BOOST_TEST(summary["sequences"] == 56);
  BOOST_TEST(summary["loss"] == 2.25);
  std::uintmax_t bytes = 0;
  for (const auto& each : std::filesystem::recursive_directory_iterator(run.path())) {
    bytes += each.is_regular_file() ? each.file_size() : 0;
  }
  BOOST_TEST(summary["bytes"] == bytes);
}

BOOST_AUTO_TEST_CASE(the_last_loss_of_a_step_is_found_before_megabytes_of_later_ones) {
  const TempFolder run;
  SaveOptions options;
  options.step = 7;
  static_cast<void>(save(run.path(), options));
  const std::string rest(700'000, '-');
  std::string text = "{\"step\":6,\"loss\":2.5}\n{\"step\":7,\"loss\":2.25}\n";
  for (int step = 8; step < 12; ++step) {  // lines that begin and end within pieces
    text += fmt::format("{{\"step\":{},\"loss\":1.0,\"note\":\"{}{}\"}}\n", step, rest,
                        step == 9 ? rest + rest : "");
  }
  spill(run / "metrics.jsonl", text);
  const Json summary = Json::parse(inspect({run.path().string(), "--json"}).out)["summary"];
  BOOST_TEST(summary["loss"] == 2.25);
  spill(run / "metrics.jsonl", text.substr(text.find("{\"step\":8")));
  BOOST_TEST(
      Json::parse(inspect({run.path().string(), "--json"}).out)["summary"]["loss"].is_null());
}

BOOST_AUTO_TEST_CASE(the_command_of_a_step_is_the_first_line) {
  const TempFolder run;
  SaveOptions options;
  options.start_json = R"({"command": "train --out 'a b'", "build": "tessera 9", "host": "n1",
                           "device": "H200", "libraries": ["NCCL 2.21.5", "driver 550.54.15"]})";
  const std::filesystem::path folder = save(run.path(), options).folder;
  for (const std::string& target : {run.path().string(), folder.string()}) {
    const RunResult result = inspect({target, "--command"});
    BOOST_TEST(result.status == 0, result.err);
    const std::vector<std::string> lines = lines_of(result.out);
    BOOST_TEST(lines[0] == "train --out 'a b'");
    BOOST_TEST(lines.size() == 7U);
    BOOST_TEST(has(result.out, "# build: tessera 9\n# host: n1\n# device: H200\n# NCCL 2.21.5\n# "
                               "driver 550.54.15\n"));
    BOOST_TEST(Json::parse(inspect({target, "--command", "--json"}).out)["start"]["host"] == "n1");
  }
  options.start_json = R"({"command": "train --out a", "directory": "/home/it's me"})";
  options.step = 98;
  static_cast<void>(save(run.path(), options));
  BOOST_TEST(has(inspect({run.path().string(), "--command"}).out,
                 "cd '/home/it'\\''s me'\ntrain --out a\n# saved step 98"));
  options.start_json.clear();
  options.step = 99;
  static_cast<void>(save(run.path(), options));
  const RunResult unknown = inspect({run.path().string(), "--command"});
  BOOST_TEST(unknown.status == 2);
  BOOST_TEST(has(unknown.err, "step-00000099 does not tell the command that saved it"));
}

BOOST_AUTO_TEST_CASE(hashes_are_the_same_for_any_number_of_ranks) {
  const TempFolder run;
  std::string first;
  for (const Index ranks : {1, 2, 3, 5, 8}) {
    const std::filesystem::path folder = save_as(run / fmt::format("w{}", ranks), 42, ranks).folder;
    const RunResult result = inspect({folder.string(), "--hash"});
    BOOST_TEST(result.status == 0, result.err);
    std::vector<std::string> lines = lines_of(result.out);
    lines.erase(lines.begin());  // the folder
    BOOST_REQUIRE_EQUAL(lines.size(), 1 + small_table().params.size() + 1);
    BOOST_TEST(lines.back().size() == 32U);
    BOOST_TEST(lines.back().find_first_not_of("0123456789abcdef") == std::string::npos);
    const std::string all = fmt::format("{}", fmt::join(lines, "\n"));
    first = first.empty() ? all : first;
    BOOST_TEST(all == first);
    BOOST_TEST(inspect({folder.string(), "--hash", "--json"}).out.find(lines.back()) !=
               std::string::npos);
  }
  const std::filesystem::path other = save_as(run / "other", 43, 2).folder;
  BOOST_TEST(lines_of(inspect({other.string(), "--hash"}).out).back() != lines_of(first).back());
}

BOOST_AUTO_TEST_CASE(verify_names_damage_and_ends_with_3) {
  const TempFolder run;
  const std::filesystem::path folder = save_as(run.path(), 5, 2).folder;
  RunResult result = inspect({run.path().string(), "--verify"});
  BOOST_TEST(result.status == 0, result.err);
  BOOST_TEST(has(result.out, "every checksum is right"));
  damage(folder);
  const std::string expected = "shard-00000-of-00002.h5 is damaged: block 0 of /zero/exp_avg";
  for (const std::string& target : {run.path().string(), folder.string()}) {
    result = inspect({target, "--verify"});
    BOOST_TEST(result.status == 3);
    BOOST_TEST(has(result.out, expected), result.out);
    BOOST_TEST(has(result.out, "damaged in 1 place"));
    // What reads numbers does not give wrong ones.
    result = inspect({target, "--stats"});
    BOOST_TEST(result.status == 3);
    BOOST_TEST(has(result.err, expected), result.err);
  }
  const Json json = Json::parse(inspect({folder.string(), "--verify", "--json"}).out);
  BOOST_TEST(json["verify"]["is_whole"] == false);
  BOOST_TEST(json["verify"]["damage"].size() == 1U);

  spill(folder / kChecksumsName, "");
  result = inspect({folder.string(), "--verify"});
  BOOST_TEST(result.status == 3);
  BOOST_TEST(has(result.out, "CHECKSUMS is damaged"), result.out);
  // A run whose newest step is damaged is not "well" because an older one is.
  static_cast<void>(save_as(run.path(), 4, 2));
  result = inspect({run.path().string(), "--verify"});
  BOOST_TEST(result.status == 3);
  BOOST_TEST(has(result.err, "step-00000005 is damaged"), result.err);
}

BOOST_AUTO_TEST_CASE(verify_reads_every_step_of_a_run) {
  const TempFolder run;
  const std::filesystem::path old = save_as(run.path(), 4, 2).folder;
  static_cast<void>(save_as(run.path(), 5, 2));
  RunResult result = inspect({run.path().string(), "--verify"});
  BOOST_TEST(result.status == 0, result.err);
  BOOST_TEST(has(result.out, "step-00000004: every checksum is right"), result.out);
  damage(old);
  BOOST_TEST(has(inspect({run.path().string()}).out, "--verify reads the data too"));
  result = inspect({run.path().string(), "--verify"});
  BOOST_TEST(result.status == 3);
  BOOST_TEST(has(result.err, "step-00000004 is damaged: "), result.err);
  BOOST_TEST(has(result.out, "every checksum is right"), result.out);  // of step 5
  const Json json = Json::parse(inspect({run.path().string(), "--verify", "--json"}).out);
  BOOST_TEST(json["steps"][0]["state"] == "damaged");
}

BOOST_AUTO_TEST_CASE(a_step_that_is_not_whole_is_shown_and_named) {
  const TempFolder run;
  const std::filesystem::path folder = save_as(run.path(), 5, 2).folder;
  BOOST_TEST(inspect({folder.string()}).status == 0);
  std::filesystem::remove(folder / "shard-00001-of-00002.h5");
  RunResult result = inspect({folder.string()});
  BOOST_TEST(result.status == 3);
  BOOST_TEST(result.err == fmt::format("inspect: {} is incomplete: shard-00001-of-00002.h5 is "
                                       "missing\n",
                                       folder.string()));
  BOOST_TEST(has(result.out, "block.0.mlp.gate_up"));  // what the manifest says all the same
  const Json json = Json::parse(inspect({folder.string(), "--json"}).out);
  BOOST_TEST(json["state"] == "incomplete");
  BOOST_TEST(json["reason"] == "shard-00001-of-00002.h5 is missing");
  result = inspect({folder.string(), "--verify"});
  BOOST_TEST(result.status == 3);
  BOOST_TEST(has(result.out, "shard-00001-of-00002.h5: No such file or directory"), result.out);
  for (const auto name : {kManifestName, kChecksumsName}) {
    std::filesystem::remove(folder / name);
    result = inspect({folder.string()});
    BOOST_TEST(result.status == 3);
    BOOST_TEST(result.err ==
               fmt::format("inspect: {} is incomplete: {} is missing\n", folder.string(), name));
  }
}

BOOST_AUTO_TEST_CASE(verify_reports_values_out_of_range) {
  const TempFolder run;
  SaveOptions options;
  WriteRequest request{run.path(), info_of(options), options.table,
                       [](StateArray, const ParamRow&, Index, std::span<float> values) {
                         std::fill(values.begin(), values.end(), 1.0F);
                       }};
  request.info.updates = options.step + 1;
  const std::filesystem::path folder = write_checkpoint(request).folder;
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{folder.string(), "--verify"}, {folder.string()}}) {
    const RunResult result = inspect(arguments);
    BOOST_TEST(result.status == 3);
    BOOST_TEST(has(result.out + result.err, "updates is 43; it must be from 0 to 42"),
               result.out + result.err);
  }
}

BOOST_AUTO_TEST_CASE(differences_are_measured) {
  const TempFolder folder;
  const std::filesystem::path two = save_as(folder / "two", 42, 2).folder;
  const std::filesystem::path three = save_as(folder / "three", 42, 3).folder;
  RunResult result = inspect({two.string(), "--diff", (folder / "three").string()});
  BOOST_TEST(result.status == 0, result.err);
  BOOST_TEST(lines_of(result.out).back().starts_with("all numbers are equal ("));
  BOOST_TEST(!has(result.out, "head.norm"));  // what is equal is not listed
  BOOST_TEST(has(result.out, "world_size: 2 against 3"));

  // One number of one tensor moves by three units in the last place, one becomes NaN.
  SaveOptions options;
  WriteRequest request{
      folder / "moved", info_of(options), options.table,
      [&](StateArray array, const ParamRow& param, Index begin, std::span<float> values) {
        const Index first = param.offset + begin;
        const std::vector<float> all = values_of(
            options.table, array, {param.unit, first, first + static_cast<Index>(values.size()), 0},
            options.step);
        std::copy(all.begin(), all.end(), values.begin());
        if (array == StateArray::exp_avg && param.name == "head.norm") {
          values[1] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(values[1]) + 3);
          values[2] = std::numeric_limits<float>::quiet_NaN();
        }
      }};
  const std::filesystem::path moved = write_checkpoint(request).folder;
  result = inspect({two.string(), "--diff", moved.string(), "--json"});
  BOOST_TEST(result.status == 1);
  const Json json = Json::parse(result.out);
  Index differing = 0;
  for (const Json& tensor : json["diff"]["tensors"]) {
    if (!tensor["is_equal"].get<bool>()) {
      ++differing;
      BOOST_TEST(tensor["name"] == "head.norm");
      BOOST_TEST(tensor["array"] == "exp_avg");
      BOOST_TEST(tensor["difference"]["differing"] == 2);
      BOOST_TEST(tensor["difference"]["incomparable"] == 1);
      BOOST_TEST(tensor["difference"]["max_ulps"] == 3);
    }
  }
  BOOST_TEST(differing == 1);
  const std::vector<std::string> lines =
      lines_of(inspect({two.string(), "--diff", moved.string()}).out);
  BOOST_TEST_REQUIRE(lines.size() >= 3U);
  // the verdict, the titles, and the one array that differs
  BOOST_TEST(lines[lines.size() - 3] ==
             fmt::format("the numbers differ: 1 of {} arrays", json["diff"]["tensors"].size()));
  BOOST_TEST(has(lines[lines.size() - 2], "parameter"));
  BOOST_TEST(has(lines.back(), "head.norm"));
}

BOOST_AUTO_TEST_CASE(statistics_are_those_of_the_numbers) {
  const TempFolder run;
  SaveOptions options;
  WriteRequest request{run.path(), info_of(options), options.table,
                       [](StateArray, const ParamRow&, Index begin, std::span<float> values) {
                         for (std::size_t i = 0; i < values.size(); ++i) {
                           values[i] = static_cast<float>(begin + static_cast<Index>(i)) - 3.0F;
                         }
                         if (begin == 0) {
                           values[0] = std::numeric_limits<float>::infinity();
                         }
                       }};
  const std::filesystem::path folder = write_checkpoint(request).folder;
  const Json json = Json::parse(inspect({folder.string(), "--stats", "--json"}).out);
  BOOST_REQUIRE_EQUAL(json["stats"].size(), options.table.params.size());
  for (std::size_t i = 0; i < options.table.params.size(); ++i) {
    const Index count = options.table.params[i].count();
    const auto n = static_cast<double>(count);
    for (const char* array : {"master", "exp_avg", "exp_avg_sq"}) {
      const Json& own = json["stats"][i][array];
      BOOST_TEST(own["nonfinite"] == 1);
      BOOST_TEST(own["min"] == -2.0);
      BOOST_TEST(own["max"] == n - 4);
      // the numbers are -2 ... n-4
      BOOST_TEST(own["mean"].get<double>() == (n - 6) / 2, boost::test_tools::tolerance(1e-12));
      double squares = 0;
      for (Index x = -2; x <= count - 4; ++x) {
        squares += static_cast<double>(x * x);
      }
      BOOST_TEST(own["norm"].get<double>() == std::sqrt(squares),
                 boost::test_tools::tolerance(1e-12));
    }
  }
  const RunResult result = inspect({folder.string(), "--param", "block.1.attention.q_norm"});
  BOOST_TEST(result.status == 0, result.err);
  BOOST_TEST(has(result.out, "first: inf -2 -1 0 1 2 3 4"), result.out);
  const Json param =
      Json::parse(inspect({folder.string(), "--param", "head.norm", "--json"}).out)["param"];
  Index counted = 0;
  for (const Json& bin : param["master"]["histogram"]["bins"]) {
    counted += bin.get<Index>();
  }
  BOOST_TEST(counted == 23);
}

BOOST_AUTO_TEST_CASE(an_element_is_where_inspect_says_in_the_file_of_its_owner) {
  const TempFolder run;
  for (const Index ranks : {1, 2, 3, 8}) {
    const SaveOptions options{.step = 42, .world_size = ranks};
    const std::filesystem::path folder = save(run / fmt::format("w{}", ranks), options).folder;
    std::vector<Index> seen(static_cast<std::size_t>(ranks));
    for (const auto& [name, at] : std::vector<std::pair<std::string, std::vector<Index>>>{
             {"embedding.weight", {0, 0}},
             {"embedding.weight", {36, 23}},
             {"head.weight", {20, 7}},  // which is the embedding's
             {"block.0.mlp.gate_up", {99, 23}},
             {"block.1.mlp.down", {11, 13}},
             {"block.1.mlp.down", {23, 49}},
             {"head.norm", {22}}}) {
      const ParamRow& param = options.table.find(name);
      const Index number = at.size() == 1 ? at[0] : at[0] * param.shape[1] + at[1];
      const std::string indices = fmt::format("{}", fmt::join(at, ","));
      const RunResult text = inspect({folder.string(), "--param", name, "--at", indices});
      BOOST_TEST(text.status == 0, text.err);
      const Json found = Json::parse(
          inspect({folder.string(), "--param", name, "--at", indices, "--json"}).out)["element"];
      BOOST_TEST(found["unit_element"] == param.offset + number);
      const auto rank = found["rank"].get<Index>();
      BOOST_REQUIRE(rank < ranks);
      ++seen[static_cast<std::size_t>(rank)];
      const std::string file = found["file"];
      BOOST_TEST(file == shard_file_name(rank, ranks));
      BOOST_TEST(has(text.out, fmt::format("owned by rank {} of {}, in {}\n", rank, ranks, file)));
      const std::string content = slurp(folder / file);
      for (const StateArraySpec& spec : info_of(options).arrays().arrays()) {
        const float expected = values_of(
            options.table, spec.array,
            {param.unit, param.offset + number, param.offset + number + 1, 0}, options.step)[0];
        const Json& entry = found["arrays"][std::string(array_name(spec.array))];
        float stored = 0;
        std::memcpy(&stored, content.data() + entry["byte"].get<std::size_t>(), sizeof stored);
        BOOST_TEST(std::bit_cast<std::uint32_t>(stored) == std::bit_cast<std::uint32_t>(expected));
        BOOST_TEST(entry["value"].get<float>() == expected);
        BOOST_TEST(has(text.out, fmt::format("{:.9g}", expected)), text.out);
      }
    }
    if (ranks > 1) {
      BOOST_TEST(std::count(seen.begin(), seen.end(), 0) < ranks - 1);  // not all of one rank
    }
  }
}

BOOST_AUTO_TEST_CASE(wrong_arguments_are_refused_in_one_line) {
  const TempFolder folder;
  const auto refusal = [](std::vector<std::string> arguments, int status) {
    const RunResult result = inspect(std::move(arguments));
    BOOST_TEST(result.status == status, result.err);
    BOOST_TEST(lines_of(result.err).size() == 1U, result.err);
    return result.err;
  };
  BOOST_TEST(has(refusal({}, 2), "inspect: no run, step, token file or folder of PEFT's is given"));
  BOOST_TEST(has(refusal({"a", "b"}, 2),
                 "inspect: more than one run, step, token file or folder of PEFT's is given"));
  BOOST_TEST(has(refusal({"/nowhere"}, 2),
                 "/nowhere: there is no such file or folder; give a token file"));
  BOOST_TEST(has(refusal({folder.path().string()}, 3), "holds no steps"));
  BOOST_TEST(has(refusal({folder.path().string(), "--nothing"}, 2), "--nothing"));
  const std::filesystem::path saved = save_as(folder.path(), 1, 1).folder;
  BOOST_TEST(has(refusal({saved.string(), "--param", "nothing"}, 2), "--param nothing"));
  const auto element = [&](const std::string& name, const std::string& at) {
    return refusal({saved.string(), "--param", name, "--at", at}, 2);
  };
  BOOST_TEST(has(element("nothing", "0"), "--param nothing: there is no such parameter"));
  BOOST_TEST(has(element("head.norm", "1,2"), "--at 1,2: head.norm is [24], so give one index"));
  BOOST_TEST(has(element("embedding.weight", "3"),
                 "--at 3: embedding.weight is [37, 24], so give 2 indices, with commas between"));
  BOOST_TEST(has(element("embedding.weight", "37,0"),
                 "--at 37,0, of embedding.weight [37, 24]: index '37' is not a whole number from 0 "
                 "to 36"));
  BOOST_TEST(
      has(element("embedding.weight", "1,x"), "index 'x' is not a whole number from 0 to 23"));
  BOOST_TEST(has(refusal({saved.string(), "--at", "0"}, 2), "--at 0 needs --param NAME"));
  BOOST_TEST(has(refusal({saved.string(), "--diff", "/nowhere"}, 2), "--diff /nowhere"));
  BOOST_TEST(inspect({"--help"}).status == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
