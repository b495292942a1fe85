// What a run does to the folders of --out and --export before it writes its own: first it looks, and
// only when the state is there does it change anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "collectives/mpi_session.h"
#include "runtime/checkpoint/run_lock.h"
#include "runtime/checkpoint/run_tokenizer.h"
#include "runtime/run/config.h"
#include "runtime/run/resume.h"

namespace tessera {

/// Makes the folder where there is none, takes its lock, and looks at every place that the run will
/// write to. Nothing else is changed. The lock is rank 0's.
/// Collective. Throws, agreed: as prepare_out_folder and RunLock; ConfigError, WriteError: a place
/// is taken by what must not be replaced.
[[nodiscard]] RunLock open_out_folder(MpiSession& session, const RunConfig& options,
                                      const RunTokenizer& tokenizer);
/// Once the state is there, and not before: rank 0 puts away what an earlier run that saved nothing
/// left, and the steps of a branch that is left, takes away what runs before this one left
/// unfinished, and says in the folder what its tokens are; then all ranks keep their warnings there.
/// Collective. Throws, agreed.
void take_over_folder(MpiSession& session, const RunConfig& options,
                      const std::optional<ResumePoint>& point, const RunTokenizer& tokenizer);

/// Looks at the folder of --export, if there is one, and changes nothing. `run_id`: of the run that is
/// continued, or begun. Collective. Throws, agreed: as ExportFolder::require_ours and
/// require_no_step_name.
void look_at_export(MpiSession& session, const RunConfig& options, const std::string& run_id);
/// Once the state is there: makes the folder of --export, if there is one, where it is missing, and
/// marks it as this run's. Returns the step of the export that it holds, on every rank. Collective.
/// Throws, agreed: as prepare_out_folder and ExportFolder::claim.
[[nodiscard]] std::optional<std::int64_t> take_over_export(MpiSession& session,
                                                           const RunConfig& options,
                                                           const std::string& run_id);

}  // namespace tessera
