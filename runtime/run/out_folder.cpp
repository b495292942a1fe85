#include "runtime/run/out_folder.h"

#include <fmt/format.h>

#include "kernels/base/log.h"
#include "runtime/checkpoint/retention.h"
#include "runtime/checkpoint/run_folder.h"
#include "runtime/launch/agree.h"
#include "runtime/run/resume_search.h"

namespace tessera {

void put_earlier_records_away(MpiSession& session, const RunConfig& options) {
  agree(session, [&] {
    if (session.rank() != 0) {
      return;
    }
    for (const auto& [old_name, new_name] : leave_earlier_records(options.out)) {
      log_line(LogLevel::info,
               fmt::format("{} is of an earlier run that saved no step: renamed to {}", old_name,
                           new_name));
    }
  });
}

void take_over_folder(MpiSession& session, const RunConfig& options,
                      const std::optional<ResumePoint>& point, const RunTokenizer& tokenizer) {
  agree(session, [&] {
    if (session.rank() != 0) {
      return;
    }
    if (point && point->info.step < options.steps) {  // else nothing is done again
      leave_abandoned_branch(options.out, point->info.step);
      begin_branch(options);
    }
    const Leftovers leftovers = remove_leftovers(options.out);
    for (const std::string& name : leftovers.removed) {
      log_line(LogLevel::info,
               fmt::format("removed {}, left by a save or a deletion that died", name));
    }
    for (const std::string& problem : leftovers.problems) {
      log_line(LogLevel::warning, problem + "; it stays, and is in nobody's way");
    }
    for (const std::string& name : write_run_tokenizer(options.out, tokenizer)) {
      log_line(LogLevel::warning,
               fmt::format("the tokenizer of this folder was another one: it is now {}", name));
    }
  });
}

}  // namespace tessera
