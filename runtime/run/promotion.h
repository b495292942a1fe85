// A local save on its way to --out, beside training: each rank's thread copies its shard from the disk
// of its node, and the thread of rank 0 commits the step by the rules of --out (format.md). The ranks
// learn of each other through the step's exchange; none waits in a collective for another's disk.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "collectives/communicator.h"
#include "collectives/step_exchange.h"
#include "runtime/checkpoint/local_saves.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/run/snapshot_output.h"
#include "runtime/run/writer_thread.h"

namespace tessera {

/// What became of it; the same on every rank but for `notes`.
struct PromotionEnd {
  bool stands = false;
  bool given_up = false;
  bool is_local_fault = false;  // the copy on the node's disk cannot be used
  std::string message;          // if it does not stand
  CommitNotes notes = {};       // of rank 0
};

class Promotion {
 public:
  /// Keeps a reference to `comm`.
  explicit Promotion(Communicator& comm) : comm_(comm) {}
  /// Gives up, and waits for this rank's thread.
  ~Promotion();
  Promotion(const Promotion&) = delete;
  Promotion& operator=(const Promotion&) = delete;

  /// `shard`: this rank's, in a local save that stands. `commit` is rank 0's; of other ranks
  /// run_folder and save_folder alone are read. Every rank. Requires: none is under way.
  void begin(LocalShard shard, CommitRequest commit);
  [[nodiscard]] bool under_way() const noexcept { return phase_ != Phase::idle; }
  /// Of the one under way.
  [[nodiscard]] Index step() const noexcept { return shard_.step; }
  [[nodiscard]] const std::string& save_id() const noexcept { return shard_.save_id; }

  /// For the step's exchange: what this rank is doing, and what the ranks' states mean. `advance` is
  /// collective; it returns what has just ended.
  [[nodiscard]] WriterState state() const noexcept;
  [[nodiscard]] std::optional<PromotionEnd> advance(bool all_done, bool any_failed);
  /// It is to end soon, unless it is being committed: something else is more urgent. Every rank.
  void give_up() noexcept { stop_ = true; }

 private:
  enum class Phase : std::uint8_t { idle, copying, committing };

  void copy();
  void commit();
  // Calls it, and keeps what it throws with its mark, before it is thrown on.
  template <typename Work>
  void keep_failure(const Work& work);
  [[nodiscard]] PromotionEnd ended(const Answers& answers);

  Communicator& comm_;
  Phase phase_ = Phase::idle;
  LocalShard shard_;
  CommitRequest commit_;
  std::atomic<bool> stop_{false};
  // Of this rank's thread:
  std::string failure_;  // with its mark; empty: none
  CommitNotes notes_;
  WriterThread thread_;  // last: it uses the others
};

}  // namespace tessera
