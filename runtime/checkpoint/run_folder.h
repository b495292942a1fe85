// The folder of a run: which steps it holds and what they are worth, how folders get their names,
// and what is cleared away. All of it is for rank 0 alone.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/read_error.h"
#include "kernels/base/read_retry.h"
#include "runtime/checkpoint/layout.h"
#include "runtime/checkpoint/reader.h"

namespace tessera {

enum class StepState : std::uint8_t {
  complete,    // committed, and right as far as it has been looked at
  incomplete,  // files are missing: it was not saved whole, or something was taken away
  damaged,     // proven: something does not match its checksum or its length
  unreadable,  // the system does not let it be read now (EIO, EACCES, ...): nothing is known of it
  invalid,     // read, and not acceptable: another version, values out of range
  superseded,  // of a branch that was left: `.superseded-`
  temporary,   // a save under way or one that died, or a deletion: `.tmp-`, `.trash-`
};
[[nodiscard]] std::string_view state_name(StepState state) noexcept;

/// How closely to look: names and sizes of all files; also everything but the arrays; every byte.
enum class CheckDepth : std::uint8_t { files, headers, blocks };

struct StepFolder {
  std::filesystem::path path;
  Index step = 0;
  StepState state = StepState::complete;
  std::string reason;                // of what is not complete
  std::optional<ManifestInfo> info;  // where the manifest could be read
};

/// What one folder is worth. The one place that says so: choosing, listing, verifying and deleting
/// steps ask here. Does not throw for what it finds.
[[nodiscard]] StepFolder check_step(const std::filesystem::path& folder, CheckDepth depth,
                                    ReadRetry& retry);
/// All steps of a run: first the named ones by number, then superseded ones, then temporary ones.
/// Throws FormatError if the folder cannot be listed.
[[nodiscard]] std::vector<StepFolder> find_steps(const std::filesystem::path& run_folder,
                                                 CheckDepth depth, ReadRetry& retry);

struct NamedStep {
  Index step;
  std::filesystem::path path;
};
/// Everything under the name of a step, by number, without a look into it. Throws FormatError if
/// the folder cannot be listed.
[[nodiscard]] std::vector<NamedStep> named_steps(const std::filesystem::path& run_folder);

/// Finds the step to read from the folder of a run, newest first, or takes the step that is given.
/// An older one is given only where each newer one is proven lost: damaged or incomplete.
class StepSearch {
 public:
  using Report = std::function<void(const StepFolder&)>;
  /// `report` is called with each step that is passed over. `advice` ends the message where no step
  /// can be given.
  StepSearch(std::filesystem::path run_or_step, Report report, std::string advice = {});

  /// The next step whose headers are right; empty: the folder holds no step at all. Its data is
  /// left to whoever reads it: where that is damaged, call `pass_over`, and this again. Throws
  /// FormatError: no step that can be loaded is left, all named with their reasons; or the step,
  /// which is then never passed over, is invalid. ReadError: it cannot be read.
  [[nodiscard]] std::optional<StepFolder> next(ReadRetry& retry);
  /// The data of the step given last is proven damaged. Throws FormatError if that step was asked
  /// for by its own folder.
  void pass_over(const std::string& damage);

 private:
  void reject();
  [[nodiscard]] std::string none_left() const;

  std::filesystem::path folder_;
  Report report_;
  std::string advice_;
  bool is_step_ = false;
  std::optional<std::vector<NamedStep>> candidates_;  // not yet passed over, the newest last
  StepFolder current_;
  std::vector<StepFolder> passed_over_;
};

/// A folder that holds CHECKSUMS or a manifest is a step; any other is a run. Throws ReadError.
[[nodiscard]] bool is_step_folder(const std::filesystem::path& folder);

/// Throws FormatError if there is no such folder.
void require_folder(const std::filesystem::path& run_or_step);

/// Calls `use(reader)` with a CheckpointReader of the step given, or of the newest one of the run
/// given, and returns its result. Where `use` throws DamageError it is called again with the step
/// before. `report` is called with each step that is passed over. Throws what StepSearch throws;
/// FormatError: no such folder, or no step in it.
template <typename Use>
auto with_newest_step(const std::filesystem::path& run_or_step, const StepSearch::Report& report,
                      const Use& use) {
  require_folder(run_or_step);
  StepSearch search(run_or_step, report);
  ReadRetry retry;
  for (;;) {
    const std::optional<StepFolder> step = search.next(retry);
    if (!step) {
      throw FormatError(run_or_step.string() + " holds no complete checkpoint", TESSERA_HERE);
    }
    try {
      CheckpointReader reader(step->path, retry);
      return use(reader);
    } catch (const DamageError& error) {
      search.pass_over(error.message());
    }
  }
}

struct SupersededStep {
  std::string old_name;
  std::string new_name;
  StepState state;
};
/// Renames all steps above `step` to `.superseded-step-NNNNNNNN.n`, and sets LATEST to `step` if
/// that is there. Throws WriteError; ReadError, before anything is
/// renamed, where one of them cannot be read.
std::vector<SupersededStep> supersede_after(const std::filesystem::path& run_folder, Index step,
                                            ReadRetry& retry);

/// Deletes a step under another name: a folder that is half deleted must not carry a step's.
/// `renamed` is called in between. Throws WriteError.
void remove_step(const std::filesystem::path& run_folder, Index step,
                 const std::function<void()>& renamed = {});

/// Renames a file of the run's folder to `.earlier-NAME.n`, and returns that name. Throws
/// WriteError.
std::string put_away(const std::filesystem::path& run_folder, std::string_view name);

/// Where the folder holds no step, so that a run in it begins anew: renames what an earlier run
/// left there (metrics, warnings, a trace, a page) to `.earlier-NAME.n`, and returns the old and
/// new names. Throws WriteError.
std::vector<std::pair<std::string, std::string>> leave_earlier_records(
    const std::filesystem::path& run_folder);

/// Throws ConfigError where a folder on this path has the name of a step: a run in it would be
/// taken for one, and be deleted with it. `option` is what gave it: "--out".
void require_no_step_name(std::string_view option, const std::filesystem::path& run_folder);
/// Makes the folder of a run, durably, where there is none. Throws ConfigError where it cannot be a
/// folder (require_room_for_folder), WriteError where it cannot be made.
void make_run_folder(const std::filesystem::path& run_folder);
/// Bytes of the longest path, from the run's folder on, of a file that a save makes.
[[nodiscard]] std::size_t longest_name_in_run_folder();
/// `.tmp-step-NNNNNNNN.<nonce>`
[[nodiscard]] std::string save_folder_name(const SaveIdentity& identity);
/// Makes `.tmp-step-NNNNNNNN.<nonce>` for a save, and returns its path. Throws WriteError.
[[nodiscard]] std::filesystem::path make_save_folder(const std::filesystem::path& run_folder,
                                                     const SaveIdentity& identity);
/// The same of a save to which several processes of a node write: the first one makes it. Its parent
/// too, where that is missing. Throws WriteError.
[[nodiscard]] std::filesystem::path join_save_folder(const std::filesystem::path& run_folder,
                                                     const SaveIdentity& identity);
struct Leftovers {
  std::vector<std::string> removed;   // names
  std::vector<std::string> problems;  // why one could not be removed: it does no harm
};
/// Removes what saves and deletions that died have left, by the exact names that they give: another
/// `.tmp-` is a user's. Requires: no other process saves into this folder. Throws ReadError,
/// FormatError: the folder cannot be listed.
Leftovers remove_leftovers(const std::filesystem::path& run_folder);
/// Lets `name`, LATEST or BEST, name a step. `written` is called before the old one is replaced.
/// Throws WriteError.
void write_step_name(const std::filesystem::path& run_folder, std::string_view name, Index step,
                     const std::function<void()>& written = {});

/// Bytes that this user may still write there. Throws WriteError.
[[nodiscard]] std::uint64_t available_bytes(const std::filesystem::path& folder);

}  // namespace tessera
