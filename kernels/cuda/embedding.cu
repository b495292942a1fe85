#include "kernels/cuda/launch.cuh"
#include "kernels/embedding.h"
#include "kernels/workspaces.h"

namespace tessera::cuda {
namespace {

// ---- forward ----------------------------------------------------------------------------------

constexpr int kGatherRows = 4;  // of a thread, all in flight

// Rows are taken in `order`, so that those of one token are neighbours: the table, which may be
// larger than the cache, is then read once.
//
//   tokens  [rows]         read
//   order   [rows]         read, or null: 0, 1, ..
//   table   [V, width]     read
//   out     [rows, width]  written
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kRowThreads)
    gather_rows(const std::int32_t* __restrict__ tokens, const std::int32_t* __restrict__ order,
                const T* __restrict__ table, T* __restrict__ out, Index rows, Index width,
                unsigned tiles) {
  const RowItem at = row_item(tiles);
  const Index first = at.row * kGatherRows;
  if (at.item * kVector<T> >= width) {
    return;
  }
  Index to[kGatherRows];
#pragma unroll
  for (int i = 0; i < kGatherRows; ++i) {
    const Index row = min(first + i, rows - 1);
    to[i] = order == nullptr ? row : order[row];
  }
  Index from[kGatherRows];
#pragma unroll
  for (int i = 0; i < kGatherRows; ++i) {
    from[i] = tokens[to[i]];
  }
  uint4 raw[kGatherRows];
#pragma unroll
  for (int i = 0; i < kGatherRows; ++i) {
    if (first + i < rows) {
      raw[i] = load_vector<T, kAligned>(table + from[i] * width, at.item, width);
    }
  }
#pragma unroll
  for (int i = 0; i < kGatherRows; ++i) {
    if (first + i < rows) {
      // rows of the table stay in the cache, for the tokens that come again
      if constexpr (kAligned) {
        store_streaming(out + to[i] * width + at.item * kVector<T>, raw[i]);
      } else {
        store_vector<T, kAligned>(out + to[i] * width, at.item, width, raw[i]);
      }
    }
  }
}

// ---- backward ---------------------------------------------------------------------------------
//
// The sorted positions are cut into pieces of kEmbeddingRun. A run of equal tokens that begins in a
// piece is added up as far as it is there, and added to the table: no other piece adds to this
// row. What a piece holds of a run that began before it is left in its row of the workspace, and a
// second kernel adds these rows, in their order, to what the first one wrote.

constexpr int kScatterThreads = 128;
constexpr int kScatterUnroll = 8;   // rows of a thread in flight, while runs are added up
constexpr int kCarriedUnroll = 16;  // and while what they carry is
static_assert(kEmbeddingRun == kWarp, "a lane of the first warp looks at each position");
static_assert(kEmbeddingRun % kScatterUnroll == 0);

enum class RunEnd : std::uint8_t { none, table, workspace };

//   tokens, order  [count]         read
//   d_out          [count, width]  read
//   d_table        [V, width]      added to
//   carried        [pieces, width] written where a run continues from the piece before
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kScatterThreads)
    add_runs(const std::int32_t* __restrict__ tokens, const std::int32_t* __restrict__ order,
             const T* __restrict__ d_out, float* __restrict__ d_table, float* __restrict__ carried,
             Index count, Index width) {
  __shared__ Index rows[kEmbeddingRun];
  __shared__ Index targets[kEmbeddingRun];
  __shared__ RunEnd ends[kEmbeddingRun];
  const Index begin = static_cast<Index>(blockIdx.x) * kEmbeddingRun;
  const int length = static_cast<int>(min(kEmbeddingRun, count - begin));
  if (threadIdx.x < kWarp) {
    const int lane = static_cast<int>(threadIdx.x);
    const bool present = lane < length;
    const Index row = present ? order[begin + lane] : 0;
    const std::int32_t token = present ? tokens[row] : -1;
    const std::int32_t next = __shfl_down_sync(kAllLanes, token, 1);
    const bool last = present && (lane == length - 1 || next != token);
    const unsigned all_last = __ballot_sync(kAllLanes, last);
    const std::int32_t first_token = __shfl_sync(kAllLanes, token, 0);
    const bool goes_on = begin > 0 && tokens[order[begin - 1]] == first_token;
    const bool first_run = (all_last & ((1U << static_cast<unsigned>(lane)) - 1U)) == 0;
    rows[lane] = row;
    targets[lane] = token;
    ends[lane] = !last ? RunEnd::none : (goes_on && first_run) ? RunEnd::workspace : RunEnd::table;
  }
  __syncthreads();
  const Index column = (static_cast<Index>(blockIdx.y) * kScatterThreads + threadIdx.x) * kQuad;
  if (column >= width) {
    return;
  }
  float4 sum = {};
  for (int first = 0; first < length; first += kScatterUnroll) {
    float4 gradients[kScatterUnroll];
    float4 old[kScatterUnroll];
#pragma unroll
    for (int i = 0; i < kScatterUnroll; ++i) {
      if (first + i < length) {
        gradients[i] = load_quad<kAligned>(d_out + rows[first + i] * width, column, width);
        if (ends[first + i] == RunEnd::table) {
          old[i] = load_quad<kAligned>(d_table + targets[first + i] * width, column, width);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kScatterUnroll; ++i) {
      if (first + i < length) {
        sum.x += gradients[i].x;
        sum.y += gradients[i].y;
        sum.z += gradients[i].z;
        sum.w += gradients[i].w;
        const RunEnd end = ends[first + i];
        if (end == RunEnd::table) {
          const float4 total =
              make_float4(old[i].x + sum.x, old[i].y + sum.y, old[i].z + sum.z, old[i].w + sum.w);
          store_quad<kAligned>(d_table + targets[first + i] * width, column, width, total);
        } else if (end == RunEnd::workspace) {
          store_quad<kAligned>(carried + blockIdx.x * width, column, width, sum);
        }
        if (end != RunEnd::none) {
          sum = {};
        }
      }
    }
  }
}

// Piece number blockIdx.x + 1: if it is the first that continues a run, it adds the rows of all
// that do.
template <bool kAligned>
__global__ void __launch_bounds__(kScatterThreads)
    add_carried(const std::int32_t* __restrict__ tokens, const std::int32_t* __restrict__ order,
                const float* __restrict__ carried, float* __restrict__ d_table, Index count,
                Index width) {
  const Index first_piece = static_cast<Index>(blockIdx.x) + 1;
  const Index begin = first_piece * kEmbeddingRun;
  const std::int32_t token = tokens[order[begin]];
  if (tokens[order[begin - 1]] != token ||
      (first_piece > 1 && tokens[order[begin - kEmbeddingRun - 1]] == token)) {
    return;  // the whole block
  }
  // the pieces that continue it come one after another
  Index end_piece = first_piece;
  int found = kScatterThreads;
  while (found == kScatterThreads) {
    const Index at = (end_piece + threadIdx.x) * kEmbeddingRun;
    found = __syncthreads_count(at < count && tokens[order[at]] == token ? 1 : 0);
    end_piece += found;
  }
  const Index column = (static_cast<Index>(blockIdx.y) * kScatterThreads + threadIdx.x) * kQuad;
  if (column >= width) {
    return;
  }
  float* row = d_table + token * width;
  float4 sum = load_quad<kAligned>(row, column, width);
  for (Index piece = first_piece; piece < end_piece; piece += kCarriedUnroll) {
    float4 parts[kCarriedUnroll];
#pragma unroll
    for (int i = 0; i < kCarriedUnroll; ++i) {
      if (piece + i < end_piece) {
        parts[i] = load_quad<kAligned>(carried + (piece + i) * width, column, width);
      }
    }
#pragma unroll
    for (int i = 0; i < kCarriedUnroll; ++i) {
      if (piece + i < end_piece) {
        sum.x += parts[i].x;
        sum.y += parts[i].y;
        sum.z += parts[i].z;
        sum.w += parts[i].w;
      }
    }
  }
  store_quad<kAligned>(row, column, width, sum);
}

constexpr unsigned kMostTiles = 65535;  // of a grid's second dimension

unsigned column_tiles(Index width) {
  const unsigned tiles = block_count(width, kScatterThreads * kQuad);
  TESSERA_REQUIRE(tiles <= kMostTiles, "the width is below 33 million");
  return tiles;
}

}  // namespace

void embedding_forward(const EmbeddingForwardArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.table.shape.rank() == 2, "embedding_forward takes the table as [V, C]");
  const Index rows = args.tokens.count();
  const Index width = args.table.shape[1];
  const DType dtype = args.table.dtype;
  require_tensor(args.tokens, DType::i32, rows, "tokens");
  const std::int32_t* order = nullptr;
  if (args.order.data != nullptr) {
    require_tensor(args.order, DType::i32, rows, "order");
    order = data_as<std::int32_t>(args.order);
  }
  require_tensor(args.table, dtype, args.table.count(), "table");
  require_tensor(args.out, dtype, rows * width, "out");
  if (rows * width == 0) {
    return;
  }
  with_element_type(dtype, "table", [&](auto zero) {
    using T = decltype(zero);
    const RowGrid grid = row_grid(divide_up(rows, kGatherRows), divide_up(width, kVector<T>));
    const auto launch = [&](auto kernel) {
      kernel<<<grid.blocks, grid.threads, 0, stream.cuda_handle()>>>(
          data_as<std::int32_t>(args.tokens), order, data_as<T>(args.table), data_as<T>(args.out),
          rows, width, grid.tiles);
    };
    if (width % kVector<T> == 0 && is_vector_aligned(args.table.data) &&
        is_vector_aligned(args.out.data)) {
      launch(gather_rows<T, true>);
    } else {
      launch(gather_rows<T, false>);
    }
  });
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

void embedding_backward(const EmbeddingBackwardArgs& args, Stream& stream) {
  TESSERA_REQUIRE(args.d_table.shape.rank() == 2, "embedding_backward takes d_table as [V, C]");
  const Index count = args.tokens.count();
  const Index width = args.d_table.shape[1];
  require_tensor(args.tokens, DType::i32, count, "tokens");
  require_tensor(args.order, DType::i32, count, "order");
  require_tensor(args.d_out, args.d_out.dtype, count * width, "d_out");
  require_tensor(args.d_table, DType::f32, args.d_table.count(), "d_table");
  require_room(args.workspace, DType::u8,
               static_cast<Index>(embedding_workspace_bytes(count, width)), "workspace");
  if (count * width == 0) {
    return;
  }
  const auto* tokens = data_as<std::int32_t>(args.tokens);
  const auto* order = data_as<std::int32_t>(args.order);
  auto* d_table = data_as<float>(args.d_table);
  auto* carried = reinterpret_cast<float*>(data_as<std::uint8_t>(args.workspace));
  TESSERA_REQUIRE(is_vector_aligned(carried), "the workspace begins at a multiple of 16 bytes");
  const bool aligned =
      width % kQuad == 0 && is_vector_aligned(args.d_out.data) && is_vector_aligned(d_table);
  const unsigned pieces = block_count(count, kEmbeddingRun);
  const unsigned tiles = column_tiles(width);
  with_element_type(args.d_out.dtype, "d_out", [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&](auto kernel) {
      kernel<<<dim3(pieces, tiles), kScatterThreads, 0, stream.cuda_handle()>>>(
          tokens, order, data_as<T>(args.d_out), d_table, carried, count, width);
    };
    if (aligned) {
      launch(add_runs<T, true>);
    } else {
      launch(add_runs<T, false>);
    }
  });
  TESSERA_CHECK_CUDA(cudaGetLastError());
  if (pieces > 1) {
    const auto launch = [&](auto kernel) {
      kernel<<<dim3(pieces - 1, tiles), kScatterThreads, 0, stream.cuda_handle()>>>(
          tokens, order, carried, d_table, count, width);
    };
    if (aligned) {
      launch(add_carried<true>);
    } else {
      launch(add_carried<false>);
    }
    TESSERA_CHECK_CUDA(cudaGetLastError());
  }
}

}  // namespace tessera::cuda
