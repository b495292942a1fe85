#include "optim/frozen_params.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/parallel.h"
#include "kernels/base/progress.h"
#include "kernels/device/arena.h"
#include "kernels/device/master_code.h"
#include "optim/optimizer_shard.h"

namespace tessera {
namespace {

constexpr Index kPiece = Index{1} << 19U;  // elements that a thread takes at a time

struct Piece {
  UnitId unit;
  Index begin;  // within the unit
  Index count;
};

void add_pieces(UnitId unit, Index first, Index last, std::vector<Piece>& pieces) {
  for (Index begin = first; begin < last; begin += kPiece) {
    pieces.push_back({unit, begin, std::min(kPiece, last - begin)});
  }
}

}  // namespace

void round_params(std::span<const float> values, DType dtype, DType param_values,
                  std::span<std::byte> bytes) {
  TESSERA_REQUIRE(bytes.size() == values.size() * size_in_bytes(dtype), "bytes of all values");
  std::byte* to = bytes.data();
  const auto put = [&to](auto value) {
    std::memcpy(to, &value, sizeof value);
    to += sizeof value;
  };
  if (dtype == DType::bf16) {
    std::ranges::for_each(values, [&](float value) { put(param_of(value)); });
  } else if (param_values == DType::bf16) {
    std::ranges::for_each(values, [&](float value) { put(to_float(param_of(value))); });
  } else {
    std::ranges::for_each(values, put);
  }
}

std::uint64_t write_frozen(const FrozenParamsArgs& args, const UnitValues& values) {
  std::vector<Piece> pieces;
  std::vector<OptimizerShard> ranges;
  for (UnitId unit = 0; unit < args.layout.unit_count(); ++unit) {
    ranges.push_back(OptimizerShard::for_rank(
        args.rank, args.world_size, padded_count(args.layout.unit(unit).count, args.world_size)));
    add_pieces(unit, ranges.back().param_start, ranges.back().param_end, pieces);
  }
  std::atomic<std::uint64_t> sum = 0;
  share_among_threads(std::ssize(pieces), args.threads, [&] {
    return [&, host = std::vector<float>(), bytes = std::vector<std::byte>(),
            stream = Stream(args.device, StreamPriority::normal, "frozen")](Index i) mutable {
      const Piece& piece = pieces[static_cast<std::size_t>(i)];
      host.assign(static_cast<std::size_t>(piece.count), 0.0F);
      values(piece.unit, piece.begin, host);
      sum += hash_of_blocks(args.layout.unit(piece.unit), piece.unit, piece.begin, host);
      const Index at = piece.begin - ranges[static_cast<std::size_t>(piece.unit)].param_start;
      const TensorView target = args.store.local_shard(piece.unit).slice(at, at + piece.count);
      bytes.resize(host.size() * size_in_bytes(target.dtype));
      round_params(host, target.dtype, args.param_values, bytes);
      copy_async({bytes.data(), target.dtype, target.shape, Device{}}, target, stream);
      stream.synchronize();
      progress().beats.fetch_add(1, std::memory_order_relaxed);
    };
  });
  return sum;
}

}  // namespace tessera
