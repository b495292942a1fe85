#include "kernels/attention.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "kernels/attention_documents.h"
#include "kernels/attention_slices.h"
#include "kernels/base/error.h"
#include "kernels/base/round_up.h"
#include "kernels/cpu/attention_workspace.h"

namespace tessera {
namespace {

// What a plan of the library may ask for beside the tensors counted below, and all that its forward
// pass may ask for.
constexpr std::size_t kPlanReserve = std::size_t{1} << 20U;

// Tensors of a slice begin at a multiple of 16 bytes; lse, [B, Hq, T] in f32, is the one that might
// not.
constexpr Index kLseUnit = 4;

// The library computes in blocks of tokens, and of elements of a head.
constexpr Index kTokenBlock = 128;
constexpr Index kHeadDimBlock = 64;
constexpr Index kBFloat16Bytes = 2;
constexpr Index kFloatBytes = 4;

// Tiles: larger ones are faster, and beyond these sizes little; smaller ones are bound by the host.
constexpr Index kLargestTile = 8192;
constexpr Index kSmallestTile = 256;
constexpr Index kTileUnit = 8;
constexpr std::size_t kRoomUnit = 256;  // where parts of a workspace begin

// Backward workspace of one query head of one sequence, as cuDNN 9 lays it out: the rows' sums of
// d_out . out; the gradients of the scores for `deterministic`, the f32 sums of dq for `fast`; and
// with grouped heads dk and dv of each query head, before they are summed over the group.
Index query_head_bytes(const AttentionShape& shape, AttentionOrder order, Index query_count,
                       Index key_count) {
  const Index queries = round_up(query_count, kTokenBlock);
  const Index keys = round_up(key_count, kTokenBlock);
  const Index head_dim = round_up(shape.head_dim, kHeadDimBlock);
  const Index row_sums = queries * kFloatBytes;
  const Index sums = order == AttentionOrder::deterministic ? queries * keys * kBFloat16Bytes
                                                            : queries * head_dim * kFloatBytes;
  const Index ungrouped =
      shape.query_heads == shape.kv_heads ? 0 : 2 * keys * head_dim * kBFloat16Bytes;
  return row_sums + sums + ungrouped;
}

// Keys that the queries of one tile are called with.
Index keys_of_tile(const AttentionShape& shape, Index tile) {
  return shape.window == 0 ? tile : std::min(shape.sequence, tile + shape.window - 1);
}

// Slices in tiles of at most `most` queries, all nearly equal: cuDNN 9.19 gives NaN for a last tile of
// one query. None where not even one key/value head fits.
std::optional<AttentionSlices> slices_in_tiles(const AttentionShape& shape, Index most,
                                               Index budget) {
  const Index tile = std::min(
      most, round_up(divide_up(shape.sequence, divide_up(shape.sequence, most)), kTileUnit));
  const Index heads = shape.query_heads / shape.kv_heads;
  const auto bytes_of = [&](Index groups) {
    const AttentionSlices slices = {.sequences = 1, .groups = groups, .tile = tile, .bytes = 0};
    return static_cast<Index>(attention_tile_room(shape, slices).library) +
           groups * heads *
               query_head_bytes(shape, AttentionOrder::deterministic, tile,
                                keys_of_tile(shape, tile));
  };
  for (Index slices = 1; slices <= shape.kv_heads; ++slices) {
    const Index groups = divide_up(shape.kv_heads, slices);
    if (const Index bytes = bytes_of(groups); bytes <= budget) {
      return AttentionSlices{
          .sequences = 1, .groups = groups, .tile = tile, .bytes = static_cast<std::size_t>(bytes)};
    }
  }
  return std::nullopt;
}

// The largest tile that fits, the whole sequence first; none in the fast order, whose workspace
// grows with the sequence alone.
std::optional<AttentionSlices> tiles_that_fit(const AttentionShape& shape, AttentionOrder order,
                                              Index budget) {
  if (order != AttentionOrder::deterministic) {
    return std::nullopt;
  }
  if (const auto slices = slices_in_tiles(shape, shape.sequence, budget)) {
    return slices;
  }
  for (Index tile = kLargestTile; tile >= kSmallestTile; tile /= 2) {
    if (tile < shape.sequence) {
      if (const auto slices = slices_in_tiles(shape, tile, budget)) {
        return slices;
      }
    }
  }
  return std::nullopt;
}

// Rows of d_out . out in f32: all that our own backward pass on CUDA needs.
std::size_t row_products_bytes(const AttentionShape& shape) {
  return static_cast<std::size_t>(shape.batch * shape.query_heads * shape.sequence) * sizeof(float);
}

void require_cuda_head_dim(Index head_dim) {
  if (head_dim % kCudaHeadDimUnit != 0 || head_dim > kMaxCudaHeadDim) {
    throw ConfigError("attention: heads of " + std::to_string(head_dim) +
                          " elements; CUDA takes multiples of " + std::to_string(kCudaHeadDimUnit) +
                          " up to " + std::to_string(kMaxCudaHeadDim),
                      TESSERA_HERE);
  }
}

}  // namespace

AttentionSlices attention_slices(const AttentionShape& shape, const AttentionOptions& options) {
  const Index head_bytes = query_head_bytes(shape, options.order, shape.sequence, shape.sequence);
  const Index heads = shape.query_heads / shape.kv_heads;  // of a key/value head
  const Index group_bytes = head_bytes * heads;
  const auto budget = static_cast<Index>(std::min<std::size_t>(
      options.slice_bytes, static_cast<std::size_t>(std::numeric_limits<Index>::max())));
  const Index groups_that_fit = budget / group_bytes;
  if (groups_that_fit == 0) {
    if (const auto slices = tiles_that_fit(shape, options.order, budget)) {
      return *slices;
    }
    throw ConfigError("attention: one key/value head of sequences of " +
                          std::to_string(shape.sequence) + " tokens needs a workspace of " +
                          std::to_string(group_bytes) +
                          " bytes, and neither a slice nor a tile of it keeps within " +
                          std::to_string(options.slice_bytes) +
                          "; raise the limit, shorten the sequences, or use the builtin attention",
                      TESSERA_HERE);
  }
  // As many slices as needed, and all as equal as can be.
  const Index sequences_that_fit = groups_that_fit / shape.kv_heads;
  const bool is_cut = sequences_that_fit == 0;
  const Index fitting = is_cut ? groups_that_fit : sequences_that_fit;
  const Index count = is_cut ? shape.kv_heads : shape.batch;
  const Index slices = divide_up(count, fitting);
  const Index each = divide_up(count, slices);
  const Index slice_heads = each * (is_cut ? heads : shape.query_heads);
  const bool is_aligned =
      (slices == 1 || slice_heads * shape.sequence % kLseUnit == 0) &&
      (!is_cut || shape.batch == 1 || shape.query_heads * shape.sequence % kLseUnit == 0);
  if (is_aligned) {
    return {.sequences = is_cut ? 1 : each,
            .groups = is_cut ? each : shape.kv_heads,
            .tile = 0,
            .bytes = static_cast<std::size_t>(each * (is_cut ? 1 : shape.kv_heads) * group_bytes)};
  }
  // In tiles lse is copied to where cuDNN can read it; one tile may be the whole sequence.
  if (const auto tiled = tiles_that_fit(shape, options.order, budget)) {
    return *tiled;
  }
  throw ConfigError("attention: sequences of " + std::to_string(shape.sequence) +
                        " tokens cannot be cut into slices for cuDNN; make them a multiple of " +
                        std::to_string(kLseUnit) +
                        ", raise the limit of a slice, or use the builtin attention",
                    TESSERA_HERE);
}

AttentionTileRoom attention_tile_room(const AttentionShape& shape, const AttentionSlices& slices) {
  const Index key_width = slices.groups * shape.head_dim;
  const Index query_width = key_width * (shape.query_heads / shape.kv_heads);
  const Index own_queries = shape.window == 0 ? slices.tile : 0;  // a window's d_q needs no sums
  AttentionTileRoom room{};
  room.keys = keys_of_tile(shape, slices.tile);
  room.lse_row = round_up(shape.sequence, kLseUnit);
  std::size_t next = 0;
  const auto take = [&next](Index elements, Index bytes) {
    const std::size_t begin = next;
    next += static_cast<std::size_t>(elements * bytes);
    next = round_up(next, kRoomUnit);
    return begin;
  };
  room.key_sums = take(2 * shape.sequence * key_width, kFloatBytes);
  room.query_sums = take(own_queries * query_width, kFloatBytes);
  room.d_q = take(own_queries * query_width, kBFloat16Bytes);
  room.d_k = take(room.keys * key_width, kBFloat16Bytes);
  room.d_v = take(room.keys * key_width, kBFloat16Bytes);
  room.lse = take(slices.groups * (shape.query_heads / shape.kv_heads) * room.lse_row, kFloatBytes);
  room.library = next;
  return room;
}

void prepare_attention(const AttentionForwardArgs& forward, const AttentionBackwardArgs& backward,
                       Stream& stream) {
  if (stream.device().kind == DeviceKind::cuda && forward.options.documents) {
    cuda::prepare_attention(forward, backward, stream);
  }
}

std::size_t attention_workspace_bytes(DeviceKind kind, const AttentionShape& shape, DType dtype,
                                      const AttentionOptions& options) {
  TESSERA_REQUIRE(shape.batch > 0 && shape.sequence > 0 && shape.kv_heads > 0 &&
                      shape.head_dim > 0 && shape.query_heads > 0 &&
                      shape.query_heads % shape.kv_heads == 0,
                  "attention takes positive extents, and query heads a multiple of kv heads");
  if (kind == DeviceKind::cpu) {
    return cpu::attention_workspace_bytes(shape);
  }
  require_cuda_head_dim(shape.head_dim);
  if (options.method == AttentionMethod::builtin) {
    return row_products_bytes(shape);
  }
  if (dtype != DType::bf16) {
    throw ConfigError("attention: cuDNN takes bf16 only, and this run is in " +
                          std::string(dtype_name(dtype)) + "; use the builtin attention",
                      TESSERA_HERE);
  }
  std::size_t bytes = attention_slices(shape, options).bytes;
  if (options.documents) {
    const std::size_t rows = document_room(shape).library;
    for (const DocumentCall& call : document_calls(shape)) {
      bytes = std::max(bytes, rows + attention_slices(shape_of_call(shape, call), options).bytes);
    }
  }
  return bytes + kPlanReserve;
}

}  // namespace tessera
