#include "runtime/run/out_folder.h"

#include <chrono>

#include <fmt/format.h>
#include <unistd.h>

#include "collectives/mpi_control.h"
#include "kernels/base/file_status.h"
#include "kernels/base/log.h"
#include "runtime/checkpoint/retention.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/launch/agree.h"
#include "runtime/launch/startup_check.h"
#include "runtime/monitor/metrics.h"
#include "runtime/monitor/warning_file.h"
#include "runtime/run/export_folder.h"
#include "runtime/run/local_run.h"
#include "runtime/run/resume_search.h"
#include "runtime/run/start_text.h"

namespace tessera {

namespace {

// How long a run in its process exit may hold its folder.
constexpr std::chrono::seconds kLockTimeout{5};

void require_places(const RunConfig& options, const RunTokenizer& tokenizer) {
  Metrics::require_place(options.out);
  require_start_file_place(options.out);
  require_tokenizer_place(options.out, tokenizer);
  require_branch_place(options);
  look_at_warning_file(options.out);
}

void put_earlier_records_away(const RunConfig& options) {
  for (const auto& [old_name, new_name] : leave_earlier_records(options.out)) {
    log_line(LogLevel::info,
             fmt::format("{} is of an earlier run that saved no step: renamed to {}", old_name,
                         new_name));
  }
}

// BEST names one of the steps that are there now.
void renew_best(const RunConfig& options, const std::string& run_id) {
  const bool was_there = path_exists(std::filesystem::path(options.out) / kBestName);
  const std::string& name = options.checkpoint.keep_best;
  if (const auto best = settle_best(options.out, name, run_id)) {
    log_line(LogLevel::info, fmt::format("the lowest loss of {} so far is {:.4f}, at step {}: kept",
                                         name, best->evaluation.loss, best->step));
  } else if (was_there) {
    log_line(LogLevel::info,
             name.empty()
                 ? "BEST is removed: without --keep-best the step that it named is kept no "
                   "longer than others"
                 : fmt::format("BEST is removed: no step that is there has a loss of {}", name));
  }
}

}  // namespace

void OutFolder::keep() noexcept {
  lock.keep();
  folders.keep();
  local_folders.keep();
  export_folders.keep();
}

OutFolder open_out_folder(MpiSession& session, const RunConfig& options,
                          const RunTokenizer& tokenizer) {
  OutFolder out;
  agree(session, [&] { require_no_step_name("--out", options.out); });
  out.folders = prepare_out_folder(session, options.out, {.contents = OutContents::may_be_there});
  out.local_folders = look_at_local_folder(session, options);
  agree(session, [&] {
    if (session.rank() == 0) {
      out.lock = RunLock(options.out, fmt::format("process {} on {}", getpid(), session.host()),
                         kLockTimeout);
      require_places(options, tokenizer);
    }
  });
  return out;
}

void take_over_folder(MpiSession& session, const RunConfig& options,
                      const std::optional<ResumePoint>& point, const RunTokenizer& tokenizer,
                      OutFolder& out) {
  out.keep();
  const bool has_steps_left = !point || point->info.step < options.steps;
  agree(session, [&] {
    if (session.rank() != 0) {
      return;
    }
    put_earlier_records_away(options);
    if (point && has_steps_left) {  // else nothing is done again
      leave_abandoned_branch(options.out, point->info.step);
      begin_branch(options);
      renew_best(options, point->info.run_id);
    } else if (!point) {
      renew_best(options, "");  // whose steps are gone
    }
    const Leftovers leftovers = remove_leftovers(options.out);
    for (const std::string& name : leftovers.removed) {
      log_line(LogLevel::info,
               fmt::format("removed {}, left by a save or a deletion that died", name));
    }
    for (const std::string& problem : leftovers.problems) {
      log_line(LogLevel::warning, problem + "; it stays, and does no harm");
    }
    if (!has_steps_left && read_run_tokenizer(options.out)) {
      return;
    }
    for (const std::string& name : write_run_tokenizer(options.out, tokenizer)) {
      log_line(LogLevel::warning,
               fmt::format("the tokenizer of this folder was another one: it is now {}", name));
    }
  });
  keep_warnings(options.out);
}

void look_at_export(MpiSession& session, const RunConfig& options, const std::string& run_id,
                    OutFolder& out) {
  if (options.model_export.folder.empty()) {
    return;
  }
  agree(session, [&] {
    if (session.rank() == 0) {
      require_no_step_name("--export", options.model_export.folder);
      ExportFolder(options.model_export.folder, {run_id, options.out}).require_ours();
    }
  });
  out.export_folders = prepare_out_folder(session, options.model_export.folder,
                                          {.contents = OutContents::may_be_there});
}

std::optional<std::int64_t> take_over_export(MpiSession& session, const RunConfig& options,
                                             const std::string& run_id) {
  if (options.model_export.folder.empty()) {
    return std::nullopt;
  }
  const std::string mine = agree(session, [&] {
    if (session.rank() != 0) {
      return std::string();
    }
    const ExportFolder folder(options.model_export.folder, {run_id, options.out});
    folder.claim();
    const std::optional<Index> step = folder.exported_step();
    return step ? std::to_string(*step) : std::string();
  });
  const std::string step = session.control().gather_text(mine).front();
  return step.empty() ? std::nullopt : std::optional<std::int64_t>(std::stoll(step));
}

}  // namespace tessera
