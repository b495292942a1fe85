// Copies of shards on another node: one file after another over TCP, by threads of their own. No
// MPI call, and no step waits here.
//
// A sender connects, names the save and the shard, and sends the file at a limited rate; the
// receiver writes it into the save's `.tmp-` folder of its own disk, and answers when the device has
// all of it. Both ends know a token that the run made, so that nobody else's connection is taken.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/checkpoint/layout.h"
#include "runtime/launch/network_ports.h"

namespace tessera {

/// Most bytes a second that a rank sends to its partner: a fifth of a 10 Gb/s link.
inline constexpr double kPartnerBytesPerSecond = 256e6;
/// Memory of a connection, on either side.
inline constexpr std::size_t kPartnerPieceBytes = std::size_t{1} << 20U;

/// Where a receiver can be reached.
struct PartnerAddress {
  std::string host;
  std::vector<IpAddress> addresses;  // tried in this order
  std::uint16_t port = 0;
  /// One line, to send to other ranks.
  [[nodiscard]] std::string to_text() const;
  /// Throws FormatError.
  [[nodiscard]] static PartnerAddress from_text(std::string_view text);
};
/// Of this host, without loopback and without addresses that hold on one link only; IPv4 first.
[[nodiscard]] std::vector<IpAddress> reachable_addresses();

/// A shard of a save, by the names that format.md gives.
struct PartnerShard {
  SaveIdentity identity;
  Index rank = 0;
  Index world_size = 1;
};

class ShardReceiver {
 public:
  /// Listens on a port that the system chooses, with `senders` threads: as many shards come at once.
  /// Throws CommError.
  ShardReceiver(std::string token, int senders);
  ~ShardReceiver();
  ShardReceiver(const ShardReceiver&) = delete;
  ShardReceiver& operator=(const ShardReceiver&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  /// Where the folders of saves are made from now on. Before that every shard is refused.
  void set_folder(const std::filesystem::path& folder);

 private:
  void serve();
  void serve_one(int connection);
  [[nodiscard]] std::filesystem::path folder();

  std::string token_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::filesystem::path folder_;  // guarded by mutex_
  std::vector<std::thread> threads_;
};

struct SendOptions {
  std::string token;
  double bytes_per_second = kPartnerBytesPerSecond;
  double silence_seconds = 120;  // without any progress: given up
};

/// Whether a receiver with this token answers there. Throws CommError, which says of each address why
/// not.
void require_partner(const PartnerAddress& partner, const SendOptions& options);

/// Sends a shard's file, and returns when the partner's device has it. Throws WriteError: the
/// partner cannot be reached or cannot keep it; `stop` became true.
void send_shard(const std::filesystem::path& file, const PartnerShard& shard,
                const PartnerAddress& partner, const SendOptions& options,
                const std::atomic<bool>& stop);

}  // namespace tessera
