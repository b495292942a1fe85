// What a run does to the files of --out before it writes its own.
#pragma once

#include <optional>

#include "collectives/mpi_session.h"
#include "runtime/checkpoint/run_tokenizer.h"
#include "runtime/run/config.h"
#include "runtime/run/resume.h"

namespace tessera {

/// Rank 0 puts away what an earlier run that saved nothing left in the folder: none of it is of this
/// one. Before any rank appends to it.
/// Collective. Throws, agreed.
void put_earlier_records_away(MpiSession& session, const RunConfig& options);
/// Once the state is there, and not before: rank 0 takes away what runs before this one left
/// unfinished, and says in the folder what its tokens are.
/// Collective. Throws, agreed.
void take_over_folder(MpiSession& session, const RunConfig& options,
                      const std::optional<ResumePoint>& point, const RunTokenizer& tokenizer);

}  // namespace tessera
