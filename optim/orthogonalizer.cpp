#include "optim/orthogonalizer.h"

#include <algorithm>
#include <numeric>

#include "kernels/base/error.h"
#include "kernels/base/round_up.h"
#include "kernels/base/trace.h"
#include "kernels/newton_schulz.h"
#include "optim/optimizer_shard.h"

namespace tessera {
namespace {

// Where pieces begin, in elements: accesses of 16 bytes stay whole, and a matrix that is computed in
// its piece is aligned as one that was copied together.
constexpr Index kPieceAlignment = 128;

}  // namespace

std::vector<int> owners_of(const std::vector<HiddenMatrix>& matrices, int ranks) {
  std::vector<std::size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto cost = [&matrices](std::size_t i) {
    return newton_schulz_flops(matrices[i].rows, matrices[i].columns, 1);
  };
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    return cost(a) != cost(b) ? cost(a) > cost(b) : a < b;
  });
  std::vector<double> load(static_cast<std::size_t>(ranks), 0.0);
  std::vector<int> owners(matrices.size());
  for (const std::size_t i : order) {
    const auto least = std::ranges::min_element(load);
    *least += cost(i);
    owners[i] = static_cast<int>(least - load.begin());
  }
  return owners;
}

Orthogonalizer::Plan Orthogonalizer::make_plan(const ParamUnit& unit, int ranks) {
  Plan plan;
  plan.matrices = hidden_matrices(unit);
  plan.unit_count = unit.count;
  plan.owners = owners_of(plan.matrices, ranks);
  const Index padded = padded_count(unit.count, ranks);
  const auto world = static_cast<std::size_t>(ranks);
  std::vector<Index> taken(world * world, 0);  // of what rank r and owner o send each other
  for (std::size_t i = 0; i < plan.matrices.size(); ++i) {
    const HiddenMatrix& matrix = plan.matrices[i];
    std::vector<Piece>& pieces = plan.pieces.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) {
      const OptimizerShard shard = OptimizerShard::for_rank(rank, ranks, padded);
      const Index begin = std::clamp<Index>(shard.param_start - matrix.offset, 0, matrix.count());
      const Index end = std::clamp<Index>(shard.param_end - matrix.offset, 0, matrix.count());
      Index& place =
          taken[static_cast<std::size_t>(rank) * world + static_cast<std::size_t>(plan.owners[i])];
      pieces.push_back({begin, end, place});
      place += round_up(end - begin, kPieceAlignment);
    }
  }
  plan.room = taken.empty() ? 0 : std::ranges::max(taken);
  return plan;
}

Orthogonalizer::Orthogonalizer(const KernelTable& kernels, const ParamLayout& layout,
                               const OrthogonalizerOptions& options, Communicator& comm,
                               Stream& communication, Arena& arena)
    : kernels_(kernels),
      options_(options),
      comm_(comm),
      communication_(communication),
      filled_(arena.device(), "directions.filled"),
      arrived_(arena.device(), "directions.arrived") {
  const int ranks = comm.world_size();
  Index room = 0;
  Index largest = 0;
  std::size_t workspace = 0;
  for (const ParamUnit& unit : layout.units()) {
    const bool is_as_before = !plans_.empty() && plans_.back().unit_count == unit.count &&
                              plans_.back().matrices == hidden_matrices(unit);
    if (!is_as_before) {
      plans_.push_back(make_plan(unit, ranks));
      room = std::max(room, plans_.back().room);
      for (const HiddenMatrix& matrix : plans_.back().matrices) {
        largest = std::max(largest, matrix.count());
        workspace =
            std::max(workspace, newton_schulz_workspace_bytes(arena.device().kind, options.dtype,
                                                              matrix.rows, matrix.columns));
      }
    }
    plan_of_unit_.push_back(plans_.size() - 1);
    std::vector<double> flops(static_cast<std::size_t>(ranks), 0.0);
    for (std::size_t i = 0; i < plans_.back().matrices.size(); ++i) {
      const HiddenMatrix& matrix = plans_.back().matrices[i];
      flops[static_cast<std::size_t>(plans_.back().owners[i])] +=
          newton_schulz_flops(matrix.rows, matrix.columns, options.steps);
    }
    slowest_flops_ += std::ranges::max(flops);
    exchanged_bytes_ += ranks > 1 ? static_cast<double>(ranks * plans_.back().room) *
                                        static_cast<double>(size_in_bytes(options.dtype))
                                  : 0.0;
  }
  const bool travels = ranks > 1;
  const auto buffer = [&](Index elements, const char* name) {
    return arena.allocate(MemoryKind::device, options.dtype, {elements}, name);
  };
  outgoing_ = buffer(ranks * room, "orthogonalisation/directions");
  incoming_ = buffer(travels ? ranks * room : 0, "orthogonalisation/directions");
  matrix_ = buffer(travels ? largest : 0, "orthogonalisation/matrix");
  workspace_ = arena.allocate(MemoryKind::device, DType::u8, {static_cast<Index>(workspace)},
                              "orthogonalisation/workspace");
}

TensorView Orthogonalizer::run_in(DeviceBuffer& buffer, UnitId unit, Index begin, Index end) const {
  const Plan& of = plan(unit);
  for (std::size_t i = 0; i < of.matrices.size(); ++i) {
    const Piece& piece = of.pieces[i][static_cast<std::size_t>(comm_.rank())];
    const Index first = begin - of.matrices[i].offset;
    const Index last = end - of.matrices[i].offset;
    if (first >= piece.begin && first < last && last <= piece.end) {
      const Index at = of.owners[i] * of.room + piece.place + first - piece.begin;
      return buffer.view().slice(at, at + last - first);
    }
  }
  throw ContractError("a run of one matrix and of this rank's slice", TESSERA_HERE);
}

TensorView Orthogonalizer::direction(UnitId unit, Index begin, Index end) {
  return run_in(outgoing_, unit, begin, end);
}

TensorView Orthogonalizer::orthogonal(UnitId unit, Index begin, Index end) {
  return run_in(comm_.world_size() == 1 ? outgoing_ : incoming_, unit, begin, end);
}

void Orthogonalizer::exchange(const Plan& plan, Stream& update) {
  filled_.record(update);
  communication_.wait(filled_);
  const Index elements = comm_.world_size() * plan.room;
  comm_.all_to_all(outgoing_.view().slice(0, elements), incoming_.view().slice(0, elements),
                   communication_);
  arrived_.record(communication_);
  update.wait(arrived_);
}

// From what the other ranks sent, and back to where they expect it; on one rank in its place.
void Orthogonalizer::orthogonalize_own(const Plan& plan, std::size_t matrix, Stream& update) {
  const HiddenMatrix& own = plan.matrices[matrix];
  const bool travels = comm_.world_size() > 1;
  const auto for_each_piece = [&](DeviceBuffer& buffer, const auto& visit) {
    for (std::size_t rank = 0; travels && rank < plan.pieces[matrix].size(); ++rank) {
      const Piece& piece = plan.pieces[matrix][rank];
      const Index at = static_cast<Index>(rank) * plan.room + piece.place;
      if (piece.begin < piece.end) {
        visit(buffer.view().slice(at, at + piece.end - piece.begin),
              matrix_.view().slice(piece.begin, piece.end));
      }
    }
  };
  for_each_piece(incoming_, [&](const TensorView& piece, const TensorView& part) {
    copy_async(piece, part, update);
  });
  const Index at = plan.pieces[matrix][0].place;
  const TensorView whole =
      travels ? matrix_.view().slice(0, own.count()) : outgoing_.view().slice(at, at + own.count());
  newton_schulz(kernels_,
                {.matrix = whole.reshaped({own.rows, own.columns}),
                 .steps = options_.steps,
                 .workspace = workspace_.view()},
                update);
  for_each_piece(outgoing_, [&](const TensorView& piece, const TensorView& part) {
    copy_async(part, piece, update);
  });
}

void Orthogonalizer::orthogonalize(UnitId unit, Stream& update) {
  const Plan& of = plan(unit);
  const bool travels = comm_.world_size() > 1;
  if (travels) {
    exchange(of, update);
  }
  {
    const TraceRange range({TraceCategory::compute, "orthogonalise", {}}, update);
    for (std::size_t i = 0; i < of.matrices.size(); ++i) {
      if (of.owners[i] == comm_.rank()) {
        orthogonalize_own(of, i, update);
      }
    }
  }
  if (travels) {
    exchange(of, update);
  }
}

}  // namespace tessera
