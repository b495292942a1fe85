#include "runtime/checkpoint/shard_writer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "runtime/checkpoint/checksums_file.h"
#include "runtime/checkpoint/tensor_statistics.h"
#include "runtime/hdf5/hdf5_document.h"

namespace tessera {
namespace {

/// Elements hashed, counted and written at a time: small enough to stay in the cache between the
/// three, and to be a good write.
constexpr Index kPieceElements = Index{64} << 10U;
/// A shard's file outside its arrays, roughly: HDF5's structures.
constexpr std::uint64_t kHeaderBytes = std::uint64_t{16} << 10U;

Index blocks_of(Index elements) {
  return (elements + kBlockElements - 1) / kBlockElements;
}

void write_unit_table(Hdf5Document& file, const ShardSpec& spec) {
  std::vector<std::string> units;
  std::vector<Index> begins;
  std::vector<Index> ends;
  std::vector<Index> offsets;
  for (const UnitSlice& slice : spec.slices) {
    units.push_back(slice.unit);
    begins.push_back(slice.begin);
    ends.push_back(slice.end);
    offsets.push_back(slice.offset);
  }
  file.write_table("/units",
                   std::array<Hdf5Column, 4>{
                       {{"unit", units}, {"begin", begins}, {"end", ends}, {"offset", offsets}}});
}

}  // namespace

ShardWriter::ShardWriter(ShardWriterOptions options)
    : options_(std::move(options)),
      path_(options_.save_folder / shard_file_name(options_.spec.rank, options_.spec.world_size)),
      arrays_(options_.arrays.size()) {
  for (const StateArraySpec& array : options_.arrays.arrays()) {
    TESSERA_REQUIRE(array.dtype == DType::f32 && array.block_elements == 0, "f32 without scales");
  }
}

std::string_view ShardWriter::name_of(std::size_t array) const {
  return array_name(options_.arrays.arrays()[array].array);
}

void ShardWriter::make_skeleton(const File& skeleton) {
  const ShardSpec& spec = options_.spec;
  Hdf5Document file = Hdf5Document::create_over(skeleton);
  file.put_attribute("format", std::string(kCheckpointFormat));
  file.put_attribute("version", kCheckpointVersion);
  file.put_attribute("save_id", options_.identity.save_id);
  file.put_attribute("step", options_.identity.step);
  file.put_attribute("rank", spec.rank);
  file.put_attribute("world_size", spec.world_size);
  write_unit_table(file, spec);
  file.create_group("/check");
  for (std::size_t i = 0; i < arrays_.size(); ++i) {
    ArrayState& own = arrays_[i];
    own.check_offset = file.create_contiguous(fmt::format("/check/{}_xxh3", name_of(i)),
                                              Hdf5Element::u64, blocks_of(own.count));
    own.block_hashes.resize(static_cast<std::size_t>(blocks_of(own.count)));
  }
  file.create_group("/zero");
  for (std::size_t i = 0; i < arrays_.size(); ++i) {
    ArrayState& own = arrays_[i];
    own.place = {
        file.create_contiguous(fmt::format("/zero/{}", name_of(i)), Hdf5Element::f32, own.count),
        static_cast<std::uint64_t>(own.count) * sizeof(float)};
  }
  file.close();
}

void ShardWriter::create() {
  std::uint64_t array_bytes = 0;
  for (ArrayState& array : arrays_) {
    array.count = options_.spec.count();
    array_bytes += static_cast<std::uint64_t>(array.count) * sizeof(float);
  }
  // The limit holds for files in memory too, where HDF5 would meet it.
  require_file_size(path_, array_bytes + kHeaderBytes);
  const File skeleton = File::create_in_memory(path_);
  make_skeleton(skeleton);
  std::vector<ByteRange> places;
  places.reserve(arrays_.size());
  for (const ArrayState& array : arrays_) {
    places.push_back(array.place);
  }
  file_ = File::create(path_);
  file_.allocate(skeleton.size());
  std::vector<std::byte> buffer;
  for (const ByteRange& range : bytes_outside(places, skeleton.size())) {
    buffer.resize(range.bytes);
    skeleton.read_at(range.offset, buffer);
    file_.write_at(range.offset, buffer);
  }
  reached(SavePhase::shard_created);
}

Index ShardWriter::block_count(StateArray array) const {
  return blocks_of(arrays_[options_.arrays.number_of(array)].count);
}

void ShardWriter::end_block(ArrayState& array, Index block, std::uint64_t hash) {
  array.block_hashes[static_cast<std::size_t>(block)] = hash;
  // The device is kept busy from here on, instead of all at once in the sync at the end.
  const std::uint64_t begin = static_cast<std::uint64_t>(block) * kBlockBytes;
  file_.start_writeback(array.place.offset + begin,
                        std::min(kBlockBytes, array.place.bytes - begin));
}

void ShardWriter::write_block(StateArray array, Index block, const Fill& fill) {
  ArrayState& own = state(array);
  TESSERA_REQUIRE(file_.is_open() && block >= 0 && block < blocks_of(own.count),
                  fmt::format("block {} of {}", block, blocks_of(own.count)));
  const Index begin = block * kBlockElements;
  const Index end = std::min(begin + kBlockElements, own.count);
  const auto buffer =
      std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(kPieceElements));
  Xxh3 hash;
  Index nonfinite = 0;
  for (Index offset = begin; offset < end; offset += kPieceElements) {
    const std::span<float> piece(buffer.get(),
                                 static_cast<std::size_t>(std::min(kPieceElements, end - offset)));
    fill(offset, piece);
    hash.add(std::as_bytes(piece));
    nonfinite += count_nonfinite(piece);
    file_.write_at(own.place.offset + static_cast<std::uint64_t>(offset) * sizeof(float),
                   std::as_bytes(piece));
  }
  end_block(own, block, hash.digest64());
  const std::lock_guard lock(mutex_);
  own.nonfinite += nonfinite;
  own.written += end - begin;
}

void ShardWriter::write(StateArray array, Index offset, std::span<const float> values) {
  ArrayState& own = state(array);
  TESSERA_REQUIRE(file_.is_open(), "the shard has not been created");
  TESSERA_REQUIRE(offset == own.written && offset + static_cast<Index>(values.size()) <= own.count,
                  fmt::format("elements {} to {} of {}; {} of {} have been written", offset,
                              offset + static_cast<Index>(values.size()), array_name(array),
                              own.written, own.count));
  while (!values.empty()) {
    const Index to_block_end = kBlockElements - own.written % kBlockElements;
    const auto part = static_cast<std::size_t>(
        std::min({static_cast<Index>(values.size()), kPieceElements, to_block_end}));
    const std::span<const float> piece = values.first(part);
    own.hash.add(std::as_bytes(piece));
    own.nonfinite += count_nonfinite(piece);
    file_.write_at(own.place.offset + static_cast<std::uint64_t>(own.written) * sizeof(float),
                   std::as_bytes(piece));
    own.written += static_cast<Index>(part);
    values = values.subspan(part);
    if (own.written % kBlockElements == 0 || own.written == own.count) {
      end_block(own, (own.written - 1) / kBlockElements, own.hash.digest64());
      own.hash.reset64();
    }
  }
}

ShardSummary ShardWriter::finish() {
  ShardSummary summary;
  summary.rank = options_.spec.rank;
  summary.spec_hash = hash_of(options_.spec);
  Xxh3 blocks_hash;
  for (std::size_t i = 0; i < arrays_.size(); ++i) {
    ArrayState& array = arrays_[i];
    TESSERA_REQUIRE(array.written == array.count,
                    fmt::format("{} of {} elements of {} have been written", array.written,
                                array.count, name_of(i)));
    const auto hashes = std::as_bytes(std::span(array.block_hashes));
    file_.write_at(array.check_offset, hashes);
    blocks_hash.add(hashes);
    summary.arrays.push_back(array.place);
    summary.nonfinite.push_back(array.nonfinite);
  }
  reached(SavePhase::shard_written);
  summary.blocks_hash = blocks_hash.digest64();
  summary.file_bytes = file_.size();
  summary.header_hash = hash_outside(
      summary.file_bytes, summary.arrays,
      [this](std::uint64_t offset, std::span<std::byte> target) { file_.read_at(offset, target); });
  file_.sync();
  file_.close();
  reached(SavePhase::shard_synced);
  return summary;
}

void ShardWriter::reached(SavePhase phase) const {
  if (options_.hook) {
    options_.hook(phase);
  }
}

}  // namespace tessera
