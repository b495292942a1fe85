#include "runtime/launch/start_agreement.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "collectives/mpi_control.h"
#include "collectives/mpi_session.h"
#include "kernels/base/hash.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/launch/agree.h"
#include "runtime/launch/rank_table.h"

namespace tessera {
namespace {

// Variables of libraries that change the bits of a result or the collectives that make it. Ours
// change neither. Those that name a host's devices or networks may well differ, and are not here.
constexpr std::array kLibraryVariables = {"ONEDNN_MAX_CPU_ISA",
                                          "DNNL_MAX_CPU_ISA",
                                          "ONEDNN_CPU_ISA_HINTS",
                                          "DNNL_CPU_ISA_HINTS",
                                          "ONEDNN_DEFAULT_FPMATH_MODE",
                                          "DNNL_DEFAULT_FPMATH_MODE",
                                          "GLIBC_TUNABLES",
                                          "NVIDIA_TF32_OVERRIDE",
                                          "CUBLAS_WORKSPACE_CONFIG",
                                          "CUBLASLT_WORKSPACE_SIZE",
                                          "NCCL_ALGO",
                                          "NCCL_PROTO",
                                          "NCCL_MIN_NCHANNELS",
                                          "NCCL_MAX_NCHANNELS",
                                          "NCCL_MIN_CTAS",
                                          "NCCL_MAX_CTAS",
                                          "NCCL_NTHREADS",
                                          "NCCL_BUFFSIZE",
                                          "NCCL_COLLNET_ENABLE",
                                          "NCCL_NVLS_ENABLE"};

constexpr Index kSampleElements = 512;
// In sixths of a tensor. In a fused one these are in q, k or v, in gate and in up.
constexpr std::array<Index, 3> kSamplePlaces = {1, 3, 5};
constexpr Index kPlaces = 6;

const char* action_text(OptionsAction action) {
  switch (action) {
    case OptionsAction::help:
      return "--help";
    case OptionsAction::version:
      return "--version";
    case OptionsAction::run:
      break;
  }
  return "a run";
}

// A sample of every tensor, as the f32 numbers that a run would get.
template <typename Folder>
std::string sample_hash(const Folder& folder) {
  std::uint64_t hash = 0;
  std::vector<float> values;
  for (UnitId unit = 0; unit < folder.layout().unit_count(); ++unit) {
    for (const ParamTensor& tensor : folder.layout().unit(unit).tensors) {
      values.resize(static_cast<std::size_t>(std::min(kSampleElements, tensor.count())));
      for (const Index place : kSamplePlaces) {
        const Index begin = (tensor.count() - std::ssize(values)) * place / kPlaces;
        folder.read_unit(unit, tensor.offset + begin, values);
        hash = xxh3_64(std::as_bytes(std::span(values)), hash);
      }
    }
  }
  return fmt::format("{} bytes, sample {}", folder.tensor_bytes(), hash_text(hash));
}

}  // namespace

std::vector<NamedValue> start_values(const ParsedOptions& parsed) {
  std::vector<NamedValue> values = {{"what is asked for", action_text(parsed.action)}};
  for (const auto& [name, value] : parsed.config.texts.agreed) {
    values.push_back({"--" + name, value});
  }
  for (const char* name : kLibraryVariables) {
    if (const char* value = std::getenv(name); value != nullptr) {
      values.push_back({fmt::format("environment variable {}", name), value});
    }
  }
  return values;
}

std::vector<NamedValue> model_values(const ModelConfig& config) {
  std::vector<NamedValue> values;
  const nlohmann::json fields = nlohmann::json::parse(to_config_json(config));
  for (const auto& [key, value] : fields.items()) {
    values.push_back({fmt::format("{} of the model", key), value.dump()});
  }
  return values;
}

NamedValue data_value(const std::string& option, const TokenFile& file) {
  return {fmt::format("contents of {} {}", option, file.path().string()), file.content_hash()};
}

NamedValue weights_value(const InitWeights& weights) {
  const std::string name = fmt::format("contents of --init {}", weights.folder.string());
  if (weights.huggingface) {
    return {name, sample_hash(*weights.huggingface)};
  }
  if (weights.nf4) {
    return {name, sample_hash(*weights.nf4)};
  }
  const CheckpointReader reader(weights.folder);
  return {name, fmt::format("step {}, save {}", reader.info().step, reader.info().save_id)};
}

std::string different_devices_text(std::span<const std::string> devices) {
  std::map<std::string, std::vector<int>> ranks;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    ranks[devices[rank]].push_back(static_cast<int>(rank));
  }
  if (ranks.size() < 2) {
    return {};
  }
  std::vector<std::string> kinds;
  kinds.reserve(ranks.size());
  for (const auto& [device, of_it] : ranks) {
    kinds.push_back(
        fmt::format("{} on rank{} {}", device, of_it.size() == 1 ? "" : "s", ranges_text(of_it)));
  }
  return fmt::format("ranks compute on different devices ({}): the results differ in bits from "
                     "those on one kind, and with the number of ranks",
                     fmt::join(kinds, ", "));
}

std::string agreed_init(MpiSession& session, const std::string& source) {
  const std::string mine = agree(session, [&]() -> std::string {
    return session.rank() == 0 ? init_folder(source).string() : std::string();
  });
  return session.control().gather_text(mine).front();
}

}  // namespace tessera
