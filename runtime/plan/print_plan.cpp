#include "runtime/plan/print_plan.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "collectives/communicator.h"
#include "collectives/mpi_control.h"
#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"
#include "kernels/base/quantity.h"
#include "kernels/base/terminal.h"
#include "kernels/device/arena.h"
#include "model/json_text.h"
#include "runtime/launch/agree.h"
#include "runtime/launch/idle_ranks.h"
#include "runtime/plan/fit_search.h"
#include "runtime/plan/memory_advice.h"
#include "runtime/plan/memory_plan.h"
#include "runtime/plan/recompute_choice.h"
#include "runtime/plan/scale_table.h"
#include "runtime/plan/step_estimate.h"
#include "runtime/run/document_choice.h"
#include "runtime/run/option_checks.h"
#include "runtime/run/options.h"
#include "runtime/run/run_data.h"
#include "runtime/run/run_length.h"
#include "runtime/run/run_model.h"
#include "runtime/run/start_state.h"

namespace tessera {
namespace {

constexpr int kDoesNotFit = 2;

ModelConfig plan_model(ModelConfig config) {
  if (config.vocab_size == 0) {
    constexpr Index kByteVocabulary = 256;
    config.vocab_size = kByteVocabulary;
  }
  return config;
}

int ranks_of_node(const RunConfig& options, int ranks) {
  constexpr int kUsualGpus = 8;
  if (options.parallel.ranks_per_node != 0) {
    return static_cast<int>(options.parallel.ranks_per_node);
  }
  return options.compute.device == DeviceKind::cuda ? std::min(ranks, kUsualGpus) : ranks;
}

// What a plan without --ranks-per-node takes nodes to have, where they may have less.
std::string ranks_of_node_text(const RunConfig& options, int ranks) {
  constexpr int kSurelyOne = 8;
  if (options.parallel.ranks_per_node != 0 || ranks <= kSurelyOne) {
    return {};
  }
  const int of_node = ranks_of_node(options, ranks);
  return fmt::format("{} assumed: --ranks-per-node says how many a node has\n",
                     of_node == ranks ? fmt::format("{} ranks on one node are", ranks)
                                      : fmt::format("Nodes of {} ranks are", of_node));
}

// `this_machine`: bytes, for a node whose memory the options do not give.
MemoryLimits plan_limits(const RunConfig& options, int ranks, std::size_t this_machine) {
  const bool is_cuda = options.compute.device == DeviceKind::cuda;
  const bool is_given = options.memory.host_bytes != 0;
  const int of_node = ranks_of_node(options, ranks);
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

void print_lines(std::string_view text) {
  std::cout << for_terminal(text, STDOUT_FILENO);
}

void print_text(const MemoryPlan& plan, const RunConfig& options, int ranks,
                std::size_t this_machine) {
  const MemoryAdvice lacks = plan.shortage();
  print_lines(recompute_text(options, plan) + plan.text(lacks));
  if (options.memory.host_bytes == 0) {
    print_lines(host_memory_text(options, this_machine));
  }
  print_lines(ranks_of_node_text(options, ranks));
  if (options.steps == 0) {
    print_lines(fmt::format("--epochs {}: --data, from which a plan knows the steps, is not given "
                            "or not to be read here\n",
                            *options.length.epochs));
  }
  const std::string idle_ranks = idle_ranks_text(options, ranks);
  if (!idle_ranks.empty()) {
    print_lines("Warning: " + idle_ranks + "\n");
  }
  for (const std::string& idle : idle_options(options, ranks)) {
    print_lines(idle + "\n");
  }
  print_lines(plan.run_text() + plan.command_text(lacks));
}

// Tables are of estimates, which there are for GPUs alone.
RunConfig with_device(RunConfig options) {
  const std::vector<std::string>& given = options.texts.given;
  const auto is_given = [&given](const char* name) {
    return std::find(given.begin(), given.end(), name) != given.end();
  };
  if ((options.plan.fit || options.plan.scale || is_given("card")) && !is_given("device")) {
    options.compute.device = DeviceKind::cuda;
    options.texts.printed.emplace_back("device", "cuda");
  }
  return options;
}

int print_fit(const RunConfig& options, const ModelConfig& config, int ranks,
              const MemoryLimits& limits) {
  const std::vector<FittingRun> runs = find_fitting_runs(options, config, ranks, limits);
  if (options.plan.json) {
    std::cout << json_text(fit_json(options, ranks, runs), 2) << "\n";
  } else {
    print_lines(ranks_of_node_text(options, ranks) + fit_text(options, ranks, limits, runs));
  }
  return !runs.empty() && runs.front().fits() ? 0 : kDoesNotFit;
}

int print_scale(const RunConfig& options, const ModelConfig& config, int ranks,
                const MemoryLimits& limits) {
  constexpr int kAnyNumber = 512;  // the table has more ranks than --ranks
  const int of_node = ranks_of_node(options, std::max(ranks, kAnyNumber));
  const std::vector<ScaleRow> rows = scale_rows(options, config, ranks, of_node, limits);
  if (options.plan.json) {
    std::cout << json_text(scale_json(rows), 2) << "\n";
  } else {
    print_lines(scale_text(options, of_node, rows));
  }
  return std::any_of(rows.begin(), rows.end(), [](const ScaleRow& row) { return row.fits; })
             ? 0
             : kDoesNotFit;
}

// Of rank 0; every rank returns its status.
int print_table(MpiSession& session, const RunConfig& options, const ModelConfig& config, int ranks,
                const MemoryLimits& limits) {
  const std::string status = agree(session, [&] {
    if (options.compute.device == DeviceKind::cpu) {
      throw ConfigError(fmt::format("{} needs --device cuda: steps on CPUs are not estimated",
                                    options.plan.fit ? "--fit" : "--scale"),
                        TESSERA_HERE);
    }
    if (session.rank() != 0) {
      return std::string();
    }
    return std::to_string(options.plan.fit ? print_fit(options, config, ranks, limits)
                                           : print_scale(options, config, ranks, limits));
  });
  return std::stoi(session.control().gather_text(status).front());
}

// With the steps of --epochs, where all ranks can read --data: a plan may be made where the data is not.
RunConfig with_steps_of_data(MpiSession& session, RunConfig options) {
  if (!options.length.epochs || options.data.files.empty()) {
    return options;
  }
  const std::unique_ptr<Communicator> comm = make_communicator(session, Device{});
  std::string sequences;
  try {
    RunConfig own = agreed_documents(session, options);
    own.compute.device = DeviceKind::cpu;
    Arena arena(Device{}, ArenaMode::allocate);
    const ModelConfig config = with_vocabulary(agreed_model(session, own), own);
    RunData data(own, config, config.vocab_size, *comm, arena);
    sequences = std::to_string(data.pass().sequences);
  } catch (const Error&) {  // reported where the steps are printed
  }
  const std::vector<std::string> all = session.control().gather_text(sequences);
  const bool is_known = !sequences.empty() &&
                        std::all_of(all.begin(), all.end(),
                                    [&](const std::string& other) { return other == sequences; });
  return is_known ? with_steps(std::move(options), std::stoll(sequences)) : options;
}

}  // namespace

int print_plan(MpiSession& session, const RunConfig& given) {
  const RunConfig options =
      with_steps_of_data(session, with_device(agreed_adapters(session, given)));
  if (session.rank() == 0) {
    warn_of_old_names(options);
  }
  const ModelConfig config = plan_model(agreed_model(session, options));
  const int ranks =
      options.plan.ranks == 0 ? session.world_size() : static_cast<int>(options.plan.ranks);
  const std::size_t this_machine = host_memory().limit_bytes();
  agree(session, [&] {
    if (const std::string why = planned_card_refusal(options); !why.empty()) {
      throw ConfigError(why, TESSERA_HERE);
    }
  });
  if (options.plan.fit || options.plan.scale) {
    return print_table(session, options, config, ranks, plan_limits(options, ranks, this_machine));
  }
  const MemoryPlan plan = agree(session, [&] {
    return MemoryPlan(options, config, ranks, plan_limits(options, ranks, this_machine));
  });
  if (session.rank() == 0) {
    if (options.plan.json) {
      std::cout << plan.json() << "\n";
    } else {
      print_text(plan, options, ranks, this_machine);
    }
  }
  return plan.fits() ? 0 : kDoesNotFit;
}

}  // namespace tessera
