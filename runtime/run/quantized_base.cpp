#include "runtime/run/quantized_base.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/base/hash.h"
#include "kernels/base/parallel.h"
#include "kernels/base/progress.h"
#include "kernels/base/random.h"
#include "kernels/nf4.h"
#include "model/initialization.h"
#include "optim/frozen_params.h"
#include "optim/optimizer_shard.h"
#include "runtime/launch/agree.h"

namespace tessera {
namespace {

constexpr Index kPieceElements = Index{1} << 19U;  // that a thread takes at a time
constexpr Index kPieceBytes = Index{1} << 21U;

Index up_to_block(Index element) {
  return (element + kHashedElements - 1) / kHashedElements * kHashedElements;
}

struct Range {
  Index begin;
  Index end;
};

// [begin, end) in pieces that begin at multiples of `piece`, but for the first.
std::vector<Range> pieces_of(Range range, Index piece) {
  std::vector<Range> pieces;
  for (Index begin = range.begin; begin < range.end;) {
    const Index end = std::min(range.end, (begin / piece + 1) * piece);
    pieces.push_back({begin, end});
    begin = end;
  }
  return pieces;
}

// Elements of a unit with the hash of those blocks of them that begin there.
struct Values {
  std::vector<float> all;
  std::uint64_t hash;
};

Values read_values(const QuantizedBaseArgs& args, const UnitValues& values, UnitId unit,
                   Range range, int threads) {
  const Index end = up_to_block(range.end);
  Values read = {std::vector<float>(static_cast<std::size_t>(end - range.begin)), 0};
  const std::vector<Range> pieces = pieces_of({range.begin, end}, kPieceElements);
  std::atomic<std::uint64_t> sum = 0;
  share_among_threads(std::ssize(pieces), threads, [&] {
    return [&](Index i) {
      const Range& piece = pieces[static_cast<std::size_t>(i)];
      const std::span<float> here =
          std::span(read.all).subspan(static_cast<std::size_t>(piece.begin - range.begin),
                                      static_cast<std::size_t>(piece.end - piece.begin));
      values(unit, piece.begin, here);
      if (const Index first = up_to_block(piece.begin); first < piece.end) {
        sum += hash_of_blocks(args.layout.unit(unit), unit, first,
                              here.subspan(static_cast<std::size_t>(first - piece.begin)));
      }
      progress().beats.fetch_add(1, std::memory_order_relaxed);
    };
  });
  read.all.resize(static_cast<std::size_t>(range.end - range.begin));
  read.hash = sum;
  return read;
}

// A whole block. Returns its part of the hash.
std::uint64_t pack_block(const QuantizedBaseArgs& args, const BaseSource& source, UnitId unit,
                         std::span<std::byte> bytes) {
  const PackedLayout& packed = args.store.packed();
  std::uint64_t hash = 0;
  for (const PackedPart& part : packed.parts(unit)) {
    const std::span<std::byte> here =
        bytes.subspan(static_cast<std::size_t>(part.byte), static_cast<std::size_t>(part.bytes));
    if (part.is_nf4 && source.matrices) {
      source.matrices(part, here);
      hash += xxh3_64(here, xxh3_64(bytes_of(part.name)));
      progress().beats.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    const Values values =
        read_values(args, source.values, unit, {part.first, part.first + part.count}, args.threads);
    hash += values.hash;
    if (part.is_nf4) {
      quantize_nf4(part.name, values.all, here, args.threads);
    } else {
      round_params(values.all, packed.params(), args.param_values, here);
    }
  }
  return hash;
}

std::vector<UnitId> packed_units(const QuantizedBaseArgs& args) {
  std::vector<UnitId> units;
  for (UnitId unit = 0; unit < args.layout.unit_count(); ++unit) {
    if (args.store.packed().is_packed(unit)) {
      units.push_back(unit);
    }
  }
  return units;
}

OptimizerShard shard_of(const QuantizedBaseArgs& args, UnitId unit) {
  const int ranks = args.comm.world_size();
  return OptimizerShard::for_rank(
      args.comm.rank(), ranks, padded_count(args.store.packed().bytes().unit(unit).count, ranks));
}

ConstTensorView host_view(std::span<const std::byte> bytes) {
  return {bytes.data(), DType::u8, Shape{std::ssize(bytes)}, Device{}};
}

// Blocks that this rank and the others make, and the exchange of their shards.
std::uint64_t make_blocks(const QuantizedBaseArgs& args, const BaseSource& source) {
  const std::vector<UnitId> units = packed_units(args);
  const Index ranks = args.comm.world_size();
  const TensorView spare = args.store.spare_bytes();
  std::vector<std::byte> block;
  std::uint64_t hash = 0;
  for (Index first = 0; first < std::ssize(units); first += ranks) {
    const Index count =
        args.store.packed().bytes().unit(units[static_cast<std::size_t>(first)]).count;
    const Index padded = padded_count(count, args.comm.world_size());
    const Index shard = padded / ranks;
    agree(args.comm, [&] {
      block.assign(static_cast<std::size_t>(padded), std::byte{0});
      if (const Index own = first + args.comm.rank(); own < std::ssize(units)) {
        const UnitId unit = units[static_cast<std::size_t>(own)];
        const std::span<std::byte> bytes = std::span(block).first(static_cast<std::size_t>(count));
        hash += pack_block(args, source, unit, bytes);
        if (source.look) {
          source.look(unit, bytes);
        }
      }
    });
    if (ranks == 1) {
      copy_async(host_view(block), args.store.local_shard(units[static_cast<std::size_t>(first)]),
                 args.stream);
    } else {
      const TensorView send = spare.slice(0, padded);
      const TensorView received = spare.slice(padded, 2 * padded);
      copy_async(host_view(block), send, args.stream);
      args.comm.all_to_all(send, received, args.stream);
      for (Index rank = 0; rank < ranks && first + rank < std::ssize(units); ++rank) {
        copy_async(received.slice(rank * shard, (rank + 1) * shard),
                   args.store.local_shard(units[static_cast<std::size_t>(first + rank)]),
                   args.stream);
      }
    }
    args.stream.synchronize();
  }
  return hash;
}

struct Piece {
  UnitId unit;
  Range bytes;  // of the packed unit
};

std::vector<Piece> own_pieces(const QuantizedBaseArgs& args, bool of_blocks) {
  std::vector<Piece> pieces;
  for (UnitId unit = 0; unit < args.layout.unit_count(); ++unit) {
    if (args.store.packed().is_packed(unit) != of_blocks) {
      continue;
    }
    const OptimizerShard shard = shard_of(args, unit);
    for (const Range& bytes : pieces_of({shard.param_start, shard.param_end}, kPieceBytes)) {
      pieces.push_back({unit, bytes});
    }
  }
  return pieces;
}

// This rank's shards of blocks or of what is not packed. `fill` returns a part of the hash.
using FillPiece = std::function<std::uint64_t(const Piece&, std::span<std::byte>)>;
std::uint64_t write_pieces(const QuantizedBaseArgs& args, bool of_blocks, const FillPiece& fill) {
  const std::vector<Piece> pieces = own_pieces(args, of_blocks);
  std::atomic<std::uint64_t> sum = 0;
  agree(args.comm, [&] {
    share_among_threads(std::ssize(pieces), args.threads, [&] {
      return [&, bytes = std::vector<std::byte>(),
              stream =
                  Stream(args.stream.device(), StreamPriority::normal, "frozen")](Index i) mutable {
        const Piece& piece = pieces[static_cast<std::size_t>(i)];
        bytes.assign(static_cast<std::size_t>(piece.bytes.end - piece.bytes.begin), std::byte{0});
        sum += fill(piece, bytes);
        const Index start = shard_of(args, piece.unit).param_start;
        copy_async(host_view(bytes),
                   args.store.local_shard(piece.unit)
                       .slice(piece.bytes.begin - start, piece.bytes.end - start),
                   stream);
        stream.synchronize();
        progress().beats.fetch_add(1, std::memory_order_relaxed);
      };
    });
  });
  return sum;
}

// Embedding and head.
std::uint64_t write_plain(const QuantizedBaseArgs& args, const UnitValues& values) {
  const DType type = args.store.packed().params();
  const auto size = static_cast<Index>(size_in_bytes(type));
  return write_pieces(args, false, [&](const Piece& piece, std::span<std::byte> bytes) {
    const Index end = std::min(piece.bytes.end / size, args.layout.unit(piece.unit).count);
    const Index begin = piece.bytes.begin / size;
    if (begin >= end) {
      return std::uint64_t{0};
    }
    const Values read = read_values(args, values, piece.unit, {begin, end}, 1);
    round_params(read.all, type, args.param_values,
                 bytes.first(static_cast<std::size_t>((end - begin) * size)));
    return read.hash;
  });
}

// The deviation that initial_values gives this matrix.
double deviation_of(const ModelConfig& config, const ParamTensor& tensor) {
  const bool writes_residual =
      tensor.name.ends_with("attention.out") || tensor.name.ends_with("mlp.down");
  return config.initializer_range /
         (writes_residual ? std::sqrt(2.0 * static_cast<double>(config.num_layers)) : 1.0);
}

struct RandomMatrix {
  Index begin;  // byte of the packed unit
  Nf4Parts parts;
  float mean;
  float scale;
};

// Bytes begin, begin + 1, ... of it that are among `bytes`, which begin at byte `at` of the unit.
// Requires: both begin at a multiple of kPackedAlignment.
void fill_random(const RandomMatrix& matrix, std::uint64_t seed, std::uint64_t stream, Index at,
                 std::span<std::byte> bytes) {
  const auto for_each_word = [&](Index first, Index last, const auto& word_at) {
    const Index begin = std::max(at, matrix.begin + first);
    const Index end = std::min(at + std::ssize(bytes), matrix.begin + last);
    for (Index byte = begin; byte < end; byte += kPackedAlignment) {
      const auto word = word_at(byte);
      std::memcpy(&bytes[static_cast<std::size_t>(byte - at)], word.data(),
                  static_cast<std::size_t>(std::min(kPackedAlignment, end - byte)));
    }
  };
  const auto random = [&](Index byte) {
    return philox(seed, stream, static_cast<std::uint64_t>(byte));
  };
  const auto constant = [](float value) {
    return [value](Index) { return std::array<float, 4>{value, value, value, value}; };
  };
  const Nf4Parts& parts = matrix.parts;
  for_each_word(parts.codes, parts.scale_scales, random);  // scale_codes are between them
  for_each_word(parts.scale_scales, parts.mean, constant(matrix.scale));
  for_each_word(parts.mean, parts.mean + static_cast<Index>(sizeof(float)), constant(matrix.mean));
}

}  // namespace

std::uint64_t write_quantized(const QuantizedBaseArgs& args, const BaseSource& source) {
  std::uint64_t hash = write_plain(args, source.values);
  if (source.slices) {
    hash += write_pieces(args, true, [&](const Piece& piece, std::span<std::byte> bytes) {
      source.slices(piece.unit, piece.bytes.begin, bytes);
      return std::uint64_t{0};
    });
  } else {
    hash += make_blocks(args, source);
  }
  if (source.hash) {
    return args.comm.rank() == 0 ? *source.hash : 0;
  }
  return hash;
}

BaseSource random_base(const ModelConfig& config, const ParamLayout& layout,
                       const PackedLayout& packed, std::uint64_t seed) {
  constexpr std::uint64_t kStream = std::uint64_t{1} << 32U;  // no stream of anything else
  constexpr double kCodeDeviation = 0.517;  // of the 16 values of nf4, each as likely
  constexpr double kSpread = 0.25;          // of scales about their mean
  const auto values = [&config, &layout, seed](UnitId unit, Index begin, std::span<float> into) {
    initial_values(config, layout, unit, seed, begin, into);
  };
  const auto slices = [&config, &layout, &packed, seed, values](UnitId unit, Index begin,
                                                                std::span<std::byte> bytes) {
    const Index size = static_cast<Index>(size_in_bytes(packed.params()));
    const Index end = begin + std::ssize(bytes);
    for (const PackedPart& part : packed.parts(unit)) {
      if (part.byte >= end || part.byte + part.bytes <= begin) {
        continue;
      }
      if (part.is_nf4) {
        double deviation = 0;
        for_each_tensor(layout.unit(unit), part.first, part.first + part.count,
                        [&](const ParamTensor& tensor, Index, Index) {
                          deviation = deviation_of(config, tensor);
                        });
        const double mean = deviation / kCodeDeviation;
        fill_random({.begin = part.byte,
                     .parts = nf4_parts(part.count),
                     .mean = static_cast<float>(mean),
                     .scale = static_cast<float>(kSpread * mean)},
                    seed, kStream + static_cast<std::uint64_t>(unit), begin, bytes);
        continue;
      }
      const Index first = std::max(begin, part.byte);
      const Index last = std::min(end, part.byte + part.bytes);
      std::vector<float> plain(static_cast<std::size_t>((last - first) / size));
      values(unit, part.first + (first - part.byte) / size, plain);
      round_params(plain, packed.params(), packed.params(),
                   bytes.subspan(static_cast<std::size_t>(first - begin),
                                 static_cast<std::size_t>(last - first)));
    }
  };
  Xxh3 hash;
  hash.add("a random base in nf4");
  hash.add(std::as_bytes(std::span(&seed, 1)));
  return {.values = values, .slices = slices, .hash = hash.digest64()};
}

}  // namespace tessera
