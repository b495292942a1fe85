#include "runtime/checkpoint/reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/input_file.h"
#include "kernels/base/parallel.h"
#include "kernels/base/read_error.h"
#include "runtime/hdf5/hdf5_document.h"

namespace tessera {
namespace {

/// CHECKSUMS has a line of some 200 bytes a rank; the manifest some hundred bytes a rank and
/// parameter.
constexpr std::size_t kMostChecksumsBytes = std::size_t{64} << 20U;
constexpr std::size_t kMostManifestBytes = std::size_t{4} << 30U;
/// Read and hashed at a time: the hash finds them in the cache.
constexpr std::size_t kReadBytes = std::size_t{256} << 10U;
constexpr auto kReadElements = static_cast<Index>(kReadBytes / sizeof(float));

Index elements_of(const ByteRange& range) {
  return static_cast<Index>(range.bytes / sizeof(float));
}

Index blocks_of(const ByteRange& range) {
  return (elements_of(range) + kBlockElements - 1) / kBlockElements;
}

std::uint64_t hash_of_zeros(Index elements) {
  const std::vector<float> zeros(static_cast<std::size_t>(std::min(elements, kReadElements)));
  Xxh3 hash;
  for (Index done = 0; done < elements; done += kReadElements) {
    hash.add(std::as_bytes(std::span(zeros).first(
        static_cast<std::size_t>(std::min(kReadElements, elements - done)))));
  }
  return hash.digest64();
}

ShardSpec read_spec(const Hdf5Document& file) {
  ShardSpec spec{file.int_attribute("rank"), file.int_attribute("world_size"), {}};
  const auto units = file.text_column("/units", "unit");
  const auto begins = file.int_column("/units", "begin");
  const auto ends = file.int_column("/units", "end");
  const auto offsets = file.int_column("/units", "offset");
  for (std::size_t i = 0; i < units.size(); ++i) {
    spec.slices.push_back({units[i], begins[i], ends[i], offsets[i]});
  }
  return spec;
}

}  // namespace

namespace {

// What reads a file of a step. One that is missing is an error of the step, whoever named it.
template <typename Read>
auto read_of_step(ReadRetry& retry, const Read& read) {
  try {
    return retry(read);
  } catch (const MissingError& error) {
    throw FormatError(error.message(), TESSERA_HERE);
  }
}

// Of a file that is not what was written. Something in its place, as a pointer of git-lfs, proves
// no damage, because what was written may be fetched: FormatError; else DamageError.
[[noreturn]] void throw_not_as_written(const std::string& sentence, std::string_view begin,
                                       std::string_view otherwise) {
  const std::string_view foreign = foreign_content(begin.substr(0, kForeignBytes));
  if (foreign.empty() || foreign == kHdf5Content) {
    throw DamageError(fmt::format("{}: it is {}", sentence, otherwise), TESSERA_HERE);
  }
  throw FormatError(fmt::format("{}: it is {}", sentence, foreign), TESSERA_HERE);
}

}  // namespace

CheckpointReader::CheckpointReader(std::filesystem::path step_folder)
    : CheckpointReader(std::move(step_folder), std::make_unique<ReadRetry>(), nullptr) {}

CheckpointReader::CheckpointReader(std::filesystem::path step_folder, ReadRetry& retry)
    : CheckpointReader(std::move(step_folder), nullptr, &retry) {}

CheckpointReader::CheckpointReader(std::filesystem::path step_folder,
                                   std::unique_ptr<ReadRetry> own, ReadRetry* callers)
    : folder_(std::move(step_folder)),
      own_retry_(std::move(own)),
      retry_(callers != nullptr ? callers : own_retry_.get()) {
  ReadRetry& retry = *retry_;
  const std::filesystem::path checksums_path = folder_ / kChecksumsName;
  const std::string checksums =
      read_of_step(retry, [&] { return read_whole_file(checksums_path, kMostChecksumsBytes); });
  checksums_ = parse_checksums(checksums, checksums_path.string());
  contents_hash_ = xxh3_64(bytes_of(checksums));
  const std::filesystem::path manifest_path = folder_ / kManifestName;
  const std::string image =
      read_of_step(retry, [&] { return read_whole_file(manifest_path, kMostManifestBytes); });
  if (image.size() != checksums_.manifest_bytes ||
      xxh3_128(bytes_of(image)) != checksums_.manifest_hash) {
    throw_not_as_written(fmt::format("{} does not match CHECKSUMS", manifest_path.string()), image,
                         "damaged or from another save");
  }
  manifest_ = parse_manifest(bytes_of(image), manifest_path.string());
  if (manifest_.info.version != checksums_.version ||
      manifest_.info.save_id != checksums_.save_id ||
      manifest_.shards.size() != checksums_.shards.size()) {
    throw FormatError(
        fmt::format("{}: version, save_id or world_size are not those of {} beside it",
                    manifest_path.string(), kChecksumsName),
        TESSERA_HERE);
  }
  for (std::size_t rank = 0; rank < manifest_.shards.size(); ++rank) {
    const ShardRecord& record = manifest_.shards[rank];
    const ShardChecksum& sum = checksums_.shards[rank];
    if (record.file != sum.file || record.file_bytes != sum.file_bytes) {
      throw FormatError(
          fmt::format("{}: {} has {} bytes by /shards, and {} {} by {}", manifest_path.string(),
                      record.file, record.file_bytes, sum.file, sum.file_bytes, kChecksumsName),
          TESSERA_HERE);
    }
  }
  require_array_sizes();
  for (const UnitRow& unit : manifest_.table.units) {
    pieces_.emplace_back(unit.name, std::vector<Piece>());
  }
  for (std::size_t rank = 0; rank < manifest_.shards.size(); ++rank) {
    for (const UnitSlice& slice : manifest_.shards[rank].spec.slices) {
      const auto unit = std::find_if(pieces_.begin(), pieces_.end(),
                                     [&](const auto& entry) { return entry.first == slice.unit; });
      if (slice.count() > 0) {
        unit->second.push_back({rank, slice});
      }
    }
  }
  shards_.resize(manifest_.shards.size());
}

void CheckpointReader::require_array_sizes() const {
  const std::span<const StateArraySpec> in_file = manifest_.info.file_arrays().arrays();
  const std::string name = (folder_ / kChecksumsName).string();
  for (std::size_t rank = 0; rank < manifest_.shards.size(); ++rank) {
    const ShardChecksum& sum = checksums_.shards[rank];
    if (sum.arrays.size() != in_file.size()) {
      throw FormatError(fmt::format("{}: {} has {} arrays where {} belong", name, sum.file,
                                    sum.arrays.size(), in_file.size()),
                        TESSERA_HERE);
    }
    for (std::size_t i = 0; i < in_file.size(); ++i) {
      const Index elements =
          arrays().has(in_file[i].array) ? manifest_.shards[rank].spec.count() : 0;
      if (sum.arrays[i].bytes != in_file[i].bytes(elements)) {
        throw FormatError(
            fmt::format("{}: {} of {} has {} bytes where {} elements belong", name,
                        array_name(in_file[i].array), sum.file, sum.arrays[i].bytes, elements),
            TESSERA_HERE);
      }
    }
  }
}

std::uint64_t CheckpointReader::data_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (const ShardChecksum& shard : checksums_.shards) {
    for (const ByteRange& range : shard.arrays) {
      bytes += range.bytes;
    }
  }
  return bytes;
}

File CheckpointReader::open_file(std::size_t rank) const {
  const ShardChecksum& sum = checksums_.shards[rank];
  File file;
  std::uint64_t bytes = 0;
  read_of_step(*retry_, [&] {
    file = File::open_read(folder_ / sum.file);
    bytes = file.size();
  });
  if (bytes != sum.file_bytes) {
    std::string begin(std::min<std::uint64_t>(bytes, kForeignBytes), '\0');
    (*retry_)([&] { file.read_at(0, std::as_writable_bytes(std::span(begin))); });
    throw_not_as_written(fmt::format("{} has {} bytes where {} were written", file.path().string(),
                                     bytes, sum.file_bytes),
                         begin, "truncated or from another save");
  }
  return file;
}

void CheckpointReader::read_at(File& file, std::uint64_t offset,
                               std::span<std::byte> target) const {
  bool has_failed = false;
  (*retry_)([&] {
    if (std::exchange(has_failed, true)) {
      file = File::open_read(file.path());  // a stale handle stays stale
    }
    file.read_at(offset, target);
  });
}

void CheckpointReader::check_files() const {
  for (std::size_t rank = 0; rank < checksums_.shards.size(); ++rank) {
    static_cast<void>(open_file(rank));
  }
}

void CheckpointReader::check_headers() {
  for (std::size_t rank = 0; rank < shards_.size(); ++rank) {
    open_shard(rank);
  }
}

void CheckpointReader::check_header(std::size_t rank, File& file, Shard& shard) const {
  const ShardChecksum& sum = checksums_.shards[rank];
  const std::string name = file.path().string();
  const Hash128 header_hash = hash_outside(
      sum.file_bytes, sum.arrays,
      [&](std::uint64_t offset, std::span<std::byte> target) { read_at(file, offset, target); });
  if (header_hash != sum.header_hash) {
    throw DamageError(
        fmt::format("{} is damaged or from another save: what surrounds its arrays does not match "
                    "CHECKSUMS",
                    name),
        TESSERA_HERE);
  }
  (*retry_)([&] { read_header(rank, Hdf5Document::open(file.path()), shard); });
}

void CheckpointReader::read_header(std::size_t rank, const Hdf5Document& document,
                                   Shard& shard) const {
  const ShardChecksum& sum = checksums_.shards[rank];
  const auto require = [&](bool holds, std::string_view what) {
    if (!holds) {
      throw FormatError(fmt::format("{} does not belong to the manifest beside it: {} differs",
                                    document.path().string(), what),
                        TESSERA_HERE);
    }
  };
  require(document.text_attribute("format") == kCheckpointFormat, "format");
  require(document.int_attribute("version") == manifest_.info.version, "version");
  require(document.text_attribute("save_id") == manifest_.info.save_id, "save_id");
  require(document.int_attribute("step") == manifest_.info.step, "step");
  require(read_spec(document) == manifest_.shards[rank].spec, "rank, world_size or /units");
  Xxh3 blocks_hash;
  shard.block_hashes.clear();
  for (std::size_t i = 0; i < arrays().size(); ++i) {
    const std::string name = fmt::format("/check/{}_xxh3", array_name(arrays().arrays()[i].array));
    const auto& hashes = shard.block_hashes.emplace_back(document.read_uints(name));
    blocks_hash.add(std::as_bytes(std::span(hashes)));
    require(static_cast<Index>(hashes.size()) == blocks_of(sum.arrays[i]), name);
  }
  require(blocks_hash.digest64() == manifest_.shards[rank].blocks_hash, "blocks_xxh3");
  refuse_moments_without_update(rank, shard);
}

// Updates count from the moments' first change: with a count of 0 the next step would correct
// moments that are there as those of a first step.
void CheckpointReader::refuse_moments_without_update(std::size_t rank, const Shard& shard) const {
  if (manifest_.info.updates > 0) {
    return;
  }
  for (std::size_t array = 0; array < arrays().size(); ++array) {
    const StateArray which = arrays().arrays()[array].array;
    if (which == StateArray::master) {
      continue;
    }
    const auto& hashes = shard.block_hashes[array];
    for (std::size_t block = 0; block < hashes.size(); ++block) {
      if (hashes[block] != hash_of_zeros(block_elements(rank, array, static_cast<Index>(block)))) {
        throw FormatError(
            fmt::format("{}: updates is 0, but {} of {} is not zero: it must be from 1 to {}",
                        (folder_ / kManifestName).string(), array_name(which),
                        checksums_.shards[rank].file, manifest_.info.step),
            TESSERA_HERE);
      }
    }
  }
}

CheckpointReader::Shard& CheckpointReader::open_shard(std::size_t rank) {
  Shard& shard = shards_[rank];
  if (!shard.file.is_open()) {
    // The least recently used file makes room.
    Shard* oldest = nullptr;
    std::size_t open_count = 0;
    for (Shard& other : shards_) {
      if (other.file.is_open()) {
        ++open_count;
        oldest = oldest == nullptr || other.last_use < oldest->last_use ? &other : oldest;
      }
    }
    if (open_count >= kMostOpenShards) {
      oldest->file = File();
    }
    File file = open_file(rank);
    if (!shard.is_checked) {
      check_header(rank, file, shard);
      shard.is_checked = true;
    }
    shard.file = std::move(file);
  }
  shard.last_use = ++clock_;
  return shard;
}

Index CheckpointReader::block_elements(std::size_t rank, std::size_t array, Index block) const {
  const Index elements = elements_of(checksums_.shards[rank].arrays[array]);
  return std::min(kBlockElements, elements - block * kBlockElements);
}

void CheckpointReader::read_block(std::size_t rank, std::size_t array, Index block,
                                  std::span<float> values) {
  Shard& shard = open_shard(rank);
  const ByteRange& range = checksums_.shards[rank].arrays[array];
  const std::uint64_t begin = static_cast<std::uint64_t>(block) * kBlockBytes;
  const std::uint64_t next = begin + kBlockBytes;
  if (next < range.bytes) {
    shard.file.will_read(range.offset + next, std::min(kBlockBytes, range.bytes - next));
  }
  const std::span<std::byte> bytes = std::as_writable_bytes(values);
  block_hash_.reset64();
  for (std::size_t done = 0; done < bytes.size(); done += kReadBytes) {
    const auto piece = bytes.subspan(done, std::min(kReadBytes, bytes.size() - done));
    read_at(shard.file, range.offset + begin + done, piece);
    block_hash_.add(piece);
  }
  const std::uint64_t expected = shard.block_hashes[array].at(static_cast<std::size_t>(block));
  if (block_hash_.digest64() != expected) {
    throw_damaged(rank, array, block);
  }
}

void CheckpointReader::throw_damaged(std::size_t rank, std::size_t array, Index block) const {
  const Index first = block * kBlockElements;
  const Index last = first + block_elements(rank, array, block);
  throw DamageError(
      fmt::format("{} is damaged: block {} of /zero/{} (elements {} to {}) does not match its "
                  "checksum; it holds {}",
                  (folder_ / checksums_.shards[rank].file).string(), block,
                  array_name(arrays().arrays()[array].array), first, last - 1,
                  params_in_range(manifest_.table, manifest_.shards[rank].spec, first, last)),
      TESSERA_HERE);
}

void CheckpointReader::stream_blocks(std::size_t array, std::span<const Block> blocks,
                                     const TakeShardPiece& take) {
  std::mutex mutex;  // guards the shards
  for_each_in_parallel(std::ssize(blocks), [&](Index i) {
    const Block& each = blocks[static_cast<std::size_t>(i)];
    std::uint64_t expected = 0;
    {
      const std::lock_guard lock(mutex);
      expected = open_shard(each.rank).block_hashes[array].at(static_cast<std::size_t>(each.block));
    }
    // A file of its own, which the system reads ahead for this thread alone.
    File file = open_file(each.rank);
    const std::uint64_t array_begin = checksums_.shards[each.rank].arrays[array].offset;
    const Index begin = each.block * kBlockElements;
    const Index end = begin + block_elements(each.rank, array, each.block);
    const auto place = [array_begin](Index element) {
      return array_begin + static_cast<std::uint64_t>(element) * sizeof(float);
    };
    file.will_read(place(begin), place(end) - place(begin));
    const auto buffer =
        std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(kReadElements));
    Xxh3 hash;
    for (Index offset = begin; offset < end; offset += kReadElements) {
      const std::span<float> values(
          buffer.get(), static_cast<std::size_t>(std::min(kReadElements, end - offset)));
      read_at(file, place(offset), std::as_writable_bytes(values));
      hash.add(std::as_bytes(values));
      take(each, offset, values);
    }
    if (hash.digest64() != expected) {
      throw_damaged(each.rank, array, each.block);
    }
  });
}

void CheckpointReader::stream(StateArray array,
                              const std::function<void(const ParamPiece&)>& take) {
  const std::size_t number = arrays().number_of(array);
  std::vector<std::vector<ParamRun>> runs;
  std::vector<Block> blocks;
  for (std::size_t rank = 0; rank < shards_.size(); ++rank) {
    runs.push_back(param_runs(manifest_.table, manifest_.shards[rank].spec));
    const ByteRange& range = checksums_.shards[rank].arrays[number];
    for (Index block = 0; block < blocks_of(range); ++block) {
      blocks.push_back({rank, block});
    }
  }
  stream_blocks(number, blocks,
                [&](const Block& block, Index offset, std::span<const float> values) {
                  const Index block_begin = block.block * kBlockElements;
                  const Index end = offset + std::ssize(values);
                  // From the block's begin on, to see where this parameter begins in it.
                  for (const ParamRun& run : runs_between(runs[block.rank], block_begin, end)) {
                    const Index skipped = std::max(Index{0}, offset - run.offset);
                    if (skipped < run.count) {
                      take({run.param, run.begin + skipped, run.begin,
                            values.subspan(static_cast<std::size_t>(run.offset + skipped - offset),
                                           static_cast<std::size_t>(run.count - skipped))});
                    }
                  }
                });
}

void CheckpointReader::stream(StateArray array, std::span<const UnitSlice> wanted,
                              const TakeUnitPiece& take) {
  const std::size_t number = arrays().number_of(array);
  const std::vector<std::vector<Part>> parts = parts_of(wanted);
  std::vector<Block> blocks;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    for (const Part& part : parts[rank]) {
      for (Index block = part.begin / kBlockElements; block * kBlockElements < part.end; ++block) {
        if (blocks.empty() || blocks.back().rank != rank || blocks.back().block < block) {
          blocks.push_back({rank, block});
        }
      }
    }
  }
  stream_blocks(number, blocks,
                [&](const Block& block, Index offset, std::span<const float> values) {
                  const Index end = offset + std::ssize(values);
                  for (const Part& part : parts[block.rank]) {
                    const Index from = std::max(offset, part.begin);
                    const Index to = std::min(end, part.end);
                    if (from < to) {
                      take(part.index, part.unit_begin + from - part.begin,
                           values.subspan(static_cast<std::size_t>(from - offset),
                                          static_cast<std::size_t>(to - from)));
                    }
                  }
                });
}

std::vector<std::vector<CheckpointReader::Part>> CheckpointReader::parts_of(
    std::span<const UnitSlice> wanted) const {
  std::vector<std::vector<Part>> parts(shards_.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto entry = std::find_if(pieces_.begin(), pieces_.end(), [&](const auto& candidate) {
      return candidate.first == wanted[i].unit;
    });
    TESSERA_REQUIRE(entry != pieces_.end(), wanted[i].unit);
    for (const Piece& piece : entry->second) {
      const Index from = std::max(wanted[i].begin, piece.slice.begin);
      const Index to = std::min(wanted[i].end, piece.slice.end);
      if (from < to) {
        const Index begin = piece.slice.offset + from - piece.slice.begin;
        parts[piece.rank].push_back({begin, begin + to - from, i, from});
      }
    }
  }
  for (std::vector<Part>& of_shard : parts) {
    std::sort(of_shard.begin(), of_shard.end(),
              [](const Part& a, const Part& b) { return a.begin < b.begin; });
  }
  return parts;
}

const float* CheckpointReader::cached_block(std::size_t rank, std::size_t array, Index block) {
  for (CachedBlock& cached : cache_) {
    if (cached.rank == rank && cached.array == array && cached.block == block) {
      cached.last_use = ++clock_;
      return cached.values.get();
    }
  }
  std::unique_ptr<float[]> values;
  if (cache_.size() < kMostCachedBlocks) {
    values = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(kBlockElements));
  } else {
    const auto oldest = std::min_element(
        cache_.begin(), cache_.end(),
        [](const CachedBlock& a, const CachedBlock& b) { return a.last_use < b.last_use; });
    values = std::move(oldest->values);
    cache_.erase(oldest);
  }
  const auto count = static_cast<std::size_t>(block_elements(rank, array, block));
  read_block(rank, array, block, std::span(values.get(), count));
  cache_.push_back({rank, array, block, ++clock_, std::move(values)});
  return cache_.back().values.get();
}

void CheckpointReader::read_shard(std::size_t rank, std::size_t array, Index begin,
                                  std::span<float> values) {
  while (!values.empty()) {
    const Index block = begin / kBlockElements;
    const Index in_block = begin - block * kBlockElements;
    const Index block_count = block_elements(rank, array, block);
    const Index part = std::min(block_count - in_block, static_cast<Index>(values.size()));
    const std::span<float> target = values.first(static_cast<std::size_t>(part));
    if (part == block_count) {
      read_block(rank, array, block, target);
    } else {
      std::memcpy(target.data(), cached_block(rank, array, block) + in_block, target.size_bytes());
    }
    begin += part;
    values = values.subspan(target.size());
  }
}

const std::string& CheckpointReader::shard_file(Index rank) const {
  return checksums_.shards.at(static_cast<std::size_t>(rank)).file;
}

ByteRange CheckpointReader::array_bytes(Index rank, StateArray array) const {
  return checksums_.shards.at(static_cast<std::size_t>(rank)).arrays.at(arrays().number_of(array));
}

void CheckpointReader::read(StateArray array, std::string_view unit, Index begin,
                            std::span<float> values) {
  const auto entry = std::find_if(pieces_.begin(), pieces_.end(),
                                  [&](const auto& candidate) { return candidate.first == unit; });
  const Index end = begin + static_cast<Index>(values.size());
  const Index unit_count = manifest_.table.unit(unit).count;
  TESSERA_REQUIRE(
      0 <= begin && end <= unit_count,
      fmt::format("elements {} to {} of unit {}, which has {}", begin, end, unit, unit_count));
  if (!arrays().has(array)) {
    std::fill(values.begin(), values.end(), 0.0F);
    return;
  }
  for (const Piece& piece : entry->second) {
    const Index from = std::max(begin, piece.slice.begin);
    const Index to = std::min(end, piece.slice.end);
    if (from < to) {
      read_shard(piece.rank, arrays().number_of(array),
                 piece.slice.offset + from - piece.slice.begin,
                 values.subspan(static_cast<std::size_t>(from - begin),
                                static_cast<std::size_t>(to - from)));
    }
  }
}

void CheckpointReader::read_param(StateArray array, const ParamRow& param, Index begin,
                                  std::span<float> values) {
  TESSERA_REQUIRE(
      0 <= begin && begin + static_cast<Index>(values.size()) <= param.count(),
      fmt::format("elements {} to {} of {}, which has {}", begin,
                  begin + static_cast<Index>(values.size()), param.name, param.count()));
  read(array, param.unit, param.offset + begin, values);
}

// Moments that a run stores in fewer bits are bf16 numbers in the file.
void CheckpointReader::require_rounded(std::size_t rank, std::size_t array, Index block,
                                       std::span<const float> values) const {
  constexpr std::uint32_t kLowerHalf = 0xFFFFU;
  const StateArray which = arrays().arrays()[array].array;
  if (manifest_.info.moments == MomentType::f32 || which == StateArray::master) {
    return;
  }
  const auto found = std::find_if(values.begin(), values.end(), [](float value) {
    return (std::bit_cast<std::uint32_t>(value) & kLowerHalf) != 0;
  });
  if (found != values.end()) {
    throw FormatError(fmt::format("{}: element {} of {} is {}, which moments in {} cannot hold",
                                  (folder_ / checksums_.shards[rank].file).string(),
                                  block * kBlockElements + (found - values.begin()),
                                  array_name(which), *found, moment_name(manifest_.info.moments)),
                      TESSERA_HERE);
  }
}

template <typename OnDamage, typename OnBytes>
void CheckpointReader::check_shard(std::size_t rank, OnDamage on_damage, OnBytes on_bytes) {
  const auto buffer =
      std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(kBlockElements));
  try {
    open_shard(rank);
  } catch (const FormatError& error) {
    on_damage(error);
    return;  // without its checksums, its data cannot be judged
  }
  for (std::size_t array = 0; array < arrays().size(); ++array) {
    const ByteRange& range = checksums_.shards[rank].arrays[array];
    for (Index block = 0; block < blocks_of(range); ++block) {
      const auto count = static_cast<std::size_t>(block_elements(rank, array, block));
      try {
        read_block(rank, array, block, std::span(buffer.get(), count));
        require_rounded(rank, array, block, std::span(buffer.get(), count));
      } catch (const FormatError& error) {
        on_damage(error);
      }
      on_bytes(count * sizeof(float));
    }
  }
}

template <typename OnDamage>
void CheckpointReader::check_all(const ByteProgress& progress, OnDamage on_damage) {
  const std::uint64_t total = data_bytes();
  std::uint64_t done = 0;
  for (std::size_t rank = 0; rank < shards_.size(); ++rank) {
    check_shard(rank, on_damage, [&](std::uint64_t bytes) {
      done += bytes;
      if (progress) {
        progress(done, total);
      }
    });
  }
}

void CheckpointReader::verify_shard(Index rank, const std::function<void()>& moved) {
  check_shard(
      static_cast<std::size_t>(rank), [](const FormatError& /*error*/) { throw; },
      [&](std::uint64_t /*bytes*/) {
        if (moved) {
          moved();
        }
      });
}

void CheckpointReader::verify(const ByteProgress& progress) {
  check_all(progress, [](const FormatError& /*error*/) { throw; });
}

std::vector<std::string> CheckpointReader::find_damage(const ByteProgress& progress) {
  std::vector<std::string> damages;
  check_all(progress, [&](const FormatError& error) { damages.push_back(error.message()); });
  return damages;
}

}  // namespace tessera
