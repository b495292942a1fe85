#include "runtime/run/local_output.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/log.h"
#include "kernels/base/quantity.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/launch/agree.h"

namespace tessera {
namespace {

/// Saves that are on a disk at once: the newest two, the one under way, and one that becomes a step of
/// --out.
constexpr std::uint64_t kSavesAtOnce = 3;
constexpr std::uint64_t kSavesAtOnceWithPromotion = 4;
/// Of a save beside its arrays: headers, manifest, checksums; generously.
constexpr std::uint64_t kBesidesBytes = std::uint64_t{1} << 20U;

/// Bytes below a folder; 0 where it is not there.
std::uint64_t bytes_below(const std::filesystem::path& folder) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (auto entry = std::filesystem::recursive_directory_iterator(folder, error);
       !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored)) {
      bytes += entry->file_size(ignored);
    }
  }
  return bytes;
}

}  // namespace

int HostRing::partner_of(int rank, const std::vector<int>& from, const std::vector<int>& to) {
  const auto place =
      static_cast<std::size_t>(std::find(from.begin(), from.end(), rank) - from.begin());
  return to[place % to.size()];
}

HostRing host_ring(const std::vector<std::string>& hosts, int rank) {
  std::vector<std::pair<std::string, std::vector<int>>> ring;  // by lowest rank
  for (int each = 0; each < static_cast<int>(hosts.size()); ++each) {
    const std::string& host = hosts[static_cast<std::size_t>(each)];
    auto found = std::find_if(ring.begin(), ring.end(),
                              [&](const auto& known) { return known.first == host; });
    if (found == ring.end()) {
      found = ring.insert(ring.end(), {host, {}});
    }
    found->second.push_back(each);
  }
  const auto mine = static_cast<std::size_t>(
      std::find_if(
          ring.begin(), ring.end(),
          [&](const auto& each) { return each.first == hosts[static_cast<std::size_t>(rank)]; }) -
      ring.begin());
  HostRing made = {ring[mine].second, {}, {}};
  if (ring.size() > 1) {
    made.next = ring[(mine + 1) % ring.size()].second;
    made.previous = ring[(mine + ring.size() - 1) % ring.size()].second;
  }
  return made;
}

LocalOutput::LocalOutput(const LocalOutputOptions& options, Communicator& comm,
                         const ShardState& shard)
    : dir_(options.folder),
      comm_(comm),
      shard_(shard),
      hosts_(comm.gather_text(host_name())),
      ring_(host_ring(hosts_, comm.rank())),
      saves_at_once_(options.promotes ? kSavesAtOnceWithPromotion : kSavesAtOnce) {
  const std::string recorded = agree(comm, [&] {
    const auto record = comm.rank() == 0 ? read_local_record(options.run_folder) : std::nullopt;
    return record ? record->folder : std::string();
  });
  recorded_ = comm.gather_text(recorded).front();
  const std::vector<std::string> bytes =
      comm.gather_text(std::to_string(shard_file_bytes(shard) + kBesidesBytes));
  for (const std::vector<int>* ranks : {&ring_.mine, &ring_.previous}) {
    for (const int rank : *ranks) {
      room_needed_ += saves_at_once_ * std::stoull(bytes[static_cast<std::size_t>(rank)]);
    }
  }
  agree(comm, [&] {
    make_run_folder(dir_);
    if (commits(comm.rank())) {
      require_room();
    }
  });
  if (!ring_.next.empty()) {
    find_partner();
  }
}

void LocalOutput::require_room() const {
  const std::string& host = hosts_[static_cast<std::size_t>(comm_.rank())];
  // What this run's saves have taken already is theirs again.
  const std::uint64_t taken = recorded_.empty() ? 0 : bytes_below(dir_ / recorded_ / host);
  const std::uint64_t room = available_bytes(dir_) + taken;
  if (room < room_needed_) {
    throw ConfigError(
        fmt::format("--save-local {}: {} are free on host {}, and {} are needed for {} saves of "
                    "the shards of this host{}: free some, or leave --save-local out",
                    dir_.string(), format_bytes(room), host, format_bytes(room_needed_),
                    saves_at_once_, ring_.previous.empty() ? "" : " and of those that come to it"),
        TESSERA_HERE);
  }
}

void LocalOutput::find_partner() {
  sending_.token = comm_.gather_text(comm_.rank() == 0 ? new_uuid() : "").front();
  int senders = 0;
  for (const int rank : ring_.previous) {
    senders += HostRing::partner_of(rank, ring_.previous, ring_.mine) == comm_.rank() ? 1 : 0;
  }
  agree(comm_, [&] { receiver_ = std::make_unique<ShardReceiver>(sending_.token, senders); });
  const PartnerAddress mine = {hosts_[static_cast<std::size_t>(comm_.rank())],
                               reachable_addresses(), receiver_->port()};
  const std::vector<std::string> addresses = comm_.gather_text(mine.to_text());
  const int partner = HostRing::partner_of(comm_.rank(), ring_.mine, ring_.next);
  agree(comm_, [&] {
    partner_ = PartnerAddress::from_text(addresses[static_cast<std::size_t>(partner)]);
    try {
      require_partner(partner_, sending_);
    } catch (const CommError& error) {
      throw ConfigError(
          fmt::format("--save-local: copies of shards cannot go from host {} to host {} over TCP "
                      "({}): let nodes reach each other's ports, or leave --save-local out",
                      mine.host, partner_.host, error.message()),
          TESSERA_HERE);
    }
  });
}

void LocalOutput::set_folder(const std::string& folder) {
  const std::string& host = hosts_[static_cast<std::size_t>(comm_.rank())];
  if (!recorded_.empty() && folder != recorded_ && commits(comm_.rank())) {
    discard_save(dir_ / recorded_ / host);  // nothing leads back to them
  }
  host_folder_ = dir_ / folder / host;
  if (commits(comm_.rank()) && path_exists(host_folder_)) {  // saves that died take room
    static_cast<void>(remove_leftovers(host_folder_));
  }
  checkpoint_.emplace(CheckpointOutputOptions{host_folder_, {}, comm_.rank(), comm_.world_size()},
                      shard_);
  if (receiver_) {
    receiver_->set_folder(host_folder_);
  }
}

std::string LocalOutput::make_place(const ManifestInfo& info) {
  const SaveIdentity identity = {new_uuid(), info.step};
  return identity.save_id + save_folder_name(identity);
}

void LocalOutput::set_place(const ManifestInfo& info, const std::string& place) {
  checkpoint_->set_place(info, place);
  save_folder_ = host_folder_ / save_folder_name(checkpoint_->identity());
  step_ = info.step;
  is_placed_ = false;
  stop_ = false;
}

void LocalOutput::open() {
  static_cast<void>(join_save_folder(host_folder_, checkpoint_->identity()));
  checkpoint_->open();
}

void LocalOutput::write(SnapshotPage& page) {
  if (stop_) {
    throw WriteError("the save was given up", TESSERA_HERE);
  }
  checkpoint_->write(page);
}

std::string LocalOutput::close() {
  std::string summary = checkpoint_->close();
  if (receiver_) {
    send_shard(save_folder_ / shard_file_name(comm_.rank(), comm_.world_size()),
               {checkpoint_->identity(), comm_.rank(), comm_.world_size()}, partner_, sending_,
               stop_);
  }
  return summary;
}

CommitNotes LocalOutput::commit(std::span<const std::string> closed) {
  // Of a branch that was left, or of a host that was away.
  if (path_exists(checkpoint_->folder())) {
    remove_step(host_folder_, step_);
  }
  closed_.assign(closed.begin(), closed.end());
  static_cast<void>(place_checkpoint(committed()));
  is_placed_ = true;
  return {};
}

void LocalOutput::tidy() {
  is_placed_ = false;  // no longer of a save that may fail
  keep_two_steps(host_folder_, step_, also_kept_);
}

LocalShard LocalOutput::own_shard() const {
  return {step_, checkpoint_->identity().save_id, comm_.rank(), comm_.world_size(), folder()};
}

void LocalOutput::discard() noexcept {
  checkpoint_->discard();
  if (!commits(comm_.rank())) {
    return;
  }
  discard_save(save_folder_);
  try {
    if (is_placed_) {
      remove_step(host_folder_, step_);
    }
  } catch (const Error& error) {
    log_line(LogLevel::warning, error.message());
  }
}

}  // namespace tessera
