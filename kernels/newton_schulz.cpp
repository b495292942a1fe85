#include "kernels/newton_schulz.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/round_up.h"

namespace tessera {
namespace {

constexpr std::size_t kAlignment = 256;

std::size_t bytes_of(DType dtype, Index elements) {
  return round_up(static_cast<std::size_t>(elements) * size_in_bytes(dtype), kAlignment);
}

// Hands out a workspace piece by piece.
class Pieces {
 public:
  explicit Pieces(const TensorView& workspace) : workspace_(workspace) {}
  TensorView take(DType dtype, const Shape& shape) {
    TensorView piece = take_bytes(bytes_of(dtype, shape.count()));
    piece.dtype = dtype;
    piece.shape = shape;
    return piece;
  }
  TensorView take_bytes(std::size_t bytes) {
    const Index begin =
        std::exchange(taken_, taken_ + static_cast<Index>(round_up(bytes, kAlignment)));
    return workspace_.slice(begin, begin + static_cast<Index>(bytes));
  }

 private:
  TensorView workspace_;
  Index taken_ = 0;
};

}  // namespace

std::size_t newton_schulz_workspace_bytes(DeviceKind kind, DType dtype, Index rows, Index columns) {
  const Index side = std::min(rows, columns);
  return bytes_of(dtype, rows * columns) + 2 * bytes_of(dtype, side * side) +
         round_up(muon_normalize_workspace_bytes(), kAlignment) +
         round_up(gemm_workspace_bytes(kind), kAlignment);
}

double newton_schulz_flops(Index rows, Index columns, int steps) noexcept {
  const auto side = static_cast<double>(std::min(rows, columns));
  const auto along = static_cast<double>(std::max(rows, columns));
  return steps * (4 * side * side * along + 2 * side * side * side);
}

void newton_schulz(const KernelTable& kernels, const NewtonSchulzArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.matrix.shape.rank() == 2 && args.matrix.count() > 0 && args.steps >= 1,
                  "a matrix with rows and columns, and a step or more");
  const DType dtype = args.matrix.dtype;
  const DeviceKind kind = args.matrix.device.kind;
  const Index rows = args.matrix.shape[0];
  const Index columns = args.matrix.shape[1];
  const bool is_tall = rows > columns;
  const Index side = std::min(rows, columns);
  TESSERA_REQUIRE(args.workspace.count() >=
                      static_cast<Index>(newton_schulz_workspace_bytes(kind, dtype, rows, columns)),
                  "a workspace of newton_schulz_workspace_bytes");
  Pieces pieces(args.workspace);
  TensorView x = args.matrix;
  TensorView next = pieces.take(dtype, {rows, columns});
  const TensorView gram = pieces.take(dtype, {side, side});
  const TensorView polynomial = pieces.take(dtype, {side, side});
  const TensorView sums = pieces.take_bytes(muon_normalize_workspace_bytes());
  const TensorView room = pieces.take_bytes(gemm_workspace_bytes(kind));
  if (args.steps % 2 == 1) {
    std::swap(x, next);  // so that the last step ends in `matrix`
  }
  kernels.muon_normalize({.matrix = args.matrix, .normal = x, .workspace = sums}, stream);
  const auto [a, b, c] = kNewtonSchulz;
  for (int step = 0; step < args.steps; ++step) {
    kernels.gemm({.m = side,
                  .n = side,
                  .k = std::max(rows, columns),
                  .transpose_a = is_tall ? Transpose::yes : Transpose::no,
                  .transpose_b = is_tall ? Transpose::no : Transpose::yes,
                  .a = x,
                  .lda = columns,
                  .b = x,
                  .ldb = columns,
                  .beta = 0,
                  .c = {},
                  .bias = {},
                  .d = gram,
                  .ldd = side,
                  .workspace = room},
                 stream);
    kernels.gemm({.m = side,
                  .n = side,
                  .k = side,
                  .transpose_a = Transpose::no,
                  .transpose_b = Transpose::no,
                  .a = gram,
                  .lda = side,
                  .b = gram,
                  .ldb = side,
                  .beta = b,
                  .c = gram,
                  .bias = {},
                  .d = polynomial,
                  .ldd = side,
                  .workspace = room,
                  .alpha = c},
                 stream);
    kernels.gemm({.m = rows,
                  .n = columns,
                  .k = side,
                  .transpose_a = Transpose::no,
                  .transpose_b = Transpose::no,
                  .a = is_tall ? x : polynomial,
                  .lda = side,
                  .b = is_tall ? polynomial : x,
                  .ldb = columns,
                  .beta = a,
                  .c = x,
                  .bias = {},
                  .d = next,
                  .ldd = columns,
                  .workspace = room},
                 stream);
    std::swap(x, next);
  }
}

}  // namespace tessera
