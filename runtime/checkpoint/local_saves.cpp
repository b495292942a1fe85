#include "runtime/checkpoint/local_saves.h"

#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/output_file.h"
#include "model/json_text.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/run_folder.h"

namespace tessera {
namespace {

constexpr const char* kRecordName = "local-saves.json";
constexpr std::size_t kMostRecordBytes = std::size_t{1} << 16U;
constexpr std::string_view kFolderPrefix = "tessera-";
constexpr std::size_t kPieceBytes = std::size_t{1} << 20U;

LocalRecord parse_record(const std::filesystem::path& file) {
  const nlohmann::json json = parse_json(read_whole_file(file, kMostRecordBytes), file.string());
  const auto text = [&](const char* name) {
    return json.is_object() && json.contains(name) && json[name].is_string()
               ? json[name].get<std::string>()
               : std::string();
  };
  LocalRecord record = {text("run_id"), text("folder")};
  // It becomes a part of a path.
  if (record.run_id.empty() || !record.folder.starts_with(kFolderPrefix) ||
      record.folder.find('/') != std::string::npos) {
    throw FormatError(
        fmt::format("{} does not name a run and a folder of local saves; remove it to "
                    "continue without them",
                    file.string()),
        TESSERA_HERE);
  }
  return record;
}

OutputRules record_rules() {
  return {.option = "the output folder's",
          .what = "the record of local saves",
          .is_ours = [](const std::filesystem::path& file) {
            return !parse_record(file).folder.empty();
          }};
}

void list_step(const std::filesystem::path& folder, const std::string& run_id,
               LocalListing& listing) {
  ReadRetry none(std::chrono::milliseconds{0});
  const CheckpointReader reader(folder, none);
  if (reader.info().run_id != run_id) {
    return;
  }
  for (std::size_t rank = 0; rank < reader.shards().size(); ++rank) {
    const ShardRecord& shard = reader.shards()[rank];
    std::error_code error;
    const std::uintmax_t bytes = std::filesystem::file_size(folder / shard.file, error);
    if (error == std::errc::no_such_file_or_directory) {
      continue;  // of another node
    }
    if (error || bytes != shard.file_bytes) {
      listing.problems.push_back(
          error ? fmt::format("cannot read {}: {}", (folder / shard.file).string(), error.message())
                : fmt::format("{} has {} bytes instead of {}", (folder / shard.file).string(),
                              bytes, shard.file_bytes));
      continue;
    }
    listing.shards.push_back({reader.info().step, reader.info().save_id, static_cast<Index>(rank),
                              reader.info().world_size, folder});
  }
}

// Calls `use`, and keeps what it throws.
template <typename Use>
void keep_problem(LocalListing& listing, const Use& use) {
  try {
    use();
  } catch (const Error& error) {
    listing.problems.push_back(error.message());
  }
}

std::filesystem::path real_path(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::path real = std::filesystem::weakly_canonical(absolute_path(path), ignored);
  real = real.empty() ? absolute_path(path) : real;
  return real.has_filename() ? real : real.parent_path();
}

bool is_in(const std::filesystem::path& inner, const std::filesystem::path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace

std::optional<LocalRecord> read_local_record(const std::filesystem::path& out) {
  return path_exists(out / kRecordName) ? std::optional(parse_record(out / kRecordName))
                                        : std::nullopt;
}

void write_local_record(const std::filesystem::path& out, const LocalRecord& record) {
  const nlohmann::json json = {{"run_id", record.run_id}, {"folder", record.folder}};
  write_output(out / kRecordName, record_rules(), json_text(json) + "\n");
  sync_folder(out);
}

LocalRecord new_local_record(const std::string& run_id) {
  return {run_id, fmt::format("{}{}", kFolderPrefix, new_uuid())};
}

bool remove_local_record(const std::filesystem::path& out) {
  std::error_code error;
  const bool was_there = std::filesystem::remove(out / kRecordName, error);
  if (error) {
    throw WriteError(
        fmt::format("cannot remove {}: {}", (out / kRecordName).string(), error.message()),
        TESSERA_HERE);
  }
  if (was_there) {
    sync_folder(out);
  }
  return was_there;
}

std::string to_text(std::span<const LocalShard> shards) {
  std::string text;
  for (const LocalShard& shard : shards) {
    text += fmt::format("{} {} {} {} {}\n", shard.step, shard.save_id, shard.rank, shard.world_size,
                        shard.step_folder.string());
  }
  return text;
}

std::vector<LocalShard> local_shards_of(std::string_view text) {
  std::vector<LocalShard> shards;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    LocalShard shard;
    std::string folder;
    words >> shard.step >> shard.save_id >> shard.rank >> shard.world_size;
    if (!words || words.get() != ' ' || !std::getline(words, folder)) {
      throw FormatError(fmt::format("not a shard of a local save: {}", line), TESSERA_HERE);
    }
    shard.step_folder = folder;
    shards.push_back(std::move(shard));
  }
  return shards;
}

LocalListing list_local_shards(const std::filesystem::path& record_folder,
                               const std::string& run_id) {
  LocalListing listing;
  keep_problem(listing, [&] {
    if (!path_exists(record_folder)) {
      return;
    }
    for (const std::filesystem::path& host : list_folder(record_folder)) {
      keep_problem(listing, [&] {
        for (const NamedStep& step : named_steps(host)) {
          keep_problem(listing, [&] { list_step(step.path, run_id, listing); });
        }
      });
    }
  });
  return listing;
}

std::optional<Assembly> newest_assembly(std::span<const SeenShard> seen, Index above) {
  struct Save {
    Index world_size;
    std::map<Index, std::vector<std::size_t>> holders;  // by shard: numbers in `seen`
  };
  std::map<std::pair<Index, std::string>, Save> saves;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const LocalShard& shard = seen[i].shard;
    if (shard.step > above) {
      Save& save = saves[{shard.step, shard.save_id}];
      save.world_size = shard.world_size;
      save.holders[shard.rank].push_back(i);
    }
  }
  for (auto save = saves.rbegin(); save != saves.rend(); ++save) {
    const auto& holders = save->second.holders;
    if (std::ssize(holders) != save->second.world_size) {
      continue;
    }
    Assembly assembly = {save->first.first, save->first.second, {}};
    for (const auto& [rank, numbers] : holders) {
      assembly.shards.push_back(numbers[static_cast<std::size_t>(rank) % numbers.size()]);
    }
    return assembly;
  }
  return std::nullopt;
}

void copy_local_shard(const LocalShard& shard, const std::filesystem::path& folder,
                      const std::function<void()>& moved) {
  ReadRetry none(std::chrono::milliseconds{0});
  CheckpointReader reader(shard.step_folder, none);
  if (reader.info().save_id != shard.save_id) {
    throw DamageError(fmt::format("{} is another save now", shard.step_folder.string()),
                      TESSERA_HERE);
  }
  reader.verify_shard(shard.rank, moved);
  const std::string& name = reader.shard_file(shard.rank);
  const File source = File::open_read(shard.step_folder / name);
  const std::uint64_t bytes = source.size();
  File target = File::create(folder / name);
  target.allocate(bytes);
  std::vector<std::byte> piece(kPieceBytes);
  for (std::uint64_t offset = 0; offset < bytes; offset += piece.size()) {
    const auto part = std::span(piece).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), bytes - offset)));
    source.read_at(offset, part);
    target.write_at(offset, part);
    target.start_writeback(offset, part.size());
    if (moved) {
      moved();
    }
  }
  target.sync();
  target.close();
}

void keep_two_steps(const std::filesystem::path& host_folder, Index newest, Index also) {
  Index before = 0;
  const std::vector<NamedStep> steps = named_steps(host_folder);
  for (const NamedStep& each : steps) {
    before = each.step < newest ? std::max(before, each.step) : before;
  }
  for (const NamedStep& each : steps) {
    if (each.step != newest && each.step != before && each.step != also) {
      remove_step(host_folder, each.step);
    }
  }
  const Leftovers leftovers = remove_leftovers(host_folder);
  if (!leftovers.problems.empty()) {
    throw WriteError(leftovers.problems.front(), TESSERA_HERE);
  }
}

void require_apart(const std::filesystem::path& local, const std::filesystem::path& out) {
  const std::filesystem::path mine = real_path(local);
  const std::filesystem::path theirs = real_path(out);
  if (is_in(mine, theirs) || is_in(theirs, mine)) {
    throw ConfigError(
        fmt::format(
            "--save-local {} and --out {} are one folder, or one is inside the other; give a "
            "folder on the node's own disk",
            local.string(), out.string()),
        TESSERA_HERE);
  }
}

}  // namespace tessera
