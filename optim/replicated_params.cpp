#include "optim/replicated_params.h"

#include <utility>

#include "kernels/base/trace.h"

namespace tessera {

ReplicatedParams::ReplicatedParams(const ParamLayout& layout, DType param_dtype, Communicator& comm,
                                   Stream& communication, Arena& arena, const std::string& what)
    : ParamStore(arena.device()), layout_(layout), comm_(comm), communication_(communication) {
  for (const ParamUnit& unit : layout.units()) {
    const Index padded = padded_count(unit.count, comm.world_size());
    units_.push_back(
        {arena.allocate(MemoryKind::device, param_dtype, {padded}, what + "/" + unit.name),
         Event(arena.device(), "unit.updated"), Event(arena.device(), "unit.gathered")});
    ranges_.push_back(OptimizerShard::for_rank(comm.rank(), comm.world_size(), padded));
  }
}

TensorView ReplicatedParams::local_shard(UnitId unit) {
  const auto i = static_cast<std::size_t>(unit);
  return units_.at(i).params.view().slice(ranges_[i].param_start, ranges_[i].param_end);
}

void ReplicatedParams::all_gather(UnitId unit, Stream& updates) {
  Unit& gathered = units_.at(static_cast<std::size_t>(unit));
  gathered.consumed = false;
  ++gathered.gathers;
  if (comm_.world_size() == 1) {
    gathered.gathered.record(updates);
    return;
  }
  gathered.updated.record(updates);
  communication_.wait(gathered.updated);
  const TraceRange gathering({TraceCategory::gather, "all-gather", layout_.unit(unit).name},
                             communication_);
  comm_.all_gather(local_shard(unit), gathered.params.view(), communication_);
  gathered.gathered.record(communication_);
}

ConstTensorView ReplicatedParams::open(UnitId unit, Stream& compute) {
  const TraceRange waiting({TraceCategory::exposed, "wait for parameters", layout_.unit(unit).name},
                           compute);
  Unit& wanted = units_.at(static_cast<std::size_t>(unit));
  begin_wait(unit, compute);
  compute.wait(wanted.gathered);
  if (!std::exchange(wanted.consumed, true)) {
    end_wait(compute);
  }
  return std::as_const(wanted).params.view();
}

}  // namespace tessera
