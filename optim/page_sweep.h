// An optimizer pass over a ShardState whose state is stored in host memory, a page at a time:
// streams, ring of buffers and events. What happens to a page is the UpdateRule's.
//
//   page        k-1        k          k+1
//   page_in                           H2D
//   update                 rule
//   page_out    D2H
//
// A page is a run of elements of the shard, not a tensor. Pages are visited in the same order at
// every step. Resident pages stay on the device and never move; the rest stream through `buffers`
// device pages. (Least-recently-used eviction would never hit on such a sweep.) A CPU device copies
// pages through the same buffers. Only events order the three streams; the host waits for nothing.
//
// Where hidden matrices are orthogonalised, a unit's pages are visited twice (update_rule.h). Each
// visit moves the arrays that it needs alone, so that all that moves in both is what one would move;
// pages with elements of other tensors, of which there are few, move their master weights twice.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "optim/orthogonalizer.h"
#include "optim/shard_state.h"
#include "optim/update_rule.h"

namespace tessera {

struct PagingReport {
  Index pages = 0;
  Index resident_pages = 0;
  std::size_t device_bytes = 0;  // of state, buffers included
  // Of the last sweep, 0 while it is being queued:
  std::size_t bytes_in = 0;   // host to device: exactly what is not resident
  std::size_t bytes_out = 0;  // device to host
  double seconds = 0;         // from its begin to its last write-back
  /// Each way; 0 without paged state.
  [[nodiscard]] double bytes_per_second() const noexcept {
    return seconds > 0 ? static_cast<double>(bytes_in) / seconds : 0;
  }
};

/// The three streams of a sweep; never the compute stream.
struct SweepStreams {
  Stream& page_in;
  Stream& update;
  Stream& page_out;
};

class PageSweep {
 public:
  /// Keeps references to `rule`, `shard` and the streams, which must outlive it, as `orthogonalizer`,
  /// which is there where the rule has a layout for hidden matrices.
  /// Requires: the shard's pages have the rule's layouts.
  PageSweep(const UpdateRule& rule, ShardState& shard, const SweepStreams& streams, Arena& arena,
            Orthogonalizer* orthogonalizer = nullptr);
  /// Waits for pages that were fetched for a sweep that is not to come: its buffers go.
  ~PageSweep();
  PageSweep(const PageSweep&) = delete;
  PageSweep& operator=(const PageSweep&) = delete;

  /// Lets the first pages of the next sweep come while the backward pass continues. Does nothing
  /// where they are there already (a step may be skipped), or before the last sweep is queued.
  void prefetch();
  /// Begins a sweep over the units in ascending order.
  void begin_sweep();
  /// Updates one unit of the shard and writes the rank's slice of its parameters.
  ///
  ///   params_out  [S]  bf16 or f32, this rank's slice of the unit, on the device
  ///
  /// A page is read only after its last write-back. The result is the same, bit for bit, for every
  /// PagingOptions. Requires: begin_sweep, units in ascending order, each once; the gradients are
  /// complete (the host has waited for them). Collective where the unit has matrices that are
  /// orthogonalised.
  void update(UnitId unit, const UpdateStep& step, TensorView params_out);
  /// Writes the parameters from the master weights as they are: after initialisation and loading.
  /// Requires the same order of units as `update`, in a sweep of its own.
  void write_params(UnitId unit, TensorView params_out);
  /// Whether parameters are a part of the state (packed masters), so that write_params is not needed.
  [[nodiscard]] bool stores_params() const { return shard_.state_layout().packs_masters(); }

  /// `before_change(page)` runs on the host before the update of each page is queued (not for
  /// write_params): the moment at which a snapshot must have taken the page. A resident page may
  /// still be copied by work that is queued in update_stream(); a paged one is still stored in host
  /// memory.
  void set_before_change(std::function<void(const StatePage&)> before_change);

  /// Where the all-gather of a unit's parameters is to be queued.
  [[nodiscard]] Stream& update_stream() noexcept { return streams_.update; }
  /// Waits until every page is back where it lives: before the state is read.
  void synchronize();
  /// Waits for the last write-back of a sweep that is queued as a whole.
  [[nodiscard]] PagingReport report() const;

 private:
  struct Buffer {
    DeviceBuffer state;  // [bytes of the largest page] u8
    Event loaded;
    Event updated;
    Event stored;
  };
  struct GradBuffer {
    DeviceBuffer grad;  // [page elements] f32
    Event loaded;
    Event used;
  };
  /// A page that moves, and which of its bytes do.
  struct Visit {
    const StatePage* page;
    Index begin;
    Index end;
    std::size_t after = 0;  // number of the visit whose write-back it reads, plus one; 0: none
    [[nodiscard]] TensorView part_of(const TensorView& state) const {
      return state.slice(begin, end);
    }
  };
  enum class Pass : std::uint8_t { first, second };
  enum class StoreBack : std::uint8_t { yes, no };
  enum class Sweep : std::uint8_t { none, under_way, queued };

  /// The page has a second visit.
  [[nodiscard]] bool has_second(const StatePage& page) const;
  void add_visits(UnitId unit, Pass pass);
  /// Calls work(page, state) for each page of the unit that the pass visits, with its state, or what
  /// moves of it, on the device.
  template <typename Work>
  void sweep_unit(UnitId unit, Pass pass, StoreBack store, const Work& work);
  [[nodiscard]] PageArgs args_of(const StatePage& page, const TensorView& state,
                                 const TensorView& params_out) const;
  [[nodiscard]] std::span<const MatrixRun> runs_of(const StatePage& page, Pass pass);
  void load_pages_up_to(std::size_t last);
  void end_sweep_after(UnitId unit);
  void load_grads_up_to(std::size_t last);
  [[nodiscard]] TensorView take_grad(const StatePage& page);
  void give_grad_back(const StatePage& page);
  [[nodiscard]] std::string_view name_of(const StatePage& page) const;
  [[nodiscard]] Buffer& buffer_of(std::size_t paged) {
    return buffers_[(ring_begin_ + paged) % buffers_.size()];
  }

  const UpdateRule& rule_;
  ShardState& shard_;
  SweepStreams streams_;
  std::vector<Buffer> buffers_;
  Orthogonalizer* orthogonalizer_;
  std::vector<MatrixRun> runs_;               // of the page that is being queued
  std::vector<Visit> visits_;                 // of pages that move, in the order of a sweep
  std::vector<const StatePage*> host_grads_;  // the pages whose gradients are on the host
  std::vector<GradBuffer> grad_buffers_;
  std::size_t grads_loaded_ = 0;  // of host_grads_, those whose loading in this sweep is queued
  std::size_t grads_used_ = 0;
  Index resident_pages_ = 0;
  std::size_t ring_begin_ = 0;  // ring position of the sweep's first visit
  std::size_t loaded_ = 0;      // visits of this sweep whose loading is queued
  std::size_t done_ = 0;        // visits of this sweep whose update is queued
  std::size_t bytes_in_ = 0;    // of the sweep under way, prefetched pages included
  std::size_t bytes_out_ = 0;
  std::size_t last_bytes_in_ = 0;  // of the last one
  std::size_t last_bytes_out_ = 0;
  bool prefetched_ = false;  // the next sweep's first pages are on their way
  Sweep sweep_ = Sweep::none;
  Event begun_;
  Event ended_;
  std::function<void(const StatePage&)> before_change_;
};

}  // namespace tessera
