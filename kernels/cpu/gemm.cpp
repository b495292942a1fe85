#include "kernels/gemm.h"

#include <algorithm>

#include "kernels/cpu/dnnl_check.h"
#include "kernels/cpu/partition.h"
#include "kernels/cpu/require.h"
#include "kernels/device/cpu/submit.h"

namespace tessera::cpu {
namespace {

char letter(Transpose transpose) {
  return transpose == Transpose::yes ? 'T' : 'N';
}

// d = beta * c + bias, the part of the sum that dnnl_sgemm does not know. `c` is null for none.
void prepare(const GemmArgs& args, const float* c) {
  const auto* bias = static_cast<const float*>(args.bias.data);
  auto* d = data_as<float>(args.d);
  const Index n = args.n;
  const float beta = args.beta;
#pragma omp parallel for schedule(static) if (args.m * n > kParallelElements)
  for (Index i = 0; i < args.m; ++i) {
    float* row = d + i * args.ldd;
    const float* from = c == nullptr ? nullptr : c + i * args.ldd;
    if (from == nullptr) {
      std::copy_n(bias, n, row);
    } else if (bias == nullptr) {
#pragma omp simd
      for (Index j = 0; j < n; ++j) {
        row[j] = beta * from[j];
      }
    } else {
#pragma omp simd
      for (Index j = 0; j < n; ++j) {
        row[j] = beta * from[j] + bias[j];
      }
    }
  }
}

void multiply(const GemmArgs& args) {
  const bool reads_c = args.beta != 0;
  const bool has_bias = args.bias.data != nullptr;
  const bool in_place = args.c.data == args.d.data;
  float beta = args.beta;
  if (has_bias || (reads_c && !in_place)) {
    prepare(args, reads_c ? data_as<float>(args.c) : nullptr);
    beta = 1;
  }
  TESSERA_CHECK_DNNL(dnnl_sgemm(letter(args.transpose_a), letter(args.transpose_b), args.m, args.n,
                                args.k, 1.0F, data_as<float>(args.a), args.lda,
                                data_as<float>(args.b), args.ldb, beta, data_as<float>(args.d),
                                args.ldd));
}

void require_matrix(const ConstTensorView& view, Index rows, Index columns, Index stride,
                    const char* name) {
  TESSERA_REQUIRE(stride >= columns, std::string("rows of '") + name + "' overlap");
  require_room(view, DType::f32, (rows - 1) * stride + columns, name);
}

}  // namespace

void gemm(const GemmArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.m > 0 && args.n > 0 && args.k > 0, "a GEMM has rows, columns and a depth");
  const bool a_stored_transposed = args.transpose_a == Transpose::yes;
  const bool b_stored_transposed = args.transpose_b == Transpose::yes;
  require_matrix(args.a, a_stored_transposed ? args.k : args.m,
                 a_stored_transposed ? args.m : args.k, args.lda, "a");
  require_matrix(args.b, b_stored_transposed ? args.n : args.k,
                 b_stored_transposed ? args.k : args.n, args.ldb, "b");
  require_matrix(args.d, args.m, args.n, args.ldd, "d");
  if (args.beta != 0) {
    require_matrix(args.c, args.m, args.n, args.ldd, "c");
  }
  if (args.bias.data != nullptr) {
    require_tensor(args.bias, DType::f32, args.n, "bias");
  }
  submit(stream, [args] { multiply(args); });
}

}  // namespace tessera::cpu
