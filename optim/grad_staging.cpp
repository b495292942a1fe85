#include "optim/grad_staging.h"

#include "optim/optimizer_shard.h"

namespace tessera {

GradStaging::GradStaging(Index elements, DType dtype, Arena& arena)
    : buffer_(arena.allocate(MemoryKind::device, DType::u8,
                             {elements * static_cast<Index>(size_in_bytes(dtype))},
                             "gradient staging")) {}

TensorView GradStaging::part(Index begin, Index end, DType dtype) {
  const TensorView bytes = buffer_.view().slice(begin, end);
  return {bytes.data, dtype, Shape{bytes.count() / static_cast<Index>(size_in_bytes(dtype))},
          bytes.device};
}

TensorView GradStaging::all(DType dtype) {
  return part(0, buffer_.view().count(), dtype);
}

TensorView GradStaging::lower(DType dtype) {
  return part(0, buffer_.view().count() / 2, dtype);
}

TensorView GradStaging::upper(DType dtype) {
  return part(buffer_.view().count() / 2, buffer_.view().count(), dtype);
}

Index least_staging(Index world_size, DType dtype) {
  constexpr Index kWidest = sizeof(float);
  return 2 * world_size * kShardAlignment * kWidest / static_cast<Index>(size_in_bytes(dtype));
}

void pack_columns(const KernelTable& kernels, const ConstTensorView& rows, Index begin,
                  const TensorView& packed, Stream& stream) {
  kernels.cast_rows({.from = rows.slice(begin, rows.count()),
                     .to = packed,
                     .rows = rows.shape[0],
                     .columns = packed.shape[1],
                     .from_stride = rows.shape[1],
                     .to_stride = packed.shape[1]},
                    stream);
}

}  // namespace tessera
