#include "runtime/run/resume_search.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/log.h"
#include "kernels/base/output_file.h"
#include "model/json_text.h"
#include "runtime/run/option_checks.h"
#include "runtime/run/resume.h"

namespace tessera {
namespace {

constexpr const char* kBranchFile = "branch.json";
constexpr const char* kBeginsAt = "begins_at";
constexpr std::size_t kMostBranchBytes = std::size_t{1} << 16U;

// What --resume named when the branch in this folder was begun; empty: no branch, or nothing that
// can be understood.
std::filesystem::path branch_begins_at(const std::filesystem::path& out) {
  if (!path_exists(out / kBranchFile)) {
    return {};
  }
  const nlohmann::json json = parse_json_line(read_whole_file(out / kBranchFile, kMostBranchBytes));
  return json.is_object() && json.contains(kBeginsAt) && json[kBeginsAt].is_string()
             ? std::filesystem::path(unescaped_text(json[kBeginsAt].get<std::string>()))
             : std::filesystem::path();
}

std::filesystem::path resumed_path(const RunConfig& options) {
  std::filesystem::path path = absolute_path(options.checkpoint.resume_path).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

bool is_same_folder(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code ignored;
  return std::filesystem::equivalent(a, b, ignored);
}

// What --out holds under the names of steps.
std::vector<NamedStep> steps_of(const std::filesystem::path& out, ReadRetry& retry) {
  return retry([&] { return path_exists(out) ? named_steps(out) : std::vector<NamedStep>(); });
}

// The branch that this very command began before, as far as it has come; empty: it begins now.
std::optional<StepSearch> branch_search(const RunConfig& options) {
  const std::filesystem::path out = options.out;
  ReadRetry retry = retry_of(options);
  const std::vector<NamedStep> steps = steps_of(out, retry);
  const std::filesystem::path path = resumed_path(options);
  if (steps.empty() || is_same_folder(path, out)) {
    return std::nullopt;
  }
  const bool is_inside = is_same_folder(path.parent_path(), out);
  const bool has_grown = steps.back().path.filename() != path.filename() || !is_inside;
  if (has_grown && retry([&] { return branch_begins_at(out); }) == path) {
    log_line(LogLevel::info,
             fmt::format("{} has begun at --resume {} before: continuing it; to begin there again, "
                         "give another --out",
                         out.string(), options.checkpoint.resume_path));
    return StepSearch(out, warn_passed_over, "; nothing was changed");
  }
  if (!is_inside) {
    throw ConfigError(
        fmt::format("--resume {}: --out {} holds steps that did not begin there ({}): give another "
                    "--out, or leave --resume out to continue them",
                    options.checkpoint.resume_path, out.string(),
                    steps.back().path.filename().string()),
        TESSERA_HERE);
  }
  return std::nullopt;
}

// Where the branch begins that --out is to be the folder of from now on; empty: there is none, or
// it is written down already.
std::filesystem::path new_branch(const RunConfig& options) {
  if (options.checkpoint.resume != ResumeKind::path) {
    return {};
  }
  const std::filesystem::path path = resumed_path(options);
  return is_same_folder(path, options.out) || branch_begins_at(options.out) == path
             ? std::filesystem::path()
             : path;
}

OutputRules branch_rules() {
  return {.option = "the output folder's",
          .what = "the begin of a branch",
          .is_ours = [](const std::filesystem::path& file) {
            return !branch_begins_at(file.parent_path()).empty();
          }};
}

// A run must not begin anew where steps lie that a hand can bring back.
void refuse_superseded(const std::filesystem::path& out, ReadRetry& retry) {
  for (const StepFolder& found : find_steps(out, CheckDepth::files, retry)) {
    if (found.state == StepState::superseded) {
      throw FormatError(
          fmt::format("{} holds no step but superseded ones ({}): nothing was changed; rename one "
                      "to {} to continue it, or give another --out",
                      out.string(), found.path.filename().string(), step_folder_name(found.step)),
          TESSERA_HERE);
    }
  }
}

}  // namespace

void warn_passed_over(const StepFolder& step) {
  log_line(LogLevel::warning, fmt::format("passing over {}: {} ({})", step.path.string(),
                                          state_name(step.state), step.reason));
}

ReadRetry retry_of(const RunConfig& options) {
  const auto half = std::chrono::milliseconds(
      static_cast<std::int64_t>(std::min(options.launch.timeout_seconds, 1e6) * 1000 / 2));
  return ReadRetry(std::min(kReadRetry, half));
}

std::optional<StepSearch> resume_search(const RunConfig& options) {
  const std::filesystem::path out = options.out;
  if (options.checkpoint.resume == ResumeKind::path) {
    if (std::optional<StepSearch> branch = branch_search(options)) {
      return branch;
    }
    require_readable("--resume", options.checkpoint.resume_path,
                     "auto, none, or the folder of a step or of a run", PathKind::folder);
    if (!is_step_folder(options.checkpoint.resume_path) &&
        named_steps(options.checkpoint.resume_path).empty() &&
        is_huggingface_folder(options.checkpoint.resume_path)) {
      throw ConfigError(fmt::format("--resume {0}: it holds a Hugging Face model, which has no "
                                    "optimizer state to continue: --init {0} starts from its "
                                    "weights",
                                    options.checkpoint.resume_path),
                        TESSERA_HERE);
    }
    return StepSearch(options.checkpoint.resume_path, warn_passed_over, "; nothing was changed");
  }
  ReadRetry retry = retry_of(options);
  const std::vector<NamedStep> steps = steps_of(out, retry);
  if (steps.empty()) {
    if (path_exists(out)) {
      refuse_superseded(out, retry);
    }
    return std::nullopt;
  }
  if (options.checkpoint.resume == ResumeKind::none) {
    throw ConfigError(fmt::format("--resume none: {} holds steps of a run already ({}); give "
                                  "another --out, or --resume auto to continue it",
                                  out.string(), steps.back().path.filename().string()),
                      TESSERA_HERE);
  }
  return StepSearch(out, warn_passed_over,
                    "; nothing was changed: fix what can be fixed and run the same command again, "
                    "or give another --out, with --resume none to start anew or --resume and the "
                    "folder of an older step");
}

bool continues_out(const RunConfig& options) {
  if (options.checkpoint.resume != ResumeKind::path) {
    return options.checkpoint.resume == ResumeKind::automatic;
  }
  return new_branch(options).empty();
}

void begin_branch(const RunConfig& options) {
  if (const std::filesystem::path begin = new_branch(options); !begin.empty()) {
    const nlohmann::json json = {{kBeginsAt, begin.string()}};
    write_output(std::filesystem::path(options.out) / kBranchFile, branch_rules(),
                 json_text(json) + "\n");
    sync_folder(options.out);
  }
}

void require_branch_place(const RunConfig& options) {
  if (!new_branch(options).empty()) {
    static_cast<void>(
        find_output_place(std::filesystem::path(options.out) / kBranchFile, branch_rules()));
  }
}

}  // namespace tessera
