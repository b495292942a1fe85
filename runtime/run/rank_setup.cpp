#include "runtime/run/rank_setup.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "collectives/mpi_control.h"
#include "kernels/base/error.h"
#include "kernels/base/file_status.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/log.h"
#include "kernels/base/quantity.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/device/cpu/threads.h"
#include "kernels/device/device_backend.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/launch/agree.h"
#include "runtime/launch/idle_ranks.h"
#include "runtime/launch/job_shape.h"
#include "runtime/launch/rank_table.h"
#include "runtime/launch/start_agreement.h"
#include "runtime/launch/startup_check.h"

namespace tessera {

Device choose_device(MpiSession& session, const RunConfig& options) {
  if (options.compute.device == DeviceKind::cpu) {
    agree(session, [&] { cpu::set_threads(options.compute.threads); });
    return {};
  }
  return agree(session, [&] {
    const int devices = device_count(DeviceKind::cuda);
    if (devices == 0) {
      throw DeviceError("--device cuda: this machine has no GPU that CUDA can use", TESSERA_HERE);
    }
    const Device device = {DeviceKind::cuda, session.local_rank() % devices};
    use_device(device);
    if (precision_choice(options) == Precision::fp8) {
      const DeviceInfo info = device_info(device);
      const std::string refusal =
          card_refusal(options.compute.recipe, info.compute_capability, info.name);
      if (!refusal.empty()) {
        throw ConfigError(refusal, TESSERA_HERE);
      }
    }
    return device;
  });
}

void print_ranks(MpiSession& session, const Communicator& comm, Device device) {
  const std::vector<std::string> lines =
      session.control().gather_text(describe_rank(session, device));
  if (session.rank() == 0) {
    for (const std::string& line : lines) {
      log_line(LogLevel::verbose, line);
    }
    if (session.world_size() > 1) {
      log_line(LogLevel::verbose,
               fmt::format("gradients and parameters go by {}", comm.data_path()));
    }
  }
}

void warn_of_ranks(MpiSession& session, const RunConfig& options, Device device) {
  const std::vector<std::string> devices = session.control().gather_text(
      device.kind == DeviceKind::cpu ? fmt::format("cpu with {}", cpu::instruction_set())
                                     : device_info(device).name);
  const std::string different = different_devices_text(devices);
  if (session.rank() == 0 && !different.empty()) {
    log_line(LogLevel::warning, different);
  }
  const std::vector<std::string> gathered = session.control().gather_text(
      to_text(shape_of_rank(session, device, options.compute.threads)));
  if (session.rank() == 0) {
    std::vector<RankShape> shapes;
    std::transform(gathered.begin(), gathered.end(), std::back_inserter(shapes), rank_shape);
    for (const std::string& text : job_shape_texts(shapes)) {
      log_line(LogLevel::warning, text);
    }
  }
  const std::string idle = idle_ranks_text(options, session.world_size());
  if (session.rank() == 0 && !idle.empty()) {
    log_line(LogLevel::warning, idle);
  }
}

void warn_of_little_space(const RunConfig& options, std::size_t checkpoint_bytes) {
  if (!options.checkpoint.save_at_end && options.checkpoint.save_every == 0) {
    return;
  }
  // The folder may be made by the first save.
  std::filesystem::path folder = absolute_path(options.out);
  std::error_code ignored;
  while (!std::filesystem::is_directory(folder, ignored) && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  try {
    if (const std::uint64_t room = available_bytes(folder); room < checkpoint_bytes) {
      log_line(
          LogLevel::warning,
          fmt::format("--out {}: its disk has {} free, and a checkpoint takes {}: saves will fail "
                      "until there is more room",
                      options.out, format_bytes(room), format_bytes(checkpoint_bytes)));
    }
  } catch (const WriteError&) {  // a file system that does not say
  }
}

NetworkReport agreed_network(MpiSession& session, const RunConfig& options, Communicator& comm,
                             Device device, MemoryPlan& plan) {
  NetworkReport report = check_network(session, comm, device);
  if (options.launch.require_fast_network && !report.faster.empty()) {
    throw ConfigError("--require-fast-network: " + report.faster, TESSERA_HERE);
  }
  if (session.rank() == 0) {
    for (const std::string& warning : report.warnings) {
      log_line(LogLevel::warning, warning);
    }
  }
  if (report.rates.all_gather > 0 && report.rates.all_to_all > 0) {
    const int ranks = report.hosts.front().ranks;
    plan.set_network({report.rates.all_to_all / ranks, report.rates.all_gather / ranks});
    const StepEstimate estimate = plan.estimate();
    report.use = {estimate.network_bytes, estimate.network_seconds};
  }
  return report;
}

NodeRanks node_ranks_of(MpiSession& session, const RunConfig& options) {
  const std::vector<std::string> hosts = session.control().gather_text(session.host());
  return {.here = static_cast<int>(std::count(hosts.begin(), hosts.end(), session.host())),
          .consecutive = options.parallel.ranks_per_node == 0
                             ? consecutive_ranks(hosts)
                             : static_cast<int>(options.parallel.ranks_per_node),
          .hosts = static_cast<int>(std::set<std::string>(hosts.begin(), hosts.end()).size())};
}

MemoryPlan agreed_plan(MpiSession& session, const RunConfig& options, const ModelConfig& config,
                       Device device, const NodeRanks& ranks) {
  MemoryLimits limits;
  RunConfig agreed = options;
  const auto plan = [&] {
    MemoryPlan made(agreed, config, session.world_size(), limits);
    if (!made.fits()) {
      throw ConfigError(made.refusal(), TESSERA_HERE);
    }
    if (const std::string why = made.sample_refusal(); !why.empty()) {
      throw ConfigError(why, TESSERA_HERE);
    }
    return made;
  };
  MemoryPlan own = agree(session, [&] {
    check(config);
    const HostMemory host = host_memory();
    limits.host_bytes = options.memory.host_bytes == 0
                            ? host.limit_bytes()
                            : std::min(options.memory.host_bytes, host.limit_bytes());
    limits.host_room_bytes = host.room_bytes();
    if (device.kind == DeviceKind::cuda) {
      const std::size_t has = device_info(device).total_bytes;
      limits.device_bytes = std::min(options.plan.device_bytes.value_or(has), has);
    }
    limits.ranks_per_node = ranks.here;
    limits.node_ranks = ranks.consecutive;
    return plan();
  });
  // Ranks whose devices or hosts have less decide for all how parameters are stored.
  const RunSettings& settings = own.settings();
  std::array<std::int64_t, 4> sharded = {
      settings.zero == ZeroStage::three ? 1 : 0, settings.params == ParamPlacement::host ? 1 : 0,
      settings.scratch.fp8_weights == CodeStorage::at_use ? 1 : 0,
      settings.scratch.fp8_weights == CodeStorage::one_layout ? 1 : 0};
  session.control().sum(sharded);
  const bool are_alike = std::all_of(sharded.begin(), sharded.end(), [&](std::int64_t count) {
    return count == 0 || count == session.world_size();
  });
  // And how many blocks are gathered: the same ones, in the same order.
  const std::vector<std::string> blocks =
      session.control().gather_text(std::to_string(settings.param_blocks));
  const bool same_blocks = std::ranges::all_of(
      blocks, [&blocks](const std::string& each) { return each == blocks.front(); });
  if (are_alike && same_blocks) {
    return own;
  }
  Index fewest = settings.param_blocks;
  for (const std::string& each : blocks) {
    fewest = std::min<Index>(fewest, std::stoll(each));
  }
  agreed.memory.param_blocks = fewest;
  agreed.parallel.zero = sharded[0] > 0 ? ZeroStage::three : settings.zero;
  agreed.memory.params = sharded[1] > 0 ? ParamPlacement::host : ParamPlacement::device;
  if (precision_choice(options) == Precision::fp8) {
    agreed.compute.fp8_weights = sharded[2] > 0   ? CodeStorage::at_use
                                 : sharded[3] > 0 ? CodeStorage::one_layout
                                                  : CodeStorage::stored;
  }
  return agree(session, plan);
}

}  // namespace tessera
