// Shows what a checkpoint is and whether it is well. Reads only; needs neither MPI nor a GPU; holds
// a few blocks of 16 MiB at a time, whatever the size of the checkpoint.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <boost/program_options.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "jobs/program.h"
#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "model/json_text.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/checkpoint/tensor_statistics.h"
#include "runtime/run/command_words.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDiffers = 1;  // exit status of --diff, as that of cmp and diff
constexpr int kDamaged = 3;
constexpr std::size_t kHistogramBins = 20;
constexpr Index kFirstValues = 8;
constexpr std::size_t kRangesOfUnit = 8;  // ranks whose ranges are printed; --json has all

struct InspectOptions {
  std::filesystem::path target;
  std::string param;
  std::string diff;
  bool stats = false;
  bool verify = false;
  bool hash = false;
  bool json = false;
  [[nodiscard]] bool has_action() const {
    return stats || verify || hash || !param.empty() || !diff.empty();
  }
};

/// Columns as wide as their longest entry; numbers to the right.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> titles) { rows_.push_back(std::move(titles)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print() const {
    std::vector<std::size_t> widths(rows_.front().size());
    std::vector<bool> is_number(rows_.front().size(), true);
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        widths[i] = std::max(widths[i], row[i].size());
        const bool looks_like_one =
            row[i].empty() || row[i].find_first_not_of("+-.0123456789einfa") == std::string::npos;
        is_number[i] = is_number[i] && (&row == &rows_.front() || looks_like_one);
      }
    }
    for (const auto& row : rows_) {
      std::string line = " ";
      for (std::size_t i = 0; i < row.size(); ++i) {
        line += is_number[i] ? fmt::format(" {:>{}}", row[i], widths[i])
                             : fmt::format(" {:<{}}", row[i], widths[i]);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      std::cout << line << '\n';
    }
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// A line on a terminal; nothing anywhere else.
class ProgressBar {
 public:
  explicit ProgressBar(std::string what)
      : what_(std::move(what)), is_terminal_(::isatty(STDERR_FILENO) == 1) {}
  ~ProgressBar() {
    if (is_terminal_ && has_drawn_) {
      std::cerr << "\r\033[K" << std::flush;
    }
  }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(std::uint64_t done, std::uint64_t total) {
    constexpr auto kBetween = std::chrono::milliseconds(100);
    const auto now = std::chrono::steady_clock::now();
    if (!is_terminal_ || now - last_ < kBetween) {
      return;
    }
    last_ = now;
    has_drawn_ = true;
    constexpr std::size_t kWidth = 30;
    constexpr double kGiga = 1e9;
    const double part = total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const auto filled = static_cast<std::size_t>(part * static_cast<double>(kWidth));
    std::cerr << fmt::format("\r\033[K{} [{:<{}}] {:3.0f}%  {:.2f} GB/s", what_,
                             std::string(std::min(filled, kWidth), '#'), kWidth, part * 100,
                             static_cast<double>(done) / kGiga / std::max(seconds, 1e-9))
              << std::flush;
  }

 private:
  std::string what_;
  bool is_terminal_;
  bool has_drawn_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = start_;
};

/// Does something long, whose progress shows until it returns.
template <typename Work>
auto with_progress(std::string what, Work work) {
  ProgressBar bar(std::move(what));
  return work([&bar](std::uint64_t done, std::uint64_t total) { bar.update(done, total); });
}

/// Of a folder that has the name of a step, and cannot be used as one.
bool is_broken(StepState state) {
  return state == StepState::damaged || state == StepState::incomplete ||
         state == StepState::unreadable || state == StepState::invalid;
}

std::string shape_text(const Shape& shape) {
  std::vector<Index> extents;
  extents.reserve(static_cast<std::size_t>(shape.rank()));
  for (int axis = 0; axis < shape.rank(); ++axis) {
    extents.push_back(shape[axis]);
  }
  return fmt::format("[{}]", fmt::join(extents, ", "));
}

/// Ranks whose shards hold part of a parameter, in order.
std::vector<Index> owners_of(const CheckpointReader& reader, const ParamRow& param) {
  std::vector<Index> ranks;
  for (const ShardRecord& shard : reader.shards()) {
    for (const UnitSlice& slice : shard.spec.slices) {
      if (slice.unit == param.unit && slice.begin < param.offset + param.count() &&
          param.offset < slice.end && slice.count() > 0) {
        ranks.push_back(shard.spec.rank);
      }
    }
  }
  return ranks;
}

/// Slices follow the ranks, so owners are neighbours.
std::string ranks_text(const std::vector<Index>& ranks) {
  if (ranks.empty()) {
    return "none";
  }
  return ranks.size() == 1 ? fmt::format("{}", ranks.front())
                           : fmt::format("{}-{}", ranks.front(), ranks.back());
}

Json json_of(const ManifestInfo& info) {
  const auto parsed = [](const std::string& text) {
    Json value = parse_json_line(text);
    return value.is_discarded() ? Json(text) : value;
  };
  return {{"save_id", info.save_id},
          {"run_id", info.run_id},
          {"parent_save_id", info.parent_save_id},
          {"step", info.step},
          {"updates", info.updates},
          {"skipped", info.skipped},
          {"world_size", info.world_size},
          {"micro_batch", info.micro_batch},
          {"sum_group", info.sum_group},
          {"flce_chunk_rows", info.flce_chunk_rows},
          {"attention_slice", info.attention_slice},
          {"gemm_table_hash", info.gemm_table_hash},
          {"config", parsed(info.config_json)},
          {"config_hash", info.config_hash},
          {"data_hash", info.data_hash},
          {"options", parsed(info.options_json)},
          {"windows_taken", info.windows_taken},
          {"epoch", info.epoch},
          {"seed", info.seed},
          {"moments", info.moments == Moments::none ? "none" : "adamw"},
          {"nonfinite_params", info.nonfinite_params}};
}

Json json_of(const TensorStatistics& s) {
  return {{"count", s.count}, {"nonfinite", s.nonfinite}, {"min", s.min},
          {"max", s.max},     {"mean", s.mean},           {"norm", s.norm}};
}

Json json_of(const TensorDifference& d) {
  return {{"count", d.count},
          {"differing", d.differing},
          {"incomparable", d.incomparable},
          {"max_absolute", d.max_absolute},
          {"max_relative", d.max_relative},
          {"max_ulps", d.max_ulps}};
}

std::string number(double value) {
  return fmt::format("{:.6g}", value);
}

std::vector<std::string> statistics_cells(const TensorStatistics& s) {
  return {number(s.min), number(s.max), number(s.mean), number(s.norm),
          fmt::format("{}", s.nonfinite)};
}

/// Where output goes: text at once, or one JSON document at the end.
class Inspection {
 public:
  explicit Inspection(InspectOptions options) : options_(std::move(options)) {}

  int run() {
    const std::optional<std::filesystem::path> step = choose_step();
    if (step) {
      inspect_step(*step);
    }
    if (options_.json) {
      std::cout << shown_json(document_, 2) << '\n';
    }
    return status_;
  }

 private:
  [[nodiscard]] bool is_text() const { return !options_.json; }

  /// A step folder as it is, or the newest complete one of a run, whose steps are listed.
  std::optional<std::filesystem::path> choose_step() {
    if (!is_folder(options_.target)) {
      throw ConfigError(
          fmt::format("{} is no folder; give that of a run or of a step", options_.target.string()),
          TESSERA_HERE);
    }
    if (retry_([&] { return is_step_folder(options_.target); })) {
      return options_.target;
    }
    const std::vector<StepFolder> steps = find_steps(options_.target, CheckDepth::headers, retry_);
    std::optional<StepFolder> newest;
    const StepFolder* unknown = nullptr;  // above it, and not proven lost
    for (const StepFolder& folder : steps) {
      if (folder.state == StepState::complete) {
        newest = folder;
        unknown = nullptr;
      } else if (folder.state == StepState::unreadable || folder.state == StepState::invalid) {
        unknown = &folder;
      }
    }
    if (steps.empty()) {
      throw FormatError(why_without_steps(), TESSERA_HERE);
    }
    list_steps(steps, newest);
    if (!newest || unknown != nullptr) {
      if (options_.json) {
        std::cout << shown_json(document_, 2) << '\n';
      }
      throw FormatError(
          unknown == nullptr
              ? fmt::format("{} holds no complete step", options_.target.string())
              : fmt::format("{} is {}: {}; name the folder of another step to look "
                            "at that",
                            unknown->path.string(), state_name(unknown->state), unknown->reason),
          TESSERA_HERE);
    }
    return newest->path;
  }

  /// What a folder without a single step is, and what to do with it.
  [[nodiscard]] std::string why_without_steps() const {
    const std::string folder = options_.target.string();
    std::error_code ignored;
    if (std::filesystem::exists(options_.target / "config.json", ignored)) {
      return fmt::format("{} is a Hugging Face folder, not a run: convert import {} OUT makes a "
                         "checkpoint that inspect reads, train --init {} starts from its weights",
                         folder, folder, folder);
    }
    if (std::filesystem::exists(options_.target / "metrics.jsonl", ignored)) {
      return fmt::format(
          "{} is a run that has saved no step yet (train --save-every N saves on the "
          "way)",
          folder);
    }
    return fmt::format("{} holds no steps: give the --out folder of a run, or one of its step-* "
                       "folders",
                       folder);
  }

  void list_steps(const std::vector<StepFolder>& steps, const std::optional<StepFolder>& newest) {
    TextTable table({"folder", "state", ""});
    document_["run"] = options_.target.string();
    document_["steps"] = Json::array();
    for (const StepFolder& folder : steps) {
      const std::string name = folder.path.filename().string();
      const std::string_view state = state_name(folder.state);
      const bool is_shown = newest && folder.path == newest->path;
      table.add({name, std::string(state), is_shown ? "newest, shown below" : folder.reason});
      document_["steps"].push_back(
          {{"folder", name}, {"step", folder.step}, {"state", state}, {"reason", folder.reason}});
      const bool is_bad = is_broken(folder.state);
      if (is_bad && options_.verify) {
        status_ = kDamaged;
      }
      if (is_bad && options_.has_action()) {
        std::cerr << fmt::format("inspect: {} is {}: {}\n", name, state, folder.reason);
      }
    }
    if (is_text() && !options_.has_action()) {
      std::cout << options_.target.string() << '\n';
      table.print();
      std::cout << '\n';
    }
  }

  void inspect_step(const std::filesystem::path& folder) {
    document_["folder"] = folder.string();
    if (!options_.has_action()) {
      tell_state(folder);
    }
    std::optional<CheckpointReader> reader;
    try {
      reader.emplace(folder, retry_);
    } catch (const FormatError& error) {
      if (!options_.verify) {
        throw;
      }
      say_verified({error.message()}, 0);
      return;
    }
    if (is_text()) {
      std::cout << folder.string() << '\n';
    }
    if (options_.json || !options_.has_action()) {
      describe(*reader);
    }
    if (options_.verify) {
      const std::vector<std::string> damages = with_progress(
          "verify", [&](const ByteProgress& progress) { return reader->find_damage(progress); });
      say_verified(damages, reader->data_bytes());
      if (!damages.empty()) {
        return;  // the rest would stop at the damage
      }
    }
    if (!options_.param.empty()) {
      show_param(*reader);
    }
    if (options_.stats) {
      show_statistics(*reader);
    }
    if (!options_.diff.empty()) {
      show_difference(*reader);
    }
    if (options_.hash) {
      show_hashes(*reader);
    }
  }

  /// What is wrong with a step without a look at its arrays; what the manifest says is shown all
  /// the same.
  void tell_state(const std::filesystem::path& folder) {
    const StepFolder found = check_step(folder, CheckDepth::headers, retry_);
    document_["state"] = state_name(found.state);
    document_["reason"] = found.reason;
    if (found.state == StepState::complete) {
      return;
    }
    status_ = kDamaged;
    if (found.info) {  // else opening it says the same
      std::cerr << fmt::format("inspect: {} is {}: {}\n", folder.string(), state_name(found.state),
                               found.reason);
    }
  }

  void describe(const CheckpointReader& reader) {
    const ManifestInfo& info = reader.info();
    document_["info"] = json_of(info);
    document_["params"] = reader.table().total_count();
    if (is_text()) {
      std::cout << fmt::format("  step {}, {} updates, {} skipped; {} windows taken, epoch {}\n",
                               info.step, info.updates, info.skipped, info.windows_taken,
                               info.epoch);
      std::cout << fmt::format(
          "  save {}{}\n  run  {}\n", info.save_id,
          info.parent_save_id.empty() ? std::string() : " after " + info.parent_save_id,
          info.run_id);
      std::cout << fmt::format(
          "  ranks {}, micro-batch {}, sum group {}, {} chunk rows, attention slice {}, seed {}\n",
          info.world_size, info.micro_batch, info.sum_group, info.flce_chunk_rows,
          info.attention_slice, info.seed);
      std::cout << fmt::format("  {} parameters{}; {}\n", reader.table().total_count(),
                               info.nonfinite_params == 0
                                   ? std::string(", all finite")
                                   : fmt::format(", {} NOT FINITE", info.nonfinite_params),
                               reader.has_moments() ? "both moments" : "no moments");
      std::cout << fmt::format("  configuration {}, data {}, GEMM table {}\n",
                               or_dash(info.config_hash), or_dash(info.data_hash),
                               or_dash(info.gemm_table_hash));
    }
    describe_shards(reader);
    describe_units(reader);
    describe_params(reader);
  }

  static std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

  void describe_shards(const CheckpointReader& reader) {
    TextTable table({"shard", "bytes", "elements", "not finite"});
    document_["shards"] = Json::array();
    for (const ShardRecord& shard : reader.shards()) {
      Json slices = Json::array();
      for (const UnitSlice& slice : shard.spec.slices) {
        slices.push_back({{"unit", slice.unit},
                          {"begin", slice.begin},
                          {"end", slice.end},
                          {"offset", slice.offset}});
      }
      const Index nonfinite = shard.nonfinite[0] + shard.nonfinite[1] + shard.nonfinite[2];
      document_["shards"].push_back({{"file", shard.file},
                                     {"rank", shard.spec.rank},
                                     {"bytes", shard.file_bytes},
                                     {"elements", shard.spec.count()},
                                     {"nonfinite", nonfinite},
                                     {"slices", slices}});
      table.add({shard.file, fmt::format("{}", shard.file_bytes),
                 fmt::format("{}", shard.spec.count()), fmt::format("{}", nonfinite)});
    }
    if (is_text()) {
      std::cout << '\n';
      table.print();
    }
  }

  void describe_units(const CheckpointReader& reader) const {
    if (!is_text()) {
      return;  // JSON has the same with the shards
    }
    TextTable table({"unit", "elements", "of each rank"});
    for (const UnitRow& unit : reader.table().units) {
      std::vector<std::string> ranges;
      for (const ShardRecord& shard : reader.shards()) {
        for (const UnitSlice& slice : shard.spec.slices) {
          if (slice.unit == unit.name && slice.count() > 0) {
            ranges.push_back(fmt::format("{}: [{}, {})", shard.spec.rank, slice.begin, slice.end));
          }
        }
      }
      if (ranges.size() > kRangesOfUnit) {
        const std::string rest = fmt::format("and {} more", ranges.size() - kRangesOfUnit);
        ranges.resize(kRangesOfUnit);
        ranges.push_back(rest);
      }
      table.add(
          {unit.name, fmt::format("{}", unit.count), fmt::format("{}", fmt::join(ranges, "  "))});
    }
    std::cout << '\n';
    table.print();
  }

  void describe_params(const CheckpointReader& reader) {
    TextTable table({"parameter", "shape", "unit", "offset", "elements", "ranks"});
    document_["table"] = Json::array();
    for (const ParamRow& param : reader.table().params) {
      const std::vector<Index> owners = owners_of(reader, param);
      Json shape = Json::array();
      for (int axis = 0; axis < param.shape.rank(); ++axis) {
        shape.push_back(param.shape[axis]);
      }
      document_["table"].push_back({{"name", param.name},
                                    {"dtype", "f32"},
                                    {"shape", shape},
                                    {"unit", param.unit},
                                    {"offset", param.offset},
                                    {"count", param.count()},
                                    {"alias_of", param.alias_of},
                                    {"ranks", owners}});
      table.add({param.name, shape_text(param.shape),
                 param.alias_of.empty() ? param.unit : "is " + param.alias_of,
                 fmt::format("{}", param.offset), fmt::format("{}", param.count()),
                 ranks_text(owners)});
    }
    if (is_text()) {
      std::cout << '\n';
      table.print();
    }
  }

  void say_verified(const std::vector<std::string>& damages, std::uint64_t bytes) {
    document_["verify"] = {{"is_whole", damages.empty()}, {"damage", damages}};
    if (!damages.empty()) {
      status_ = kDamaged;
    }
    if (is_text()) {
      for (const std::string& damage : damages) {
        std::cout << damage << '\n';
      }
      if (damages.empty()) {
        std::cout << fmt::format("every checksum is right ({} bytes of data)\n", bytes);
      } else {
        std::cout << fmt::format("damaged in {} place{}\n", damages.size(),
                                 damages.size() == 1 ? "" : "s");
      }
    }
  }

  void show_param(CheckpointReader& reader) {
    const ParamRow& param = find_param(reader);
    Json& json = document_["param"];
    json["name"] = param.name;
    json["ranks"] = owners_of(reader, param);
    if (is_text()) {
      std::cout << fmt::format("{} {} of unit {}, ranks {}{}\n", param.name,
                               shape_text(param.shape), param.unit,
                               ranks_text(owners_of(reader, param)),
                               param.alias_of.empty() ? "" : ", is " + param.alias_of);
    }
    for (const CheckpointArray array : arrays_of(reader)) {
      StatisticsSum sum;
      std::vector<double> first;
      scan_param(reader, array, param, [&](std::span<const float> values) {
        sum.add(values);
        for (const float value : values) {
          if (static_cast<Index>(first.size()) >= kFirstValues) {
            break;
          }
          first.push_back(static_cast<double>(value));
        }
      });
      const TensorStatistics statistics = sum.result();
      Histogram histogram{statistics.min, statistics.max, std::vector<Index>(kHistogramBins)};
      scan_param(reader, array, param,
                 [&](std::span<const float> values) { histogram.add(values); });
      Json& entry = json[std::string(array_name(array))];
      entry["statistics"] = json_of(statistics);
      entry["histogram"] = {
          {"low", histogram.low}, {"high", histogram.high}, {"bins", histogram.bins}};
      entry["first"] = first;
      if (is_text()) {
        print_array(array, statistics, histogram, first);
      }
    }
  }

  [[nodiscard]] const ParamRow& find_param(const CheckpointReader& reader) const {
    const std::vector<ParamRow>& params = reader.table().params;
    const auto found = std::find_if(params.begin(), params.end(), [&](const ParamRow& row) {
      return row.name == options_.param;
    });
    if (found == params.end()) {
      throw ConfigError(fmt::format("--param {}: there is no such parameter; without --param, "
                                    "inspect lists them",
                                    options_.param),
                        TESSERA_HERE);
    }
    return *found;
  }

  static void print_array(CheckpointArray array, const TensorStatistics& s,
                          const Histogram& histogram, const std::vector<double>& first) {
    std::cout << fmt::format(
        "\n{}: min {:.6g}, max {:.6g}, mean {:.6g}, norm {:.6g}, {} of {} not finite\n",
        array_name(array), s.min, s.max, s.mean, s.norm, s.nonfinite, s.count);
    std::vector<std::string> texts;
    texts.reserve(first.size());
    for (const double value : first) {
      texts.push_back(fmt::format("{:.9g}", value));
    }
    std::cout << fmt::format("  first: {}\n", fmt::join(texts, " "));
    constexpr double kBarWidth = 50;
    const Index most =
        std::max<Index>(1, *std::max_element(histogram.bins.begin(), histogram.bins.end()));
    const double width =
        (histogram.high - histogram.low) / static_cast<double>(histogram.bins.size());
    for (std::size_t bin = 0; bin < histogram.bins.size(); ++bin) {
      const auto bar = static_cast<std::size_t>(std::ceil(
          kBarWidth * static_cast<double>(histogram.bins[bin]) / static_cast<double>(most)));
      std::cout << fmt::format("  {:>12.4g} {:>12} {}\n",
                               histogram.low + width * static_cast<double>(bin),
                               histogram.bins[bin], std::string(bar, '#'));
    }
  }

  void show_statistics(CheckpointReader& reader) {
    const auto statistics = with_progress("statistics", [&](const ByteProgress& progress) {
      return tensor_statistics(reader, progress);
    });
    Json& json = document_["stats"] = Json::array();
    TextTable table({"parameter", "array", "min", "max", "mean", "norm", "not finite"});
    for (std::size_t i = 0; i < reader.table().params.size(); ++i) {
      const ParamRow& param = reader.table().params[i];
      Json entry = {{"name", param.name}};
      for (const CheckpointArray array : arrays_of(reader)) {
        const TensorStatistics& own = statistics[static_cast<std::size_t>(array)][i];
        entry[std::string(array_name(array))] = json_of(own);
        std::vector<std::string> row = {param.name, std::string(array_name(array))};
        for (std::string& cell : statistics_cells(own)) {
          row.push_back(std::move(cell));
        }
        table.add(std::move(row));
      }
      json.push_back(std::move(entry));
    }
    if (is_text()) {
      table.print();
    }
  }

  void show_hashes(CheckpointReader& reader) {
    const CheckpointHashes hashes = with_progress(
        "hash", [&](const ByteProgress& progress) { return hash_tensors(reader, progress); });
    std::vector<std::string> titles = {"parameter"};
    for (const CheckpointArray array : arrays_of(reader)) {
      titles.emplace_back(array_name(array));
    }
    TextTable table(titles);
    Json& json = document_["hash"];
    json["tensors"] = Json::array();
    for (std::size_t i = 0; i < reader.table().params.size(); ++i) {
      const ParamRow& param = reader.table().params[i];
      Json entry = {{"name", param.name}};
      std::vector<std::string> row = {param.name};
      for (const CheckpointArray array : arrays_of(reader)) {
        const std::string text = hashes.tensors[static_cast<std::size_t>(array)][i].text();
        entry[std::string(array_name(array))] = text;
        row.push_back(text);
      }
      json["tensors"].push_back(std::move(entry));
      table.add(std::move(row));
    }
    json["overall"] = hashes.overall.text();
    if (is_text()) {
      table.print();
      std::cout << hashes.overall.text() << '\n';
    }
  }

  [[nodiscard]] std::filesystem::path other_step() {
    std::filesystem::path other = options_.diff;
    if (!is_folder(other)) {
      throw ConfigError(fmt::format("--diff {} is no folder", other.string()), TESSERA_HERE);
    }
    StepSearch search(other, [](const StepFolder& folder) {
      std::cerr << fmt::format("inspect: {} is {}: {}\n", folder.path.string(),
                               state_name(folder.state), folder.reason);
    });
    const std::optional<StepFolder> found = search.next(retry_);
    if (!found) {
      throw FormatError(fmt::format("{} holds no complete step", other.string()), TESSERA_HERE);
    }
    return found->path;
  }

  void show_difference(CheckpointReader& reader) {
    CheckpointReader other(other_step(), retry_);
    Json& json = document_["diff"];
    json["other"] = other.folder().string();
    json["info"] = Json::object();
    if (is_text()) {
      std::cout << "against " << other.folder().string() << '\n';
    }
    const Json mine = json_of(reader.info());
    const Json others = json_of(other.info());
    for (const auto& [key, value] : mine.items()) {
      if (value != others.at(key)) {
        json["info"][key] = {value, others.at(key)};
        if (is_text() && !value.is_object()) {
          std::cout << fmt::format("  {}: {} against {}\n", key, shown_json(value),
                                   shown_json(others.at(key)));
        }
      }
    }
    compare_tensors(reader, other, json);
  }

  /// A parameter of this name and shape; null if there is none.
  static const ParamRow* counterpart(const CheckpointReader& where, const ParamRow& param) {
    for (const ParamRow& row : where.table().params) {
      if (row.name == param.name && row.shape == param.shape) {
        return &row;
      }
    }
    return nullptr;
  }

  static TensorDifference difference_of(CheckpointReader& reader, CheckpointReader& other,
                                        CheckpointArray array, const ParamRow& param,
                                        const ParamRow& theirs,
                                        const std::function<void(std::uint64_t)>& read) {
    TensorDifference difference;
    std::vector<float> other_values;
    Index position = 0;
    scan_param(reader, array, param, [&](std::span<const float> values) {
      other_values.resize(values.size());
      other.read_param(array, theirs, position, other_values);
      add_difference(values, other_values, difference);
      position += static_cast<Index>(values.size());
      read(values.size_bytes());
    });
    return difference;
  }

  void compare_tensors(CheckpointReader& reader, CheckpointReader& other, Json& json) {
    Index differing = reader.has_moments() == other.has_moments() ? 0 : 1;
    TextTable table({"parameter", "array", "", "differing", "absolute", "relative", "ulps"});
    json["tensors"] = Json::array();
    with_progress("compare", [&](const ByteProgress& progress) {
      std::uint64_t done = 0;
      const auto read = [&](std::uint64_t bytes) {
        done += bytes;
        progress(done, reader.data_bytes());
      };
      for (const CheckpointArray array : kCheckpointArrays) {
        const bool have_both = reader.has_moments() && other.has_moments();
        if (array != CheckpointArray::master && !have_both) {
          continue;
        }
        for (const ParamRow& param : reader.table().params) {
          const ParamRow* theirs = counterpart(other, param);
          if (theirs == nullptr) {
            continue;
          }
          const TensorDifference difference =
              difference_of(reader, other, array, param, *theirs, read);
          differing += difference.differing == 0 ? 0 : 1;
          json["tensors"].push_back({{"name", param.name},
                                     {"array", array_name(array)},
                                     {"is_equal", difference.differing == 0},
                                     {"difference", json_of(difference)}});
          table.add(difference_row(param, array, difference));
        }
      }
    });
    differing +=
        add_unmatched(reader, other, table, json) + add_unmatched(other, reader, table, json);
    json["is_equal"] = differing == 0;
    if (differing > 0) {
      status_ = kDiffers;
    }
    if (is_text()) {
      table.print();
      say_verdict(reader, other, differing);
    }
  }

  static void say_verdict(const CheckpointReader& reader, const CheckpointReader& other,
                          Index differing) {
    if (reader.has_moments() != other.has_moments()) {
      const CheckpointReader& with_moments = reader.has_moments() ? reader : other;
      std::cout << fmt::format("only {} has moments\n", with_moments.folder().string());
    }
    std::cout << (differing == 0 ? "all numbers are equal" : "the numbers differ") << '\n';
  }

  /// Lists the parameters that `mine` alone has, or in another shape. Returns their number.
  static Index add_unmatched(const CheckpointReader& mine, const CheckpointReader& theirs,
                             TextTable& table, Json& json) {
    Index count = 0;
    for (const ParamRow& param : mine.table().params) {
      if (counterpart(theirs, param) == nullptr) {
        ++count;
        table.add({param.name, shape_text(param.shape), "only in " + mine.folder().string(), "", "",
                   "", ""});
        json["tensors"].push_back({{"name", param.name}, {"only_in", mine.folder().string()}});
      }
    }
    return count;
  }

  static std::vector<std::string> difference_row(const ParamRow& param, CheckpointArray array,
                                                 const TensorDifference& d) {
    if (d.differing == 0) {
      return {param.name, std::string(array_name(array)), "equal", "", "", "", ""};
    }
    return {param.name,
            std::string(array_name(array)),
            d.incomparable == 0 ? "differs" : fmt::format("differs, {} not finite", d.incomparable),
            fmt::format("{}", d.differing),
            number(d.max_absolute),
            number(d.max_relative),
            fmt::format("{}", d.max_ulps)};
  }

  InspectOptions options_;
  ReadRetry retry_;  // of all that is read
  Json document_ = Json::object();
  int status_ = 0;
};

namespace po = boost::program_options;

po::options_description visible_options(InspectOptions& options) {
  po::options_description description("Options");
  auto add = description.add_options();
  add("help", "this text");
  add("verify", switch_value(options.verify, "verify"),
      "compare every byte with its checksum; names file, array, block and parameters of each "
      "damage");
  add("stats", switch_value(options.stats, "stats"),
      "min, max, mean, norm and numbers that are not finite, of weights and moments of each "
      "tensor");
  add("param", po::value(&options.param)->value_name("NAME"),
      "statistics, histogram and first values of one parameter");
  add("hash", switch_value(options.hash, "hash"),
      "XXH3-128 of each tensor; the last line is that of all, whatever the number of ranks");
  add("diff", po::value(&options.diff)->value_name("OTHER"),
      "compare with another run or step: equal bits, or the largest differences of each tensor");
  add("json", switch_value(options.json, "json"), "one JSON document instead of text");
  return description;
}

void print_help(const po::options_description& visible) {
  std::cout
      << "inspect RUN_OR_STEP [options]\n\n"
         "Shows what a checkpoint holds: of a run its steps and the newest complete one, of a "
         "step\n"
         "its ranks, shards and parameters.\n\n"
      << visible
      << "\nExit status: 0 all is well; 1 --diff found a difference; 2 wrong options; 3 damaged.\n";
}

int inspect(int argc, char** argv) {
  InspectOptions options;
  std::string target;
  const po::options_description visible = visible_options(options);
  po::options_description all;
  all.add(visible).add_options()("target", po::value(&target));
  po::positional_options_description positional;
  positional.add("target", 1);
  po::variables_map values =
      read_words(words_of(argc, argv), all, positional, "inspect --help", Abbreviations::taken);
  po::notify(values);
  if (values.count("help") > 0) {
    print_help(visible);
    return 0;
  }
  if (target.empty()) {
    throw ConfigError("no run or step is given: inspect RUN_OR_STEP; see inspect --help",
                      TESSERA_HERE);
  }
  options.target = target;
  return Inspection(options).run();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::run_program("inspect", [&] { return tessera::inspect(argc, argv); });
}
