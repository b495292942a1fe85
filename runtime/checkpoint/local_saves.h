// Local saves: checkpoints on the nodes' own disks, where each node has the shards of its ranks and
// of its partner's. What they are called, which step can be put together from what is left of them,
// and what is deleted. No MPI. The format is in format.md.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/layout.h"

namespace tessera {

/// OUT/local-saves.json: whose local saves continue the steps of OUT.
struct LocalRecord {
  std::string run_id;
  std::string folder;  // below the folder of --save-local: "tessera-UUID"
  friend bool operator==(const LocalRecord&, const LocalRecord&) = default;
};
/// Empty where there is none. Throws FormatError, ReadError.
[[nodiscard]] std::optional<LocalRecord> read_local_record(const std::filesystem::path& out);
/// Throws ConfigError: the place is taken by what is not one; WriteError.
void write_local_record(const std::filesystem::path& out, const LocalRecord& record);
/// The record of a run that begins now.
[[nodiscard]] LocalRecord new_local_record(const std::string& run_id);
/// From now on no local save continues the steps of OUT. False: there was no record. Throws
/// WriteError.
bool remove_local_record(const std::filesystem::path& out);

/// A shard of a save that is there, of the length that it must have.
struct LocalShard {
  Index step = 0;
  std::string save_id;
  Index rank = 0;
  Index world_size = 1;
  std::filesystem::path step_folder;
  friend bool operator==(const LocalShard&, const LocalShard&) = default;
};
/// One line each, to send to other ranks.
[[nodiscard]] std::string to_text(std::span<const LocalShard> shards);
/// Throws FormatError.
[[nodiscard]] std::vector<LocalShard> local_shards_of(std::string_view text);

struct LocalListing {
  std::vector<LocalShard> shards;
  std::vector<std::string> problems;  // what could not be read, or is not acceptable
};
/// The shards of a run below DIR/tessera-UUID, of all hosts' folders that are there. Reads CHECKSUMS
/// and manifests. Does not throw for what it finds.
[[nodiscard]] LocalListing list_local_shards(const std::filesystem::path& record_folder,
                                             const std::string& run_id);

/// What a rank of this run sees.
struct SeenShard {
  int rank;  // that sees it
  LocalShard shard;
};
/// A step with all of its shards.
struct Assembly {
  Index step = 0;
  std::string save_id;
  std::vector<std::size_t> shards;  // by the rank that wrote it: number in `seen`
};
/// The newest step beyond `above` of which every shard of one save is seen somewhere. Where several
/// ranks see a shard they take turns.
[[nodiscard]] std::optional<Assembly> newest_assembly(std::span<const SeenShard> seen, Index above);

/// Copies a shard whose every byte is right into another folder, durably. `moved` is called now and
/// then; what it throws ends the copy. Throws FormatError or ReadError: the shard cannot be used;
/// WriteError.
void copy_local_shard(const LocalShard& shard, const std::filesystem::path& folder,
                      const std::function<void()>& moved = {});

/// Deletes, in a host's folder, all steps but `newest`, the one before it, and `also`, and what saves
/// that died have left. Throws WriteError, ReadError.
void keep_two_steps(const std::filesystem::path& host_folder, Index newest, Index also = 0);

/// Throws ConfigError where one of the two folders is the other one or below it, links followed.
void require_apart(const std::filesystem::path& local, const std::filesystem::path& out);

}  // namespace tessera
