#include "runtime/checkpoint/writer.h"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "kernels/base/parallel.h"
#include "runtime/checkpoint/checksums_file.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/checkpoint/shard_writer.h"

namespace tessera {
namespace {

void reach(const SaveHook& hook, SavePhase phase) {
  if (hook) {
    hook(phase);
  }
}

Manifest make_manifest(const CommitRequest& request, std::vector<ShardSummary>& shards) {
  Manifest manifest{request.info, request.table, {}};
  manifest.info.nonfinite_params = 0;
  std::sort(shards.begin(), shards.end(),
            [](const ShardSummary& a, const ShardSummary& b) { return a.rank < b.rank; });
  const Index world_size = request.info.world_size;
  TESSERA_REQUIRE(static_cast<Index>(shards.size()) == world_size,
                  fmt::format("{} shards of {} ranks", shards.size(), world_size));
  for (Index rank = 0; rank < world_size; ++rank) {
    const ShardSummary& summary = shards[static_cast<std::size_t>(rank)];
    ShardSpec spec = shard_spec(request.table.units, rank, world_size);
    TESSERA_REQUIRE(summary.rank == rank && summary.spec_hash == hash_of(spec),
                    fmt::format("rank {} wrote other slices than those of rank {} of {}",
                                summary.rank, rank, world_size));
    manifest.info.nonfinite_params +=
        summary.nonfinite.at(request.info.arrays().number_of(StateArray::master));
    manifest.shards.push_back({shard_file_name(rank, world_size), std::move(spec),
                               summary.file_bytes, summary.blocks_hash, summary.nonfinite});
  }
  return manifest;
}

Checksums make_checksums(const Manifest& manifest, std::span<const std::byte> image,
                         std::span<const ShardSummary> shards) {
  Checksums sums{manifest.info.version, manifest.info.save_id, image.size(), xxh3_128(image), {}};
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    sums.shards.push_back({manifest.shards[rank].file, shards[rank].file_bytes,
                           shards[rank].header_hash, shards[rank].arrays});
  }
  return sums;
}

/// Up to the rename. What it throws leaves only the save folder behind.
void write_and_rename(const CommitRequest& request, const std::filesystem::path& target,
                      const SaveHook& hook) {
  std::vector<ShardSummary> shards = request.shards;
  const Manifest manifest = make_manifest(request, shards);
  const std::vector<std::byte> image = manifest_image(manifest);
  write_whole_file(request.save_folder / kManifestName, image);
  reach(hook, SavePhase::manifest_written);
  write_whole_file(request.save_folder / kChecksumsName,
                   bytes_of(make_checksums(manifest, image, shards).to_text()));
  reach(hook, SavePhase::checksums_written);
  sync_folder(request.save_folder);
  reach(hook, SavePhase::folder_synced);
  rename_to_new(request.save_folder, target);
}

void write_shard(const WriteRequest& request, const std::filesystem::path& save_folder,
                 const SaveIdentity& identity, const ShardSpec& spec, ShardSummary& summary) {
  ShardWriter writer({save_folder, identity, spec, request.info.arrays(), {}});
  writer.create();
  const std::vector<ParamRun> runs = param_runs(request.table, spec);
  for (const StateArraySpec& spec_of : request.info.arrays().arrays()) {
    const StateArray array = spec_of.array;
    for_each_in_parallel(writer.block_count(array), [&](Index block) {
      writer.write_block(array, block, [&](Index offset, std::span<float> values) {
        const auto end = offset + static_cast<Index>(values.size());
        for (const ParamRun& run : runs_between(runs, offset, end)) {
          request.source(array, request.table.params[run.param], run.begin,
                         values.subspan(static_cast<std::size_t>(run.offset - offset),
                                        static_cast<std::size_t>(run.count)));
        }
      });
    });
  }
  summary = writer.finish();
}

}  // namespace

void discard_save(const std::filesystem::path& save_folder) noexcept {
  try {
    remove_folder(save_folder);
  } catch (const std::exception& error) {
    log_line(LogLevel::warning, error.what());
  }
}

std::filesystem::path place_checkpoint(const CommitRequest& request, const SaveHook& hook) {
  std::filesystem::path folder = request.run_folder / step_folder_name(request.info.step);
  try {
    write_and_rename(request, folder, hook);
  } catch (...) {
    discard_save(request.save_folder);
    throw;
  }
  reach(hook, SavePhase::renamed);
  sync_folder(request.run_folder);
  reach(hook, SavePhase::run_synced);
  return folder;
}

CommitResult commit_checkpoint(const CommitRequest& request, const SaveHook& hook) {
  check(request.retention);
  VerifiedSteps own;
  VerifiedSteps& verified = request.verified == nullptr ? own : *request.verified;
  CommitResult result;
  result.folder = place_checkpoint(request, hook);
  // From here on the checkpoint stands, whatever happens to the rest.
  try {
    write_step_name(request.run_folder, kLatestName, request.info.step,
                    [&] { reach(hook, SavePhase::latest_written); });
    reach(hook, SavePhase::latest_renamed);
  } catch (const WriteError& error) {
    result.problems.push_back(error.message());
  }
  try {
    // its checksums were taken on the way to the disk, which has confirmed that it has the bytes
    verified.remember(result.folder, VerifiedSteps::fingerprint(result.folder));
    RetentionResult retention =
        apply_retention(request.run_folder, request.retention, request.info.step, verified, hook);
    result.removed = std::move(retention.removed);
    result.best = std::move(retention.best);
    result.problems.insert(result.problems.end(), retention.problems.begin(),
                           retention.problems.end());
  } catch (const Error& error) {
    result.problems.push_back(error.message());
  }
  return result;
}

CommitResult write_checkpoint(const WriteRequest& request) {
  CommitRequest commit{request.run_folder, {}, request.info, request.table, {}, {}, nullptr};
  if (commit.info.save_id.empty()) {
    commit.info.save_id = new_uuid();
  }
  const SaveIdentity identity{commit.info.save_id, commit.info.step};
  make_run_folder(request.run_folder);
  commit.save_folder = make_save_folder(request.run_folder, identity);
  try {
    for (Index rank = 0; rank < commit.info.world_size; ++rank) {
      write_shard(request, commit.save_folder, identity,
                  shard_spec(request.table.units, rank, commit.info.world_size),
                  commit.shards.emplace_back());
    }
  } catch (...) {
    discard_save(commit.save_folder);
    throw;
  }
  return commit_checkpoint(commit);
}

}  // namespace tessera
