// The budget of a step as a table, and as JSON.
#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "jobs/bench/breakdown.h"

namespace tessera::bench {
namespace {

constexpr double kMilli = 1e3;
constexpr double kMicro = 1e6;
constexpr double kGiga = 1e9;
constexpr double kTera = 1e12;

bool is_wait(const BudgetRow& row) {
  return row.stream == "compute" && row.kernel.empty();
}

// The compute stream first, largest gap first; without what `waits` says.
std::vector<BudgetRow> in_order(std::vector<BudgetRow> rows) {
  std::erase_if(rows, is_wait);
  std::stable_sort(rows.begin(), rows.end(), [](const BudgetRow& a, const BudgetRow& b) {
    const bool a_first = a.stream == "compute";
    const bool b_first = b.stream == "compute";
    if (a_first != b_first) {
      return a_first;
    }
    return a.seconds - a.floor_seconds > b.seconds - b.floor_seconds;
  });
  return rows;
}

std::string milliseconds(double seconds) {
  return seconds == 0 ? "" : fmt::format("{:.3f}", kMilli * seconds);
}

std::string rate_of(const BudgetRow& row, const FlopUnit& unit) {
  if (row.seconds <= 0 || row.bytes <= 0) {
    return "";
  }
  return row.flops > 0 ? fmt::format("{:.1f} {}", row.flops / row.seconds / unit.flops, unit.name)
                       : fmt::format("{:.1f} GB/s", row.bytes / row.seconds / kGiga);
}

void print_row(const BudgetRow& row, const FlopUnit& unit) {
  fmt::print(
      "{:<34} {:>24} {:>7.0f} {:>10} {:>9.3f} {:>10} {:>10} {:>10} {:>10.3f} {:>6} {:>9.3f}   {}\n",
      row.name, row.shape, row.calls,
      row.flops > 0 ? fmt::format("{:.3f}", row.flops / unit.flops) : "", row.bytes / kGiga,
      milliseconds(row.alone_seconds), milliseconds(row.best_seconds),
      milliseconds(row.floor_seconds), kMilli * row.seconds,
      row.floor_seconds > 0 ? fmt::format("{:.2f}", row.seconds / row.floor_seconds) : "",
      kMilli * (row.seconds - row.floor_seconds), rate_of(row, unit));
}

enum class Kind : std::uint8_t { products, attention, others, beside };

Kind kind_of(const BudgetRow& row) {
  if (row.stream != "compute") {
    return Kind::beside;
  }
  if (row.kernel == "gemm") {
    return Kind::products;
  }
  return row.kernel.starts_with("attention") ? Kind::attention : Kind::others;
}

void print_sums(const BudgetFacts& facts, const std::vector<BudgetRow>& rows,
                const BudgetWaits& waits) {
  const auto of_step = [&](double seconds) { return 100 * seconds / facts.plain_step_seconds; };
  fmt::print("\n{:<34} {:>10} {:>10} {:>10} {:>10}\n", "", "floor ms", "ms", "gap ms", "% of step");
  const auto line = [&](std::string_view name, double floor, double seconds) {
    fmt::print("{:<34} {:>10.3f} {:>10.3f} {:>10.3f} {:>10.2f}\n", name, kMilli * floor,
               kMilli * seconds, kMilli * (seconds - floor), of_step(seconds));
  };
  struct Named {
    Kind kind;
    const char* name;
  };
  constexpr std::array kKinds = {Named{Kind::products, "GEMMs"},
                                 Named{Kind::attention, "attention"},
                                 Named{Kind::others, "other kernels of the compute stream"},
                                 Named{Kind::beside, "beside the compute stream"}};
  for (const auto& [kind, name] : kKinds) {
    double floor = 0;
    double seconds = 0;
    for (const BudgetRow& row : rows) {
      if (!is_wait(row) && kind_of(row) == kind) {
        floor += row.floor_seconds;
        seconds += row.seconds;
      }
    }
    line(name, floor, seconds);
  }
  for (const BudgetWaits::Named& wait : waits.named) {
    line(fmt::format("{} ({:.0f} times)", wait.name, wait.count), 0, wait.seconds);
  }
  line(fmt::format("between two of these ({:.0f} times)", waits.gaps), 0, waits.gap_seconds);
  fmt::print("  of the last the events that measure take about {:.3f} ms; largest {:.3f} ms\n",
             kMilli * waits.gaps * facts.event_pair_seconds, kMilli * waits.largest_gap_seconds);
}

double largest(const std::vector<double>& of_ranks) {
  return *std::max_element(of_ranks.begin(), of_ranks.end());
}

void print_of_ranks(std::string_view what, const std::vector<double>& seconds) {
  std::string all;
  for (const double value : seconds) {
    all += fmt::format(" {:.3f}", kMilli * value);
  }
  fmt::print("{}, rank by rank:{} ms\n", what, all);
}

std::vector<std::string> kernels_not_called(const std::vector<BudgetRow>& rows) {
  std::vector<std::string> names;
  for (const std::string_view name : kernel_names()) {
    if (std::none_of(rows.begin(), rows.end(),
                     [&](const BudgetRow& row) { return row.kernel == name; })) {
      names.emplace_back(name);
    }
  }
  return names;
}

}  // namespace

double kernel_seconds(const std::vector<BudgetRow>& rows) {
  return std::accumulate(rows.begin(), rows.end(), 0.0, [](double sum, const BudgetRow& row) {
    return sum + (row.stream == "compute" && !row.kernel.empty() ? row.seconds : 0);
  });
}

double floor_seconds(const std::vector<BudgetRow>& rows) {
  return std::accumulate(rows.begin(), rows.end(), 0.0,
                         [](double sum, const BudgetRow& row) { return sum + row.floor_seconds; });
}

double fast_floor_seconds(const std::vector<BudgetRow>& rows) {
  return std::accumulate(rows.begin(), rows.end(), 0.0, [](double sum, const BudgetRow& row) {
    return sum + (row.kernel == "attention_backward" ? std::min(row.best_seconds, row.floor_seconds)
                                                     : row.floor_seconds);
  });
}

void print_budget(const BudgetFacts& facts, const std::vector<BudgetRow>& rows,
                  const BudgetWaits& waits) {
  fmt::print(
      "\nbudget of a step: rank 0 of {}, mean of {} recorded steps, {:.2f} us of events taken "
      "off each call\n",
      facts.ranks, facts.steps, kMicro * facts.event_pair_seconds);
  fmt::print(
      "floors: products alone with the best proposal, attention alone as it is run, others 90% "
      "of the copy rate of {:.1f} GB/s (read + write)\n\n",
      facts.copy_bytes_per_second / kGiga);
  std::string stream;
  for (const BudgetRow& row : in_order(rows)) {
    if (row.stream != stream) {
      fmt::print("{:<34} {:>24} {:>7} {:>10} {:>9} {:>10} {:>10} {:>10} {:>10} {:>6} {:>9}\n",
                 row.stream + " stream", "", "calls", facts.unit.flops == kTera ? "TFLOP" : "GFLOP",
                 "GB", "alone ms", "best ms", "floor ms", "ms", "ratio", "gap ms");
      stream = row.stream;
    }
    print_row(row, facts.unit);
  }
  print_sums(facts, rows, waits);
  const double floor = largest(facts.rank_floor_seconds);
  fmt::print(
      "\nsum of floors  {:.3f} ms; with attention's backward pass in the fast order {:.3f} ms{}\n",
      kMilli * floor, kMilli * facts.fast_floor_seconds,
      facts.ranks > 1 ? " (the slowest rank's)" : "");
  fmt::print("step           {:.3f} ms; recorded {:.3f} ms ({:.3f} ms on the compute stream)\n",
             kMilli * facts.plain_step_seconds, kMilli * facts.recorded_step_seconds,
             kMilli * facts.stream_seconds);
  fmt::print("share of floor {:.2f}%; fast order {:.2f}%\n", 100 * floor / facts.plain_step_seconds,
             100 * facts.fast_floor_seconds / facts.plain_step_seconds);
  if (facts.ranks > 1) {
    print_of_ranks("sum of floors", facts.rank_floor_seconds);
    print_of_ranks("kernels of the compute stream", facts.rank_kernel_seconds);
  }
  if (const auto missing = kernels_not_called(rows); !missing.empty()) {
    fmt::print("not called     {}\n", fmt::join(missing, ", "));
  }
  (void)std::fflush(stdout);
}

OutputRules budget_file_rules() {
  return {.option = "--json",
          .what = "a budget of bench step",
          .is_ours =
              [](const std::filesystem::path& path) {
                constexpr std::size_t kFirstFields = 512;
                const std::string begin = first_bytes(path, kFirstFields);
                return begin.starts_with("{\n \"device\": ") &&
                       begin.find("\n \"micro_batch\": ") != std::string::npos &&
                       begin.find("\n \"tokens_per_second\": ") != std::string::npos;
              },
          .takes_streams = true};
}

nlohmann::ordered_json budget_json(const BudgetFacts& facts, const std::vector<BudgetRow>& rows,
                                   const BudgetWaits& waits) {
  using Json = nlohmann::ordered_json;
  Json json = {{"device", facts.device},
               {"model", facts.model},
               {"ranks", facts.ranks},
               {"seq", facts.seq},
               {"micro_batch", facts.micro_batch},
               {"global_batch", facts.global_batch},
               {"steps", facts.steps},
               {"step_seconds", facts.plain_step_seconds},
               {"tokens_per_second",
                static_cast<double>(facts.global_batch * facts.seq) / facts.plain_step_seconds},
               {"recorded_step_seconds", facts.recorded_step_seconds},
               {"compute_stream_seconds", facts.stream_seconds},
               {"event_pair_seconds", facts.event_pair_seconds},
               {"copy_bytes_per_second", facts.copy_bytes_per_second},
               {"rank_kernel_seconds", facts.rank_kernel_seconds},
               {"rank_floor_seconds", facts.rank_floor_seconds},
               {"floor_seconds", floor_seconds(rows)},
               {"share_of_floor", largest(facts.rank_floor_seconds) / facts.plain_step_seconds}};
  Json& list = json["rows"] = Json::array();
  for (const BudgetRow& row : in_order(rows)) {
    list.push_back({{"stream", row.stream},
                    {"name", row.name},
                    {"kernel", row.kernel},
                    {"shape", row.shape},
                    {"calls", row.calls},
                    {"flops", row.flops},
                    {"bytes", row.bytes},
                    {"seconds", row.seconds},
                    {"alone_seconds", row.alone_seconds},
                    {"best_seconds", row.best_seconds},
                    {"floor_seconds", row.floor_seconds}});
  }
  Json& named = json["waits"] = Json::array();
  for (const BudgetWaits::Named& wait : waits.named) {
    named.push_back({{"name", wait.name}, {"count", wait.count}, {"seconds", wait.seconds}});
  }
  json["gaps"] = {{"count", waits.gaps},
                  {"seconds", waits.gap_seconds},
                  {"largest_seconds", waits.largest_gap_seconds}};
  Json& calls = json["kernel_calls"] = Json::object();
  for (const std::string_view name : kernel_names()) {
    calls[std::string(name)] =
        std::accumulate(rows.begin(), rows.end(), 0.0, [&](double sum, const BudgetRow& row) {
          return sum + (row.kernel == name ? row.calls : 0);
        });
  }
  return json;
}

}  // namespace tessera::bench
