#include "runtime/checkpoint/run_folder.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <fmt/format.h>
#include <sys/statvfs.h>

#include "kernels/device/error.h"
#include "runtime/checkpoint/posix_file.h"

namespace tessera {
namespace {

constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr std::string_view kTrashPrefix = ".trash-";
constexpr std::string_view kSupersededPrefix = ".superseded-";
constexpr std::size_t kNonceDigits = 8;

std::vector<std::filesystem::path> list(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> entries;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    entries.push_back(entry->path());
  }
  if (error) {
    throw FormatError(fmt::format("cannot list {}: {}", folder.string(), error.message()),
                      TESSERA_HERE);
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

/// The step in ".tmp-step-00000043.1a2b" after the prefix; 0 where there is none.
Index step_after(std::string_view name, std::string_view prefix) {
  name.remove_prefix(prefix.size());
  return step_of_folder_name(name.substr(0, name.rfind('.'))).value_or(0);
}

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
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
    case StepState::superseded:
      return "superseded";
    case StepState::temporary:
      break;
  }
  return "temporary";
}

StepFolder check_step(const std::filesystem::path& folder, CheckDepth depth) {
  const std::string name = folder.filename().string();
  StepFolder found{folder, step_of_folder_name(name).value_or(0), StepState::complete, {}, {}};
  for (const std::string_view file : {kChecksumsName, kManifestName}) {
    if (!is_there(folder / file)) {
      found.state = StepState::incomplete;
      found.reason = fmt::format("{} is missing", file);
      return found;
    }
  }
  try {
    CheckpointReader reader(folder);
    found.info = reader.info();
    for (const ShardRecord& shard : reader.shards()) {
      if (!is_there(folder / shard.file)) {
        found.state = StepState::incomplete;
        found.reason = fmt::format("{} is missing", shard.file);
        return found;
      }
    }
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
  } catch (const FormatError& error) {
    found.state = StepState::damaged;
    found.reason = error.message();
  }
  return found;
}

std::vector<StepFolder> find_steps(const std::filesystem::path& run_folder, CheckDepth depth) {
  std::vector<StepFolder> steps;
  std::vector<StepFolder> superseded;
  std::vector<StepFolder> temporary;
  for (const std::filesystem::path& path : list(run_folder)) {
    const std::string name = path.filename().string();
    if (step_of_folder_name(name)) {
      steps.push_back(check_step(path, depth));
    } else if (name.starts_with(kSupersededPrefix)) {
      superseded.push_back(
          {path, step_after(name, kSupersededPrefix), StepState::superseded, {}, {}});
    } else if (name.starts_with(kTemporaryPrefix) || name.starts_with(kTrashPrefix)) {
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

std::optional<StepFolder> latest_verified(const std::filesystem::path& run_folder, CheckDepth depth,
                                          const std::function<void(const StepFolder&)>& report,
                                          std::optional<Index> highest) {
  std::vector<std::pair<Index, std::filesystem::path>> candidates;
  for (const std::filesystem::path& path : list(run_folder)) {
    const std::optional<Index> step = step_of_folder_name(path.filename().string());
    if (step && (!highest || *step <= *highest)) {
      candidates.emplace_back(*step, path);
    }
  }
  std::sort(candidates.rbegin(), candidates.rend());
  for (const auto& [step, path] : candidates) {
    StepFolder found = check_step(path, depth);
    if (found.state == StepState::complete) {
      return found;
    }
    report(found);
  }
  return std::nullopt;
}

bool is_step_folder(const std::filesystem::path& folder) {
  return is_there(folder / kChecksumsName) || is_there(folder / kManifestName) ||
         step_of_folder_name(folder.filename().string()).has_value();
}

std::filesystem::path find_step(const std::filesystem::path& run_or_step,
                                const std::function<void(const StepFolder&)>& report) {
  if (!std::filesystem::is_directory(run_or_step)) {
    throw FormatError(fmt::format("there is no folder {}", run_or_step.string()), TESSERA_HERE);
  }
  if (is_step_folder(run_or_step)) {
    return run_or_step;
  }
  const auto found = latest_verified(run_or_step, CheckDepth::headers, report);
  if (!found) {
    throw FormatError(fmt::format("{} holds no complete checkpoint", run_or_step.string()),
                      TESSERA_HERE);
  }
  return found->path;
}

std::vector<std::pair<std::string, std::string>> supersede_after(
    const std::filesystem::path& run_folder, Index step) {
  std::vector<std::pair<std::string, std::string>> renamed;
  for (const std::filesystem::path& path : list(run_folder)) {
    const std::string name = path.filename().string();
    if (step_of_folder_name(name).value_or(0) <= step) {
      continue;
    }
    Index number = 1;
    std::string target;
    do {
      target = fmt::format("{}{}.{}", kSupersededPrefix, name, number++);
    } while (is_there(run_folder / target));
    rename_to_new(path, run_folder / target);
    renamed.emplace_back(name, target);
  }
  if (!renamed.empty()) {
    sync_folder(run_folder);
    if (is_there(run_folder / step_folder_name(step))) {
      write_latest(run_folder, step);
    }
  }
  return renamed;
}

void make_run_folder(const std::filesystem::path& run_folder) {
  const std::filesystem::path folder = std::filesystem::absolute(run_folder).lexically_normal();
  std::filesystem::path made;
  for (const std::filesystem::path& part : folder) {
    const std::filesystem::path parent = made;
    made /= part;
    if (part.empty() || is_there(made)) {
      continue;
    }
    std::error_code error;
    // Another process may make it in between; that is as good.
    std::filesystem::create_directory(made, error);
    if (error) {
      throw WriteError(fmt::format("cannot make folder {}: {}", made.string(), error.message()),
                       TESSERA_HERE);
    }
    sync_folder(parent);
  }
  if (!std::filesystem::is_directory(folder)) {
    throw WriteError(fmt::format("{} is no folder", run_folder.string()), TESSERA_HERE);
  }
}

std::filesystem::path make_save_folder(const std::filesystem::path& run_folder,
                                       const SaveIdentity& identity) {
  std::filesystem::path folder =
      run_folder / fmt::format("{}{}.{}", kTemporaryPrefix, step_folder_name(identity.step),
                               identity.save_id.substr(0, kNonceDigits));
  make_new_folder(folder);
  return folder;
}

std::vector<std::string> remove_leftovers(const std::filesystem::path& run_folder) {
  std::vector<std::string> removed;
  for (const std::filesystem::path& path : list(run_folder)) {
    const std::string name = path.filename().string();
    if (name.starts_with(kTemporaryPrefix) || name.starts_with(kTrashPrefix)) {
      remove_folder(path);
      removed.push_back(name);
    }
  }
  return removed;
}

void write_latest(const std::filesystem::path& run_folder, Index step, const SaveHook& hook) {
  const std::filesystem::path temporary =
      run_folder /
      fmt::format("{}{}.{}", kTemporaryPrefix, kLatestName, new_uuid().substr(0, kNonceDigits));
  write_whole_file(temporary, bytes_of(step_folder_name(step) + "\n"));
  if (hook) {
    hook(SavePhase::latest_written);
  }
  rename_over(temporary, run_folder / kLatestName);
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
