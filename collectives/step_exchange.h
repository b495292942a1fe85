// The one exchange of integers among ranks that a training step makes: everything the ranks must
// agree on travels in one all-reduce of 64-bit integers, whose sums are exact and so the same for
// every number of ranks. It is the one place where a step's host thread waits for its peers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "collectives/communicator.h"
#include "kernels/base/fixed_point.h"

namespace tessera {

/// Why a run should stop before its last step. What comes first wins where ranks see several.
enum class StopReason : std::uint8_t {
  interrupt,
  terminate,
  hangup,
  cpu_limit,
  usr1,
  usr2,
  stop_file,
  time_limit,
  job_end
};
inline constexpr std::size_t kStopReasons = 9;

/// What threads of a rank write beside training: a save, and a local save's way to --out.
enum class Writer : std::uint8_t { save, promotion };
inline constexpr std::size_t kWriters = 2;
/// What such a thread of this rank is doing.
enum class WriterState : std::uint8_t { idle, busy, done, failed };
inline constexpr std::size_t kWriterStates = 4;

/// How a rank spent a step, in seconds.
struct RankTimes {
  double computing = 0;         // until it met the others, without the waits below
  double exposed_update = 0;    // its compute stream stood still for the update and the gather
  double exposed_exchange = 0;  // and for the exchange of gradients
  friend bool operator==(const RankTimes&, const RankTimes&) = default;
};

/// Contribute, `run`, read; `clear` before the next step. One object serves a whole run and
/// allocates nothing. The functions that contribute add this rank's part; after `run` the others
/// give the same answer on every rank.
class StepExchange {
 public:
  static constexpr std::size_t kCounters = 48;
  using Words = std::span<const std::int64_t, kFixedPointWords>;

  explicit StepExchange(Communicator& comm);

  /// Forgets everything: the start of a step.
  void clear() noexcept;

  /// Adds a fixed-point sum of squares of gradient elements that this rank owns.
  void add_grad_squares(Words words) noexcept;
  /// Adds a fixed-point sum of losses, in nats, over targets of this rank.
  void add_loss(Words words) noexcept;
  /// Adds targets that this rank will compute in the next step.
  void add_next_targets(Index count) noexcept;
  void vote_stop(StopReason reason) noexcept;
  /// Requires: of each writer at most once a step.
  void set_writer(Writer writer, WriterState state) noexcept;
  /// Adds to a counter whose meaning is the caller's. Throws ContractError: index >= kCounters.
  void add_counter(std::size_t index, std::int64_t amount);
  /// What this rank's step took, to the nanosecond. Requires: at most once a step.
  void set_times(const RankTimes& times) noexcept;

  /// Sums all of it over the ranks. Collective; blocks the host. Throws CommError.
  void run();

  /// L2 norm of the whole gradient; NaN where some rank's part was not finite.
  [[nodiscard]] double grad_norm() const noexcept;
  /// Sum of the losses; NaN where some rank's part was not finite.
  [[nodiscard]] double loss_sum() const noexcept;
  /// Every number of norm and loss was finite, and below 2^128.
  [[nodiscard]] bool finite() const noexcept;
  /// How many were not.
  [[nodiscard]] std::int64_t non_finite_count() const noexcept;
  [[nodiscard]] Index next_targets() const noexcept;
  /// The first reason, in the order of the enumerators, that any rank gave.
  [[nodiscard]] std::optional<StopReason> stop_reason() const noexcept;
  /// Ranks whose `writer` is in `state`; a rank that reported nothing counts nowhere.
  [[nodiscard]] int writers(Writer writer, WriterState state) const noexcept;
  /// Throws ContractError: index >= kCounters.
  [[nodiscard]] std::int64_t counter(std::size_t index) const;
  [[nodiscard]] int ranks() const noexcept { return comm_->world_size(); }
  /// Zeros of a rank that set none. Throws ContractError: not a rank.
  [[nodiscard]] RankTimes times(int rank) const;

 private:
  // Where each field begins in values_.
  static constexpr std::size_t kGradSquares = 0;
  static constexpr std::size_t kLoss = kGradSquares + kFixedPointWords;
  static constexpr std::size_t kNextTargets = kLoss + kFixedPointWords;
  static constexpr std::size_t kStops = kNextTargets + 1;
  static constexpr std::size_t kFirstWriter = kStops + kStopReasons;
  static constexpr std::size_t kFirstCounter = kFirstWriter + kWriters * kWriterStates;
  static constexpr std::size_t kFirstTimes = kFirstCounter + kCounters;  // of rank 0, 1, ...
  static constexpr std::size_t kTimes = 3;

  static constexpr std::size_t place_of(Writer writer, WriterState state) noexcept {
    return kFirstWriter + static_cast<std::size_t>(writer) * kWriterStates +
           static_cast<std::size_t>(state);
  }
  void add_words(std::size_t field, Words words) noexcept;

  Communicator* comm_;
  std::vector<std::int64_t> values_;
};

}  // namespace tessera
