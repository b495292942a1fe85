#include "jobs/inspect/steps.h"

#include <fstream>
#include <iostream>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "jobs/inspect/run_summary.h"
#include "jobs/program.h"
#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "runtime/checkpoint/evaluations.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/run_folder.h"

namespace tessera::inspect {
namespace {

/// Of a folder that has the name of a step, and cannot be used as one.
bool is_broken(StepState state) {
  return state == StepState::damaged || state == StepState::incomplete ||
         state == StepState::unreadable || state == StepState::invalid;
}

/// What a folder without a single step is, and what to do with it.
std::string why_without_steps(const std::filesystem::path& run) {
  const std::string folder = run.string();
  std::error_code ignored;
  if (std::filesystem::exists(run / "config.json", ignored)) {
    return fmt::format("{} is a Hugging Face folder, not a run: convert import {} OUT makes a "
                       "checkpoint that inspect reads, train --init {} starts from its weights",
                       folder, folder, folder);
  }
  if (std::filesystem::exists(run / "metrics.jsonl", ignored)) {
    return fmt::format("{} is a run that has saved no step yet (train --save-every N saves on the "
                       "way)",
                       folder);
  }
  return fmt::format("{} holds no steps: give the --out folder of a run, or one of its step-* "
                     "folders",
                     folder);
}

/// "chat 1.2345, code 2.0000": what evaluations found of a step.
std::string losses_text(const std::vector<SavedEvaluation>& evaluations) {
  std::vector<std::string> parts;
  parts.reserve(evaluations.size());
  for (const SavedEvaluation& each : evaluations) {
    parts.push_back(fmt::format("{} {:.4f}", each.name, each.loss));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// The folder that BEST names; empty: none.
std::string best_name(const std::filesystem::path& run) {
  std::ifstream file(run / kBestName);
  std::string name;
  std::getline(file, name);
  return step_of_folder_name(name) ? name : std::string();
}

void list_steps(const Options& options, const std::vector<StepFolder>& steps,
                const std::optional<StepFolder>& newest, Output& out) {
  TextTable table({"folder", "state", "evaluation loss", ""});
  const std::string best = best_name(options.target);
  out.document["run"] = options.target.string();
  out.document["steps"] = Json::array();
  for (const StepFolder& folder : steps) {
    const std::string name = folder.path.filename().string();
    const std::string_view state = state_name(folder.state);
    const bool is_shown = newest && folder.path == newest->path;
    std::string note = is_shown ? "newest, shown below" : folder.reason;
    if (name == best) {
      note = note.empty() ? "best" : fmt::format("best; {}", note);
    }
    const std::vector<SavedEvaluation> evaluations =
        parse_evaluations(folder.info ? folder.info->evaluations_json : "");
    table.add({name, std::string(state), losses_text(evaluations), note});
    Json losses = Json::object();
    for (const SavedEvaluation& each : evaluations) {
      losses[each.name] = each.loss;
    }
    out.document["steps"].push_back({{"folder", name},
                                     {"step", folder.step},
                                     {"state", state},
                                     {"reason", folder.reason},
                                     {"evaluations", losses},
                                     {"best", name == best}});
    const bool is_bad = is_broken(folder.state);
    if (is_bad && options.verify) {
      out.status = kDamaged;
    }
    if (is_bad && options.has_action()) {
      say_note(fmt::format("inspect: {} is {}: {}", name, state, folder.reason));
    }
  }
  if (!options.has_action()) {
    if (newest && newest->info) {
      summarize_run(options.target, steps, *newest->info, out);
    } else if (out.is_text()) {
      std::cout << options.target.string() << '\n';
    }
  }
  if (out.is_text() && !options.has_action()) {
    table.print();
    print_lines("complete: names, lengths and headers are right; --verify reads the data too\n\n");
  }
}

/// Reads every step of a run whole, but for the newest, which is read as one that is named. What is
/// found becomes its state.
void verify_all_but(const std::optional<StepFolder>& newest, std::vector<StepFolder>& steps,
                    ReadRetry& retry, const Output& out) {
  for (StepFolder& folder : steps) {
    if (folder.state != StepState::complete || folder.path == newest->path) {
      continue;
    }
    const std::string name = folder.path.filename().string();
    try {
      CheckpointReader reader(folder.path, retry);
      const std::vector<std::string> damages = with_progress(
          name, [&](const ByteProgress& progress) { return reader.find_damage(progress); });
      if (!damages.empty()) {
        folder.state = StepState::damaged;
        folder.reason = fmt::format("{}", fmt::join(damages, "; "));
      } else if (out.is_text()) {
        print_lines(fmt::format("{}: every checksum is right ({} bytes of data)\n", name,
                                reader.data_bytes()));
      }
    } catch (const ReadError& error) {
      folder.state = StepState::unreadable;
      folder.reason = error.message();
    }
  }
}

}  // namespace

std::filesystem::path choose_step(const Options& options, ReadRetry& retry, Output& out) {
  if (!is_folder(options.target)) {
    throw ConfigError(
        fmt::format("{}: {}; give a token file, or the folder of a run, a step or adapters",
                    options.target.string(),
                    path_exists(options.target) ? "it is not a token file"
                                                : "there is no such file or folder"),
        TESSERA_HERE);
  }
  if (retry([&] { return is_step_folder(options.target); })) {
    return options.target;
  }
  std::vector<StepFolder> steps = find_steps(options.target, CheckDepth::headers, retry);
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
    throw FormatError(why_without_steps(options.target), TESSERA_HERE);
  }
  if (options.verify && newest) {
    verify_all_but(newest, steps, retry, out);
  }
  list_steps(options, steps, newest, out);
  if (!newest || unknown != nullptr) {
    if (!out.is_text()) {
      out.print_document();
    }
    throw FormatError(
        unknown == nullptr
            ? fmt::format("{} holds no complete step", options.target.string())
            : fmt::format("{} is {}: {}; name the folder of another step to look "
                          "at that",
                          unknown->path.string(), state_name(unknown->state), unknown->reason),
        TESSERA_HERE);
  }
  return newest->path;
}

std::filesystem::path other_step(const std::filesystem::path& other, ReadRetry& retry) {
  if (!is_folder(other)) {
    throw ConfigError(fmt::format("--diff {} is not a folder", other.string()), TESSERA_HERE);
  }
  StepSearch search(other, [](const StepFolder& folder) {
    say_note(fmt::format("inspect: {} is {}: {}", folder.path.string(), state_name(folder.state),
                         folder.reason));
  });
  const std::optional<StepFolder> found = search.next(retry);
  if (!found) {
    throw FormatError(fmt::format("{} holds no complete step", other.string()), TESSERA_HERE);
  }
  return found->path;
}

void tell_state(const std::filesystem::path& folder, ReadRetry& retry, Output& out) {
  const StepFolder found = check_step(folder, CheckDepth::headers, retry);
  out.document["state"] = state_name(found.state);
  out.document["reason"] = found.reason;
  if (found.state == StepState::complete) {
    return;
  }
  out.status = kDamaged;
  if (!found.info && found.state == StepState::incomplete) {
    throw FormatError(
        fmt::format("{} is {}: {}", folder.string(), state_name(found.state), found.reason),
        TESSERA_HERE);
  }
  if (found.info) {  // else opening it says the same
    say_note(fmt::format("inspect: {} is {}: {}", folder.string(), state_name(found.state),
                         found.reason));
  }
}

}  // namespace tessera::inspect
