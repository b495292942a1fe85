#include "runtime/launch/job_shape.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "collectives/mpi_session.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/quantity.h"
#include "model/json_text.h"
#include "runtime/launch/rank_table.h"

namespace tessera {
namespace {

// The loader of batches and the writer of saves work beside a GPU rank's own thread.
constexpr int kCoresOfGpuRank = 2;

// A count of the batch system, such as SLURM_GPUS_ON_NODE; 0 where there is none.
int count_of_environment(const char* name) {
  const char* text = std::getenv(name);
  int count = 0;
  if (text != nullptr) {
    (void)std::from_chars(text, text + std::strlen(text), count);
  }
  return std::max(count, 0);
}

constexpr const char* kNoLinks = "NCCL_P2P_DISABLE";
constexpr const char* kNoHostMemory = "NCCL_SHM_DISABLE";

std::vector<std::string> disabled_of_nccl() {
  std::vector<std::string> disabled;
  for (const char* name : {kNoLinks, kNoHostMemory}) {
    if (count_of_environment(name) > 0) {
      disabled.emplace_back(name);
    }
  }
  return disabled;
}

// GPUs of this machine by its driver's device files, /dev/nvidia0 and so on: also for programs built
// without CUDA.
int driver_gpus() {
  constexpr std::string_view kPrefix = "nvidia";
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    count += name.size() > kPrefix.size() && name.starts_with(kPrefix) &&
                     name.find_first_not_of("0123456789", kPrefix.size()) == std::string::npos
                 ? 1
                 : 0;
  }
  return count;
}

using Hosts = std::map<std::string, std::vector<const RankShape*>>;

Hosts by_host(std::span<const RankShape> ranks) {
  Hosts hosts;
  for (const RankShape& each : ranks) {
    hosts[each.host].push_back(&each);
  }
  return hosts;
}

std::string more_hosts(std::size_t count) {
  return count < 2 ? std::string()
                   : fmt::format(" (and {} more)", counted(static_cast<Index>(count) - 1, "host"));
}

// The sentence of the first host for which `text_of` has one, and how many others have one.
template <typename TextOf>
void add_first(std::vector<std::string>& texts, const Hosts& hosts, const TextOf& text_of) {
  std::string first;
  std::size_t count = 0;
  for (const auto& [host, ranks] : hosts) {
    const std::string text = text_of(host, ranks);
    count += text.empty() ? 0 : 1;
    first = first.empty() ? text : first;
  }
  if (!first.empty()) {
    texts.push_back(first + more_hosts(count));
  }
}

std::string gpu_text(const std::string& host, const std::vector<const RankShape*>& ranks) {
  std::set<std::string> used;
  int of_host = 0;
  for (const RankShape* each : ranks) {
    of_host = std::max(of_host, each->gpus_of_host);
    if (!each->bus_id.empty()) {
      used.insert(each->bus_id);
    }
  }
  if (used.empty()) {
    return of_host == 0
               ? std::string()
               : fmt::format("{} has {}, and the ranks compute on its CPUs (--device cpu, the "
                             "default): --device cuda is many times as fast",
                             host, counted(of_host, "GPU"));
  }
  const int count = static_cast<int>(ranks.size());
  const int gpus = static_cast<int>(used.size());
  if (gpus < count) {
    return fmt::format(
        "{} ranks of {} share {}: give each a GPU of its own, with --ntasks-per-node "
        "{} (Slurm) or --map-by ppr:{}:node (mpirun)",
        count, host, counted(gpus, "GPU"), std::max(gpus, of_host), std::max(gpus, of_host));
  }
  if (gpus < of_host) {
    return fmt::format(
        "{} has {} and {}: {} without work; --ntasks-per-node {} (Slurm) or --map-by "
        "ppr:{}:node (mpirun) uses all",
        host, counted(of_host, "GPU"), counted(count, "rank"),
        of_host - gpus == 1 ? "1 GPU is" : fmt::format("{} GPUs are", of_host - gpus), of_host,
        of_host);
  }
  return {};
}

std::string binding_text(const std::string& host, const std::vector<const RankShape*>& ranks) {
  for (const RankShape* each : ranks) {
    const bool is_near = std::any_of(each->cores.begin(), each->cores.end(), [each](int core) {
      return std::find(each->near_cores.begin(), each->near_cores.end(), core) !=
             each->near_cores.end();
    });
    if (!each->cores.empty() && !each->near_cores.empty() && !is_near) {
      return fmt::format(
          "rank {} on {} is bound to cores {}, far from its GPU ({}, near cores {}): "
          "bind it there, with --gpu-bind=closest or --cpu-bind (Slurm), or "
          "--bind-to none (mpirun)",
          each->rank, host, ranges_text(each->cores), each->bus_id, ranges_text(each->near_cores));
    }
  }
  return {};
}

std::string cores_text(const std::string& host, const std::vector<const RankShape*>& ranks) {
  for (const RankShape* each : ranks) {
    const bool has_gpu = !each->bus_id.empty();
    const int wanted = has_gpu ? kCoresOfGpuRank : each->threads;
    const int cores = static_cast<int>(each->cores.size());
    if (cores > 0 && cores < wanted) {
      return fmt::format(
          "rank {} on {} may use {} for {}: give it {} or more, with --cpus-per-task "
          "{} (Slurm) or --map-by ...:PE={} (mpirun)",
          each->rank, host, counted(cores, "core"),
          has_gpu ? "its own thread, the loader of batches and the writer of saves"
                  : fmt::format("--threads {}", each->threads),
          wanted, wanted, wanted);
    }
  }
  return {};
}

std::string nccl_text(const std::string& host, const std::vector<const RankShape*>& ranks) {
  if (ranks.size() < 2) {
    return {};
  }
  for (const RankShape* each : ranks) {
    const std::vector<std::string>& set = each->nccl_disabled;
    if (!each->bus_id.empty() && !set.empty()) {
      const bool no_links = set.front() == kNoLinks;
      const char* way = set.size() > 1 ? "by network sockets"
                        : no_links     ? "by way of the host's memory"
                                       : "by its links alone, and by network sockets where there "
                                         "are none";
      return fmt::format(
          "{} {} set on {}: NCCL goes from GPU to GPU of a host {}; unset {} unless "
          "a fault needs {}; --peer-copies auto exchanges by copy engines all the same",
          fmt::join(set, " and "), set.size() > 1 ? "are" : "is", host, way,
          set.size() > 1 ? "them" : "it", set.size() > 1 ? "them" : "it");
    }
  }
  return {};
}

}  // namespace

RankShape shape_of_rank(const MpiSession& session, Device device, int threads) {
  RankShape shape{.rank = session.rank(),
                  .host = session.host(),
                  .bus_id = {},
                  .gpus_of_host = driver_gpus(),
                  .threads = device.kind == DeviceKind::cpu ? threads : 1,
                  .cores = usable_cores(),
                  .near_cores = {}};
  if (device.kind == DeviceKind::cuda) {
    shape.bus_id = device_info(device).bus_id;
    shape.gpus_of_host =
        std::max(device_count(DeviceKind::cuda), count_of_environment("SLURM_GPUS_ON_NODE"));
    shape.near_cores = processors_near(shape.bus_id);
    shape.nccl_disabled = disabled_of_nccl();
  }
  return shape;
}

std::string to_text(const RankShape& shape) {
  const nlohmann::json json = {{"rank", shape.rank},
                               {"host", shape.host},
                               {"bus_id", shape.bus_id},
                               {"gpus_of_host", shape.gpus_of_host},
                               {"threads", shape.threads},
                               {"cores", shape.cores},
                               {"near_cores", shape.near_cores},
                               {"nccl_disabled", shape.nccl_disabled}};
  return json_text(json);
}

RankShape rank_shape(const std::string& text) {
  const nlohmann::json json = parse_json(text, "the shape of a rank");
  return {.rank = json.at("rank").get<int>(),
          .host = json.at("host").get<std::string>(),
          .bus_id = json.at("bus_id").get<std::string>(),
          .gpus_of_host = json.at("gpus_of_host").get<int>(),
          .threads = json.at("threads").get<int>(),
          .cores = json.at("cores").get<std::vector<int>>(),
          .near_cores = json.at("near_cores").get<std::vector<int>>(),
          .nccl_disabled = json.at("nccl_disabled").get<std::vector<std::string>>()};
}

std::vector<std::string> job_shape_texts(std::span<const RankShape> ranks) {
  const Hosts hosts = by_host(ranks);
  std::vector<std::string> texts;
  add_first(texts, hosts, gpu_text);
  add_first(texts, hosts, binding_text);
  add_first(texts, hosts, cores_text);
  add_first(texts, hosts, nccl_text);
  return texts;
}

}  // namespace tessera
