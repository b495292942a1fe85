// The frame of the programs without MPI (tokenize, inspect, convert): run the body, and if it
// throws, say so once and return the documented exit status. run_job.h is the same for programs
// with ranks.
#pragma once

#include <exception>
#include <iostream>
#include <new>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/base/escaped_text.h"
#include "kernels/base/standard_streams.h"
#include "kernels/base/terminal.h"
#include "kernels/base/write_failure.h"

namespace tessera {

/// Writes a line for people to stderr, broken where a terminal ends. `line`: without its end.
inline void say_note(std::string_view line) {
  std::cerr << for_terminal(line, STDERR_FILENO) << std::endl;
}

/// Writes lines for people to stdout, broken where a terminal ends. Not for tables.
inline void print_lines(std::string_view text) {
  std::cout << for_terminal(text, STDOUT_FILENO);
}

/// Returns what main returns: the body's result, or the exit status of what it threw, after one
/// line "NAME: message" on stderr. A body whose output was lost (closed, a full disk) ends with 4;
/// one whose reader has gone away says nothing, and ends with 141 if that cut it short. What is
/// not an Error is an internal error (9), but for a lack of memory, which is reported as such.
template <typename Body>
int run_program(std::string_view name, Body body) {
  constexpr int kOurFault = 9;
  prepare_standard_streams();
  ignore_file_size_signal();
  const auto say = [name](std::string_view message) {
    std::cout.flush();  // so that the line comes last where both go to one place
    say_note(fmt::format("{}: {}", name, shown_text(message)));
  };
  try {
    const int status = body();
    require_standard_output();
    return status;
  } catch (const ContractError& error) {
    say(error.what());  // with the place in the source
    return error.exit_status();
  } catch (const Error& error) {
    say(error.message());
    return error.exit_status();
  } catch (const std::bad_alloc&) {
    say("no more memory");
  } catch (const std::exception& error) {
    try {
      if (require_standard_output()) {  // what was thrown may be fmt's word for it
        return kUnreadStatus;
      }
    } catch (const WriteError& lost) {
      say(lost.message());
      return lost.exit_status();
    }
    say(error.what());
  }
  return kOurFault;
}

}  // namespace tessera
