// The folder of a run: which steps it holds and what they are worth, how folders get their names,
// and what is cleared away. All of it is for rank 0 alone.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/checkpoint/layout.h"
#include "runtime/checkpoint/reader.h"

namespace tessera {

enum class StepState : std::uint8_t {
  complete,    // committed, and right as far as it has been looked at
  incomplete,  // files are missing
  damaged,     // something does not match its checksum
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
  std::string reason;                // of incomplete and damaged
  std::optional<ManifestInfo> info;  // where the manifest could be read
};

/// What one folder is worth. Does not throw for what it finds there.
[[nodiscard]] StepFolder check_step(const std::filesystem::path& folder, CheckDepth depth);
/// All steps of a run: first the named ones by number, then superseded ones, then temporary ones.
/// Throws FormatError if the folder cannot be listed.
[[nodiscard]] std::vector<StepFolder> find_steps(const std::filesystem::path& run_folder,
                                                 CheckDepth depth);
/// The highest step, at most `highest` if given, that is right when looked at in this depth.
/// `report` is told each folder above it that was passed over. With CheckDepth::headers the data is
/// left to the ranks, each of which checks what it reads; if one finds damage, ask again below that
/// step.
[[nodiscard]] std::optional<StepFolder> latest_verified(
    const std::filesystem::path& run_folder, CheckDepth depth,
    const std::function<void(const StepFolder&)>& report,
    std::optional<Index> highest = std::nullopt);

/// A folder that holds CHECKSUMS or a manifest is a step; any other is a run.
[[nodiscard]] bool is_step_folder(const std::filesystem::path& folder);

/// The step given, or the newest complete one of the run given; `report` is told each folder above
/// it that was passed over. Throws FormatError: no such folder, or no complete step in it.
[[nodiscard]] std::filesystem::path find_step(const std::filesystem::path& run_or_step,
                                              const std::function<void(const StepFolder&)>& report);

/// Renames all steps above `step` to `.superseded-step-NNNNNNNN.n`, and sets LATEST to `step` if
/// that is there. Returns the old and new names. Throws WriteError.
std::vector<std::pair<std::string, std::string>> supersede_after(
    const std::filesystem::path& run_folder, Index step);

/// Makes the folder of a run, durably, where there is none. Throws WriteError.
void make_run_folder(const std::filesystem::path& run_folder);
/// Makes `.tmp-step-NNNNNNNN.<nonce>` for a save, and returns its path. Throws WriteError.
[[nodiscard]] std::filesystem::path make_save_folder(const std::filesystem::path& run_folder,
                                                     const SaveIdentity& identity);
/// Removes what saves and deletions that died have left (`.tmp-`, `.trash-`), and returns the
/// names. Requires: no other process saves into this folder. Throws WriteError.
std::vector<std::string> remove_leftovers(const std::filesystem::path& run_folder);
/// Lets LATEST name a step. Throws WriteError.
void write_latest(const std::filesystem::path& run_folder, Index step, const SaveHook& hook = {});

/// Bytes that this user may still write there. Throws WriteError.
[[nodiscard]] std::uint64_t available_bytes(const std::filesystem::path& folder);

}  // namespace tessera
