#include "runtime/run/local_run.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "collectives/mpi_control.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/log.h"
#include "kernels/base/progress.h"
#include "kernels/base/quantity.h"
#include "runtime/checkpoint/local_saves.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/launch/agree.h"
#include "runtime/run/partner_copy.h"
#include "runtime/run/resume_search.h"

namespace tessera {
namespace {

// What rank 0 knows of --out.
struct OutFacts {
  Index above = 0;  // no step up to here is needed from local saves
  LocalRecord record;
};

// The newest step of --out that is not proven lost: a newer one is not looked for among older ones.
Index newest_sound_step(const std::filesystem::path& out, ReadRetry& retry) {
  const std::vector<NamedStep> steps = named_steps(out);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const StepState state = check_step(step->path, CheckDepth::headers, retry).state;
    if (state != StepState::damaged && state != StepState::incomplete) {
      return step->step;
    }
  }
  return 0;
}

// Of rank 0, on every rank; empty: local saves have nothing to say. Collective.
std::optional<OutFacts> out_facts(MpiSession& session, const RunConfig& options) {
  const std::string mine = agree(session, [&] {
    if (session.rank() != 0 || !continues_out(options)) {
      return std::string();
    }
    const auto record = read_local_record(options.out);
    ReadRetry retry = retry_of(options);
    return record ? fmt::format("{} {} {}", newest_sound_step(options.out, retry), record->run_id,
                                record->folder)
                  : std::string();
  });
  std::istringstream words(session.control().gather_text(mine).front());
  OutFacts facts;
  words >> facts.above >> facts.record.run_id >> facts.record.folder;
  return words ? std::optional(facts) : std::nullopt;
}

// What all ranks see. Collective.
std::vector<SeenShard> seen_shards(MpiSession& session, const RunConfig& options,
                                   const LocalRecord& record) {
  const LocalListing listing = list_local_shards(
      std::filesystem::path(options.checkpoint.local_folder) / record.folder, record.run_id);
  if (session.local_rank() == 0) {
    for (const std::string& problem : listing.problems) {
      log_line(LogLevel::warning, fmt::format("passing over a local save: {}", problem));
    }
  }
  std::vector<SeenShard> seen;
  const std::vector<std::string> texts = session.control().gather_text(to_text(listing.shards));
  for (int rank = 0; rank < session.world_size(); ++rank) {
    for (LocalShard& shard : local_shards_of(texts[static_cast<std::size_t>(rank)])) {
      seen.push_back({rank, std::move(shard)});
    }
  }
  return seen;
}

std::string hosts_text(MpiSession& session, std::span<const SeenShard> seen,
                       const Assembly& assembly) {
  const std::vector<std::string> hosts = session.control().gather_text(session.host());
  std::set<std::string> names;
  for (const std::size_t number : assembly.shards) {
    names.insert(hosts[static_cast<std::size_t>(seen[number].rank)]);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

void copy_whole(const std::filesystem::path& from, const std::filesystem::path& to) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 32U;
  write_whole_file(to, bytes_of(read_whole_file(from, kMostBytes)));
}

// This rank's part of the shards; returns the numbers of those that cannot be used. With the first
// shard come the manifest and the checksums. Throws WriteError.
std::vector<std::size_t> copy_shards(int rank, std::span<const SeenShard> seen,
                                     const Assembly& assembly,
                                     const std::filesystem::path& folder) {
  std::vector<std::size_t> bad;
  for (const std::size_t number : assembly.shards) {
    const SeenShard& holder = seen[number];
    if (holder.rank != rank) {
      continue;
    }
    try {
      copy_local_shard(holder.shard, folder,
                       [] { progress().beats.fetch_add(1, std::memory_order_relaxed); });
      if (number == assembly.shards.front()) {
        copy_whole(holder.shard.step_folder / kManifestName, folder / kManifestName);
        copy_whole(holder.shard.step_folder / kChecksumsName, folder / kChecksumsName);
      }
    } catch (const FormatError& error) {  // and DamageError, ReadError
      log_line(LogLevel::warning, fmt::format("passing over a copy: {}", error.message()));
      bad.push_back(number);
    }
  }
  return bad;
}

// On every rank the numbers of the shards that cannot be used; empty: the step is in --out.
// Collective. Throws, agreed: WriteError.
std::vector<std::size_t> assemble(MpiSession& session, const RunConfig& options,
                                  std::span<const SeenShard> seen, const Assembly& assembly) {
  const std::filesystem::path out = options.out;
  const SaveIdentity identity = {assembly.save_id, assembly.step};
  const std::filesystem::path folder = out / save_folder_name(identity);
  agree(session, [&] {
    if (session.rank() == 0) {
      remove_folder(folder);  // of an attempt that died
      static_cast<void>(make_save_folder(out, identity));
    }
  });
  std::string mine;
  std::vector<std::size_t> bad;
  try {
    mine = fmt::format(
        "{}", fmt::join(agree(session,
                              [&] { return copy_shards(session.rank(), seen, assembly, folder); }),
                        " "));
    for (const std::string& text : session.control().gather_text(mine)) {
      std::istringstream numbers(text);
      for (std::size_t number = 0; numbers >> number;) {
        bad.push_back(number);
      }
    }
    agree(session, [&] {
      if (session.rank() != 0 || !bad.empty()) {
        return;
      }
      sync_folder(folder);
      if (path_exists(out / step_folder_name(assembly.step))) {
        leave_abandoned_branch(out, assembly.step - 1);  // it is proven lost
      }
      rename_to_new(folder, out / step_folder_name(assembly.step));
      sync_folder(out);
      write_step_name(out, kLatestName, assembly.step);
    });
  } catch (...) {
    if (session.rank() == 0) {
      discard_save(folder);
    }
    throw;
  }
  if (!bad.empty() && session.rank() == 0) {
    discard_save(folder);
  }
  return bad;
}

}  // namespace

MadeFolders look_at_local_folder(MpiSession& session, const RunConfig& options) {
  const std::filesystem::path dir = options.checkpoint.local_folder;
  if (dir.empty()) {
    return {};
  }
  MadeFolders made(dir);
  agree(session, [&] {
    require_no_step_name("--save-local", dir);
    require_apart(dir, options.out);
    require_room_for_folder(dir, fmt::format("--save-local {}", dir.string()));
    try {
      make_run_folder(dir);
      if (session.local_rank() == 0) {
        static_cast<void>(File::create_unnamed(dir, dir / "probe"));
      }
    } catch (const WriteError& error) {
      throw WriteError(fmt::format("--save-local {}: {}; give a folder that this user may write to "
                                   "on every node",
                                   dir.string(), error.message()),
                       TESSERA_HERE);
    }
  });
  return made;
}

void promote_local_saves(MpiSession& session, const RunConfig& options) {
  if (options.checkpoint.local_folder.empty()) {
    return;
  }
  const std::optional<OutFacts> facts = out_facts(session, options);
  if (!facts) {
    return;
  }
  std::vector<SeenShard> seen = seen_shards(session, options, facts->record);
  while (const auto assembly = newest_assembly(seen, facts->above)) {
    const std::string hosts = hosts_text(session, seen, *assembly);
    const std::vector<std::size_t> bad = assemble(session, options, seen, *assembly);
    if (bad.empty()) {
      if (session.rank() == 0) {
        log_line(LogLevel::info, fmt::format("step {} is put together in {} from local saves of {}",
                                             assembly->step, options.out, hosts));
      }
      return;
    }
    std::vector<SeenShard> left;
    for (std::size_t number = 0; number < seen.size(); ++number) {
      if (std::find(bad.begin(), bad.end(), number) == bad.end()) {
        left.push_back(std::move(seen[number]));
      }
    }
    seen = std::move(left);
  }
}

std::string take_over_local_saves(MpiSession& session, const RunConfig& options,
                                  const std::optional<ResumePoint>& point,
                                  const std::string& run_id) {
  const std::string mine = agree(session, [&] {
    if (session.rank() != 0) {
      return std::string();
    }
    if (options.checkpoint.local_folder.empty()) {
      if (remove_local_record(options.out)) {
        log_line(
            LogLevel::info,
            "without --save-local the local saves of earlier processes are left: they will not "
            "be continued");
      }
      return std::string();
    }
    const bool continues = point && continues_out(options);
    const std::optional<LocalRecord> old =
        continues ? read_local_record(options.out) : std::nullopt;
    if (old && old->run_id == run_id) {
      return old->folder;
    }
    const LocalRecord record = new_local_record(run_id);
    write_local_record(options.out, record);
    return record.folder;
  });
  return session.control().gather_text(mine).front();
}

std::string local_saves_text(const RunConfig& options, bool has_partner) {
  return fmt::format(
      "local saves every {} to {} on each host{}; {}",
      counted(options.checkpoint.local_every, "step"), options.checkpoint.local_folder,
      options.checkpoint.save_every > 0
          ? fmt::format(", and every {} one that is copied to {} from there",
                        counted(options.checkpoint.save_every, "step"), options.out)
          : "",
      has_partner ? fmt::format("the next host gets a copy, at up to {}/s from each rank",
                                format_bytes(static_cast<std::size_t>(kPartnerBytesPerSecond)))
                  : "this run has one host, so that no other has a copy");
}

}  // namespace tessera
