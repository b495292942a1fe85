#include <algorithm>
#include <vector>

#include "kernels/base/trace.h"
#include "optim/grad_reducer.h"

namespace tessera {
namespace {

constexpr int kTiles = 4;

class HostSums final : public GradSums {
 public:
  HostSums(const ReduceContext& context, const TensorView& norm_words, DType rows_dtype,
           Index tile_elements, Arena& arena)
      : context_(context),
        norm_words_(norm_words),
        // in a dry run the planned device need not exist
        sums_in_(arena.is_dry_run() ? Device{} : arena.device(), StreamPriority::normal, "sums in"),
        sums_out_(sums_in_.device(), StreamPriority::normal, "sums out") {
    Index largest = 0;
    for (UnitId unit = 0; unit < context.shard.layout().unit_count(); ++unit) {
      if (context.shard.grad_on_host(unit)) {
        largest = std::max(largest, context.shard.range(unit).shard_size());
      }
    }
    const Index elements = std::min(tile_elements, largest);
    for (int i = 0; i < kTiles; ++i) {
      tiles_.push_back({.sums = arena.allocate(MemoryKind::device, DType::f32, {elements},
                                               "gradient staging/sums"),
                        .loaded = Event(arena.device(), "sums.loaded"),
                        .added = Event(arena.device(), "sums.added"),
                        .stored = Event(arena.device(), "sums.stored")});
    }
    const Index ranks = context.comm.world_size();
    packed_ = arena.allocate(
        MemoryKind::device, DType::u8,
        {ranks == 1 ? 0 : ranks * elements * static_cast<Index>(size_in_bytes(rows_dtype))},
        "gradient staging/columns");
  }

  // A tile of the sums comes, is added to, and goes back, each in a stream of its own.
  void reduce(const GradPiece& piece) override {
    const TraceRange adding({TraceCategory::exchange, "sum", context_.name_of(piece.unit)},
                            context_.communication);
    const Index columns = piece.rows.shape[1];
    const Index most = tiles_.front().sums.view().count();
    for (Index at = 0; at < columns; at += most) {
      const Index width = std::min(most, columns - at);
      Tile& tile = tiles_[next_];
      next_ = (next_ + 1) % tiles_.size();
      const TensorView home =
          context_.shard.grad(piece.unit).slice(piece.begin + at, piece.begin + at + width);
      const TensorView sums = tile.sums.view().slice(0, width);
      load(piece.of, home, sums, tile);
      context_.kernels.accumulate({.slices = tile_of(piece.rows, at, width),
                                   .sum = sums,
                                   .partial = {},
                                   .first = piece.of.first,
                                   .count = piece.of.count,
                                   .total = piece.of.total,
                                   .reduce_group = piece.of.reduce_group},
                                  context_.communication);
      if (piece.of.is_last()) {
        context_.kernels.sum_of_squares({.values = sums, .words = norm_words_},
                                        context_.communication);
      }
      tile.added.record(context_.communication);
      sums_out_.wait(tile.added);
      copy_async(sums, home, sums_out_);
      tile.stored.record(sums_out_);
    }
  }

  // Squares were taken tile by tile. Who waits for the norm waits for all sums: write-backs have
  // one order.
  void add_squares(UnitId /*unit*/) override {
    context_.communication.wait(tiles_[(next_ + tiles_.size() - 1) % tiles_.size()].stored);
  }

 private:
  // A piece of the sums while something is added to it.
  struct Tile {
    DeviceBuffer sums;  // [tile elements] f32
    Event loaded;
    Event added;
    Event stored;
    const void* home = nullptr;  // where the sums belong
  };

  // The first micro-batches overwrite, so that nothing need come.
  void load(const MicroBatches& of, const TensorView& home, const TensorView& sums, Tile& tile) {
    tile.home = home.data;
    if (of.first == 0) {
      context_.communication.wait(tile.stored);
      return;
    }
    sums_in_.wait(tile.stored);
    // The same sums may be on their way back: few units, or one unit for several micro-batches.
    // Sums of longer ago are, before those that this tile held.
    for (const Tile& other : tiles_) {
      if (&other != &tile && other.home == home.data) {
        sums_in_.wait(other.stored);
      }
    }
    copy_async(home, sums, sums_in_);
    tile.loaded.record(sums_in_);
    context_.communication.wait(tile.loaded);
  }

  // Columns [at, at + width) of all rows, side by side.
  [[nodiscard]] TensorView tile_of(const TensorView& rows, Index at, Index width) {
    if (rows.shape[0] == 1) {
      return rows.slice(at, at + width).reshaped({1, width});
    }
    const TensorView packed = {packed_.view().data, rows.dtype, Shape{rows.shape[0], width},
                               packed_.view().device};
    pack_columns(context_.kernels, rows, at, packed, context_.communication);
    return packed;
  }

  ReduceContext context_;
  TensorView norm_words_;
  Stream sums_in_;
  Stream sums_out_;
  std::vector<Tile> tiles_;
  std::size_t next_ = 0;
  DeviceBuffer packed_;  // u8: a tile's columns of all rows
};

}  // namespace

std::unique_ptr<GradSums> make_host_sums(const ReduceContext& context, TensorView norm_words,
                                         DType rows_dtype, Index tile_elements, Arena& arena) {
  return std::make_unique<HostSums>(context, norm_words, rows_dtype, tile_elements, arena);
}

}  // namespace tessera
