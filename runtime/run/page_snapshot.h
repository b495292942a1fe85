// The optimizer state of one step, held still for a writer thread while training continues.
//
// Nothing is copied at first: pages keep their contents until the next sweep changes them. The
// writer takes page after page; where a sweep reaches a page that has not been taken, it copies it
// into the staging memory first, or waits while that is full. Where it reaches the very page that
// the writer is taking, it waits for that and copies those behind it in the meantime. With staging
// for the whole shard, a save stalls training by one copy of it and one page's writing at most.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "optim/page_sweep.h"

namespace tessera {

/// What a snapshot holds of a page, in host memory.
struct PageContents {
  TensorView state;   // [layout.bytes(count)] u8
  TensorView params;  // [count], where they are a part of the state (ShardState::params_of)
};

struct SnapshotReport {
  Index staged_pages = 0;      // that a sweep reached before the writer
  double stall_seconds = 0;    // of the training thread: copying and waiting
  double waiting_seconds = 0;  // of it, waiting for room in the staging memory
};

class PageSnapshot {
 public:
  /// Staging memory of `staging_bytes`, rounded down to whole pages but at least one, from `arena`.
  /// Keeps references to `shard` and `optimizer`, whose before-change hook it takes.
  PageSnapshot(ShardState& shard, PageSweep& optimizer, std::size_t staging_bytes, Arena& arena);
  ~PageSnapshot();
  PageSnapshot(const PageSnapshot&) = delete;
  PageSnapshot& operator=(const PageSnapshot&) = delete;

  /// The state is complete and still (Trainer::synchronize): from now on it belongs to the writer.
  /// Requires: the last snapshot is finished.
  void begin();
  /// For the writer thread: hands every page, in the order of a sweep, to `take(page, contents)`,
  /// with the contents that it had at `begin`. If `take` throws, the other pages are given up and
  /// the exception is passed on.
  void take_all(const std::function<void(const StatePage&, const PageContents&)>& take);
  /// Gives up what has not been taken: training may change it.
  void abandon();
  [[nodiscard]] SnapshotReport report() const;

 private:
  enum class PageState : std::uint8_t { untaken, being_staged, staged, being_taken, taken };

  void before_change(const StatePage& page);
  void stage(std::size_t index, std::unique_lock<std::mutex>& lock);
  [[nodiscard]] std::optional<PageContents> hold(std::size_t index);
  [[nodiscard]] PageContents contents(const StatePage& page) const;
  [[nodiscard]] PageContents place_in(const TensorView& room, const StatePage& page) const;
  void let_go(std::size_t index);

  ShardState& shard_;
  PageSweep& optimizer_;
  Device device_;
  Index page_bytes_;      // of the largest page, parameters included
  DeviceBuffer staging_;  // pinned: slots of one page
  DeviceBuffer bounce_;   // pinned: one page, for the writer's copies out of the device
  std::vector<Event> slot_copied_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool active_ = false;
  std::vector<PageState> states_;
  std::vector<int> slot_of_page_;
  std::vector<int> free_slots_;
  SnapshotReport report_;
};

}  // namespace tessera
