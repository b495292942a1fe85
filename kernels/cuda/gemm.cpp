// GEMM on CUDA: what is asked for is checked here, cuBLASLt does the work
// (gemm_plans.h).
#include "kernels/gemm.h"

#include "kernels/base/error.h"
#include "kernels/cuda/gemm_plans.h"

namespace tessera::cuda {
namespace {

/// True if `rows` rows of `columns` elements, `ld` apart, are within `view`.
bool holds(const ConstTensorView& view, Index rows, Index columns, Index ld) {
  return view.data != nullptr && ld >= columns && view.count() >= (rows - 1) * ld + columns;
}

void require_valid(const GemmArgs& args) {
  const Index m = args.m;
  const Index n = args.n;
  const Index k = args.k;
  const DType in = args.a.dtype;
  TESSERA_REQUIRE(m > 0 && n > 0 && k > 0, "a GEMM has rows, columns and a depth");
  TESSERA_REQUIRE((in == DType::f32 || in == DType::bf16) && args.b.dtype == in,
                  "a and b are both f32 or both bf16");
  TESSERA_REQUIRE(args.d.dtype == in || args.d.dtype == DType::f32, "d is f32 or of the type of a");
  TESSERA_REQUIRE(args.transpose_a == Transpose::no ? holds(args.a, m, k, args.lda)
                                                    : holds(args.a, k, m, args.lda),
                  "a holds m x k elements, rows lda apart");
  TESSERA_REQUIRE(args.transpose_b == Transpose::no ? holds(args.b, k, n, args.ldb)
                                                    : holds(args.b, n, k, args.ldb),
                  "b holds k x n elements, rows ldb apart");
  TESSERA_REQUIRE(holds(args.d, m, n, args.ldd), "d holds m x n elements, rows ldd apart");
  TESSERA_REQUIRE(
      args.beta == 0.0F || (args.c.dtype == args.d.dtype && holds(args.c, m, n, args.ldd)),
      "c has the type of d and holds m x n elements, rows ldd apart");
  TESSERA_REQUIRE(args.bias.data == nullptr ||
                      (args.bias.dtype == in && args.d.dtype == in && args.bias.count() >= n),
                  "a bias has n elements, and bias and d have the type of a");
  TESSERA_REQUIRE(
      args.workspace.data != nullptr && args.workspace.dtype == DType::u8 &&
          args.workspace.count() >= static_cast<Index>(gemm_workspace_bytes(DeviceKind::cuda)),
      "the workspace has gemm_workspace_bytes(cuda) bytes");
}

}  // namespace

void gemm(const GemmArgs& args, Stream& stream) {
  require_valid(args);
  run_gemm(args, stream);
}

}  // namespace tessera::cuda
