// GEMM on CUDA: what is asked for is checked here, cuBLASLt does the work
// (gemm_plans.h).
#include "kernels/gemm.h"

#include "kernels/base/error.h"
#include "kernels/cuda/gemm_plans.h"
#include "kernels/cuda/require.h"

namespace tessera::cuda {
namespace {

/// True if `rows` rows of `columns` elements, `ld` apart, are within `view`.
bool holds(const ConstTensorView& view, Index rows, Index columns, Index ld) {
  return view.data != nullptr && ld >= columns && view.count() >= (rows - 1) * ld + columns;
}

// What cuBLASLt asks of operands of 8 bits.
void require_valid_scaled(const GemmArgs& args) {
  constexpr Index kMultiple = 16;
  TESSERA_REQUIRE(args.a.dtype == DType::e4m3 || args.b.dtype == DType::e4m3,
                  "e5m2 is multiplied by e4m3 only");
  TESSERA_REQUIRE(args.transpose_a == Transpose::no && args.transpose_b == Transpose::yes,
                  "operands of 8 bits lie along k: a is [m, k], b is [n, k]");
  for (const Index size : {args.m, args.n, args.k, args.lda, args.ldb, args.ldd}) {
    TESSERA_REQUIRE(size % kMultiple == 0,
                    "sizes of a GEMM of 8 bits are multiples of 16, not " + std::to_string(size));
  }
  TESSERA_REQUIRE(is_vector_aligned(args.a.data) && is_vector_aligned(args.b.data) &&
                      is_vector_aligned(args.d.data),
                  "data of a GEMM of 8 bits is aligned to 16 bytes");
}

void require_valid(const GemmArgs& args) {
  const Index m = args.m;
  const Index n = args.n;
  const Index k = args.k;
  TESSERA_REQUIRE(m > 0 && n > 0 && k > 0, "a GEMM has rows, columns and a depth");
  const DType in = is_scaled(args) ? DType::bf16 : args.a.dtype;  // of bias and d
  require_scales(DeviceKind::cuda, args);
  if (is_scaled(args)) {
    require_valid_scaled(args);
  } else {
    TESSERA_REQUIRE((in == DType::f32 || in == DType::bf16) && args.b.dtype == in,
                    "a and b are both f32 or both bf16, or have scales");
  }
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
  TESSERA_REQUIRE(args.bias.data == nullptr || (args.bias.dtype == in && args.bias.count() >= n &&
                                                (args.d.dtype == in || is_scaled(args))),
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
