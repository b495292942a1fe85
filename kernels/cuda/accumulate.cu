#include "kernels/accumulate.h"
#include "kernels/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowsInFlight = 1;   // more cost registers, so blocks: 80% of the copy rate, not 98%
constexpr int kMinBlocks = 6;      // of a multiprocessor
constexpr int kQuadsOfThread = 2;  // independent accesses of a thread, a block's width apart
constexpr Index kBlockElements = static_cast<Index>(kThreads) * kQuad * kQuadsOfThread;

__device__ __forceinline__ float4 add(const float4& a, const float4& b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                     __fadd_rn(a.w, b.w));
}

struct Fold {
  Index count;     // rows
  Index in_group;  // row 0's place in its group
  Index reduce_group;
  Index left;          // micro-batches from row 0 to the step's last
  bool reads_sum;      // a group that ends here is not the first of the step
  bool writes_sum;     // some group ends here
  bool reads_partial;  // row 0 continues a group
  bool writes_partial;
};

//   slices   [W, width]  read, rows 0 .. fold.count - 1
//   sum      [width]     written or added to
//   partial  [width]     read and written where a group is cut
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    fold_rows(const T* __restrict__ slices, float* __restrict__ sum, float* __restrict__ partial,
              Index width, Fold fold) {
  const Index first = static_cast<Index>(blockIdx.x) * kBlockElements + threadIdx.x * kQuad;
  constexpr Index kStep = static_cast<Index>(kThreads) * kQuad;
  float4 total[kQuadsOfThread] = {};
  float4 group[kQuadsOfThread] = {};
#pragma unroll
  for (int q = 0; q < kQuadsOfThread; ++q) {
    if (fold.reads_sum) {
      total[q] = load_quad<kAligned>(sum, first + q * kStep, width);
    }
    if (fold.reads_partial) {
      group[q] = load_quad<kAligned>(partial, first + q * kStep, width);
    }
  }
  bool has_total = fold.reads_sum;
  Index in_group = fold.in_group;
  for (Index w = 0; w < fold.count; w += kRowsInFlight) {
    float4 rows[kRowsInFlight][kQuadsOfThread];
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      if (w + i < fold.count) {
#pragma unroll
        for (int q = 0; q < kQuadsOfThread; ++q) {
          rows[i][q] = load_quad<kAligned>(slices + (w + i) * width, first + q * kStep, width);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      if (w + i < fold.count) {
        const bool begins = in_group == 0;
        ++in_group;
        const bool ends = in_group == fold.reduce_group || w + i + 1 == fold.left;
#pragma unroll
        for (int q = 0; q < kQuadsOfThread; ++q) {
          group[q] = begins ? rows[i][q] : add(group[q], rows[i][q]);
          if (ends) {
            total[q] = has_total ? add(total[q], group[q]) : group[q];
          }
        }
        if (ends) {
          has_total = true;
          in_group = 0;
        }
      }
    }
  }
#pragma unroll
  for (int q = 0; q < kQuadsOfThread; ++q) {
    if (fold.writes_sum) {
      store_quad<kAligned>(sum, first + q * kStep, width, total[q]);
    }
    if (fold.writes_partial) {
      store_quad<kAligned>(partial, first + q * kStep, width, group[q]);
    }
  }
}

// Row r's element k: from[r * from_stride + k] to to[r * to_stride + k].
template <typename From, typename To, bool kAligned>
__global__ void __launch_bounds__(kRowThreads)
    cast(const From* __restrict__ from, To* __restrict__ to, Index rows, Index columns,
         Index from_stride, Index to_stride, unsigned tiles) {
  const RowItem at = row_item(tiles);
  if (at.row >= rows) {
    return;
  }
  from += at.row * from_stride;
  to += at.row * to_stride;
  const Index step = static_cast<Index>(blockDim.x) * kQuad;
  const Index first = at.tile * kQuadsOfThread * step + threadIdx.x * kQuad;
  float4 quads[kQuadsOfThread];
#pragma unroll
  for (int q = 0; q < kQuadsOfThread; ++q) {
    quads[q] = load_quad<kAligned>(from, first + q * step, columns);
  }
#pragma unroll
  for (int q = 0; q < kQuadsOfThread; ++q) {
    store_quad<kAligned>(to, first + q * step, columns, quads[q]);
  }
}

template <typename From>
void cast_from(const CastRowsArgs& args, Stream& stream) {
  with_element_type(args.to.dtype, "to", [&](auto zero) {
    using To = decltype(zero);
    Index rows = args.rows;
    Index columns = args.columns;
    if (args.from_stride == columns && args.to_stride == columns) {
      columns *= rows;  // one long row
      rows = 1;
    }
    const RowGrid grid = row_grid(rows, divide_up(columns, kQuad * kQuadsOfThread));
    const bool aligned =
        is_vector_aligned(args.from.data) && is_vector_aligned(args.to.data) &&
        (rows == 1 || (args.from_stride % kQuad == 0 && args.to_stride % kQuad == 0));
    const auto launch = [&](auto kernel) {
      kernel<<<grid.blocks, grid.threads, 0, stream.cuda_handle()>>>(
          data_as<From>(args.from), data_as<To>(args.to), rows, columns, args.from_stride,
          args.to_stride, grid.tiles);
    };
    if (aligned) {
      launch(cast<From, To, true>);
    } else {
      launch(cast<From, To, false>);
    }
  });
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

}  // namespace

void accumulate(const AccumulateArgs& args, Stream& stream) {
  const Index width = args.sum.count();
  TESSERA_REQUIRE(args.reduce_group >= 1, "reduce_group is 1 or more");
  TESSERA_REQUIRE(args.first >= 0 && args.count >= 1 && args.first + args.count <= args.total,
                  "the rows are micro-batches of the step");
  require_tensor(args.sum, DType::f32, width, "sum");
  require_room(args.slices, args.slices.dtype, args.count * width, "slices");
  const Index end = args.first + args.count;
  const Index first_group = args.first / args.reduce_group;
  const bool ends_cut = end % args.reduce_group != 0 && end != args.total;
  const Fold fold = {
      .count = args.count,
      .in_group = args.first % args.reduce_group,
      .reduce_group = args.reduce_group,
      .left = args.total - args.first,
      .reads_sum = first_group > 0 && (end / args.reduce_group > first_group || !ends_cut),
      .writes_sum = end / args.reduce_group > first_group || !ends_cut,
      .reads_partial = args.first % args.reduce_group != 0,
      .writes_partial = ends_cut};
  if (fold.reads_partial || fold.writes_partial) {
    require_tensor(args.partial, DType::f32, width, "partial");
  }
  if (width == 0) {
    return;
  }
  auto* sum = data_as<float>(args.sum);
  auto* partial = static_cast<float*>(args.partial.data);
  const unsigned blocks = block_count(width, kBlockElements);
  with_element_type(args.slices.dtype, "slices", [&](auto zero) {
    using T = decltype(zero);
    const T* slices = data_as<T>(args.slices);
    const auto launch = [&](auto kernel) {
      kernel<<<blocks, kThreads, 0, stream.cuda_handle()>>>(slices, sum, partial, width, fold);
    };
    if (is_vector_aligned(slices) && is_vector_aligned(sum) && is_vector_aligned(partial) &&
        (args.count == 1 || width % kQuad == 0)) {
      launch(fold_rows<T, true>);
    } else {
      launch(fold_rows<T, false>);
    }
  });
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

void cast_rows(const CastRowsArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.rows >= 0 && args.columns >= 0, "rows and columns are counts");
  TESSERA_REQUIRE(args.rows <= 1 || args.to_stride >= args.columns, "rows of `to` do not overlap");
  if (args.rows == 0 || args.columns == 0) {
    return;
  }
  require_room(args.from, args.from.dtype, (args.rows - 1) * args.from_stride + args.columns,
               "from");
  require_room(args.to, args.to.dtype, (args.rows - 1) * args.to_stride + args.columns, "to");
  with_element_type(args.from.dtype, "from",
                    [&](auto zero) { cast_from<decltype(zero)>(args, stream); });
}

}  // namespace tessera::cuda
