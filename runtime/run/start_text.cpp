#include "runtime/run/start_text.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/base/error.h"
#include "kernels/base/log.h"
#include "kernels/base/output_file.h"
#include "kernels/base/quantity.h"
#include "kernels/base/round_up.h"
#include "kernels/base/terminal.h"
#include "kernels/device/device_backend.h"
#include "model/adapter_layout.h"
#include "runtime/launch/idle_ranks.h"
#include "runtime/launch/startup_check.h"
#include "runtime/run/document_choice.h"
#include "runtime/run/options.h"
#include "runtime/run/run_length.h"

namespace tessera {
namespace {

constexpr const char* kStartFile = "start.txt";
constexpr std::string_view kStartFileBegin = "# start of a run of tessera";
constexpr std::size_t kLabel = 8;  // columns
constexpr std::size_t kHang = 2;

std::string line(std::string_view label, const std::string& text) {
  return fmt::format("{:<{}}{}\n", label, kLabel, text);
}

std::string model_line(const StartFacts& facts) {
  const RunConfig& o = facts.options;
  const std::string name = o.model.name != "auto" ? o.model.name
                           : o.model.init.empty() ? "tiny"
                                                  : o.model.init;
  const std::optional<AdapterConfig> adapters = adapter_config(o);
  const std::string trained =
      adapters ? fmt::format(" and {} of adapters, which alone are trained",
                             grouped(AdapterLayout(facts.config, *adapters).params().total_count()))
               : std::string();
  const std::string weights =
      facts.point             ? fmt::format("continued from {}", facts.point->folder.string())
      : !o.model.init.empty() ? fmt::format("weights of {}", o.model.init)
                              : fmt::format("random weights of --seed {}", o.seed);
  return line("model", fmt::format("{}, {} parameters{}, {}; {}", name,
                                   grouped(parameter_count(facts.config)), trained,
                                   precision_name(precision_choice(o)), weights));
}

std::string ranks_line(const StartFacts& facts) {
  const RunConfig& o = facts.options;
  const std::string device =
      o.compute.device == DeviceKind::cpu
          ? fmt::format("on the CPU with {}{}", counted(o.compute.threads, "thread"),
                        facts.ranks > 1 ? " each" : "")
          : fmt::format("on {}{}", facts.ranks > 1 ? "one " : "", device_info(facts.device).name) +
                (facts.ranks > 1 ? " each" : "");
  return line("ranks", fmt::format("{} on {}, {}; {}", facts.ranks, counted(facts.hosts, "host"),
                                   device, version_text()));
}

std::string data_line(const StartFacts& facts) {
  const RunConfig& o = facts.options;
  const DataPass pass = facts.data.pass();
  const Index files = facts.data.file_count();
  std::string packed;
  if (const std::optional<PackingCounts> counts = facts.data.packing()) {
    constexpr double kPercent = 100;
    packed = fmt::format(", packed {:.1f}% full", kPercent * counts->fill(facts.options.batch.seq));
  }
  return line(
      "data",
      fmt::format("{}: {} tokens in {}{}; one pass is {} of {} tokens ({} x {})",
                  files == 1 ? o.data.files.front() : counted(files, "file"), grouped(pass.tokens),
                  counted(facts.data.document_count(), "document"), packed,
                  counted(divide_up(pass.sequences, o.batch.global_batch), "step"),
                  grouped(o.batch.global_batch * o.batch.seq), o.batch.global_batch, o.batch.seq));
}

std::string every_text(Index every, std::string_view what) {
  return every > 0 ? fmt::format(", {} every {}", what, every) : std::string();
}

std::string steps_line(const StartFacts& facts) {
  const RunConfig& o = facts.options;
  const WorkDone done = done_by(facts.point);
  const std::int64_t first = done.step + 1;
  const std::string steps = first > o.steps    ? fmt::format("none left of {}", o.steps)
                            : first == o.steps ? fmt::format("{} of {}", first, o.steps)
                                               : fmt::format("{} to {}", first, o.steps);
  const std::vector<std::string>& given = o.texts.given;
  const bool is_default = std::none_of(given.begin(), given.end(), [](const std::string& name) {
    return name == "steps" || name == "epochs" || name == "tokens";
  });
  const std::string passes = run_passes_text(o, facts.data.pass(), done);
  const std::string evaluations = o.eval.files.empty() ? "" : every_text(o.eval.every, "evaluated");
  const std::string saves = o.checkpoint.save_every == 0 && o.checkpoint.save_at_end
                                ? ", saved at the end"
                                : every_text(o.checkpoint.save_every, "saved");
  return line("steps",
              fmt::format("{}{}, {} over the data{}{}; into {}", steps,
                          is_default ? " (no --steps, --epochs or --tokens was given)" : "", passes,
                          evaluations, saves, o.out));
}

// "--zero 3", for each option that the program has chosen a value for.
std::vector<std::string> chosen(const StartFacts& facts) {
  const RunConfig& o = facts.options;
  const RunConfig known = resolved(o);
  const RunSettings& settings = facts.plan.settings();
  const bool is_cuda = o.compute.device == DeviceKind::cuda;
  std::vector<std::string> all;
  const auto add = [&all](const char* name, const auto& value) {
    all.push_back(fmt::format("--{} {}", name, value));
  };
  if (facts.documents_are_automatic) {
    add("documents", document_mode_name(*o.data.documents));
  }
  if (!o.schedule.warmup) {
    add("warmup", *known.schedule.warmup);
  }
  if (!o.optimizer.weight_decay) {
    add("weight-decay", *known.optimizer.weight_decay);
  }
  if (!o.compute.precision) {
    add("precision", precision_name(precision_choice(o)));
  }
  if (!o.parallel.zero && facts.ranks > 1) {
    add("zero", static_cast<int>(settings.zero));
  }
  if (!o.memory.params && is_cuda) {
    add("params", settings.params == ParamPlacement::host ? "host" : "device");
  }
  if (!o.memory.param_blocks && shards_params(settings, facts.ranks)) {
    add("param-blocks", settings.param_blocks);
  }
  if (!o.memory.recompute) {
    add("recompute", settings.scratch.recompute.text());
  }
  if (is_cuda && o.memory.resident.kind == ResidentKind::automatic) {
    const std::size_t paged = facts.plan.paged_state_bytes();
    all.push_back(paged == 0
                      ? "--resident-bytes all"
                      : fmt::format("{} of optimizer state on the host", format_bytes(paged)));
  }
  if (o.memory.grad_offload.kind == OffloadKind::automatic) {
    add("grad-offload", format_bytes(settings.host_grad_bytes));
  }
  if (precision_choice(o) == Precision::fp8 && !o.compute.fp8_weights) {
    add("fp8-weights", storage_name(settings.scratch.fp8_weights));
  }
  return all;
}

bool has_steps_left(const StartFacts& facts) {
  return done_by(facts.point).step < facts.options.steps;
}

std::string chosen_line(const StartFacts& facts) {
  const std::vector<std::string> words = chosen(facts);
  const std::string file = (std::filesystem::path(facts.options.out) / kStartFile).string();
  return line("chosen",
              fmt::format("{}{}",
                          words.empty() ? "nothing was left to the program"
                                        : fmt::format("{}", fmt::join(words, ", ")),
                          has_steps_left(facts) ? fmt::format("; everything: {}", file) : ""));
}

std::string six_lines(const StartFacts& facts) {
  return model_line(facts) + ranks_line(facts) + data_line(facts) + steps_line(facts) +
         line("memory", facts.plan.totals_text()) + chosen_line(facts);
}

// What --reduce-group does where there are several nodes.
std::string exchange_text(const RunConfig& options, int ranks, int node_ranks) {
  if (options.parallel.reduce_group == 1 || ranks <= node_ranks) {
    return {};
  }
  if (reduces_hierarchically(options.parallel.reduce_group, ranks, node_ranks)) {
    return fmt::format("groups of {} ranks add their gradients in their node; sums go to others\n",
                       options.parallel.reduce_group);
  }
  return fmt::format("gradients go to other nodes one by one: --reduce-group {} does not divide {} "
                     "ranks and the {} "
                     "that follow one another on a node\n",
                     options.parallel.reduce_group, ranks, node_ranks);
}

// --zero 1 adds in an order that only one micro-step of each rank makes the same everywhere.
std::string zero_text(const RunConfig& options, int ranks) {
  if (options.parallel.reduce == ReduceMode::native && ranks > 1) {
    return fmt::format("--reduce native: gradients are added in the order of the library, so the "
                       "results depend on the number of ranks ({}); those of --reduce ordered do "
                       "not\n",
                       ranks);
  }
  if (options.parallel.zero != ZeroStage::one) {
    return {};
  }
  return rank_shares(options.batch.global_batch, options.batch.micro_batch, ranks).micro_steps == 1
             ? "--zero 1: each rank has at most one micro-batch a step, so the results are those "
               "of "
               "--zero 2\n"
             : fmt::format("--zero 1: each rank adds its own micro-batches first, so the results "
                           "depend on the number of ranks ({}); those of --zero 2 do not\n",
                           ranks);
}

std::string as_comment(const std::string& text) {
  std::string out;
  std::istringstream lines(text);
  for (std::string each; std::getline(lines, each);) {
    out += fmt::format("# {}\n", each);
  }
  return out;
}

OutputRules start_file_rules() {
  return {.option = "",
          .what = "the start.txt of a run",
          .is_ours = [](const std::filesystem::path& file) {
            return first_bytes(file, kStartFileBegin.size()) == kStartFileBegin;
          }};
}

}  // namespace

std::string start_text(const StartFacts& facts, std::size_t width) {
  const RunConfig& o = facts.options;
  const std::string more = exchange_text(o, facts.ranks, facts.node_ranks) +
                           zero_text(o, facts.ranks) + facts.plan.network_text();
  return wrapped(six_lines(facts), width, kLabel) +
         (o.verbose
              ? printed_text(o) + wrapped(facts.plan.text() + facts.plan.disk_text(), width, kHang)
              : std::string()) +
         wrapped(more, width, 0);
}

std::string changed_lines(const std::string& before, const std::string& after) {
  // A line continues in those that begin with a blank.
  const auto lines_of = [](const std::string& text) {
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
      if (lines.empty() || text[at] != ' ') {
        lines.emplace_back();
      }
      lines.back() += text.substr(at, end - at);
      at = end;
    }
    return lines;
  };
  const std::vector<std::string> known = lines_of(before);
  std::string changed;
  for (const std::string& line : lines_of(after)) {
    if (std::find(known.begin(), known.end(), line) == known.end()) {
      changed += line;
    }
  }
  return changed;
}

void write_start_file(const StartFacts& facts) {
  if (!has_steps_left(facts)) {
    return;
  }
  const std::string text = fmt::format(
      "{}: what the last start was given and chose. `train --config` reads it.\n{}#\n{}#\n{}",
      kStartFileBegin, printed_text(facts.options), as_comment(six_lines(facts)),
      as_comment(facts.plan.text() + facts.plan.disk_text()));
  try {
    write_output(std::filesystem::path(facts.options.out) / kStartFile, start_file_rules(), text);
  } catch (const Error& problem) {
    log_line(LogLevel::warning, problem.message());
  }
}

void require_start_file_place(const std::filesystem::path& out) {
  static_cast<void>(find_output_place(out / kStartFile, start_file_rules()));
}

}  // namespace tessera
