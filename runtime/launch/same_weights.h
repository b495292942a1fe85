// Whether all ranks of a run have read the weights of --init from files of the same content. A file
// of Hugging Face's has no checksum, so ranks that see other files (copies on the hosts' own disks,
// two working folders) read slices of each other. Ranks that see one file read nothing twice.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/huggingface.h"
#include "optim/shard_state.h"

namespace tessera {

class MpiSession;

/// For each rank, which one reads its slice once more; -1: none, all see the same files. It is one
/// of the next group (that which follows in the order of first ranks, cyclic), whose members share
/// the work.
///   sources  of each rank, equal where ranks see the same files
[[nodiscard]] std::vector<int> checking_ranks(std::span<const std::string> sources);

/// Changes where a file of the folder is written or replaced: numbers, sizes and times of the files. Throws
/// FormatError where one is gone.
[[nodiscard]] std::string files_identity(const HuggingFaceFolder& folder);

/// Collective. Compares the master weights that every rank has in its shard with what another rank
/// that sees other files reads for them. Throws ConfigError, agreed on all ranks, that names the
/// folder and the ranks that differ; FormatError where a file can no longer be read.
void require_same_weights(MpiSession& session, const HuggingFaceFolder& folder,
                          const std::string& name, const ShardState& shard);

/// The same for a frozen base of this content hash, of which each rank read its slices: where ranks see
/// other files, one of each group reads all of its own. Collective. Throws as require_same_weights.
void require_same_base(MpiSession& session, const HuggingFaceFolder& folder,
                       const std::string& name, std::uint64_t content);

}  // namespace tessera
