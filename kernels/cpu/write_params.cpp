#include "kernels/write_params.h"

#include "kernels/cpu/partition.h"
#include "kernels/cpu/require.h"
#include "kernels/device/cpu/submit.h"
#include "kernels/device/master_code.h"

namespace tessera::cpu {
namespace {

struct Exact {
  void operator()(float master, float& param) const { param = master; }
};
struct Rounded {
  void operator()(float master, float& param) const { param = to_float(param_of(master)); }
  void operator()(float master, BFloat16& param) const { param = param_of(master); }
};

template <typename Param, typename Store>
void write(const WriteParamsArgs& args) {
  const Store store;
  const Index count = args.master.count();
  const auto* master = data_as<float>(args.master);
  auto* param = data_as<Param>(args.param);
#pragma omp parallel for simd schedule(static) if (parallel : count > kParallelElements)
  for (Index i = 0; i < count; ++i) {
    store(master[i], param[i]);
  }
}

}  // namespace

void write_params(const WriteParamsArgs& args, Stream& stream) {
  const Index count = args.master.count();
  TESSERA_REQUIRE(args.param.dtype == DType::f32 || args.param.dtype == DType::bf16,
                  "parameters of f32 or bf16");
  require_tensor(args.master, DType::f32, count, "master");
  require_tensor(args.param, args.param.dtype, count, "param");
  submit(stream, [args] {
    if (args.param.dtype == DType::bf16) {
      write<BFloat16, Rounded>(args);
    } else if (args.param_values == DType::bf16) {
      write<float, Rounded>(args);
    } else {
      write<float, Exact>(args);
    }
  });
}

}  // namespace tessera::cpu
