// mpirun -np N train: trains a language model on all ranks together.
//
// The order of a run: options agreed by all ranks; device, communicator, watchdog; the output
// folder; the model and the data; the memory plan; state, fresh or loaded; steps, evaluations and
// saves; the last save. What is learnt on the way is on stdout and in OUT/metrics.jsonl.
#include <array>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <unistd.h>

#include "collectives/communicator.h"
#include "collectives/mpi_control.h"
#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/base/hash.h"
#include "kernels/base/log.h"
#include "kernels/base/output_file.h"
#include "kernels/base/progress.h"
#include "kernels/base/quantity.h"
#include "kernels/base/terminal.h"
#include "runtime/checkpoint/shard_writer.h"
#include "runtime/launch/agree.h"
#include "runtime/launch/run_job.h"
#include "runtime/launch/signals.h"
#include "runtime/launch/start_agreement.h"
#include "runtime/launch/startup_check.h"
#include "runtime/launch/watchdog.h"
#include "runtime/monitor/nonfinite.h"
#include "runtime/monitor/step_trace.h"
#include "runtime/monitor/warning_file.h"
#include "runtime/plan/print_plan.h"
#include "runtime/plan/product_rate.h"
#include "runtime/plan/start_command.h"
#include "runtime/run/checkpoint_saver.h"
#include "runtime/run/document_choice.h"
#include "runtime/run/gemm_choice.h"
#include "runtime/run/local_run.h"
#include "runtime/run/option_checks.h"
#include "runtime/run/options.h"
#include "runtime/run/out_folder.h"
#include "runtime/run/rank_setup.h"
#include "runtime/run/resume.h"
#include "runtime/run/run_data.h"
#include "runtime/run/run_model.h"
#include "runtime/run/run_record.h"
#include "runtime/run/sample_writer.h"
#include "runtime/run/start_report.h"
#include "runtime/run/start_state.h"
#include "runtime/run/start_text.h"
#include "runtime/run/train_loop.h"
#include "runtime/run/training_run.h"

namespace tessera {
namespace {

ParsedOptions parse_on_all_ranks(MpiSession& session, int argc, char** argv) {
  return agree(session, [&] { return parse_options(argc, argv); });
}

// --trace: a file that its place is found for before anything is measured.
void open_trace(MpiSession& session, const RunConfig& options, Communicator& comm, Device device,
                std::optional<StepTrace>& trace) {
  if (!options.monitor.trace) {
    return;
  }
  const std::filesystem::path file = std::filesystem::path(options.out) / "trace.json";
  agree(session, [&] {
    if (session.rank() == 0) {
      static_cast<void>(find_output_place(file, trace_file_rules()));
    }
  });
  trace.emplace(StepTraceOptions{.file = file,
                                 .first = options.monitor.trace->first,
                                 .last = options.monitor.trace->last,
                                 .clock_offset = session.control().clock_offset(&StepTrace::clock),
                                 .host = session.host()},
                comm, device);
}

int train(MpiSession& session, StartGuard& start_guard, RunConfig options) {
  set_log_identity(session.rank(), session.world_size(), session.host(),
                   options.verbose ? LogLevel::verbose : LogLevel::info);
  hold_warnings(session.rank(), session.host());
  if (session.rank() == 0) {
    warn_of_old_names(options);
  }
  enter_phase("start");
  const double job_seconds = seconds_to_job_end();
  StopRequests stops = agree(session, [&] {
    return StopRequests({.stop_file = options.launch.stop_file,
                         .max_seconds = options.launch.max_seconds,
                         .job_seconds = job_seconds},
                        session.rank());
  });
  Watchdog watchdog(session, options.launch.timeout_seconds, options.texts.continue_command);
  start_guard.end();
  const Device device = choose_device(session, options);
  const std::unique_ptr<Communicator> comm =
      make_communicator(session, device, {.peer_copies = options.parallel.peer_copies});
  const Watchdog::Attachment watching = watchdog.watch(
      {.check_health = [&comm] { comm->check_health(); }, .abort = [&comm] { comm->abort(); }});
  if (options.verbose) {
    print_ranks(session, *comm, device);
  }

  enter_phase("memory");
  const ModelConfig named = agreed_model(session, options);
  const ModelConfig config = agree(session, [&] { return with_vocabulary(named, options); });
  const bool documents_are_automatic = !options.data.documents;
  options = agreed_adapters(session, agreed_documents(session, options));
  const NodeRanks ranks = node_ranks_of(session, options);
  // Nobody allocates, not even batches, before all have looked at what is free.
  MemoryPlan plan = agreed_plan(session, options, config, device, ranks);

  enter_phase("data");
  Arena arena(device, ArenaMode::allocate);
  const std::unique_ptr<RunData> held = agree(session, [&] {
    return std::make_unique<RunData>(options, config, named.vocab_size, *comm, arena);
  });
  RunData& data = *held;
  require_same_start(session, data.values());
  const RunTokenizer tokenizer =
      agree(session, [&] { return run_tokenizer(data.loader().files()); });

  OutFolder out = open_out_folder(session, options, tokenizer);
  const NetworkReport network = agreed_network(session, options, *comm, device, plan);
  const double product_rate = measure_product_rate(*comm, device, compute_dtype(options));

  enter_phase("tune");
  const std::string gemm_table_hash = options.compute.tune_gemm.empty()
                                          ? std::string()
                                          : choose_gemm(session, options.compute.tune_gemm, config,
                                                        plan.settings().scratch, device);

  RunIdentity identity = {
      .config_json = to_config_json(config),
      .data_hash = data.loader().data_hash(),
      .chunk_rows = chunk_rows_for(options.batch.micro_batch * options.batch.seq, config.vocab_size,
                                   plan.settings().scratch.precision.activations,
                                   plan.settings().scratch.logits_bytes),
      .gemm_table_hash = gemm_table_hash,
      .data_sequences = data.pass().sequences,
      .adapter_json = adapter_json(options),
      .start_json = start_json(options, session.host(), device)};
  enter_phase("resume");
  std::optional<ResumePoint> point = choose_resume_point(session, options, identity);

  agree(session, [&] {
    options = with_steps_of(options, identity, point);
    check_steps(options);
  });

  std::optional<InitWeights> weights = agreed_weights(session, options, point);
  compare_tokenizer_of_weights(session, identity, point, weights, data);

  std::string run_id = comm->gather_text(session.rank() == 0 ? new_uuid() : "").front();
  look_at_export(session, options, point ? point->info.run_id : run_id, out);

  // Nothing that is known now speaks against the run.
  const StartFacts facts = {.options = options,
                            .config = config,
                            .plan = plan,
                            .data = data,
                            .device = device,
                            .ranks = session.world_size(),
                            .hosts = ranks.hosts,
                            .node_ranks = ranks.consecutive,
                            .point = point,
                            .documents_are_automatic = documents_are_automatic};
  const auto text = [&] { return start_text(facts, terminal_width(STDOUT_FILENO)); };
  const std::string printed = session.rank() == 0 ? text() : std::string();
  if (session.rank() == 0) {
    say_text(printed);
    warn_of_little_space(options, plan.checkpoint_bytes());
  }

  // Outlives everything that may have a range in it.
  std::optional<StepTrace> trace;
  open_trace(session, options, *comm, device, trace);

  enter_phase("memory");
  StartTimes times;
  TrainingRun run(config, plan.settings(), *comm, data.loader(), arena);
  CheckpointSaver saver(saver_options(options, config, run.shard()), *comm, run.shard(),
                        run.optimizer(), arena);
  std::unique_ptr<SampleWriter> samples;
  if (options.sample.every > 0) {
    samples = agree(session, [&] {
      return std::make_unique<SampleWriter>(options, sample_tokenizer(tokenizer),
                                            tokenizer.end_token, run, arena);
    });
  }
  times.end_part("memory");
  enter_phase("load");
  const std::filesystem::path chosen = point ? point->folder : std::filesystem::path();
  const StartState start = load_start(session, options, identity, point, weights, run);
  weights.reset();
  if (session.rank() == 0 && point && point->folder != chosen) {  // it is another start now
    say_text(changed_lines(printed, text()));
  }
  if (point) {
    run_id = point->info.run_id;
    saver.set_parent(point->info.save_id);
    saver.set_loaded(point->folder, point->fingerprint);
  }
  times.end_part("weights");
  run.set_schedule(schedule_of(options));
  run.prepare();
  run.trainer().gather_parameters();
  times.end_part("preparation");
  const WeightsOrigin origin = compare_parameters(run, start.weights);
  if (const std::string folder = take_over_local_saves(session, options, point, run_id);
      !folder.empty()) {
    saver.set_local_folder(folder, point ? point->info.save_id : "");
  }
  take_over_folder(session, options, point, tokenizer, out);
  const std::optional<std::int64_t> exported_step = take_over_export(session, options, run_id);
  if (session.rank() == 0) {
    write_start_file(facts);
  }
  times.end_part("check");
  arena.freeze();

  TrainLoop loop(options, {.identity = identity, .run_id = run_id, .weights = origin}, run, data,
                 {.saver = saver,
                  .stops = stops,
                  .trace = trace ? &*trace : nullptr,
                  .samples = samples.get(),
                  .exported_step = exported_step});
  if (point || options.adapters.rank) {
    loop.announce(point ? "resume" : "start", start.text);
  } else {
    loop.note("start", start.text);
  }
  announce_times(loop, times, options.verbose);
  warn_of_ranks(session, options, device);
  announce_run(loop, options, run, data, point);
  if (saver.saves_locally()) {
    loop.announce("local saves", local_saves_text(options, saver.has_partner()));
  }
  if (job_seconds > 0) {
    announce_limit(loop, job_seconds - stops.seconds());
  }
  const bool has_steps_left = run.trainer().position().step < options.steps;
  if (has_steps_left) {  // else the last lines are of the run that made the steps
    loop.record("configuration", configuration(options, run, data, run_id, device, product_rate));
    loop.record("memory", memory_lines(plan, arena, run.shard()));
  }
  if (!network.text.empty()) {
    loop.announce("network", network.text, network_fields(network));
  }
  const int status = loop.run();
  if (device.kind == DeviceKind::cuda) {
    loop.announce("device memory", device_memory_text(plan, device));
  }
  const std::string hash = hash_text(run.parameter_hash());
  loop.announce("end",
                fmt::format("parameters {} after step {}", hash, run.trainer().position().step));
  if (session.rank() == 0 && run.trainer().position().step < options.steps) {
    say_text(for_terminal(continue_text(options.texts.continue_command), STDOUT_FILENO) + "\n");
  }
  comm->barrier();
  return status;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const tessera::StopSignals signals;  // before MPI makes threads
  const double start_seconds = tessera::start_seconds(argc, argv);
  const auto body = [&](tessera::MpiSession& session, tessera::StartGuard& start) {
    tessera::ParsedOptions parsed = tessera::parse_on_all_ranks(session, argc, argv);
    parsed.config.texts.command = tessera::launch_command(argc, argv, session.world_size());
    parsed.config.texts.continue_command =
        tessera::continue_command(argc, argv, session.world_size(), parsed.config);
    tessera::require_same_start(session, tessera::start_values(parsed));
    switch (parsed.action) {
      case tessera::OptionsAction::help:
        if (session.rank() == 0) {
          std::cout << tessera::options_help();
        }
        return 0;
      case tessera::OptionsAction::version:
        if (session.rank() == 0) {
          std::cout << fmt::format("train of {}\n", tessera::build_id());
        }
        return 0;
      case tessera::OptionsAction::run:
        break;
    }
    return parsed.config.plan.print ? tessera::print_plan(session, parsed.config)
                                    : tessera::train(session, start, parsed.config);
  };
  return tessera::run_job(argc, argv, start_seconds, body);
}
