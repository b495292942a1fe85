#include "runtime/plan/print_plan.h"

#include <iostream>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/quantity.h"
#include "runtime/launch/agree.h"
#include "runtime/launch/idle_ranks.h"
#include "runtime/plan/memory_advice.h"
#include "runtime/plan/memory_plan.h"
#include "runtime/plan/recompute_choice.h"
#include "runtime/plan/step_estimate.h"
#include "runtime/run/option_checks.h"
#include "runtime/run/options.h"
#include "runtime/run/run_model.h"
#include "runtime/run/start_state.h"

namespace tessera {
namespace {

ModelConfig plan_model(ModelConfig config) {
  if (config.vocab_size == 0) {
    constexpr Index kByteVocabulary = 256;
    config.vocab_size = kByteVocabulary;
  }
  return config;
}

// `this_machine`: bytes, for a node whose memory the options do not give.
MemoryLimits plan_limits(const RunConfig& options, int ranks, std::size_t this_machine) {
  const bool is_cuda = options.compute.device == DeviceKind::cuda;
  const bool is_given = options.memory.host_bytes != 0;
  const int of_node = options.parallel.ranks_per_node == 0
                          ? ranks
                          : static_cast<int>(options.parallel.ranks_per_node);
  return {.device_bytes = is_cuda ? planned_device_bytes(options) : 0,
          // a machine where one plans for GPUs is seldom the one that has them
          .host_bytes = is_given || is_cuda ? options.memory.host_bytes : this_machine,
          .ranks_per_node = of_node,
          .node_ranks = of_node};
}

// What a plan without --host-memory takes a node to have.
std::string host_memory_text(const RunConfig& options, std::size_t this_machine) {
  const std::string here = format_bytes(this_machine);
  return options.compute.device == DeviceKind::cuda
             ? fmt::format("The host memory of a node is not judged: --host-memory says what it "
                           "has (here {})\n",
                           here)
             : fmt::format("A node is taken to have the host memory of this machine (here {}); "
                           "--host-memory plans for another\n",
                           here);
}

void print_text(const MemoryPlan& plan, const RunConfig& options, int ranks,
                std::size_t this_machine) {
  const MemoryAdvice lacks = plan.shortage();
  std::cout << recompute_text(options, plan) << plan.text(lacks);
  if (options.memory.host_bytes == 0) {
    std::cout << host_memory_text(options, this_machine);
  }
  if (options.steps == 0) {
    std::cout << fmt::format("--epochs {}: a plan reads no data and does not know the steps\n",
                             *options.length.epochs);
  }
  const std::string idle_ranks = idle_ranks_text(options, ranks);
  if (!idle_ranks.empty()) {
    std::cout << "Warning: " << idle_ranks << "\n";
  }
  for (const std::string& idle : idle_options(options, ranks)) {
    std::cout << idle << "\n";
  }
  std::cout << plan.command_text(lacks);
}

}  // namespace

int print_plan(MpiSession& session, const RunConfig& given) {
  const RunConfig options = agreed_adapters(session, given);
  if (session.rank() == 0) {
    warn_of_old_names(options);
  }
  const ModelConfig config = plan_model(agreed_model(session, options));
  const int ranks =
      options.plan.ranks == 0 ? session.world_size() : static_cast<int>(options.plan.ranks);
  const std::size_t this_machine = host_memory().limit_bytes();
  const MemoryPlan plan = agree(session, [&] {
    if (const std::string why = planned_card_refusal(options); !why.empty()) {
      throw ConfigError(why, TESSERA_HERE);
    }
    return MemoryPlan(options, config, ranks, plan_limits(options, ranks, this_machine));
  });
  if (session.rank() == 0) {
    if (options.plan.json) {
      std::cout << plan.json() << "\n";
    } else {
      print_text(plan, options, ranks, this_machine);
    }
  }
  return plan.fits() ? 0 : 2;
}

}  // namespace tessera
