#include "runtime/checkpoint/adapter_base.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/escaped_text.h"
#include "model/json_text.h"

namespace tessera {
namespace {

std::string option_of(const nlohmann::json& options, const char* name) {
  return options.is_object() && options.contains(name) && options.at(name).is_string()
             ? unescaped_text(options.at(name).get<std::string>())
             : std::string();
}

// Of parameters, by --precision and --device.
std::string params_dtype(const nlohmann::json& options) {
  const std::string precision = option_of(options, "precision");
  if (precision.empty()) {
    return {};
  }
  const bool is_f32 =
      precision == "f32" || (precision == "auto" && option_of(options, "device") == "cpu");
  return is_f32 ? "f32" : "bf16";
}

}  // namespace

AdapterBase adapter_base(const ManifestInfo& info) {
  TESSERA_REQUIRE(!info.adapter_json.empty(), "a step of adapters");
  const nlohmann::json options = parse_json_line(info.options_json);
  return {.hash = info.base_model_hash,
          .source = option_of(options, "init"),
          .dtype = option_of(options, "base-dtype") == "nf4" ? std::string("nf4")
                                                             : params_dtype(options),
          .is_random = option_of(options, "base-random") == "true"};
}

std::string adapter_base_text(const AdapterBase& base) {
  const std::string stored =
      base.dtype.empty() ? std::string() : fmt::format(", was stored in {}", base.dtype);
  const std::string source = base.is_random        ? "was random (--base-random)"
                             : base.source.empty() ? "was made of fresh weights, without --init"
                                                   : fmt::format("came from {}", base.source);
  return fmt::format("the base has hash {}{} and {}", base.hash, stored, source);
}

void require_real_base(const ManifestInfo& info, const std::string& step) {
  if (!info.adapter_json.empty() && adapter_base(info).is_random) {
    throw ConfigError(
        fmt::format("{} holds adapters that were trained beside a random base (--base-random), for "
                    "measurements alone: there is no model to merge them into or to use them with",
                    step),
        TESSERA_HERE);
  }
}

}  // namespace tessera
