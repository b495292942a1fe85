#include "kernels/cpu/instruction_set.h"

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>

namespace tessera::cpu {

std::string instruction_set() {
  const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  switch (isa) {
    case dnnl_cpu_isa_sse41:
      return "sse41";
    case dnnl_cpu_isa_avx:
      return "avx";
    case dnnl_cpu_isa_avx2:
      return "avx2";
    case dnnl_cpu_isa_avx512_core:
      return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "avx512_core_bf16";
    default:
      return fmt::format("instruction set {:#x}", static_cast<unsigned>(isa));
  }
}

}  // namespace tessera::cpu
