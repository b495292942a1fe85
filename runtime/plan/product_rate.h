// The rate that everything else is set beside: one large GEMM of this rank's device.
#pragma once

#include "collectives/communicator.h"

namespace tessera {

/// FLOP/s of a square product of random numbers in `dtype` (f32 or bf16), on all ranks at the same
/// time, so that cards of one host share its power as they do in a step. A GPU takes 8192 x 8192
/// for some 50 ms (their mean), a CPU 512 x 512 up to twenty times (the fastest). The matrices lie
/// beside every arena, and are gone afterwards. Collective.
[[nodiscard]] double measure_product_rate(Communicator& comm, Device device, DType dtype);

}  // namespace tessera
