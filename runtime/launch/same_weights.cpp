#include "runtime/launch/same_weights.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <sys/stat.h>

#include "collectives/mpi_control.h"
#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/base/hash.h"
#include "kernels/base/progress.h"
#include "model/param_values.h"
#include "runtime/launch/agree.h"
#include "runtime/launch/rank_table.h"

namespace tessera {
namespace {

constexpr Index kPieceElements = Index{1} << 20;  // read at a time

}  // namespace

std::string files_identity(const HuggingFaceFolder& folder) {
  std::string text;
  for (const SafetensorsFile& file : folder.files()) {
    struct stat status = {};
    if (::stat(file.path().c_str(), &status) != 0) {
      throw FormatError(fmt::format("cannot read {}: it was there before", file.path().string()),
                        TESSERA_HERE);
    }
    text += fmt::format(" {} {} {}.{}", status.st_ino, status.st_size, status.st_ctim.tv_sec,
                        status.st_ctim.tv_nsec);
  }
  return text;
}

namespace {

// Equal on ranks that see the very same files; the host and its device are in it, since numbers of
// files are theirs.
std::string identity_of(const HuggingFaceFolder& folder, const std::string& host) {
  struct stat status = {};
  static_cast<void>(::stat(folder.files().front().path().c_str(), &status));
  return fmt::format("{} {}{}", host, status.st_dev, files_identity(folder));
}

// Of all slices of one rank. `read(unit, begin, values)` fills `values` with the unit's elements
// from `begin` on.
template <typename Read>
std::string hash_of_slices(const ShardState& shard, int rank, const Read& read) {
  Xxh3 hash;
  std::vector<float> values;
  for (UnitId unit = 0; unit < shard.layout().unit_count(); ++unit) {
    const OptimizerShard range =
        OptimizerShard::for_rank(rank, shard.world_size(), shard.padded(unit));
    for (Index begin = range.param_start; begin < range.param_end; begin += kPieceElements) {
      values.assign(static_cast<std::size_t>(std::min(kPieceElements, range.param_end - begin)), 0);
      read(unit, begin, std::span(values));
      hash.add(std::as_bytes(std::span(values)));
      progress().beats.fetch_add(1, std::memory_order_relaxed);
    }
  }
  return hash_text(hash.digest64());
}

// "ranks 0-3 (node1)": all that see the files which `rank` sees.
std::string group_text(std::span<const std::string> sources, std::size_t rank,
                       std::span<const std::string> hosts) {
  std::vector<int> ranks;
  for (std::size_t other = 0; other < sources.size(); ++other) {
    if (sources[other] == sources[rank]) {
      ranks.push_back(static_cast<int>(other));
    }
  }
  return fmt::format("rank{} {} ({})", ranks.size() == 1 ? "" : "s", ranges_text(ranks),
                     hosts[rank]);
}

}  // namespace

std::vector<int> checking_ranks(std::span<const std::string> sources) {
  std::vector<std::vector<int>> groups;
  std::map<std::string_view, std::size_t> group_of;
  for (std::size_t rank = 0; rank < sources.size(); ++rank) {
    const auto [place, is_new] = group_of.emplace(sources[rank], groups.size());
    if (is_new) {
      groups.emplace_back();
    }
    groups[place->second].push_back(static_cast<int>(rank));
  }
  std::vector<int> checking(sources.size(), -1);
  for (std::size_t group = 0; groups.size() > 1 && group < groups.size(); ++group) {
    const std::vector<int>& next = groups[(group + 1) % groups.size()];
    for (std::size_t i = 0; i < groups[group].size(); ++i) {
      checking[static_cast<std::size_t>(groups[group][i])] = next[i % next.size()];
    }
  }
  return checking;
}

void require_same_weights(MpiSession& session, const HuggingFaceFolder& folder,
                          const std::string& name, const ShardState& shard) {
  const std::string identity = agree(session, [&] { return identity_of(folder, session.host()); });
  const std::vector<std::string> sources = session.control().gather_text(identity);
  const std::vector<int> checking = checking_ranks(sources);
  if (checking.front() < 0) {
    return;
  }
  const std::string loaded = agree(session, [&] {
    return hash_of_slices(
        shard, session.rank(), [&](UnitId unit, Index begin, std::span<float> values) {
          shard.read(unit, StateArray::master, begin - shard.range(unit).param_start,
                     {values.data(), DType::f32, Shape{std::ssize(values)}, {}});
        });
  });
  // What this rank's files give for the slices of the ranks that it checks, one a line.
  const std::string read_here = agree(session, [&] {
    std::string lines;
    for (std::size_t rank = 0; rank < checking.size(); ++rank) {
      if (checking[rank] == session.rank()) {
        lines += fmt::format("{} {}\n", rank,
                             hash_of_slices(shard, static_cast<int>(rank),
                                            [&](UnitId unit, Index begin, std::span<float> values) {
                                              folder.read_unit(unit, begin, values);
                                            }));
      }
    }
    return lines;
  });
  const std::vector<std::string> owned = session.control().gather_text(loaded);
  const std::vector<std::string> checked = session.control().gather_text(read_here);
  const std::vector<std::string> hosts = session.control().gather_text(session.host());
  std::set<std::string> different;
  for (std::size_t rank = 0; rank < checking.size(); ++rank) {
    const auto checker = static_cast<std::size_t>(checking[rank]);
    if (("\n" + checked[checker]).find(fmt::format("\n{} {}\n", rank, owned[rank])) ==
        std::string::npos) {
      different.insert(fmt::format("{} and {}", group_text(sources, std::min(rank, checker), hosts),
                                   group_text(sources, std::max(rank, checker), hosts)));
    }
  }
  if (!different.empty()) {
    throw_agreed({ConfigError("", TESSERA_HERE).exit_status(),
                  fmt::format("contents of --init {} differ between {}: every rank must see the "
                              "same weights: copy them anew, or give a folder that all hosts share",
                              name, fmt::join(different, "; between "))},
                 TESSERA_HERE);
  }
}

void require_same_base(MpiSession& session, const HuggingFaceFolder& folder,
                       const std::string& name, std::uint64_t content) {
  const std::string identity = agree(session, [&] { return identity_of(folder, session.host()); });
  const std::vector<std::string> sources = session.control().gather_text(identity);
  if (checking_ranks(sources).front() < 0) {
    return;
  }
  const auto first = std::find(sources.begin(), sources.end(), identity) - sources.begin();
  agree(session, [&] {
    if (first != session.rank()) {
      return;
    }
    const std::uint64_t own = content_hash(
        folder.layout(),
        [&folder](UnitId unit, Index begin, std::span<float> values) {
          folder.read_unit(unit, begin, values);
        },
        1);
    if (own != content) {
      throw ConfigError(fmt::format("contents of --init {} differ between hosts ({} has others): "
                                    "every rank must see the same weights: copy them anew, or give "
                                    "a folder that all hosts share",
                                    name, session.host()),
                        TESSERA_HERE);
    }
  });
}

}  // namespace tessera
