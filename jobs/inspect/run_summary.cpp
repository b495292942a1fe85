#include "jobs/inspect/run_summary.h"

#include <algorithm>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "jobs/program.h"
#include "kernels/base/error.h"
#include "kernels/base/escaped_text.h"
#include "kernels/base/quantity.h"
#include "kernels/base/shell_word.h"
#include "model/json_text.h"
#include "runtime/checkpoint/evaluations.h"

namespace tessera::inspect {
namespace {

namespace fs = std::filesystem;

std::string option_of(const nlohmann::json& options, const char* name) {
  return options.is_object() && options.contains(name) && options.at(name).is_string()
             ? options.at(name).get<std::string>()
             : std::string();
}

// The preset or file that was given; else the family that the model's own description names.
std::string model_name(const nlohmann::json& options, const ManifestInfo& info) {
  const std::string given = option_of(options, "model");
  if (!given.empty() && given != "auto") {
    return given;
  }
  const std::string init = option_of(options, "init");
  if (!init.empty()) {
    return init;
  }
  const nlohmann::json config = parse_json_line(info.config_json);
  const std::string family = option_of(config, "model_type");
  return family.empty() ? "a model" : family;
}

// Bytes of all files below a folder; what cannot be looked at counts nothing.
std::uint64_t bytes_below(const fs::path& folder) {
  std::uint64_t bytes = 0;
  std::error_code error;
  fs::recursive_directory_iterator each(folder, fs::directory_options::skip_permission_denied,
                                        error);
  for (; !error && each != fs::recursive_directory_iterator(); each.increment(error)) {
    std::error_code of_file;
    if (each->is_regular_file(of_file) && !each->is_symlink(of_file)) {
      const std::uint64_t size = each->file_size(of_file);
      bytes += of_file ? 0 : size;
    }
  }
  return bytes;
}

struct LastLoss {
  Index step = 0;
  double loss = 0;
};

std::optional<LastLoss> loss_in(std::string_view line) {
  const nlohmann::json json = parse_json_line(std::string(line));
  if (json.is_object() && json.contains("loss") && json["loss"].is_number() &&
      json.contains("step") && json["step"].is_number_integer()) {
    return LastLoss{json["step"].get<Index>(), json["loss"].get<double>()};
  }
  return std::nullopt;
}

// Of the lines of `text`, from the last one back.
std::optional<LastLoss> last_loss_in(std::string_view text, Index last) {
  while (!text.empty()) {
    const std::size_t end = text.ends_with('\n') ? text.size() - 1 : text.size();
    const std::size_t before = end == 0 ? std::string_view::npos : text.rfind('\n', end - 1);
    const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
    const std::optional<LastLoss> found = loss_in(text.substr(begin, end - begin));
    if (found && found->step <= last) {
      return found;
    }
    text = text.substr(0, begin);
  }
  return std::nullopt;
}

// The last step with a loss in metrics.jsonl, up to `last`: read from its end, piece by piece, as far
// as it takes.
std::optional<LastLoss> last_loss(const fs::path& run, Index last) {
  constexpr std::streamoff kPiece = std::streamoff{1} << 20U;
  std::ifstream file(run / "metrics.jsonl", std::ios::binary);
  file.seekg(0, std::ios::end);
  std::string cut;  // the end of the line that the pieces so far begin within
  for (std::streamoff end = file.tellg(); end > 0;) {
    const std::streamoff begin = std::max<std::streamoff>(0, end - kPiece);
    std::string text(static_cast<std::size_t>(end - begin), '\0');
    file.seekg(begin);
    if (!file.read(text.data(), end - begin)) {
      return std::nullopt;
    }
    text += cut;
    const std::size_t first = begin == 0 ? 0 : std::min(text.find('\n'), text.size() - 1) + 1;
    if (const auto found = last_loss_in(std::string_view(text).substr(first), last)) {
      return found;
    }
    cut = text.substr(0, first);
    end = begin;
  }
  return std::nullopt;
}

Index sequence_length(const nlohmann::json& options) {
  const std::string text = option_of(options, "seq");
  try {
    return text.empty() ? 0 : parse_count(text, {1, kMostTokens}, "seq");
  } catch (const ConfigError&) {
    return 0;
  }
}

}  // namespace

void summarize_run(const fs::path& run, std::span<const StepFolder> steps, const ManifestInfo& info,
                   Output& out) {
  const nlohmann::json options = parse_json_line(info.options_json);
  const std::string model = model_name(options, info);
  const Index tokens = info.windows_taken * sequence_length(options);
  const std::optional<LastLoss> loss = last_loss(run, info.step);
  const std::vector<SavedEvaluation> evaluations = parse_evaluations(info.evaluations_json);
  const std::uint64_t bytes = bytes_below(run);
  Json summary = {{"model", model}, {"step", info.step}, {"bytes", bytes}};
  summary["sequences"] = info.windows_taken;
  summary["tokens"] = tokens > 0 ? Json(tokens) : Json();  // padding included
  summary["loss"] = loss ? Json(loss->loss) : Json();
  for (const SavedEvaluation& each : evaluations) {
    summary["evaluations"][each.name] = each.loss;
  }
  out.document["summary"] = summary;
  if (!out.is_text()) {
    return;
  }
  print_lines(fmt::format("{}: {}{}, after step {}\n", run.string(), model,
                          info.adapter_json.empty() ? std::string() : std::string(" with adapters"),
                          info.step));
  if (tokens > 0) {
    print_lines(fmt::format("  {} {} seen: {} tokens of input at --seq {}, padding included\n",
                            grouped(info.windows_taken),
                            info.windows_taken == 1 ? "sequence" : "sequences", grouped(tokens),
                            sequence_length(options)));
  }
  std::vector<std::string> losses;
  if (loss) {
    losses.push_back(fmt::format("{:.4f} in step {}", loss->loss, loss->step));
  }
  for (const SavedEvaluation& each : evaluations) {
    losses.push_back(fmt::format("{} {:.4f}", each.name, each.loss));
  }
  if (!losses.empty()) {
    print_lines(fmt::format("  last losses: {}\n", fmt::join(losses, ", ")));
  }
  print_lines(fmt::format("  {} on disk, in {}\n\n", format_bytes(bytes),
                          counted(std::ssize(steps), "step")));
}

void show_command(const fs::path& step, const ManifestInfo& info, Output& out) {
  const nlohmann::json start = parse_json_line(info.start_json);
  const std::string command = unescaped_text(option_of(start, "command"));
  if (command.empty()) {
    throw ConfigError(fmt::format("--command: {} does not tell the command that saved it (it was "
                                  "imported, or saved by an earlier version); its options are in "
                                  "inspect --json",
                                  step.string()),
                      TESSERA_HERE);
  }
  out.document["start"] = start;
  if (!out.is_text()) {
    return;
  }
  if (const std::string folder = unescaped_text(option_of(start, "directory")); !folder.empty()) {
    std::cout << fmt::format("cd {}\n", shell_word(folder));
  }
  constexpr std::size_t kHang = 2;
  std::cout << wrapped_command(command, terminal_width(STDOUT_FILENO), kHang) << '\n';
  std::cout << fmt::format("# saved step {}, on {}\n", info.step, counted(info.world_size, "rank"));
  for (const char* field : {"build", "host", "device"}) {
    if (const std::string text = option_of(start, field); !text.empty()) {
      std::cout << fmt::format("# {}: {}\n", field, text);
    }
  }
  if (start.contains("libraries") && start["libraries"].is_array()) {
    for (const nlohmann::json& library : start["libraries"]) {
      if (library.is_string()) {
        std::cout << fmt::format("# {}\n", library.get<std::string>());
      }
    }
  }
}

}  // namespace tessera::inspect
