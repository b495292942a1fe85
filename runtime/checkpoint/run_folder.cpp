#include "runtime/checkpoint/run_folder.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/statvfs.h>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hub_name.h"

namespace tessera {
namespace {

constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr std::string_view kTrashPrefix = ".trash-";
constexpr std::string_view kSupersededPrefix = ".superseded-";
constexpr std::string_view kEarlierPrefix = ".earlier-";
constexpr std::size_t kNonceDigits = 8;
constexpr Index kMostRanks = 99999;  // five digits in a shard's name

/// The step in ".tmp-step-00000043.1a2b" after the prefix; 0 where there is none.
Index step_after(std::string_view name, std::string_view prefix) {
  name.remove_prefix(prefix.size());
  return step_of_folder_name(name.substr(0, name.rfind('.'))).value_or(0);
}

/// Whether a save or a deletion gave this name: `.tmp-step-N.NONCE`, `.trash-step-N.NONCE`,
/// `.tmp-LATEST.NONCE` or `.tmp-BEST.NONCE`. Everything else of this kind is the user's.
bool is_leftover(std::string_view name) {
  const bool is_trash = name.starts_with(kTrashPrefix);
  if (!is_trash && !name.starts_with(kTemporaryPrefix)) {
    return false;
  }
  name.remove_prefix(is_trash ? kTrashPrefix.size() : kTemporaryPrefix.size());
  const std::size_t dot = std::min(name.rfind('.'), name.size());
  const std::string_view nonce = name.substr(std::min(dot + 1, name.size()));
  return nonce.size() == kNonceDigits &&
         nonce.find_first_not_of("0123456789abcdef") == std::string_view::npos &&
         (step_of_folder_name(name.substr(0, dot)) ||
          (!is_trash && (name.substr(0, dot) == kLatestName || name.substr(0, dot) == kBestName)));
}

constexpr std::size_t kNamedSteps = 16;  // in a message; of more only the number is given

/// A link to what is not there may lead to a disk that is not mounted now: ReadError, not absence.
bool is_there_or_linked(const std::filesystem::path& path) {
  if (path_exists(path)) {
    return true;
  }
  for (const std::filesystem::path& link : {path.parent_path(), path}) {
    std::error_code ignored;
    if (std::filesystem::is_symlink(std::filesystem::symlink_status(link, ignored)) &&
        !path_exists(link)) {
      throw ReadError(fmt::format("{} is a link to a place that is not there", link.string()),
                      TESSERA_HERE);
    }
  }
  return false;
}

/// Throws FormatError where a missing file is there in another form: manifest.h5.gz.
void refuse_other_form(const std::filesystem::path& folder, std::string_view file,
                       ReadRetry& retry) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    return;
  }
  for (const std::filesystem::path& path : retry([&] { return list_folder(folder); })) {
    const std::string name = path.filename().string();
    if (name.starts_with(fmt::format("{}.", file))) {
      throw FormatError(fmt::format("{} is missing, and {} is there: bring it back into the form "
                                    "that was saved",
                                    file, name),
                        TESSERA_HERE);
    }
  }
}

/// What `check_step` finds, without what it throws.
void look_at(StepFolder& found, CheckDepth depth, ReadRetry& retry) {
  const std::filesystem::path& folder = found.path;
  const auto is_missing = [&](std::string_view file) {
    if (retry([&] { return is_there_or_linked(folder / file); })) {
      return false;
    }
    refuse_other_form(folder, file, retry);
    found.state = StepState::incomplete;
    found.reason = fmt::format("{} is missing", file);
    return true;
  };
  if (is_missing(kChecksumsName) || is_missing(kManifestName)) {
    return;
  }
  CheckpointReader reader(folder, retry);
  found.info = reader.info();
  for (const ShardRecord& shard : reader.shards()) {
    if (is_missing(shard.file)) {
      return;
    }
  }
  const std::string name = folder.filename().string();
  if (const std::optional<Index> step = step_of_folder_name(name);
      step && *step != reader.info().step) {
    throw FormatError(fmt::format("the folder is called {}, the manifest is of step {}", name,
                                  reader.info().step),
                      TESSERA_HERE);
  }
  found.step = reader.info().step;
  reader.check_files();
  if (depth == CheckDepth::headers) {
    reader.check_headers();
  } else if (depth == CheckDepth::blocks) {
    reader.verify();
  }
}

/// Whether nothing will ever be read from it: only such a step may be passed over for an older one.
bool is_proven_lost(StepState state) {
  return state == StepState::damaged || state == StepState::incomplete;
}

std::string describe(const StepFolder& step) {
  return fmt::format("{} is {} ({})", step.path.filename().string(), state_name(step.state),
                     step.reason);
}

/// The first PREFIX NAME.n that is free.
std::string free_name(const std::filesystem::path& run_folder, std::string_view prefix,
                      std::string_view name) {
  Index number = 1;
  std::string target;
  do {
    target = fmt::format("{}{}.{}", prefix, name, number++);
  } while (path_exists(run_folder / target));
  return target;
}

}  // namespace

std::string_view state_name(StepState state) noexcept {
  switch (state) {
    case StepState::complete:
      return "complete";
    case StepState::incomplete:
      return "incomplete";
    case StepState::damaged:
      return "damaged";
    case StepState::unreadable:
      return "unreadable";
    case StepState::invalid:
      return "invalid";
    case StepState::superseded:
      return "superseded";
    case StepState::temporary:
      break;
  }
  return "temporary";
}

StepFolder check_step(const std::filesystem::path& folder, CheckDepth depth, ReadRetry& retry) {
  const std::string name = folder.filename().string();
  StepFolder found{folder, step_of_folder_name(name).value_or(0), StepState::complete, {}, {}};
  const auto end = [&](StepState state, const FormatError& error) {
    found.state = state;
    found.reason = error.message();
  };
  try {
    look_at(found, depth, retry);
  } catch (const ReadError& error) {
    end(StepState::unreadable, error);
  } catch (const DamageError& error) {
    end(StepState::damaged, error);
  } catch (const FormatError& error) {
    end(StepState::invalid, error);
  }
  return found;
}

std::vector<NamedStep> named_steps(const std::filesystem::path& run_folder) {
  std::vector<NamedStep> steps;
  for (const std::filesystem::path& path : list_folder(run_folder)) {
    if (const std::optional<Index> step = step_of_folder_name(path.filename().string())) {
      steps.push_back({*step, path});
    }
  }
  std::sort(steps.begin(), steps.end(),
            [](const NamedStep& a, const NamedStep& b) { return a.step < b.step; });
  return steps;
}

std::vector<StepFolder> find_steps(const std::filesystem::path& run_folder, CheckDepth depth,
                                   ReadRetry& retry) {
  std::vector<StepFolder> steps;
  std::vector<StepFolder> superseded;
  std::vector<StepFolder> temporary;
  for (const std::filesystem::path& path : retry([&] { return list_folder(run_folder); })) {
    const std::string name = path.filename().string();
    if (step_of_folder_name(name)) {
      steps.push_back(check_step(path, depth, retry));
    } else if (const Index step =
                   name.starts_with(kSupersededPrefix) ? step_after(name, kSupersededPrefix) : 0;
               step > 0) {
      superseded.push_back({path, step, StepState::superseded, {}, {}});
    } else if (is_leftover(name)) {
      const bool is_save = name.starts_with(kTemporaryPrefix);
      temporary.push_back({path,
                           step_after(name, is_save ? kTemporaryPrefix : kTrashPrefix),
                           StepState::temporary,
                           is_save ? "a save under way, or one that died"
                                   : "being deleted, or a deletion that died",
                           {}});
    }
  }
  std::sort(steps.begin(), steps.end(),
            [](const StepFolder& a, const StepFolder& b) { return a.step < b.step; });
  steps.insert(steps.end(), superseded.begin(), superseded.end());
  steps.insert(steps.end(), temporary.begin(), temporary.end());
  return steps;
}

StepSearch::StepSearch(std::filesystem::path run_or_step, Report report, std::string advice)
    : folder_(std::move(run_or_step)), report_(std::move(report)), advice_(std::move(advice)) {}

std::optional<StepFolder> StepSearch::next(ReadRetry& retry) {
  if (!candidates_) {
    is_step_ = retry([&] { return is_step_folder(folder_); });
    candidates_ = is_step_ ? std::vector<NamedStep>{{0, folder_}}
                           : retry([&] { return named_steps(folder_); });
  }
  while (!candidates_->empty()) {
    current_ = check_step(candidates_->back().path, CheckDepth::headers, retry);
    if (current_.state == StepState::complete) {
      return current_;
    }
    reject();
  }
  if (passed_over_.empty()) {
    return std::nullopt;
  }
  throw FormatError(none_left(), TESSERA_HERE);
}

void StepSearch::pass_over(const std::string& damage) {
  current_.state = StepState::damaged;
  current_.reason = damage;
  reject();
}

void StepSearch::reject() {
  if (is_step_ || !is_proven_lost(current_.state)) {
    const std::string message = fmt::format("{} is {}: {}{}", current_.path.string(),
                                            state_name(current_.state), current_.reason, advice_);
    if (current_.state == StepState::unreadable) {
      throw ReadError(message, TESSERA_HERE);
    }
    throw FormatError(message, TESSERA_HERE);
  }
  candidates_->pop_back();
  passed_over_.push_back(current_);
  report_(current_);
}

std::string StepSearch::none_left() const {
  std::vector<std::string> reasons;
  reasons.reserve(passed_over_.size());
  for (const StepFolder& step : passed_over_) {
    reasons.push_back(describe(step));
  }
  if (reasons.size() > kNamedSteps) {
    const std::size_t more = reasons.size() - kNamedSteps;
    reasons.resize(kNamedSteps);
    reasons.push_back(fmt::format("and {} more", more));
  }
  return fmt::format("{} holds {} step{}, but none that can be loaded: {}{}", folder_.string(),
                     passed_over_.size(), passed_over_.size() == 1 ? "" : "s",
                     fmt::join(reasons, "; "), advice_);
}

bool is_step_folder(const std::filesystem::path& folder) {
  return path_exists(folder / kChecksumsName) || path_exists(folder / kManifestName) ||
         step_of_folder_name(folder.filename().string()).has_value();
}

void require_folder(const std::filesystem::path& run_or_step) {
  std::error_code error;
  if (std::filesystem::is_directory(run_or_step, error)) {
    return;
  }
  if (error && error != std::errc::no_such_file_or_directory &&
      error != std::errc::not_a_directory) {
    throw ReadError(fmt::format("cannot read {}: {}", run_or_step.string(), error.message()),
                    TESSERA_HERE);
  }
  throw MissingError(
      fmt::format("there is no folder {}{}", run_or_step.string(), hub_hint(run_or_step)),
      TESSERA_HERE);
}

std::vector<SupersededStep> supersede_after(const std::filesystem::path& run_folder, Index step,
                                            ReadRetry& retry) {
  std::vector<NamedStep> later = named_steps(run_folder);
  std::erase_if(later, [&](const NamedStep& candidate) { return candidate.step <= step; });
  std::vector<SupersededStep> renamed;
  for (const NamedStep& each : later) {  // all are looked at before one is touched
    const StepFolder found = check_step(each.path, CheckDepth::headers, retry);
    if (found.state == StepState::unreadable) {
      throw ReadError(
          fmt::format("{} is later than the step that is continued, and cannot be read: {}; it is "
                      "left as it is: make it readable, or give another --out",
                      each.path.string(), found.reason),
          TESSERA_HERE);
    }
    renamed.push_back({each.path.filename().string(), {}, found.state});
  }
  for (SupersededStep& each : renamed) {
    each.new_name = free_name(run_folder, kSupersededPrefix, each.old_name);
    rename_to_new(run_folder / each.old_name, run_folder / each.new_name);
  }
  if (!renamed.empty()) {
    sync_folder(run_folder);
    if (path_exists(run_folder / step_folder_name(step))) {
      write_step_name(run_folder, kLatestName, step);
    }
  }
  return renamed;
}

void remove_step(const std::filesystem::path& run_folder, Index step,
                 const std::function<void()>& renamed) {
  const std::string name = step_folder_name(step);
  const std::filesystem::path trash =
      run_folder / fmt::format("{}{}.{}", kTrashPrefix, name, new_uuid().substr(0, kNonceDigits));
  rename_to_new(run_folder / name, trash);
  sync_folder(run_folder);
  if (renamed) {
    renamed();
  }
  remove_folder(trash);
}

std::string put_away(const std::filesystem::path& run_folder, std::string_view name) {
  const std::string target = free_name(run_folder, kEarlierPrefix, name);
  rename_to_new(run_folder / name, run_folder / target);
  return target;
}

std::vector<std::pair<std::string, std::string>> leave_earlier_records(
    const std::filesystem::path& run_folder) {
  constexpr std::array<std::string_view, 4> kRecords = {"metrics.jsonl", "warnings.jsonl",
                                                        "trace.json", "report.html"};
  if (!named_steps(run_folder).empty()) {
    return {};
  }
  std::vector<std::pair<std::string, std::string>> renamed;
  for (const std::string_view name : kRecords) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(run_folder / name, ignored)) {
      continue;
    }
    renamed.emplace_back(name, put_away(run_folder, name));
  }
  return renamed;
}

void require_no_step_name(std::string_view option, const std::filesystem::path& run_folder) {
  for (const std::filesystem::path& part : absolute_path(run_folder).lexically_normal()) {
    if (step_of_folder_name(part.string())) {
      throw ConfigError(fmt::format("{} {}: {} is the name of a step in the folder of a run; give "
                                    "another folder",
                                    option, run_folder.string(), part.string()),
                        TESSERA_HERE);
    }
  }
}

void make_run_folder(const std::filesystem::path& run_folder) {
  require_room_for_folder(run_folder, run_folder.string());
  const std::filesystem::path folder = run_folder.lexically_normal();
  std::filesystem::path made;
  for (const std::filesystem::path& part : folder) {
    const std::filesystem::path parent = made;
    made /= part;
    std::error_code error;
    if (part.empty() || std::filesystem::exists(made, error)) {
      continue;
    }
    // Another process may make it in between; that is as good.
    std::filesystem::create_directory(made, error);
    if (error) {
      throw WriteError(fmt::format("cannot make folder {}: {}", made.string(), error.message()),
                       TESSERA_HERE);
    }
    sync_folder(parent.empty() ? std::filesystem::path(".") : parent);
  }
}

std::size_t longest_name_in_run_folder() {
  constexpr Index kAnyNumber = std::numeric_limits<Index>::max();
  return kTemporaryPrefix.size() + step_folder_name(kAnyNumber).size() + 1 + kNonceDigits + 1 +
         shard_file_name(0, kMostRanks).size();
}

std::string save_folder_name(const SaveIdentity& identity) {
  return fmt::format("{}{}.{}", kTemporaryPrefix, step_folder_name(identity.step),
                     identity.save_id.substr(0, kNonceDigits));
}

std::filesystem::path make_save_folder(const std::filesystem::path& run_folder,
                                       const SaveIdentity& identity) {
  std::filesystem::path folder = run_folder / save_folder_name(identity);
  make_new_folder(folder);
  return folder;
}

std::filesystem::path join_save_folder(const std::filesystem::path& run_folder,
                                       const SaveIdentity& identity) {
  std::filesystem::path folder = run_folder / save_folder_name(identity);
  make_run_folder(folder);
  return folder;
}

Leftovers remove_leftovers(const std::filesystem::path& run_folder) {
  Leftovers leftovers;
  for (const std::filesystem::path& path : list_folder(run_folder)) {
    const std::string name = path.filename().string();
    if (!is_leftover(name)) {
      continue;
    }
    try {
      remove_folder(path);
      leftovers.removed.push_back(name);
    } catch (const WriteError& error) {
      leftovers.problems.push_back(error.message());
    }
  }
  return leftovers;
}

void write_step_name(const std::filesystem::path& run_folder, std::string_view name, Index step,
                     const std::function<void()>& written) {
  const std::filesystem::path temporary =
      run_folder /
      fmt::format("{}{}.{}", kTemporaryPrefix, name, new_uuid().substr(0, kNonceDigits));
  write_whole_file(temporary, bytes_of(step_folder_name(step) + "\n"));
  if (written) {
    written();
  }
  rename_over(temporary, run_folder / name);
  sync_folder(run_folder);
}

std::uint64_t available_bytes(const std::filesystem::path& folder) {
  struct statvfs status = {};
  if (::statvfs(folder.c_str(), &status) != 0) {
    throw WriteError(fmt::format("cannot ask for the free space of {}: {}", folder.string(),
                                 std::generic_category().message(errno)),
                     TESSERA_HERE);
  }
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

}  // namespace tessera
