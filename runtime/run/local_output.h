// A save on the nodes' own disks (--save-local): every rank writes its shard below the folder of its
// host and sends a copy to a rank of the next host; one rank of each host makes the step valid there.
// It stands when all hosts have it, so that any one of them may be lost.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "runtime/checkpoint/local_saves.h"
#include "runtime/run/checkpoint_output.h"
#include "runtime/run/partner_copy.h"

namespace tessera {

/// Which ranks are on one host with this one, and which are on the next: the hosts stand in a ring,
/// in the order of their lowest ranks.
struct HostRing {
  std::vector<int> mine;      // ranks of this host
  std::vector<int> next;      // of the one that gets copies of them; empty: there is one host alone
  std::vector<int> previous;  // of the one whose copies come here
  /// The rank that has a copy of the shard of `rank`, one of `from`, on the host of the ranks `to`.
  [[nodiscard]] static int partner_of(int rank, const std::vector<int>& from,
                                      const std::vector<int>& to);
};
[[nodiscard]] HostRing host_ring(const std::vector<std::string>& hosts, int rank);

struct LocalOutputOptions {
  std::filesystem::path folder;  // of --save-local
  std::filesystem::path run_folder;
  bool promotes = false;  // some saves become steps of run_folder: one more is on the disk then
};

class LocalOutput final : public SnapshotOutput {
 public:
  /// Makes the folder where it is missing, and the connections' ends; asks whether the partner can be
  /// reached, and the disk whether it has room, to which what the record in the run's folder names
  /// counts. Keeps references to `comm`, `shard`.
  /// Collective. Throws, agreed: ConfigError: too little room, or a partner that cannot be reached;
  /// WriteError; CommError.
  LocalOutput(const LocalOutputOptions& options, Communicator& comm, const ShardState& shard);

  /// Saves go below DIR/`folder` from now on (LocalRecord); what lies below the folder that was
  /// recorded before, if it is another one, is deleted. Every rank, before the first save.
  void set_folder(const std::string& folder);
  /// As CheckpointOutput::set_parent. Requires: set_folder was called.
  void set_parent(const std::string& save_id) { checkpoint_->set_parent(save_id); }
  /// Whether a partner has copies: there are several hosts.
  [[nodiscard]] bool has_partner() const noexcept { return receiver_ != nullptr; }

  [[nodiscard]] std::string make_place(const ManifestInfo& info) override;
  void set_place(const ManifestInfo& info, const std::string& place) override;
  void open() override;
  void write(SnapshotPage& page) override;
  [[nodiscard]] std::string close() override;
  [[nodiscard]] CommitNotes commit(std::span<const std::string> closed) override;
  [[nodiscard]] bool commits(int rank) const override { return rank == ring_.mine.front(); }
  void cancel() noexcept override { stop_ = true; }
  void tidy() override;
  void discard() noexcept override;
  [[nodiscard]] std::filesystem::path folder() const override { return checkpoint_->folder(); }

  /// Of the save that stands: this rank's shard; and on rank 0 what was committed.
  [[nodiscard]] LocalShard own_shard() const;
  [[nodiscard]] CommitRequest committed() { return checkpoint_->commit_request(closed_); }
  /// This step is not deleted until another call; 0: none.
  void keep_also(Index step) noexcept { also_kept_ = step; }

 private:
  void find_partner();
  void require_room() const;

  std::filesystem::path dir_;
  Communicator& comm_;
  const ShardState& shard_;
  std::vector<std::string> hosts_;  // of all ranks
  HostRing ring_;
  std::string recorded_;           // folder of the record that OUT had
  std::uint64_t saves_at_once_;    // on a disk
  std::uint64_t room_needed_ = 0;  // on this host, of all of them
  SendOptions sending_;
  PartnerAddress partner_;
  std::unique_ptr<ShardReceiver> receiver_;  // null: one host alone
  std::filesystem::path host_folder_;
  std::optional<CheckpointOutput> checkpoint_;
  std::filesystem::path save_folder_;
  Index step_ = 0;
  bool is_placed_ = false;           // this save, on this host: it has the step's name
  std::vector<std::string> closed_;  // of this save, by rank; on ranks that commit
  std::atomic<Index> also_kept_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace tessera
