#include "kernels/gemm.h"

#include <algorithm>

#include "kernels/cpu/dnnl_check.h"
#include "kernels/cpu/partition.h"
#include "kernels/cpu/require.h"
#include "kernels/device/cpu/submit.h"
#include "kernels/device/float8.h"

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

// An operand of `rows` rows of `columns` as stored, and its op along which the scales lie.
struct Stored {
  const GemmOperand& operand;
  Index ld;
  Index rows;
  Index columns;
  bool scales_down;  // `row`: a scale for each stored row; else for each stored column
};

Stored stored_a(const GemmArgs& args) {
  const bool plain = args.transpose_a == Transpose::no;
  return {args.a, args.lda, plain ? args.m : args.k, plain ? args.k : args.m, plain};
}
Stored stored_b(const GemmArgs& args) {
  const bool plain = args.transpose_b == Transpose::no;
  return {args.b, args.ldb, plain ? args.k : args.n, plain ? args.n : args.k, !plain};
}

template <typename Number>
void dequantise(const Stored& from, float* to) {
  const auto* numbers = data_as<Number>(from.operand);
  const auto* scales = data_as<float>(from.operand.scales);
  const bool is_whole = from.operand.scale_mode == ScaleMode::tensor;
#pragma omp parallel for schedule(static) if (from.rows * from.columns > kParallelElements)
  for (Index i = 0; i < from.rows; ++i) {
    for (Index j = 0; j < from.columns; ++j) {
      const float scale = scales[is_whole ? 0 : from.scales_down ? i : j];
      to[i * from.columns + j] = to_float(numbers[i * from.ld + j]) * scale;
    }
  }
}

void dequantise(const Stored& from, float* to) {
  if (from.operand.dtype == DType::e4m3) {
    dequantise<Float8E4M3>(from, to);
  } else {
    dequantise<Float8E5M2>(from, to);
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
                                args.k, args.alpha, data_as<float>(args.a), args.lda,
                                data_as<float>(args.b), args.ldb, beta, data_as<float>(args.d),
                                args.ldd));
}

// In f32: numbers of 8 bits times their scales are rounded once, when they are multiplied.
void multiply_scaled(const GemmArgs& args) {
  const auto in_f32 = [](const Stored& from, float* to) {
    dequantise(from, to);
    return GemmOperand(ConstTensorView(to, DType::f32, {from.rows, from.columns}, {}));
  };
  const Stored a = stored_a(args);
  const Stored b = stored_b(args);
  auto* room = static_cast<float*>(args.workspace.data);
  GemmArgs plain = args;
  plain.a = in_f32(a, room);
  plain.lda = a.columns;
  plain.b = in_f32(b, room + a.rows * a.columns);
  plain.ldb = b.columns;
  multiply(plain);
}

void require_matrix(const ConstTensorView& view, DType dtype, Index rows, Index columns,
                    Index stride, const char* name) {
  TESSERA_REQUIRE(stride >= columns, std::string("rows of '") + name + "' overlap");
  require_room(view, dtype, (rows - 1) * stride + columns, name);
}

void require_operand(const Stored& stored, DType dtype, const char* name) {
  require_matrix(stored.operand, dtype, stored.rows, stored.columns, stored.ld, name);
}

}  // namespace

void gemm(const GemmArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.m > 0 && args.n > 0 && args.k > 0, "a GEMM has rows, columns and a depth");
  require_scales(DeviceKind::cpu, args);
  const bool scaled = is_scaled(args);
  require_operand(stored_a(args), scaled ? args.a.dtype : DType::f32, "a");
  require_operand(stored_b(args), scaled ? args.b.dtype : DType::f32, "b");
  require_matrix(args.d, DType::f32, args.m, args.n, args.ldd, "d");
  if (args.beta != 0) {
    require_matrix(args.c, DType::f32, args.m, args.n, args.ldd, "c");
  }
  if (args.bias.data != nullptr) {
    require_tensor(args.bias, DType::f32, args.n, "bias");
  }
  if (scaled) {
    require_room(
        args.workspace, DType::u8,
        static_cast<Index>(scaled_gemm_workspace_bytes(DeviceKind::cpu, args.m, args.n, args.k)),
        "workspace");
  }
  submit(stream, [args, scaled] { scaled ? multiply_scaled(args) : multiply(args); });
}

}  // namespace tessera::cpu
