// What a run does to the folder of --out before it writes its own: first it looks, and only when the
// state is there does it change anything.
#pragma once

#include <optional>

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

}  // namespace tessera
