// d_h = s d_y B and d_B = s d_y^T h with one reading of d_y, in two kernels.
//
// A block of the first takes tiles of d_y (adapter_tiles.h) through shared memory, several of them
// on their way at a time, and multiplies each twice: by B, warp w its tokens 16 w to 16 w + 15, and
// transposed by h, warp w its columns 16 w to 16 w + 15. d_h of 128 tokens is added up in registers
// over the columns of a group, and d_B of a group over the block's tokens; both are left in f32 in
// the workspace. The second kernel adds those up in a fixed order, and scales and rounds once.
//
// B's rows of the group and h of two tiles of tokens lie beside the tiles. The products are
// mma.sync's m16n8k16 in bf16 with f32 sums (PTX ISA, warp-level matrix instructions).
#include <algorithm>
#include <array>
#include <limits>

#include "kernels/adapter_gradients.h"
#include "kernels/cuda/adapter_tiles.h"
#include "kernels/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = kAdapterWarps * kWarp;

// ---- instructions -----------------------------------------------------------------------------

// Copies `bytes` of 16, none or all of what there is, and zeros for the rest.
__device__ __forceinline__ void copy_chunk(unsigned to, const BFloat16* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void end_copies() {
  asm volatile("cp.async.commit_group;" : : : "memory");
}
// Until all but the last kPending groups of this thread's copies are there.
template <int kPending>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory");
}

struct Fragments {
  unsigned words[4];
};
__device__ __forceinline__ Fragments load_four(unsigned from) {
  Fragments f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.words[0]), "=r"(f.words[1]), "=r"(f.words[2]), "=r"(f.words[3])
               : "r"(from)
               : "memory");
  return f;
}
__device__ __forceinline__ Fragments load_four_transposed(unsigned from) {
  Fragments f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.words[0]), "=r"(f.words[1]), "=r"(f.words[2]), "=r"(f.words[3])
               : "r"(from)
               : "memory");
  return f;
}
__device__ __forceinline__ void load_two_transposed(unsigned from, unsigned& first,
                                                    unsigned& second) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(first), "=r"(second)
               : "r"(from)
               : "memory");
}

// sum [16, 8] += a [16, 16] b [16, 8]
__device__ __forceinline__ void multiply(float (&sum)[4], const Fragments& a, unsigned b_first,
                                         unsigned b_second) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b_first),
        "r"(b_second));
}

// Four partial sums, or zeros; of several such loads the second does not wait for the first.
__device__ __forceinline__ float4 load_partial(const float* from, bool is_there) {
  float4 sums = make_float4(0, 0, 0, 0);
  asm volatile("{\n"
               ".reg .pred there;\n"
               "setp.ne.u32 there, %5, 0;\n"
               "@there ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               "}"
               : "+f"(sums.x), "+f"(sums.y), "+f"(sums.z), "+f"(sums.w)
               : "l"(__cvta_generic_to_global(from)), "r"(is_there ? 1U : 0U)
               : "memory");
  return sums;
}

// ---- products ---------------------------------------------------------------------------------

// Of a pass over `columns` columns, which `d_y`, `b` and the partial sums begin with.
struct Operands {
  const BFloat16* d_y;
  const BFloat16* b;
  const BFloat16* hidden;
  float* hidden_sums;  // [groups, tokens, width]; null: not needed
  float* b_sums;       // [partials, kGroupColumns, width]; likewise
  Index ld_y;
  Index ld_hidden;
  int tokens;
  int columns;
  int rank;
  int token_tiles;
  int units;
  int units_of_block;
};

// `kWidth`: the rank, rounded up to one that there is a kernel for. What B and h lack is 0.
template <int kWidth>
class Block {
 public:
  static constexpr int kChunks = kWidth / kChunkElements;  // of a row of B or h
  static constexpr unsigned kRowBytes = kWidth * 2;
  static constexpr int kProducts = kWidth / kProductColumns;
  static constexpr int kSteps = kTileColumns / kProductDepth;
  static_assert(kTileTokens == kTileColumns);
  // Tiles on their way and in use.
  static constexpr int kStages = kWidth <= 32 ? 5 : 4;
  // While a tile of one unit is in use, h of the next may come, but not of the one behind that.
  static_assert(kStages - 1 <= kGroupTiles);
  static constexpr bool kKeepsHidden = kWidth <= 16;  // h in registers, over the tiles of a unit

  static constexpr unsigned kPlaceOfB = kStages * kTileBytes;
  static constexpr unsigned kPlaceOfHidden = kPlaceOfB + kGroupColumns * kRowBytes;
  static constexpr unsigned kHiddenBytes = kTileTokens * kRowBytes;
  static constexpr unsigned kSharedBytes = kPlaceOfHidden + 2 * kHiddenBytes;

  using Sums = float[kProducts][4];

  __device__ Block(const Operands& operands, unsigned shared)
      : of_(operands),
        shared_(shared),
        lane_(threadIdx.x % kWarp),
        warp_(threadIdx.x / kWarp),
        first_unit_(static_cast<int>(blockIdx.x) * operands.units_of_block),
        units_(min(operands.units_of_block, operands.units - first_unit_)) {}

  __device__ void run() {
    int group = first_unit_ / of_.token_tiles;
    int token_tile = first_unit_ - group * of_.token_tiles;
    copy_b(group);  // comes with the first tile
    for (int step = 0; step < kStages - 1; ++step) {
      copy_step(step);
    }
    Sums b_sums[kGroupTiles] = {};
    for (int unit = 0, step = 0; unit < units_; ++unit) {
      Sums hidden_sums = {};
#pragma unroll
      for (int tile = 0; tile < kGroupTiles; ++tile, ++step) {
        await_copies<kStages - 2>();
        __syncthreads();  // the tile is there for all, and all are done with the one before
        copy_step(step + kStages - 1);
        const unsigned hidden = shared_ + kPlaceOfHidden + unit % 2 * kHiddenBytes;
        if (tile == 0) {
          keep_hidden(hidden);
        }
        add_tile(shared_ + static_cast<unsigned>(step % kStages) * kTileBytes, tile, hidden,
                 hidden_sums, b_sums[tile]);
      }
      write_hidden(group, token_tile, hidden_sums);
      ++token_tile;
      if (token_tile == of_.token_tiles || unit + 1 == units_) {
        write_b(group, b_sums);
      }
      if (token_tile == of_.token_tiles && unit + 1 < units_) {
        token_tile = 0;
        ++group;
        __syncthreads();  // all are done with B
        copy_b(group);
        end_copies();
        await_copies<0>();
      }
    }
  }

 private:
  // Group `group`'s rows of B, where d_h is needed. What is not copied is multiplied too, and left.
  __device__ void copy_b(int group) {
    if (of_.hidden_sums == nullptr) {
      return;
    }
    constexpr int kCount = kGroupColumns * kChunks;
    static_assert(kCount % kThreads == 0);
#pragma unroll 4
    for (int i = 0; i < kCount / kThreads; ++i) {
      const int number = i * kThreads + static_cast<int>(threadIdx.x);
      const int row = number / kChunks;
      const int chunk = number % kChunks;
      const int column = group * kGroupColumns + row;
      const bool is_there = column < of_.columns && chunk * kChunkElements < of_.rank;
      const Index at = static_cast<Index>(column) * of_.rank + chunk * kChunkElements;
      copy_chunk(shared_ + kPlaceOfB + chunk_offset<kChunks>(row, chunk),
                 of_.b + (is_there ? at : 0), is_there ? kChunkBytes : 0);
    }
  }

  // h of the tokens of a unit, where d_B is needed.
  __device__ void copy_hidden(int token_tile, unsigned to) {
    if (of_.b_sums == nullptr) {
      return;
    }
    constexpr int kCount = kTileTokens * kChunks;
#pragma unroll
    for (int i = 0; i < divide_up(kCount, kThreads); ++i) {
      const int number = i * kThreads + static_cast<int>(threadIdx.x);
      const int row = number / kChunks;
      const int chunk = number % kChunks;
      const int token = token_tile * kTileTokens + row;
      const bool is_there = token < of_.tokens && chunk * kChunkElements < of_.rank;
      const Index at = token * of_.ld_hidden + chunk * kChunkElements;
      if (row < kTileTokens) {
        copy_chunk(to + chunk_offset<kChunks>(row, chunk), of_.hidden + (is_there ? at : 0),
                   is_there ? kChunkBytes : 0);
      }
    }
  }

  // Tile `step` of this block, and h with the first of a unit. Beyond the block's nothing, but as
  // one group of copies too.
  __device__ void copy_step(int step) {
    constexpr int kChunksOfRow = kTileColumns / kChunkElements;
    constexpr int kRowsAtOnce = kThreads / kChunksOfRow;
    static_assert(kRowsAtOnce % 8 == 0);  // the order of chunks is that of the first row
    const int unit = step / kGroupTiles;
    if (unit < units_) {
      const int group = (first_unit_ + unit) / of_.token_tiles;
      const int token_tile = first_unit_ + unit - group * of_.token_tiles;
      if (step % kGroupTiles == 0) {
        copy_hidden(token_tile, shared_ + kPlaceOfHidden + unit % 2 * kHiddenBytes);
      }
      const int row = static_cast<int>(threadIdx.x) / kChunksOfRow;
      const int chunk = static_cast<int>(threadIdx.x) % kChunksOfRow;
      const int column =
          group * kGroupColumns + step % kGroupTiles * kTileColumns + chunk * kChunkElements;
      const int token = token_tile * kTileTokens + row;
      const int bytes = max(0, min(static_cast<int>(kChunkBytes), (of_.columns - column) * 2));
      const BFloat16* from = of_.d_y + token * of_.ld_y + column;
      const unsigned to = shared_ + static_cast<unsigned>(step % kStages) * kTileBytes +
                          chunk_offset<kChunksOfRow>(row, chunk);
#pragma unroll
      for (int i = 0; i < kTileTokens / kRowsAtOnce; ++i) {
        const bool is_there = bytes > 0 && token + i * kRowsAtOnce < of_.tokens;
        copy_chunk(to + i * kRowsAtOnce * kTileRowBytes,
                   is_there ? from + i * kRowsAtOnce * of_.ld_y : of_.d_y, is_there ? bytes : 0);
      }
    }
    end_copies();
  }

  // Rows [16 step, 16 step + 16) of B or of h as second factors of kProducts products.
  __device__ void load_second(unsigned rows, int step, unsigned (&words)[kProducts][2]) const {
    const ChunkPlace place = rows_first(lane_);
    const unsigned from = rows + static_cast<unsigned>(step) * kProductDepth * kRowBytes;
    if constexpr (kProducts == 1) {
      load_two_transposed(from + chunk_offset<kChunks>(place.row, 0), words[0][0], words[0][1]);
    } else {
#pragma unroll
      for (int pair = 0; pair < kProducts; pair += 2) {
        const Fragments f =
            load_four_transposed(from + chunk_offset<kChunks>(place.row, pair + place.chunk));
        words[pair][0] = f.words[0];
        words[pair][1] = f.words[1];
        words[pair + 1][0] = f.words[2];
        words[pair + 1][1] = f.words[3];
      }
    }
  }

  __device__ void keep_hidden(unsigned hidden) {
    if constexpr (kKeepsHidden) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        load_second(hidden, step, kept_[step]);
      }
    }
  }

  __device__ void add_tile(unsigned tile, int number, unsigned hidden, Sums& hidden_sums,
                           Sums& b_sums) {
    constexpr int kChunksOfRow = kTileColumns / kChunkElements;
    const unsigned b =
        shared_ + kPlaceOfB + static_cast<unsigned>(number) * kTileColumns * kRowBytes;
    const ChunkPlace of_tokens = rows_first(lane_);
    const ChunkPlace of_columns = chunks_first(lane_);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const Fragments tokens =
          load_four(tile + chunk_offset<kChunksOfRow>(warp_ * kProductRows + of_tokens.row,
                                                      step * 2 + of_tokens.chunk));
      const Fragments columns = load_four_transposed(
          tile + chunk_offset<kChunksOfRow>(step * kProductDepth + of_columns.row,
                                            warp_ * 2 + of_columns.chunk));
      unsigned second[kProducts][2];
      load_second(b, step, second);
#pragma unroll
      for (int product = 0; product < kProducts; ++product) {
        multiply(hidden_sums[product], tokens, second[product][0], second[product][1]);
      }
      if constexpr (kKeepsHidden) {
#pragma unroll
        for (int product = 0; product < kProducts; ++product) {
          multiply(b_sums[product], columns, kept_[step][product][0], kept_[step][product][1]);
        }
      } else {
        load_second(hidden, step, second);
#pragma unroll
        for (int product = 0; product < kProducts; ++product) {
          multiply(b_sums[product], columns, second[product][0], second[product][1]);
        }
      }
    }
  }

  // Two rows of a product's result, rows kWidth apart; the lower one only where it is there.
  __device__ void write_sums(float* rows, int left, const Sums& sums) const {
    const int row = static_cast<int>(result_row(lane_));
#pragma unroll
    for (int product = 0; product < kProducts; ++product) {
      float* to = rows + row * kWidth + product * kProductColumns + result_column(lane_);
      if (row < left) {
        *reinterpret_cast<float2*>(to) = make_float2(sums[product][0], sums[product][1]);
      }
      if (row + static_cast<int>(kLowerRows) < left) {
        *reinterpret_cast<float2*>(to + kLowerRows * kWidth) =
            make_float2(sums[product][2], sums[product][3]);
      }
    }
  }

  __device__ void write_hidden(int group, int token_tile, const Sums& sums) const {
    const int token = token_tile * kTileTokens + static_cast<int>(warp_) * kProductRows;
    const Index row = static_cast<Index>(group) * of_.tokens + token;
    if (of_.hidden_sums != nullptr) {
      write_sums(of_.hidden_sums + row * kWidth, of_.tokens - token, sums);
    }
  }

  // And begins anew.
  __device__ void write_b(int group, Sums (&sums)[kGroupTiles]) const {
    const Index partial = static_cast<Index>(blockIdx.x) + group;
#pragma unroll
    for (int tile = 0; tile < kGroupTiles; ++tile) {
      const Index row = partial * kGroupColumns + tile * kTileColumns + warp_ * kProductRows;
      if (of_.b_sums != nullptr) {
        write_sums(of_.b_sums + row * kWidth, kProductRows, sums[tile]);
      }
#pragma unroll
      for (int product = 0; product < kProducts; ++product) {
#pragma unroll
        for (float& sum : sums[tile][product]) {
          sum = 0;
        }
      }
    }
  }

  const Operands& of_;
  unsigned shared_;
  unsigned lane_;
  unsigned warp_;
  int first_unit_;
  int units_;
  unsigned kept_[kKeepsHidden ? kSteps : 1][kProducts][2];
};

template <int kWidth>
__global__ void __launch_bounds__(kThreads, 1) multiply_tiles(const __grid_constant__ Operands of) {
  extern __shared__ __align__(kTileRowBytes) unsigned char shared[];
  trigger_next_kernel();  // whose blocks wait beside this one's
  Block<kWidth>(of, static_cast<unsigned>(__cvta_generic_to_shared(shared))).run();
}

// ---- sums -------------------------------------------------------------------------------------

constexpr int kSlices = 4;       // of the partial sums of a number, added up side by side
constexpr int kBlockQuads = 64;  // of a block
constexpr int kAddUnroll = 8;

__device__ __forceinline__ float4 plus(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// What both gradients are added up from, and written to. Quads of their numbers are counted along
// rows of `rank`; those of partial sums are `width` long.
template <typename T>
struct Results {
  AdapterSplit split;
  const float* hidden_sums;  // [hidden_count, tokens, width]
  const float* b_sums;       // [partials, kGroupColumns, width]
  BFloat16* d_hidden;
  float* passed_on;  // [tokens, width]: d_h's sums where a pass follows; else null
  T* d_b;
  Index ld_hidden;
  int hidden_quads;  // of `tokens` rows; 0: not needed
  int b_quads;       // likewise
  int tokens;
  int hidden_count;
  int quads_of_row;
  int width;
  float scale;
};

// kBlockQuads threads add one slice of as many quads' partial sums, and the first of them the slices.
// The workspace holds fewer numbers than an int counts.
template <typename T>
__global__ void __launch_bounds__(kSlices* kBlockQuads)
    add_partials(const __grid_constant__ Results<T> of) {
  __shared__ float4 slices[kSlices][kBlockQuads];
  const int place = static_cast<int>(threadIdx.x) % kBlockQuads;
  const int slice = static_cast<int>(threadIdx.x) / kBlockQuads;
  // a block has quads of one of both
  const int hidden_blocks = divide_up(of.hidden_quads, kBlockQuads);
  const int block = static_cast<int>(blockIdx.x);
  const bool is_hidden = block < hidden_blocks;
  const int quad = (block - (is_hidden ? 0 : hidden_blocks)) * kBlockQuads + place;
  const bool is_there = quad < (is_hidden ? of.hidden_quads : of.b_quads);
  const int row = quad / of.quads_of_row;
  const int column = quad % of.quads_of_row * kQuad;
  const float* from = of.hidden_sums + row * of.width + column;
  int stride = of.tokens * of.width;
  int count = of.hidden_count;
  if (!is_hidden) {
    const PartialRange range = partials_of_group(of.split, row / kGroupColumns);
    stride = kGroupColumns * of.width;
    from = of.b_sums + range.first * stride + row % kGroupColumns * of.width + column;
    count = range.count;
  }
  wait_previous_kernel();
  float4 sum = make_float4(0, 0, 0, 0);
  if (is_there) {
    for (int begin = slice; begin < count; begin += kSlices * kAddUnroll) {
      float4 partials[kAddUnroll];
#pragma unroll
      for (int i = 0; i < kAddUnroll; ++i) {
        const int number = begin + i * kSlices;
        partials[i] = load_partial(from + number * stride, number < count);
      }
#pragma unroll
      for (int i = 0; i < kAddUnroll; ++i) {
        sum = plus(sum, partials[i]);
      }
    }
  }
  slices[slice][place] = sum;
  __syncthreads();
  if (slice > 0 || !is_there) {
    return;
  }
#pragma unroll
  for (int i = 1; i < kSlices; ++i) {
    sum = plus(sum, slices[i][place]);
  }
  if (is_hidden && of.passed_on != nullptr) {
    *reinterpret_cast<float4*>(of.passed_on + row * of.width + column) = sum;
    return;
  }
  sum = make_float4(of.scale * sum.x, of.scale * sum.y, of.scale * sum.z, of.scale * sum.w);
  if (is_hidden) {
    store_quad<true>(of.d_hidden + row * of.ld_hidden, column, of.quads_of_row * kQuad, sum);
  } else {
    store_quad<true>(of.d_b, quad * kQuad, of.b_quads * kQuad, sum);
  }
}

// ---- passes -----------------------------------------------------------------------------------

constexpr std::array<int, 4> kWidths = {8, 16, 32, 64};

// Of a rank; 0 for none.
int width_of(Index rank) {
  const auto* const width = std::ranges::find_if(kWidths, [rank](int w) { return rank <= w; });
  return rank % kChunkElements != 0 || width == kWidths.end() ? 0 : *width;
}

// Whether rows of bf16, `ld` apart, begin at multiples of 16 bytes.
bool has_chunks(const ConstTensorView& view, Index ld) {
  return view.dtype == DType::bf16 && is_vector_aligned(view.data) && ld % kChunkElements == 0;
}

bool is_for_tiles(const AdapterGradientsArgs& args) {
  constexpr Index kMost = std::numeric_limits<int>::max() / 2;  // tokens and columns, as int
  const DType out = args.d_b.dtype;
  return width_of(args.rank) != 0 && args.tokens <= kMost && args.out <= kMost &&
         has_chunks(args.d_y, args.ld_y) && has_chunks(args.b, args.rank) &&
         has_chunks(args.hidden, args.ld_hidden) && has_chunks(args.d_hidden, args.ld_hidden) &&
         (out == DType::bf16 || out == DType::f32) && is_vector_aligned(args.d_b.data) &&
         is_vector_aligned(args.workspace.data);
}

bool holds(const ConstTensorView& view, Index rows, Index columns, Index ld) {
  return view.data != nullptr && ld >= columns && view.count() >= (rows - 1) * ld + columns;
}

void require_valid(const AdapterGradientsArgs& args) {
  TESSERA_REQUIRE(args.tokens > 0 && args.out > 0 && args.rank > 0,
                  "gradients of an adapter have tokens, rows and a rank");
  TESSERA_REQUIRE(holds(args.d_y, args.tokens, args.out, args.ld_y),
                  "d_y holds tokens x out elements, rows ld_y apart");
  TESSERA_REQUIRE(holds(args.hidden, args.tokens, args.rank, args.ld_hidden) &&
                      holds(args.d_hidden, args.tokens, args.rank, args.ld_hidden),
                  "hidden and d_hidden hold tokens x rank elements, rows ld_hidden apart");
  TESSERA_REQUIRE(holds(args.b, args.out, args.rank, args.rank) &&
                      holds(args.d_b, args.out, args.rank, args.rank),
                  "b and d_b hold out x rank elements");
  require_room(args.workspace, DType::u8,
               static_cast<Index>(gemm_workspace_bytes(DeviceKind::cuda)), "workspace");
}

template <int kWidth>
void launch_products(const Operands& operands, Index blocks, Stream& stream) {
  constexpr int kBytes = static_cast<int>(Block<kWidth>::kSharedBytes);
  static_assert(kBytes <= 227 * 1024);
  TESSERA_CHECK_CUDA(cudaFuncSetAttribute(multiply_tiles<kWidth>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  multiply_tiles<kWidth>
      <<<block_count(blocks, 1), kThreads, kBytes, stream.cuda_handle()>>>(operands);
  TESSERA_CHECK_CUDA(cudaGetLastError());
}

template <typename T>
void launch_sums(const Results<T>& results, Stream& stream) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(block_count(
      divide_up(results.hidden_quads, kBlockQuads) + divide_up(results.b_quads, kBlockQuads), 1));
  config.blockDim = dim3(kSlices * kBlockQuads);
  config.stream = stream.cuda_handle();
  config.attrs = &early;
  config.numAttrs = is_hopper_or_later() ? 1 : 0;
  TESSERA_CHECK_CUDA(cudaLaunchKernelEx(&config, add_partials<T>, results));
}

// Columns [first, end) of pass_groups groups at most.
template <int kWidth>
void run_pass(const AdapterGradientsArgs& args, Index first, Index end, const AdapterRoom& room,
              Stream& stream) {
  const Index columns = end - first;
  const AdapterSplit split = adapter_split(args.tokens, divide_up(columns, Index{kGroupColumns}));
  auto* const passed_on = reinterpret_cast<float*>(data_as<std::uint8_t>(args.workspace));
  float* const b_sums = passed_on + room.hidden_stride * room.hidden_count;
  const Operands operands = {
      .d_y = data_as<BFloat16>(args.d_y) + first,
      .b = data_as<BFloat16>(args.b) + first * args.rank,
      .hidden = data_as<BFloat16>(args.hidden),
      .hidden_sums = has_hidden(args.needed) ? passed_on + room.hidden_stride : nullptr,
      .b_sums = has_b(args.needed) ? b_sums : nullptr,
      .ld_y = args.ld_y,
      .ld_hidden = args.ld_hidden,
      .tokens = static_cast<int>(args.tokens),
      .columns = static_cast<int>(columns),
      .rank = static_cast<int>(args.rank),
      .token_tiles = split.token_tiles,
      .units = split.token_tiles * split.groups,
      .units_of_block = split.units_of_block};
  launch_products<kWidth>(operands, split.blocks, stream);
  const bool has_before = first > 0;
  with_element_type(args.d_b.dtype, "d_b", [&](auto zero) {
    using T = decltype(zero);
    const auto quads_of_row = static_cast<int>(args.rank / kQuad);
    launch_sums<T>({.split = split,
                    .hidden_sums = passed_on + (has_before ? 0 : room.hidden_stride),
                    .b_sums = b_sums,
                    .d_hidden = data_as<BFloat16>(args.d_hidden),
                    .passed_on = end < args.out ? passed_on : nullptr,
                    .d_b = data_as<T>(args.d_b) + first * args.rank,
                    .ld_hidden = args.ld_hidden,
                    .hidden_quads = has_hidden(args.needed) ? operands.tokens * quads_of_row : 0,
                    .b_quads = has_b(args.needed) ? operands.columns * quads_of_row : 0,
                    .tokens = operands.tokens,
                    .hidden_count = split.groups + (has_before ? 1 : 0),
                    .quads_of_row = quads_of_row,
                    .width = kWidth,
                    .scale = args.scale},
                   stream);
  });
}

// False where the tiles find no room in shared memory, as before Hopper, or a partial sum of all
// tokens none in the workspace.
template <int kWidth>
bool run_passes(const AdapterGradientsArgs& args, Stream& stream) {
  const Index groups = divide_up(args.out, Index{kGroupColumns});
  const auto elements = static_cast<Index>(gemm_workspace_bytes(DeviceKind::cuda) / sizeof(float));
  const Index pass_groups = adapter_pass_groups(args.tokens, kWidth, groups, elements);
  if (pass_groups == 0 || device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) <
                              static_cast<int>(Block<kWidth>::kSharedBytes)) {
    return false;
  }
  const AdapterRoom room = adapter_room(args.tokens, kWidth, pass_groups);
  const Index pass_columns = pass_groups * kGroupColumns;
  for (Index first = 0; first < args.out; first += pass_columns) {
    run_pass<kWidth>(args, first, std::min(first + pass_columns, args.out), room, stream);
  }
  return true;
}

bool run_tiles(const AdapterGradientsArgs& args, Stream& stream) {
  switch (width_of(args.rank)) {
    case 8:
      return run_passes<8>(args, stream);
    case 16:
      return run_passes<16>(args, stream);
    case 32:
      return run_passes<32>(args, stream);
    default:
      return run_passes<64>(args, stream);
  }
}

}  // namespace

void adapter_gradients(const AdapterGradientsArgs& args, Stream& stream) {
  require_valid(args);
  if (!is_for_tiles(args) || !run_tiles(args, stream)) {
    adapter_gradients_by_gemms(args, gemm, stream);
  }
}

}  // namespace tessera::cuda
