#include "model/whole_model.h"

#include "kernels/kernel_table.h"

namespace tessera {

WholeModel::WholeModel(const ParamLayout& layout, DType dtype, const Source& source, Arena& arena,
                       Stream& stream) {
  const KernelTable& kernels = kernel_table(arena.device().kind);
  std::vector<float> host;
  for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
    const Index count = layout.unit(unit).count;
    units_.push_back(arena.allocate(MemoryKind::device, dtype, {count}, "parameters"));
    host.resize(static_cast<std::size_t>(count));
    source(unit, host);
    const ConstTensorView values = {host.data(), DType::f32, Shape{count}, Device{}};
    if (dtype == DType::f32) {
      copy_async(values, units_.back().view(), stream);
      stream.synchronize();
      continue;
    }
    DeviceBuffer exact(arena.device(), MemoryKind::device, DType::f32, {count}, "parameters");
    copy_async(values, exact.view(), stream);
    kernels.write_params({.master = exact.view(), .param = units_.back().view()}, stream);
    stream.synchronize();
  }
}

ConstTensorView WholeModel::open(UnitId unit, Stream& /*compute*/) {
  return units_.at(static_cast<std::size_t>(unit)).view();
}

}  // namespace tessera
