#include "optim/frozen_params.h"

#include <algorithm>
#include <atomic>
#include <vector>

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

// `values` into `target`, which is on the store's device, by way of `narrow` where that is bf16.
void store(std::span<float> values, DType param_values, TensorView target,
           std::vector<BFloat16>& narrow, Stream& stream) {
  const Shape shape = {static_cast<Index>(values.size())};
  if (target.dtype == DType::bf16) {
    narrow.resize(values.size());
    std::ranges::transform(values, narrow.begin(), param_of);
    copy_async({narrow.data(), DType::bf16, shape, Device{}}, target, stream);
  } else {
    if (param_values == DType::bf16) {
      std::ranges::transform(values, values.begin(),
                             [](float value) { return to_float(param_of(value)); });
    }
    copy_async({values.data(), DType::f32, shape, Device{}}, target, stream);
  }
  stream.synchronize();
}

}  // namespace

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
    return [&, host = std::vector<float>(), narrow = std::vector<BFloat16>(),
            stream = Stream(args.device, StreamPriority::normal, "frozen")](Index i) mutable {
      const Piece& piece = pieces[static_cast<std::size_t>(i)];
      host.assign(static_cast<std::size_t>(piece.count), 0.0F);
      values(piece.unit, piece.begin, host);
      sum += hash_of_blocks(args.layout.unit(piece.unit), piece.unit, piece.begin, host);
      const Index at = piece.begin - ranges[static_cast<std::size_t>(piece.unit)].param_start;
      store(host, args.param_values, args.store.local_shard(piece.unit).slice(at, at + piece.count),
            narrow, stream);
      progress().beats.fetch_add(1, std::memory_order_relaxed);
    };
  });
  return sum;
}

}  // namespace tessera
