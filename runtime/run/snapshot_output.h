// What a save makes of a snapshot of the state: a checkpoint, or a Hugging Face folder. Every rank
// writes its own elements into a place that rank 0 has made, and at the end rank 0 makes all of it
// valid at once. CheckpointSaver says when, and makes no call after one that failed but `discard`.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "optim/shard_state.h"
#include "runtime/checkpoint/evaluations.h"
#include "runtime/checkpoint/layout.h"
#include "runtime/run/page_snapshot.h"

namespace tessera {

/// A page of a snapshot, whose numbers are read in f32 in whatever they are stored.
class SnapshotPage {
 public:
  /// Keeps references. `room`: for numbers that have to be decoded.
  SnapshotPage(const ShardState& shard, const StatePage& page, const PageContents& contents,
               std::vector<float>& room);

  [[nodiscard]] UnitId unit() const noexcept { return page_.unit; }
  /// Within this rank's slice of the unit; padding is not counted.
  [[nodiscard]] Index begin() const noexcept { return page_.begin; }
  [[nodiscard]] Index count() const noexcept { return count_; }
  /// [count()] of one array, until the next call.
  [[nodiscard]] std::span<const float> numbers(StateArray array);

 private:
  const ShardState& shard_;
  const StatePage& page_;
  const PageContents& contents_;
  std::vector<float>& room_;
  Index count_;
};

/// What else is reported of an output that stands.
struct CommitNotes {
  std::vector<std::string> problems = {};  // what did not work besides
  std::optional<EvaluatedStep> best = {};  // of --keep-best
};

class SnapshotOutput {
 public:
  SnapshotOutput() = default;
  virtual ~SnapshotOutput() = default;
  SnapshotOutput(const SnapshotOutput&) = delete;
  SnapshotOutput& operator=(const SnapshotOutput&) = delete;

  /// Rank 0, between two steps: makes the place of the step, and returns where it is, for the
  /// others. Throws, and leaves nothing behind then.
  [[nodiscard]] virtual std::string make_place(const ManifestInfo& info) = 0;
  /// Every rank: `place` is what `make_place` returned on rank 0.
  virtual void set_place(const ManifestInfo& info, const std::string& place) = 0;
  /// Every rank's writer thread: the files; each page that has elements; and the end, which returns
  /// what rank 0 must know of this rank's part. Throw what goes wrong.
  virtual void open() = 0;
  virtual void write(SnapshotPage& page) = 0;
  [[nodiscard]] virtual std::string close() = 0;
  /// The writer thread of the ranks that commit, once all ranks have closed, with what each returned.
  /// When all of them have, it stands. Throws what goes wrong.
  [[nodiscard]] virtual CommitNotes commit(std::span<const std::string> closed) = 0;
  /// Whether this rank has a part in `commit`.
  [[nodiscard]] virtual bool commits(int rank) const { return rank == 0; }
  /// Every rank, from the training thread: `open`, `write` and `close` are to fail soon, because the
  /// save has failed on another rank.
  virtual void cancel() noexcept {}
  /// The writer thread of the ranks that commit, once it stands: deletes what it replaces. Throws
  /// what goes wrong.
  virtual void tidy() {}
  /// Every rank, where some rank has failed: closes its files, and on rank 0 removes the place.
  virtual void discard() noexcept = 0;
  /// Where it stands after `commit`.
  [[nodiscard]] virtual std::filesystem::path folder() const = 0;
};

}  // namespace tessera
