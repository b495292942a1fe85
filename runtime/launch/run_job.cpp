#include "runtime/launch/run_job.h"

#include <functional>
#include <optional>

#include <fmt/format.h>

#include "collectives/mpi_session.h"
#include "kernels/base/log.h"
#include "kernels/base/process_exit.h"
#include "kernels/base/standard_streams.h"
#include "kernels/base/write_failure.h"
#include "runtime/monitor/progress_report.h"

namespace tessera {
namespace {

// How long a rank that failed waits for the others to fail alike. Peers reach the same error of the
// same step within the imbalance of one step.
constexpr double kMeetingSeconds = 1.0;

bool is_agreed(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const AgreedMark&) {
    return true;
  } catch (...) {
    return false;
  }
}

// What is not an Error of ours may be fmt's word for an output that was lost. Without a message
// where its reader has gone away.
Failure failure_or_lost_output(const std::exception_ptr& error) {
  Failure failure = failure_of(error);
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    return failure;
  } catch (...) {
    try {
      if (require_standard_output()) {
        return {kUnreadStatus, ""};
      }
    } catch (const WriteError& lost) {
      return {lost.exit_status(), lost.message()};
    }
  }
  return failure;
}

// Ends all ranks, or returns this rank's exit status.
int report(MpiSession& session, const std::exception_ptr& error) {
  park_if_exiting();
  const Failure failure = failure_or_lost_output(error);
  const bool everywhere =
      session.world_size() == 1 || is_agreed(error) ||
      session.all_arrive(std::hash<std::string>{}(failure.message), kMeetingSeconds);
  if (everywhere) {
    if (session.rank() == 0 && !failure.message.empty()) {
      log_line(LogLevel::error, failure.message);
    }
    return failure.exit_status;
  }
  log_line(LogLevel::error,
           fmt::format("{} (in {}; all ranks end with exit status {})", failure.message,
                       to_text(progress_snapshot()), failure.exit_status));
  MpiSession::abort(failure.exit_status);
}

}  // namespace

int run_job(int argc, char** argv, double start_seconds,
            const std::function<int(MpiSession&, StartGuard&)>& body) {
  prepare_standard_streams();
  ignore_file_size_signal();
  StartGuard start(start_seconds);
  std::optional<MpiSession> session;
  try {
    session.emplace(argc, argv);
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    log_line(LogLevel::error, failure.message);
    return failure.exit_status;
  }
  try {
    set_log_identity(session->rank(), session->world_size(), session->host(), LogLevel::info);
    refuse_wrong_launcher(session->world_size());
    const int status = body(*session, start);
    agree(*session, [&session] {
      if (session->rank() == 0) {
        require_standard_output();
      }
    });
    return status;
  } catch (...) {
    return report(*session, std::current_exception());
  }
}

}  // namespace tessera
