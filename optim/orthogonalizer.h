// Whole matrices out of contiguous shards, for Muon (muon_rule.h). Every rank has a slice of each
// hidden matrix's direction; one rank, its owner, gets them all, orthogonalises the matrix and sends
// the slices back:
//
//   update          first pass writes    wait      Newton-Schulz      wait      second pass
//                   the directions                 of own matrices              reads them
//   communication              all-to-all                      all-to-all
//
// A matrix is computed whole, in one way, by one rank: its bits do not depend on the number of ranks.
// Who owns what is a function of the layout and the number of ranks alone. What two ranks send each
// other is contiguous, in the same places for both exchanges; padding is in no matrix.
#pragma once

#include <vector>

#include "collectives/communicator.h"
#include "kernels/device/arena.h"
#include "kernels/kernel_table.h"
#include "model/param_layout.h"

namespace tessera {

/// Owners of matrices among `ranks` ranks, of each in its order: the costliest first, each to the
/// rank with the least to do so far, of equal ones the first. The cost is that of a Newton-Schulz
/// step, about rows * columns * min(rows, columns).
[[nodiscard]] std::vector<int> owners_of(const std::vector<HiddenMatrix>& matrices, int ranks);

struct OrthogonalizerOptions {
  DType dtype = DType::f32;  // of directions and of the GEMMs' operands: f32, or on CUDA bf16
  int steps = 5;             // of Newton and Schulz
};

class Orthogonalizer {
 public:
  /// Keeps references to `kernels`, `comm` and `communication`. Buffers for one unit at a time.
  Orthogonalizer(const KernelTable& kernels, const ParamLayout& layout,
                 const OrthogonalizerOptions& options, Communicator& comm, Stream& communication,
                 Arena& arena);

  /// The unit has hidden matrices.
  [[nodiscard]] bool has_matrices(UnitId unit) const { return !plan(unit).matrices.empty(); }
  /// Where this rank's elements [begin, end) of the unit, a run of one matrix, have their direction:
  /// of the first pass, and of the second, behind `orthogonalize`.  [end - begin]
  /// Throws ContractError for elements that are not of one matrix and this rank's slice.
  [[nodiscard]] TensorView direction(UnitId unit, Index begin, Index end);
  [[nodiscard]] TensorView orthogonal(UnitId unit, Index begin, Index end);
  /// Of a pass over all units: operations of the GEMMs of the rank that has most to do, and bytes of
  /// the buffers of one all-to-all for each.
  [[nodiscard]] double slowest_flops() const noexcept { return slowest_flops_; }
  [[nodiscard]] double exchanged_bytes() const noexcept { return exchanged_bytes_; }
  /// Queues the orthogonalisation of the unit's directions behind what `update` has queued; what is
  /// queued there from then on finds the result. Collective.
  void orthogonalize(UnitId unit, Stream& update);

 private:
  // A rank's slice of a matrix, and where it is among what the rank and the owner send each other.
  struct Piece {
    Index begin;  // elements of the matrix
    Index end;
    Index place;
  };
  // How a unit's matrices travel. Units of equal matrices share one.
  struct Plan {
    std::vector<HiddenMatrix> matrices;
    Index unit_count = 0;
    std::vector<int> owners;                 // of each matrix
    std::vector<std::vector<Piece>> pieces;  // of each matrix, by rank
    Index room = 0;                          // elements that two ranks send each other, at most
  };
  [[nodiscard]] static Plan make_plan(const ParamUnit& unit, int ranks);
  [[nodiscard]] const Plan& plan(UnitId unit) const {
    return plans_[plan_of_unit_.at(static_cast<std::size_t>(unit))];
  }
  [[nodiscard]] TensorView run_in(DeviceBuffer& buffer, UnitId unit, Index begin, Index end) const;
  void exchange(const Plan& plan, Stream& update);
  void orthogonalize_own(const Plan& plan, std::size_t matrix, Stream& update);

  const KernelTable& kernels_;
  OrthogonalizerOptions options_;
  Communicator& comm_;
  Stream& communication_;
  std::vector<Plan> plans_;
  std::vector<std::size_t> plan_of_unit_;
  double slowest_flops_ = 0;
  double exchanged_bytes_ = 0;
  DeviceBuffer outgoing_;   // [W * room]: row r for rank r
  DeviceBuffer incoming_;   // [W * room], likewise; without elements on one rank
  DeviceBuffer matrix_;     // [largest matrix]; without elements on one rank
  DeviceBuffer workspace_;  // of newton_schulz
  Event filled_;            // of outgoing_, recorded in the update stream
  Event arrived_;           // of incoming_, recorded in the communication stream
};

}  // namespace tessera
