// The frame of every executable: start MPI, run the body, and if it throws, say so once and end
// all ranks.
#pragma once

#include <functional>

namespace tessera {

class MpiSession;

/// Returns what main returns. An Error gives its exit_status(), any other exception 1. With more
/// than one rank the failing rank writes its message with rank and host, then aborts MPI, so that
/// peers blocked in a collective end too.
int run_job(int argc, char** argv, const std::function<int(MpiSession&)>& body);

}  // namespace tessera
