// Any text as config.json: refused with a FormatError or ConfigError, or a model whose sizes are
// sound and that is the same when it is written and read again.
#include <cstdint>
#include <string_view>

#include "kernels/base/error.h"
#include "model/huggingface.h"
#include "model/model_config.h"
#include "model/param_layout.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const tessera::ModelConfig config = tessera::parse_config_json(text, "fuzz");
    if (!(tessera::parse_config_json(tessera::to_config_json(config), "copy") == config) ||
        tessera::parameter_count(config) <= 0) {
      std::abort();
    }
    // A layout has an entry a tensor: of few layers, for the fuzzer's speed.
    constexpr tessera::Index kMostLayers = 16;
    if (config.num_layers <= kMostLayers) {
      const tessera::ParamLayout layout(config);
      if (layout.total_count() != tessera::parameter_count(config) ||
          tessera::huggingface_tensors(config, layout).empty()) {
        std::abort();
      }
    }
  } catch (const tessera::FormatError&) {
    return 0;
  } catch (const tessera::ConfigError&) {
    return 0;
  }
  return 0;
}
