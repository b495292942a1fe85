#include "optim/param_gather.h"

#include <utility>

#include "kernels/device/trace.h"

namespace tessera {

ParamGather::ParamGather(const ParamLayout& layout, DType param_dtype, Communicator& comm,
                         Stream& communication, Arena& arena)
    : layout_(layout), comm_(comm), communication_(communication), waits_(arena.device()) {
  for (const ParamUnit& unit : layout.units()) {
    const Index padded = padded_count(unit.count, comm.world_size());
    units_.push_back(
        {arena.allocate(MemoryKind::device, param_dtype, {padded}, "parameters/" + unit.name),
         Event(arena.device(), "unit.updated"), Event(arena.device(), "unit.gathered")});
    ranges_.push_back(OptimizerShard::for_rank(comm.rank(), comm.world_size(), padded));
  }
}

TensorView ParamGather::own_slice(UnitId unit) {
  const auto i = static_cast<std::size_t>(unit);
  return units_.at(i).params.view().slice(ranges_[i].param_start, ranges_[i].param_end);
}

ConstTensorView ParamGather::whole(UnitId unit) const {
  return units_.at(static_cast<std::size_t>(unit)).params.view();
}

void ParamGather::publish(UnitId unit, Stream& updates) {
  Unit& published = units_.at(static_cast<std::size_t>(unit));
  published.awaited = false;
  if (comm_.world_size() == 1) {
    published.gathered.record(updates);
    return;
  }
  published.updated.record(updates);
  communication_.wait(published.updated);
  const TraceRange gathering({TraceCategory::gather, "all-gather", layout_.unit(unit).name},
                             communication_);
  comm_.all_gather(own_slice(unit), published.params.view(), communication_);
  published.gathered.record(communication_);
}

void ParamGather::set_before_wait(std::function<void(UnitId)> before_wait) {
  before_wait_ = std::move(before_wait);
}

ConstTensorView ParamGather::wait(UnitId unit, Stream& compute) {
  const TraceRange waiting({TraceCategory::exposed, "wait for parameters", layout_.unit(unit).name},
                           compute);
  Unit& wanted = units_.at(static_cast<std::size_t>(unit));
  waits_.begin(compute);
  if (before_wait_) {
    before_wait_(unit);
  }
  compute.wait(wanted.gathered);
  if (!std::exchange(wanted.awaited, true)) {
    waits_.end(compute);
  }
  return std::as_const(wanted).params.view();
}

}  // namespace tessera
