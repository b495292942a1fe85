#include "runtime/plan/print_plan.h"

#include <iostream>

#include "kernels/base/host_memory.h"
#include "runtime/launch/agree.h"
#include "runtime/launch/idle_ranks.h"
#include "runtime/plan/memory_plan.h"
#include "runtime/plan/step_estimate.h"
#include "runtime/run/option_checks.h"
#include "runtime/run/run_model.h"

namespace tessera {
namespace {

ModelConfig plan_model(ModelConfig config) {
  if (config.vocab_size == 0) {
    constexpr Index kByteVocabulary = 256;
    config.vocab_size = kByteVocabulary;
  }
  return config;
}

}  // namespace

int print_plan(MpiSession& session, const RunConfig& options) {
  const ModelConfig config = plan_model(agreed_model(session, options));
  const MemoryPlan plan = agree(session, [&] {
    const auto ranks = static_cast<int>(options.plan.ranks);
    const int of_node = options.parallel.ranks_per_node == 0
                            ? ranks
                            : static_cast<int>(options.parallel.ranks_per_node);
    return MemoryPlan(options, config, ranks,
                      {.device_bytes = planned_device_bytes(options),
                       .host_bytes = options.memory.host_bytes == 0 ? host_memory().limit_bytes()
                                                                    : options.memory.host_bytes,
                       .ranks_per_node = of_node,
                       .node_ranks = of_node});
  });
  if (session.rank() == 0) {
    if (options.plan.json) {
      std::cout << plan.json() << "\n";
    } else {
      std::cout << plan.text();
      const std::string idle_ranks = idle_ranks_text(options, static_cast<int>(options.plan.ranks));
      if (!idle_ranks.empty()) {
        std::cout << "Warning: " << idle_ranks << "\n";
      }
      for (const std::string& idle : idle_options(options, static_cast<int>(options.plan.ranks))) {
        std::cout << idle << "\n";
      }
    }
  }
  return plan.fits() ? 0 : 2;
}

}  // namespace tessera
