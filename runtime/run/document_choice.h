// What --documents auto comes to, the same on every rank.
#pragma once

#include <optional>
#include <string>

#include "collectives/mpi_session.h"
#include "runtime/data/document_packing.h"
#include "runtime/run/config.h"
#include "runtime/run/option_changes.h"

namespace tessera {

/// The options of the newest step of the run that would be continued, as far as it can be read; none without such a step, or options in it, or where
/// its folder cannot be reached.
[[nodiscard]] std::optional<StoredOptions> options_of_step(const RunConfig& options);

/// How it was trained.
[[nodiscard]] std::optional<DocumentMode> documents_of_step(const RunConfig& options);

/// The same with `data.documents` known, in its stored texts too. --documents auto is what the step
/// that would be continued was trained with (those that do not tell: joined), else `separate` where
/// a file of --data has chats or a mask, and every one borders between documents; on cuda
/// `joined`. Collective. Throws ConfigError, FormatError, agreed.
[[nodiscard]] RunConfig agreed_documents(MpiSession& session, const RunConfig& options);

/// "documents are separate: 1,204 in 97 sequences, 98.7% full (1,290 places of padding); 3 are
/// longer than a sequence and were cut": of separate documents.
[[nodiscard]] std::string packing_text(const PackingCounts& counts, Index sequence_length);

}  // namespace tessera
