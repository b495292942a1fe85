// What a run says of itself at its start, in metrics.jsonl and in words.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "kernels/device/arena.h"
#include "runtime/plan/memory_plan.h"
#include "runtime/run/config.h"
#include "runtime/run/run_data.h"
#include "runtime/run/training_run.h"

namespace tessera {

/// What `report` shows beside the curves; its fields are described in runtime/monitor/metrics.md.
[[nodiscard]] nlohmann::ordered_json configuration(const RunConfig& options, TrainingRun& run,
                                                   const RunData& data, const std::string& run_id,
                                                   Device device, double product_rate);
/// What a checkpoint keeps of this start (ManifestInfo::start_json): the command line, the folder that its
/// paths begin in, the program, this host and device, and the versions of libraries and driver.
[[nodiscard]] std::string start_json(const RunConfig& options, const std::string& host,
                                     Device device);
/// Of a GPU, after the steps: what was planned, what the driver counts now (other programs on the
/// card included; nothing is freed between), and what the run may use.
[[nodiscard]] std::string device_memory_text(const MemoryPlan& plan, Device device);
/// By kind of memory, what was planned and what the run has taken; and whose state is resident.
[[nodiscard]] nlohmann::ordered_json memory_lines(const MemoryPlan& plan, const Arena& arena,
                                                  const ShardState& shard);
}  // namespace tessera
