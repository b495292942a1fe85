// This rank's share of the training state: for each unit, its slice of the gradient sum, of the
// master weights and of what else the optimizer keeps. What one rank owns, no other rank stores.
//
// Each unit is padded to a multiple of W * 1024 elements and cut into W equal slices
// (OptimizerShard). The optimizer's arrays (StateLayout) are stored in pages, those of a page side
// by side, so that a page moves in one copy: resident pages in device memory, which never move, the
// others in pinned host memory, which the optimizer streams through its buffers.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "kernels/device/arena.h"
#include "model/param_layout.h"
#include "optim/optimizer_shard.h"
#include "optim/stored_numbers.h"
#include "optim/update_rule.h"

namespace tessera {

struct PagingOptions {
  std::size_t page_bytes = std::size_t{8} << 20U;  // of state, all arrays of the optimizer
  std::size_t resident_page_bytes = 0;             // the same where nothing is paged; 0: page_bytes
  /// Device memory of optimizer state, streaming buffers included; 0 = unlimited, nothing paged.
  std::size_t max_device_bytes = 0;
  /// Device pages in flight, 2 or more. A page's update waits for multiprocessors while products run,
  /// by more than three pages take to move.
  int buffers = 12;
  bool page_all = false;  // nothing is resident, whatever would fit
};

/// Elements of a page of at most `page_bytes` in this layout: a multiple of 1024, at least 1024.
[[nodiscard]] Index page_elements(const StateLayout& layout, std::size_t page_bytes);

/// A run of elements of one unit's slice: a multiple of 1024. Where the optimizer has a layout for
/// hidden matrices, a page has elements of them and padding alone, or begins and ends close to
/// elements of other tensors.
struct StatePage {
  UnitId unit;
  Index begin;       // within the rank's slice of the unit
  Index count;       // elements
  TensorView state;  // [layout.bytes(count)] u8; pinned host, or the device where resident
  bool resident;     // never moves
  std::vector<DecayRun> decay_runs;
  StateLayout layout;                  // of its arrays
  std::vector<MatrixRun> matrix_runs;  // without their directions
};

/// All of the shard's gradient sums.
inline constexpr std::size_t kAllGrads = std::numeric_limits<std::size_t>::max();

struct ShardStateOptions {
  int rank = 0;
  int world_size = 1;
  StateLayout layout = tessera::state_layout(OptimizerKind::adamw);  // the optimizer's
  StateLayout matrix_layout = {};                                    // UpdateRule::matrix_layout
  /// This rank's slice of a unit's parameters, [S] on the device: what holds the upper halves of
  /// packed masters. Empty where the layout does not pack them.
  std::function<TensorView(UnitId)> params = {};
  PagingOptions paging;
  bool decay_all = false;   // weight decay on norm gains and biases too
  bool group_sums = false;  // room for the partial sums of groups of micro-batches
  /// Of the f32 sums of the shard's gradient at least so many bytes are in pinned host memory, in
  /// whole units, where they are added to and read a piece at a time. Bit-identical.
  std::size_t host_grad_bytes = 0;
};

/// The units whose gradient sums are on the host, given the bytes of each unit's: blocks evenly spread
/// over all of them, so that compute of others hides their copies, and only then the units before
/// and behind the blocks, whose copies less hides.
[[nodiscard]] std::vector<bool> units_on_host(std::span<const std::size_t> unit_bytes,
                                              std::size_t host_bytes);

/// Bytes of optimizer state of a rank in these layouts (ShardStateOptions), and of the rank that has
/// the most.
[[nodiscard]] std::size_t shard_state_bytes(const ParamLayout& layout, const StateLayout& arrays,
                                            const StateLayout& matrix_arrays, int rank,
                                            int world_size);
[[nodiscard]] std::size_t largest_state_bytes(const ParamLayout& layout, const StateLayout& arrays,
                                              const StateLayout& matrix_arrays, int world_size);

/// Whether shards of which the largest has `state_bytes` are resident as a whole, so that nothing is
/// paged.
[[nodiscard]] bool is_all_resident(const PagingOptions& paging, std::size_t state_bytes);

class ShardState {
 public:
  /// Throws ConfigError if max_device_bytes does not hold the streaming buffers.
  ShardState(const ParamLayout& layout, const ShardStateOptions& options, Arena& arena);

  [[nodiscard]] const ParamLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] int rank() const noexcept { return options_.rank; }
  [[nodiscard]] int world_size() const noexcept { return options_.world_size; }
  [[nodiscard]] const PagingOptions& paging() const noexcept { return options_.paging; }
  /// All arrays that a page may have.
  [[nodiscard]] const StateLayout& state_layout() const noexcept { return options_.layout; }
  /// The numbers that they hold: what is read, written and saved.
  [[nodiscard]] const StateLayout& numbers() const noexcept { return numbers_; }
  /// A page's parameters on the device, where they are a part of the state (packed masters); else
  /// without elements.
  [[nodiscard]] TensorView params_of(const StatePage& page) const;
  /// Elements of the padded unit that this rank owns.
  [[nodiscard]] OptimizerShard range(UnitId unit) const;
  [[nodiscard]] Index padded(UnitId unit) const { return range(unit).total_params; }
  /// Of them, those that are not padding.
  [[nodiscard]] Index real_count(UnitId unit) const;
  [[nodiscard]] TensorView grad(UnitId unit);  // [S] f32, where grad_on_host(unit) says
  [[nodiscard]] bool grad_on_host(UnitId unit) const {
    return grad_on_host_.at(static_cast<std::size_t>(unit));
  }
  [[nodiscard]] int units_with_host_grads() const;
  [[nodiscard]] TensorView grad_partial(UnitId unit);  // [S] f32; data null without group_sums
  /// The pages of one unit, in element order, and all of them in the order of a sweep.
  [[nodiscard]] std::span<StatePage> pages(UnitId unit);
  [[nodiscard]] std::span<StatePage> pages() noexcept { return pages_; }
  [[nodiscard]] std::span<const StatePage> pages() const noexcept { return pages_; }

  /// A part of `parameter`, a tensor of layout(), is stored by this rank.
  [[nodiscard]] bool stores(const ParamTensor& parameter) const;
  /// The same, and all of that part stays on the device.
  [[nodiscard]] bool is_resident(const ParamTensor& parameter) const;
  [[nodiscard]] Index resident_count() const;        // parameters that are resident
  [[nodiscard]] std::size_t state_bytes() const;     // of all pages
  [[nodiscard]] std::size_t resident_bytes() const;  // of resident pages
  [[nodiscard]] std::size_t snapshot_bytes() const;  // of all pages and what params_of gives

  /// Elements [begin, begin + values.count) of one array of the unit's slice, to or from host
  /// memory; with packed masters `master` reads and writes parameters too. Blocks; from any thread,
  /// where the ranges differ. Elements whose page has no such array read as zeros and take nothing
  /// but zeros: write throws FormatError for other numbers. Requires: no sweep under way; an array of
  /// numbers(), f32 values; of an array with blocks (least_elements) whole ones.
  void read(UnitId unit, StateArray array, Index begin, TensorView values) const;
  void write(UnitId unit, StateArray array, Index begin, ConstTensorView values);

  /// Master weights from `values(unit, begin, span)`, which fills elements [begin, begin +
  /// span.size()) of the unit, zeros at first (and beyond its count); all other arrays become zero.
  /// Packed masters are written with their parameters.
  /// With several threads `values` is called by all of them. The first exception ends the others'
  /// work and is thrown.
  void initialize(const std::function<void(UnitId, Index, std::span<float>)>& values,
                  int threads = 1);

 private:
  void cut_pages(UnitId unit, std::size_t page_bytes);
  void allocate_resident(Arena& arena);
  void allocate_paged(Arena& arena);
  [[nodiscard]] std::span<const StatePage> pages_of(const ParamTensor& parameter) const;
  template <typename Visit>
  void for_each_piece(UnitId unit, Index begin, Index count, Visit visit) const;
  [[nodiscard]] StoredNumbers stored(const StatePage& page, StateArray array, Index begin,
                                     Index count) const;

  const ParamLayout& layout_;
  ShardStateOptions options_;
  StateLayout numbers_;  // of options_.layout
  Device device_;
  std::vector<bool> grad_on_host_;       // per unit
  std::vector<Index> grad_begin_;        // per unit, into device_grads_ or host_grads_
  std::vector<Index> partial_begin_;     // per unit, into partials_
  std::vector<std::size_t> page_begin_;  // per unit, into pages_; one more at the end
  DeviceBuffer device_grads_;
  DeviceBuffer host_grads_;
  DeviceBuffer partials_;
  DeviceBuffer resident_state_;
  std::vector<DeviceBuffer> paged_state_;  // a few gigabytes each
  std::vector<StatePage> pages_;
};

}  // namespace tessera
