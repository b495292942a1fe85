// What a run does to the folders of --out and --export before it writes its own: first it looks, and
// only when nothing can refuse it does it change anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "collectives/mpi_session.h"
#include "kernels/base/made_folders.h"
#include "runtime/checkpoint/run_lock.h"
#include "runtime/checkpoint/run_tokenizer.h"
#include "runtime/run/config.h"
#include "runtime/run/resume.h"

namespace tessera {

/// The places of a run that is not refused so far. Rank 0's, but for the folders of --save-local. The
/// destructor leaves nothing of what was made for it, unless `keep` was called.
struct OutFolder {
  MadeFolders folders;         // that --out made
  MadeFolders local_folders;   // that --save-local made
  MadeFolders export_folders;  // that --export made
  RunLock lock;                // goes before the folder that it is in
  void keep() noexcept;
};

/// Makes the folder where there is none, takes its lock, and looks at every place that the run will
/// write to. Nothing else is changed.
/// Collective. Throws, agreed: as prepare_out_folder and RunLock; ConfigError, WriteError: a place
/// is taken by what must not be replaced.
[[nodiscard]] OutFolder open_out_folder(MpiSession& session, const RunConfig& options,
                                        const RunTokenizer& tokenizer);
/// Once nothing can refuse the run, and not before: rank 0 keeps `out`, puts away what an earlier run that saved nothing
/// left, and the steps of a branch that is left, takes away what runs before this one left
/// unfinished, and says in the folder what its tokens are; then all ranks keep their warnings there.
/// Where no step is left to do, the folder keeps the tokens of the run that made its steps.
/// Collective. Throws, agreed.
void take_over_folder(MpiSession& session, const RunConfig& options,
                      const std::optional<ResumePoint>& point, const RunTokenizer& tokenizer,
                      OutFolder& out);

/// Looks at the folder of --export, if there is one, and makes it where it is missing. `run_id`: of the
/// run that is continued, or begun. Collective. Throws, agreed: as ExportFolder::require_ours,
/// require_no_step_name and prepare_out_folder.
void look_at_export(MpiSession& session, const RunConfig& options, const std::string& run_id,
                    OutFolder& out);
/// Once nothing can refuse the run: marks the folder of --export, if there is one, as this run's. Returns the step of the export that it holds, on every rank. Collective.
/// Throws, agreed: as ExportFolder::claim.
[[nodiscard]] std::optional<std::int64_t> take_over_export(MpiSession& session,
                                                           const RunConfig& options,
                                                           const std::string& run_id);

}  // namespace tessera
