#include "kernels/gemm_tuning.h"

#include "kernels/base/error.h"

namespace tessera {

void set_gemm_tuning(Device device, GemmTuning mode) {
  if (device.kind == DeviceKind::cuda) {
    cuda::gemm_tuner().set_tuning(device.ordinal, mode);
  } else if (mode == GemmTuning::on) {
    throw ConfigError("GEMMs are tuned on CUDA only: the CPU has one algorithm", TESSERA_HERE);
  }
}

std::string gemm_table(Device device) {
  return device.kind == DeviceKind::cuda ? cuda::gemm_tuner().table(device.ordinal) : "";
}

void use_gemm_table(Device device, std::string_view text, std::string_view name) {
  if (device.kind == DeviceKind::cuda) {
    cuda::gemm_tuner().use_table(device.ordinal, text, name);
  } else if (!text.empty()) {
    throw ConfigError("GEMM table " + std::string(name) + " is for a CUDA device, not for the CPU",
                      TESSERA_HERE);
  }
}

std::uint64_t gemm_table_hash(Device device) {
  return device.kind == DeviceKind::cuda ? cuda::gemm_tuner().hash(device.ordinal) : 0;
}

}  // namespace tessera
