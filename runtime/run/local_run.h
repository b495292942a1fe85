// What a run does with the folder of --save-local around its saves there: it looks at the place, puts
// the newest step together in --out from what nodes have left, and says whose local saves are next.
#pragma once

#include <optional>
#include <string>

#include "collectives/mpi_session.h"
#include "kernels/base/made_folders.h"
#include "runtime/run/config.h"
#include "runtime/run/resume.h"

namespace tessera {

/// Looks at the place, and changes nothing but the folder itself, which is made, and is removed again
/// where what this returns is not kept. Without --save-local nothing happens, here and below.
/// Collective. Throws, agreed: ConfigError, WriteError.
[[nodiscard]] MadeFolders look_at_local_folder(MpiSession& session, const RunConfig& options);

/// Makes the newest step that local saves have, if it is newer than what --out has, a step of --out:
/// whoever holds a shard writes it there, and rank 0 commits it. A shard that is damaged is taken from
/// its other holder; where none is left an older step is taken, loudly. Requires: rank 0 has the
/// lock of --out. Collective. Throws, agreed: WriteError, FormatError (the record in --out).
void promote_local_saves(MpiSession& session, const RunConfig& options);

/// Once the state is there, and before `take_over_folder`: the folder, below --save-local, of this
/// run's local saves, the same on every rank; empty without --save-local. It is written down in --out.
/// Collective. Throws, agreed: ConfigError, WriteError.
[[nodiscard]] std::string take_over_local_saves(MpiSession& session, const RunConfig& options,
                                                const std::optional<ResumePoint>& point,
                                                const std::string& run_id);

/// What a run says of its local saves.
[[nodiscard]] std::string local_saves_text(const RunConfig& options, bool has_partner);

}  // namespace tessera
