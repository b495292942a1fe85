#include "runtime/run/run_record.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "collectives/communicator.h"
#include "collectives/mpi_session.h"
#include "kernels/base/hash.h"
#include "kernels/base/quantity.h"
#include "kernels/device/device_backend.h"
#include "kernels/library_versions.h"
#include "model/json_text.h"
#include "runtime/hdf5/hdf5_file.h"
#include "runtime/launch/startup_check.h"
#include "runtime/plan/product_rate.h"

namespace tessera {

nlohmann::ordered_json configuration(const RunConfig& options, TrainingRun& run,
                                     const RunData& data, const std::string& run_id, Device device,
                                     double product_rate) {
  nlohmann::ordered_json given = nlohmann::ordered_json::object();
  for (const auto& [name, value] : options.texts.effective) {
    given[name] = value;
  }
  given["steps"] = std::to_string(options.steps);
  nlohmann::ordered_json sets = nlohmann::ordered_json::array();
  for (const EvalSet& set : data.eval_sets()) {
    sets.push_back({{"name", set.name},
                    {"file", set.sequences->file().path().string()},
                    {"sequences", set.sequences->sequences()},
                    {"file_sequences", set.sequences->file_sequences()}});
  }
  const DataPass pass = data.pass();
  nlohmann::ordered_json packing;  // null where documents are joined
  if (const std::optional<PackingCounts> counts = data.packing()) {
    packing = {{"documents", counts->documents}, {"cut", counts->cut},
               {"left_out", counts->left_out},   {"sequences", counts->sequences},
               {"tokens", counts->tokens},       {"padding", counts->padding(options.batch.seq)}};
  }
  nlohmann::ordered_json adapters;  // null where the model itself is trained
  if (run.adapters() != nullptr) {
    const AdapterConfig& of = run.adapters()->config();
    const AdapterSettings& settings = *run.settings().adapters;
    const std::string_view base = settings.random_base ? "random nf4"
                                  : settings.base == BaseStorage::nf4
                                      ? "nf4"
                                      : dtype_name(run.settings().scratch.precision.params);
    adapters = {{"rank", of.rank},
                {"alpha", of.alpha},
                {"rank_stabilized", of.rank_stabilized},
                {"targets", projections_text(of.targets)},
                {"trains_embeddings", of.trains_embeddings},
                {"base", base},
                {"base_model_hash", hash_text(run.base_hash())}};
  }
  return {{"run_id", run_id},
          {"build", build_id()},
          {"ranks", run.comm().world_size()},
          {"device", options.compute.device == DeviceKind::cpu ? "cpu" : "cuda"},
          {"device_name", device_info(device).name},
          {"precision", precision_name(precision_choice(options))},
          {"parameters", run.model_layout().total_count()},
          {"trained_parameters", run.layout().total_count()},
          {"adapters", adapters},
          {"flops_per_token", trained_flops_per_token(options, run.config())},
          {"gemm_flops_per_second", product_rate},
          {"clip", options.optimizer.clip},
          {"objective", objective_text(run.settings().scratch.loss.terms)},
          {"eval_sets", sets},
          {"pass_sequences", pass.sequences},
          {"pass_tokens", pass.tokens},
          {"packing", packing},
          {"options", given}};
}

std::string start_json(const RunConfig& options, const std::string& host, Device device) {
  std::vector<std::string> libraries = {mpi_library(), hdf5_library()};
  for (const std::string& library : kernel_libraries(device.kind)) {
    libraries.push_back(library);
  }
  if (device.kind == DeviceKind::cuda) {
    libraries.push_back(nccl_library());
  }
  std::erase(libraries, "");
  std::error_code error;  // a folder that was removed has no name
  return json_text(nlohmann::json{{"command", options.texts.command},
                                  {"directory", std::filesystem::current_path(error).string()},
                                  {"build", build_id()},
                                  {"host", host},
                                  {"device", device_info(device).name},
                                  {"libraries", libraries}});
}

std::string device_memory_text(const MemoryPlan& plan, Device device) {
  const DeviceInfo info = device_info(device);
  return fmt::format("{} planned and {} in use by the driver's count, of {} that the run may use",
                     format_bytes(plan.device_bytes()),
                     format_bytes(info.total_bytes - info.free_bytes),
                     format_bytes(plan.device_limit_bytes()));
}

namespace {

double state_bytes_per_element(const ShardState& shard) {
  Index elements = 0;
  for (UnitId unit = 0; unit < shard.layout().unit_count(); ++unit) {
    elements += shard.range(unit).shard_size();
  }
  return static_cast<double>(shard.state_bytes()) / static_cast<double>(elements);
}

}  // namespace

nlohmann::ordered_json memory_lines(const MemoryPlan& plan, const Arena& arena,
                                    const ShardState& shard) {
  nlohmann::ordered_json lines = nlohmann::ordered_json::array();
  const auto add = [&lines](const PlanLine& line, const char* column) {
    const char* where = memory_kind_name(line.kind);
    for (nlohmann::ordered_json& known : lines) {
      if (known["name"] == line.name && known["where"] == where) {
        known[column] = line.bytes;
        return;
      }
    }
    lines.push_back({{"name", line.name}, {"where", where}, {"planned", 0}, {"allocated", 0}});
    lines.back()[column] = line.bytes;
  };
  for (const PlanLine& line : plan.lines()) {
    add(line, "planned");
  }
  for (const PlanLine& line : plan_lines(arena.entries())) {
    add(line, "allocated");
  }
  const ResidentParams resident = resident_params(shard);
  return {{"lines", lines},
          {"recompute", plan.settings().scratch.recompute.text()},
          {"parameters", plan.params_stored()},
          {"resident_parameters",
           {{"count", resident.count},
            {"of", resident.stored},
            {"names", resident.names},
            {"bytes_per_parameter", state_bytes_per_element(shard)}}}};
}

}  // namespace tessera
