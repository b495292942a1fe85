// Steps that one rank could fail alone, made a matter of all: every rank throws, or none.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/base/error.h"

namespace tessera {

class Communicator;
class MpiSession;

/// How one rank's attempt failed, in the words a user is shown.
struct Failure {
  int exit_status;  // of design's table; never 0
  std::string message;
};

/// What to say of an exception, and with which status to end: an Error's own message and status; 5
/// for host memory that ran out; 9, an internal error, for everything else.
[[nodiscard]] Failure failure_of(const std::exception_ptr& error);

/// Every rank of the run throws this same error at this moment: run_job reports it once and needs
/// not abort. An Error of this kind is also one of the types of error.h.
class AgreedMark {
 public:
  AgreedMark() = default;
  AgreedMark(const AgreedMark&) = default;
  AgreedMark(AgreedMark&&) = default;
  AgreedMark& operator=(const AgreedMark&) = default;
  AgreedMark& operator=(AgreedMark&&) = default;
  virtual ~AgreedMark() = default;
};

/// Throws the type of error.h that has `failure.exit_status`, marked as agreed. For a caller that
/// knows that every rank throws the same at this point.
[[noreturn]] void throw_agreed(const Failure& failure, SourceLocation where);

/// Collective. Where `mine` is set on any rank, every rank throws the failure of the lowest one:
/// its message as it is if every rank failed alike, else with rank and host before it. Marked as
/// agreed.
void settle(MpiSession& session, const std::optional<Failure>& mine);
void settle(Communicator& comm, const std::optional<Failure>& mine);

/// Calls `attempt` on every rank, and returns its result if it succeeded everywhere; else throws as
/// `settle` does. Collective over `ranks`, a MpiSession or a Communicator. `attempt` itself must
/// not be collective: a rank that has failed would not take part.
template <typename Ranks, typename Attempt>
std::invoke_result_t<Attempt&> agree(Ranks& ranks, Attempt&& attempt) {
  using Result = std::invoke_result_t<Attempt&>;
  std::optional<Failure> failure;
  if constexpr (std::is_void_v<Result>) {
    try {
      attempt();
    } catch (...) {
      failure = failure_of(std::current_exception());
    }
    settle(ranks, failure);
  } else {
    std::optional<Result> result;
    try {
      result.emplace(attempt());
    } catch (...) {
      failure = failure_of(std::current_exception());
    }
    settle(ranks, failure);
    return std::move(*result);
  }
}

}  // namespace tessera
