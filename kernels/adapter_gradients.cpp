#include "kernels/adapter_gradients.h"

namespace tessera {

void adapter_gradients_by_gemms(const AdapterGradientsArgs& args, GemmFn& gemm, Stream& stream) {
  if (has_hidden(args.needed)) {
    gemm({.m = args.tokens,
          .n = args.rank,
          .k = args.out,
          .transpose_a = Transpose::no,
          .transpose_b = Transpose::no,
          .a = args.d_y,
          .lda = args.ld_y,
          .b = args.b,
          .ldb = args.rank,
          .beta = 0.0F,
          .c = {},
          .bias = {},
          .d = args.d_hidden,
          .ldd = args.ld_hidden,
          .workspace = args.workspace,
          .alpha = args.scale},
         stream);
  }
  if (has_b(args.needed)) {
    gemm({.m = args.out,
          .n = args.rank,
          .k = args.tokens,
          .transpose_a = Transpose::yes,
          .transpose_b = Transpose::no,
          .a = args.d_y,
          .lda = args.ld_y,
          .b = args.hidden,
          .ldb = args.ld_hidden,
          .beta = 0.0F,
          .c = {},
          .bias = {},
          .d = args.d_b,
          .ldd = args.rank,
          .workspace = args.workspace,
          .alpha = args.scale},
         stream);
  }
}

}  // namespace tessera
