#include "runtime/checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/read_error.h"
#include "runtime/checkpoint/manifest_check.h"
#include "runtime/hdf5/hdf5_document.h"

namespace tessera {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{1} << 20U;  // of one read while hashing a header

[[noreturn]] void refuse(const std::string& name, std::string_view what, SourceLocation where) {
  refuse_manifest(name, what, where);
}

std::string_view moments_name(Moments moments) {
  return moments == Moments::none ? "none" : "adamw";
}

// Each attribute once, for writing and for reading: the two cannot drift apart.
template <typename Info, typename Visit>
void for_each_attribute(Info& info, Visit visit) {
  visit("save_id", info.save_id);
  visit("run_id", info.run_id);
  visit("parent_save_id", info.parent_save_id);
  visit("step", info.step);
  visit("updates", info.updates);
  visit("skipped", info.skipped);
  visit("world_size", info.world_size);
  visit("micro_batch", info.micro_batch);
  visit("sum_group", info.sum_group);
  visit("flce_chunk_rows", info.flce_chunk_rows);
  visit("attention_slice", info.attention_slice);
  visit("gemm_table_hash", info.gemm_table_hash);
  visit("config_json", info.config_json);
  visit("config_hash", info.config_hash);
  visit("data_hash", info.data_hash);
  visit("options_json", info.options_json);
  visit("windows_taken", info.windows_taken);
  visit("epoch", info.epoch);
  visit("seed", info.seed);
  visit("nonfinite_params", info.nonfinite_params);
}

void write_param_table(Hdf5Document& file, const ParamTable& table) {
  std::vector<std::string> names;
  std::vector<std::string> dtypes;
  std::vector<Index> ranks;
  std::vector<Hdf5Column::Extents> shapes;
  std::vector<std::string> units;
  std::vector<Index> offsets;
  std::vector<Index> counts;
  std::vector<std::string> aliases;
  for (const ParamRow& row : table.params) {
    names.push_back(row.name);
    dtypes.emplace_back(dtype_name(DType::f32));
    ranks.push_back(row.shape.rank());
    Hdf5Column::Extents extents{};
    for (int axis = 0; axis < row.shape.rank(); ++axis) {
      extents[static_cast<std::size_t>(axis)] = row.shape[axis];
    }
    shapes.push_back(extents);
    units.push_back(row.unit);
    offsets.push_back(row.offset);
    counts.push_back(row.count());
    aliases.push_back(row.alias_of);
  }
  file.write_table("/table", std::array<Hdf5Column, 8>{{{"name", names},
                                                        {"dtype", dtypes},
                                                        {"ndim", ranks},
                                                        {"shape", shapes},
                                                        {"unit", units},
                                                        {"offset", offsets},
                                                        {"count", counts},
                                                        {"alias_of", aliases}}});
}

void write_shard_tables(Hdf5Document& file, const std::vector<ShardRecord>& shards) {
  std::vector<std::string> files;
  std::vector<Index> ranks;
  std::vector<Index> elements;
  std::vector<std::uint64_t> bytes;
  std::vector<std::uint64_t> hashes;
  std::array<std::vector<Index>, kArrayCount> nonfinite;
  std::vector<Index> slice_ranks;
  std::vector<std::string> units;
  std::vector<Index> begins;
  std::vector<Index> ends;
  std::vector<Index> offsets;
  for (const ShardRecord& shard : shards) {
    files.push_back(shard.file);
    ranks.push_back(shard.spec.rank);
    elements.push_back(shard.spec.count());
    bytes.push_back(shard.file_bytes);
    hashes.push_back(shard.blocks_hash);
    for (std::size_t i = 0; i < kArrayCount; ++i) {
      nonfinite[i].push_back(shard.nonfinite[i]);
    }
    for (const UnitSlice& slice : shard.spec.slices) {
      slice_ranks.push_back(shard.spec.rank);
      units.push_back(slice.unit);
      begins.push_back(slice.begin);
      ends.push_back(slice.end);
      offsets.push_back(slice.offset);
    }
  }
  file.write_table("/shards", std::array<Hdf5Column, 8>{{{"file", files},
                                                         {"rank", ranks},
                                                         {"elements", elements},
                                                         {"bytes", bytes},
                                                         {"blocks_xxh3", hashes},
                                                         {"nonfinite_master", nonfinite[0]},
                                                         {"nonfinite_exp_avg", nonfinite[1]},
                                                         {"nonfinite_exp_avg_sq", nonfinite[2]}}});
  file.write_table("/slices", std::array<Hdf5Column, 5>{{{"rank", slice_ranks},
                                                         {"unit", units},
                                                         {"begin", begins},
                                                         {"end", ends},
                                                         {"offset", offsets}}});
}

/// The pieces of a parameter in all shards, as boxes of its shape.
std::vector<Hdf5Mapping> mappings_of(const ParamRow& row, CheckpointArray array,
                                     const std::vector<ShardRecord>& shards) {
  std::vector<Hdf5Mapping> mappings;
  for (const ShardRecord& shard : shards) {
    for (const UnitSlice& slice : shard.spec.slices) {
      const Index begin = std::max(slice.begin, row.offset);
      const Index end = std::min(slice.end, row.offset + row.count());
      if (slice.unit != row.unit || begin >= end) {
        continue;
      }
      const Index source = slice.offset + begin - slice.begin;
      const Index first = begin - row.offset;  // of the piece, in the flattened parameter
      for (Box& box : cut_into_boxes(row.shape, first, end - row.offset)) {
        mappings.push_back({std::move(box.start), std::move(box.count), shard.file,
                            fmt::format("/zero/{}", array_name(array)), shard.spec.count(),
                            source + box.begin - first});
      }
    }
  }
  return mappings;
}

void write_virtual_datasets(Hdf5Document& file, const Manifest& manifest) {
  const bool has_moments = manifest.info.moments != Moments::none;
  if (has_moments) {
    file.create_group("/optim");
  }
  for (const CheckpointArray array : kCheckpointArrays) {
    if (array != CheckpointArray::master && !has_moments) {
      continue;
    }
    const std::string group(array_group(array));
    file.create_group(group);
    for (const ParamRow& row : manifest.table.params) {
      const std::string path = fmt::format("{}/{}", group, row.name);
      if (!row.alias_of.empty()) {
        file.link(fmt::format("{}/{}", group, row.alias_of), path);
        continue;
      }
      std::vector<Index> extents;
      extents.reserve(static_cast<std::size_t>(row.shape.rank()));
      for (int axis = 0; axis < row.shape.rank(); ++axis) {
        extents.push_back(row.shape[axis]);
      }
      file.create_virtual(path, extents, mappings_of(row, array, manifest.shards));
    }
  }
}

Shape shape_of(const Hdf5Column::Extents& extents, Index rank, const std::string& name) {
  constexpr Index kMostElements = Index{1} << 45U;  // of one parameter; keeps sums of them in range
  bool is_sane = rank >= 1 && rank <= static_cast<Index>(extents.size());
  Index room = kMostElements;
  for (std::size_t axis = 0; is_sane && axis < static_cast<std::size_t>(rank); ++axis) {
    is_sane = extents[axis] >= 0 && extents[axis] <= room;
    room /= std::max<Index>(extents[axis], 1);
  }
  if (!is_sane) {
    refuse(name,
           fmt::format("ndim {} or shape ({}) of /table is out of range: 1 to {} extents, together "
                       "at most {} elements, unused ones 0",
                       rank, fmt::join(extents, ", "), extents.size(), kMostElements),
           TESSERA_HERE);
  }
  for (auto axis = static_cast<std::size_t>(rank); axis < extents.size(); ++axis) {
    require_range(name, "an unused extent of shape in /table", extents[axis], 0, 0);
  }
  switch (rank) {
    case 1:
      return {extents[0]};
    case 2:
      return {extents[0], extents[1]};
    case 3:
      return {extents[0], extents[1], extents[2]};
    default:
      return {extents[0], extents[1], extents[2], extents[3]};
  }
}

// Each name once, and aliases of a parameter that is there.
void require_distinct(const ParamTable& table, const std::string& name) {
  std::set<std::string_view> params;
  for (const ParamRow& row : table.params) {
    if (row.name.empty() || row.unit.empty() || !params.insert(row.name).second) {
      refuse(name,
             fmt::format("name or unit of '{}' in /table is empty, or stands twice", row.name),
             TESSERA_HERE);
    }
  }
  std::set<std::string_view> units;
  for (const UnitRow& unit : table.units) {
    if (!units.insert(unit.name).second) {
      refuse(name, fmt::format("unit '{}' of /table is not in one piece", unit.name), TESSERA_HERE);
    }
  }
  for (const ParamRow& row : table.params) {
    if (row.alias_of.empty()) {
      continue;
    }
    const auto other =
        std::find_if(table.params.begin(), table.params.end(), [&](const ParamRow& candidate) {
          return candidate.name == row.alias_of && candidate.alias_of.empty();
        });
    if (other == table.params.end() || other->unit != row.unit || other->offset != row.offset ||
        other->shape != row.shape) {
      refuse(name,
             fmt::format("alias_of of {} in /table is '{}', which is no parameter of its unit, "
                         "offset and shape",
                         row.name, row.alias_of),
             TESSERA_HERE);
    }
  }
}

ParamTable read_param_table(const Hdf5Document& file, const std::string& name) {
  constexpr Index kMostElements = Index{1} << 50U;  // of all parameters
  const std::string path = "/table";
  const auto names = file.text_column(path, "name");
  const auto dtypes = file.text_column(path, "dtype");
  const auto ranks = file.int_column(path, "ndim");
  const auto shapes = file.extents_column(path, "shape");
  const auto units = file.text_column(path, "unit");
  const auto offsets = file.int_column(path, "offset");
  const auto counts = file.int_column(path, "count");
  const auto aliases = file.text_column(path, "alias_of");
  ParamTable table;
  Index total = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto refuse_row = [&](const std::string& what, SourceLocation where) {
      refuse(name, fmt::format("{} in row {} of /table ({})", what, i, names[i]), where);
    };
    if (dtypes[i] != dtype_name(DType::f32)) {
      refuse_row(fmt::format("dtype is '{}'; it must be '{}'", dtypes[i], dtype_name(DType::f32)),
                 TESSERA_HERE);
    }
    ParamRow row{names[i], units[i], offsets[i], shape_of(shapes[i], ranks[i], name), aliases[i]};
    if (row.count() != counts[i]) {
      refuse_row(fmt::format("count is {}; by its shape it must be {}", counts[i], row.count()),
                 TESSERA_HERE);
    }
    if (row.alias_of.empty()) {
      // Parameters lie one behind the other, unit by unit.
      if (table.units.empty() || table.units.back().name != row.unit) {
        table.units.push_back({row.unit, 0});
      }
      if (row.offset != table.units.back().count) {
        refuse_row(fmt::format("offset is {}; after the row before it must be {}", row.offset,
                               table.units.back().count),
                   TESSERA_HERE);
      }
      table.units.back().count += row.count();
      total += row.count();
      if (total > kMostElements) {
        refuse_row(
            fmt::format("count is {}: more than {} elements in all", row.count(), kMostElements),
            TESSERA_HERE);
      }
    }
    table.params.push_back(std::move(row));
  }
  return table;
}

std::vector<ShardRecord> read_shard_tables(const Hdf5Document& file, Index world_size,
                                           const std::string& name) {
  const auto files = file.text_column("/shards", "file");
  const auto ranks = file.int_column("/shards", "rank");
  const auto bytes = file.uint_column("/shards", "bytes");
  const auto hashes = file.uint_column("/shards", "blocks_xxh3");
  const std::array nonfinite = {file.int_column("/shards", "nonfinite_master"),
                                file.int_column("/shards", "nonfinite_exp_avg"),
                                file.int_column("/shards", "nonfinite_exp_avg_sq")};
  if (static_cast<Index>(files.size()) != world_size) {
    refuse(name, fmt::format("world_size is {}; /shards lists {} files", world_size, files.size()),
           TESSERA_HERE);
  }
  std::vector<ShardRecord> shards;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto rank = static_cast<Index>(i);
    require_range(name, fmt::format("rank of row {} of /shards", i), ranks[i], rank, rank);
    if (files[i] != shard_file_name(rank, world_size)) {
      refuse(name,
             fmt::format("file of row {} of /shards is '{}'; it must be '{}'", i, files[i],
                         shard_file_name(rank, world_size)),
             TESSERA_HERE);
    }
    ShardRecord record{files[i], {rank, world_size, {}}, bytes[i], hashes[i], {}};
    for (std::size_t array = 0; array < kArrayCount; ++array) {
      record.nonfinite[array] = nonfinite[array][i];
    }
    shards.push_back(std::move(record));
  }
  const auto slice_ranks = file.int_column("/slices", "rank");
  const auto units = file.text_column("/slices", "unit");
  const auto begins = file.int_column("/slices", "begin");
  const auto ends = file.int_column("/slices", "end");
  const auto offsets = file.int_column("/slices", "offset");
  for (std::size_t i = 0; i < slice_ranks.size(); ++i) {
    require_range(name, fmt::format("rank of row {} of /slices", i), slice_ranks[i], 0,
                  world_size - 1);
    shards[static_cast<std::size_t>(slice_ranks[i])].spec.slices.push_back(
        {units[i], begins[i], ends[i], offsets[i]});
  }
  return shards;
}

// What /shards says beside the slices, which have been checked.
void check_shards(const Hdf5Document& file, const Manifest& manifest, const std::string& name) {
  const auto elements = file.int_column("/shards", "elements");
  const bool has_moments = manifest.info.moments != Moments::none;
  Index nonfinite_params = 0;
  for (std::size_t i = 0; i < manifest.shards.size(); ++i) {
    const ShardRecord& shard = manifest.shards[i];
    const Index count = shard.spec.count();
    require_range(name, fmt::format("elements of {} in /shards", shard.file), elements[i], count,
                  count);
    for (const CheckpointArray array : kCheckpointArrays) {
      const Index most = array == CheckpointArray::master || has_moments ? count : 0;
      require_range(name,
                    fmt::format("nonfinite_{} of {} in /shards", array_name(array), shard.file),
                    shard.nonfinite[static_cast<std::size_t>(array)], 0, most);
    }
    nonfinite_params += shard.nonfinite[static_cast<std::size_t>(CheckpointArray::master)];
  }
  require_range(name, "nonfinite_params", manifest.info.nonfinite_params, nonfinite_params,
                nonfinite_params);
}

/// Reads words of CHECKSUMS; the whole is compared with its canonical text afterwards, so that this
/// may be lenient.
class Words {
 public:
  Words(std::string_view line, const std::string& name) : stream_(std::string(line)), name_(name) {}

  std::string word() {
    std::string text;
    if (!(stream_ >> text)) {
      refuse(name_, "a line is too short", TESSERA_HERE);
    }
    return text;
  }
  void literal(std::string_view expected) {
    if (const std::string text = word(); text != expected) {
      refuse(name_, fmt::format("'{}' stands where '{}' should", text, expected), TESSERA_HERE);
    }
  }
  std::uint64_t number() { return parse(word(), kDecimal); }
  Hash128 hash() {
    constexpr std::size_t kDigits = 16;
    const std::string text = word();
    if (text.size() != 2 * kDigits) {
      refuse(name_, fmt::format("'{}' is no checksum", text), TESSERA_HERE);
    }
    return {parse(text.substr(0, kDigits), kHexadecimal),
            parse(text.substr(kDigits), kHexadecimal)};
  }
  ByteRange range() {
    const std::string text = word();
    const std::size_t plus = text.find('+');
    if (plus == std::string::npos) {
      refuse(name_, fmt::format("'{}' is no range of bytes", text), TESSERA_HERE);
    }
    return {parse(text.substr(0, plus), kDecimal), parse(text.substr(plus + 1), kDecimal)};
  }

 private:
  static constexpr int kDecimal = 10;
  static constexpr int kHexadecimal = 16;

  std::uint64_t parse(const std::string& text, int base) {
    std::uint64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data(), end, value, base);
    if (code != std::errc() || stop != end) {
      refuse(name_, fmt::format("'{}' is no number", text), TESSERA_HERE);
    }
    return value;
  }

  std::istringstream stream_;
  const std::string& name_;
};

void require_ranges_inside(const ShardChecksum& shard, const std::string& name) {
  for (const ByteRange& range : shard.arrays) {
    const bool is_inside =
        range.offset <= shard.file_bytes && range.bytes <= shard.file_bytes - range.offset;
    const bool overlaps =
        std::any_of(shard.arrays.begin(), shard.arrays.end(), [&](const ByteRange& other) {
          return &other != &range && range.bytes > 0 && other.bytes > 0 &&
                 other.offset <= range.offset && range.offset - other.offset < other.bytes;
        });
    if (!is_inside || overlaps) {
      refuse(name, fmt::format("the arrays of {} do not lie inside the file", shard.file),
             TESSERA_HERE);
    }
  }
}

constexpr std::string_view kSelfWord = "self xxh3_128 ";

/// The version in the first line of CHECKSUMS, if that is a version line of another version.
std::optional<std::uint64_t> other_version(const std::vector<std::string>& lines) {
  const std::string start = fmt::format("{} ", kCheckpointFormat);
  if (lines.empty() || !lines[0].starts_with(start)) {
    return std::nullopt;
  }
  std::uint64_t version = 0;
  const char* const end = lines[0].data() + lines[0].size();
  const auto [stop, code] = std::from_chars(lines[0].data() + start.size(), end, version);
  if (code != std::errc() || stop != end || version == kCheckpointVersion) {
    return std::nullopt;
  }
  return version;
}

}  // namespace

std::vector<std::byte> manifest_image(const Manifest& manifest) {
  Hdf5Document file = Hdf5Document::create_in_memory(std::string(kManifestName));
  file.put_attribute("format", std::string(kCheckpointFormat));
  file.put_attribute("version", kCheckpointVersion);
  file.put_attribute("moments", std::string(moments_name(manifest.info.moments)));
  for_each_attribute(manifest.info,
                     [&](const char* name, const auto& value) { file.put_attribute(name, value); });
  // A part of version 1 that earlier programs ask for; nothing uses it, since all random numbers
  // follow from the seed and their own number.
  file.put_attribute("rng_counter", static_cast<std::uint64_t>(manifest.info.windows_taken));
  write_param_table(file, manifest.table);
  write_shard_tables(file, manifest.shards);
  write_virtual_datasets(file, manifest);
  return file.image();
}

Manifest parse_manifest(std::span<const std::byte> image, const std::string& name) {
  const Hdf5Document file = Hdf5Document::open_image(image, name);
  if (const std::string format = file.text_attribute("format"); format != kCheckpointFormat) {
    refuse(name, fmt::format("format '{}' is no {}", format, kCheckpointFormat), TESSERA_HERE);
  }
  if (const Index version = file.int_attribute("version"); version != kCheckpointVersion) {
    refuse(name,
           fmt::format("checkpoint version {} is not known; this program reads version {}", version,
                       kCheckpointVersion),
           TESSERA_HERE);
  }
  Manifest manifest;
  for_each_attribute(manifest.info, [&](const char* attribute, auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, std::string>) {
      value = file.text_attribute(attribute);
    } else if constexpr (std::is_same_v<Value, Index>) {
      value = file.int_attribute(attribute);
    } else {
      value = file.uint_attribute(attribute);
    }
  });
  const std::string moments = file.text_attribute("moments");
  if (moments != moments_name(Moments::none) && moments != moments_name(Moments::adamw)) {
    refuse(name, fmt::format("moments '{}' are not known", moments), TESSERA_HERE);
  }
  manifest.info.moments = moments == moments_name(Moments::none) ? Moments::none : Moments::adamw;
  manifest.table = read_param_table(file, name);
  check_info(manifest.info, manifest.table.total_count(), name);
  require_range(name, "rng_counter", file.int_attribute("rng_counter"), manifest.info.windows_taken,
                manifest.info.windows_taken);
  check_table(manifest.table, manifest.info.config_json, name);
  require_distinct(manifest.table, name);
  manifest.shards = read_shard_tables(file, manifest.info.world_size, name);
  check_slices(manifest.shards, manifest.table, name);
  check_shards(file, manifest, name);
  return manifest;
}

std::string Checksums::to_text() const {
  std::string text =
      fmt::format("{} {}\nsave_id {}\n{} bytes {} xxh3_128 {}\n", kCheckpointFormat,
                  kCheckpointVersion, save_id, kManifestName, manifest_bytes, manifest_hash.text());
  for (const ShardChecksum& shard : shards) {
    text += fmt::format("{} bytes {} arrays", shard.file, shard.file_bytes);
    for (const ByteRange& range : shard.arrays) {
      text += fmt::format(" {}+{}", range.offset, range.bytes);
    }
    text += fmt::format(" outside_xxh3_128 {}\n", shard.header_hash.text());
  }
  text += fmt::format("{}{}\n", kSelfWord, xxh3_128(bytes_of(text)).text());
  return text;
}

Checksums parse_checksums(std::string_view text, const std::string& name) {
  std::vector<std::string> lines;
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  constexpr std::size_t kOtherLines = 4;  // version, save, manifest, self
  const std::size_t self = text.rfind(kSelfWord);
  const bool is_whole =
      lines.size() >= kOtherLines && self != std::string_view::npos &&
      text.substr(self) ==
          fmt::format("{}{}\n", kSelfWord, xxh3_128(bytes_of(text.substr(0, self))).text());
  // Another version may have other lines and another checksum: it is not damaged for that.
  if (const auto version = other_version(lines)) {
    refuse(name,
           fmt::format("checkpoint version {} is not known; this program reads version {}",
                       *version, kCheckpointVersion),
           TESSERA_HERE);
  }
  if (!is_whole) {
    throw DamageError(
        fmt::format("{} is damaged: it does not match its own checksum, or lines are missing",
                    name),
        TESSERA_HERE);
  }
  Checksums sums;
  Words first(lines[0], name);
  first.literal(kCheckpointFormat);
  static_cast<void>(first.number());
  Words save(lines[1], name);
  save.literal("save_id");
  sums.save_id = save.word();
  Words manifest(lines[2], name);
  manifest.literal(kManifestName);
  manifest.literal("bytes");
  sums.manifest_bytes = manifest.number();
  manifest.literal("xxh3_128");
  sums.manifest_hash = manifest.hash();
  for (std::size_t i = kOtherLines - 1; i + 1 < lines.size(); ++i) {
    Words line(lines[i], name);
    ShardChecksum shard;
    shard.file = line.word();
    line.literal("bytes");
    shard.file_bytes = line.number();
    line.literal("arrays");
    for (ByteRange& range : shard.arrays) {
      range = line.range();
    }
    line.literal("outside_xxh3_128");
    shard.header_hash = line.hash();
    require_ranges_inside(shard, name);
    sums.shards.push_back(std::move(shard));
  }
  if (sums.to_text() != text) {
    refuse(name, "is damaged: it is not written as this program writes it", TESSERA_HERE);
  }
  return sums;
}

Hash128 hash_outside(std::uint64_t file_bytes, const std::array<ByteRange, kArrayCount>& arrays,
                     const ReadBytes& read) {
  Xxh3 hash;
  hash.reset128();
  std::vector<std::byte> buffer(kCopyBytes);
  for (const ByteRange& range : bytes_outside(arrays, file_bytes)) {
    for (std::uint64_t begin = range.offset; begin < range.end(); begin += buffer.size()) {
      const auto part =
          static_cast<std::size_t>(std::min<std::uint64_t>(range.end() - begin, kCopyBytes));
      read(begin, std::span(buffer).first(part));
      hash.add(std::span(buffer).first(part));
    }
  }
  return hash.digest128();
}

}  // namespace tessera
