// What decides, beside the threads, which bits the CPU kernels of this machine give.
#pragma once

#include <string>

namespace tessera::cpu {

/// oneDNN's name for the instructions that its GEMMs use here: "avx512_core". Another
/// one adds in another order.
[[nodiscard]] std::string instruction_set();

}  // namespace tessera::cpu
