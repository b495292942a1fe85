#include "collectives/mpi_session.h"

#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include "collectives/comm_check.h"
#include "collectives/mpi_control.h"
#include "collectives/mpi_handle.h"
#include "kernels/base/log.h"

namespace tessera {
namespace {

// How long to wait for an MPI_Abort that does not return.
constexpr std::chrono::seconds kAbortTimeout{5};

std::string mpi_message(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) {
    return fmt::format("MPI error code {}", code);
  }
  return {text.data(), static_cast<std::size_t>(length)};
}

int rank_on_host() {
  MPI_Comm same_host = MPI_COMM_NULL;
  TESSERA_CHECK_MPI(
      MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &same_host));
  int rank = 0;
  TESSERA_CHECK_MPI(MPI_Comm_rank(same_host, &rank));
  TESSERA_CHECK_MPI(MPI_Comm_free(&same_host));
  return rank;
}

std::optional<int> environment_number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) {
    return std::nullopt;
  }
  const std::string_view digits(text);
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return std::nullopt;
  }
  return number;
}

}  // namespace

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;  // that of Open MPI 4 counts the terminating zero
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) {
    return {};
  }
  const std::string_view all(text.data());
  return std::string(all.substr(0, all.find_first_of("\r\n")));
}

std::string host_name() {
  constexpr std::size_t kMaxLength = 256;  // HOST_NAME_MAX of Linux is 64
  std::array<char, kMaxLength> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) {
    return "unknown host";
  }
  return name.data();
}

void throw_mpi_error(int code, const char* call, SourceLocation where) {
  throw CommError(fmt::format("{} failed: {}", call, mpi_message(code)), where);
}

void log_mpi_error(int code, const char* call) noexcept {
  try {
    log_line(LogLevel::warning, fmt::format("{} failed: {}", call, mpi_message(code)));
  } catch (const std::exception&) {
    (void)std::fputs("an MPI call failed, and so did the report of it\n", stderr);
  }
}

// Where ranks that fail meet: a communicator of its own, because peers may be inside any operation
// on the others. The buffers outlive a request that is never completed.
struct MpiSession::Meeting {
  MpiHandle comm{MPI_COMM_WORLD};
  std::array<std::uint64_t, 2> highest{};
  MPI_Request request = MPI_REQUEST_NULL;
};

MpiSession::MpiSession(int& argc, char**& argv) : host_(host_name()) {
  int provided = MPI_THREAD_SINGLE;
  TESSERA_CHECK_MPI(MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided));
  TESSERA_CHECK_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  if (provided < MPI_THREAD_SERIALIZED) {
    throw CommError(
        "this MPI library offers no thread level MPI_THREAD_SERIALIZED: use one that was "
        "built with thread support",
        TESSERA_HERE);
  }
  TESSERA_CHECK_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
  TESSERA_CHECK_MPI(MPI_Comm_size(MPI_COMM_WORLD, &world_size_));
  local_rank_ = rank_on_host();
  control_ = std::make_unique<MpiControl>();
  meeting_ = std::make_unique<Meeting>();
}

MpiSession::~MpiSession() {
  meeting_.reset();
  control_.reset();
  const int code = MPI_Finalize();
  if (code != MPI_SUCCESS) {
    log_mpi_error(code, "MPI_Finalize");
  }
}

bool MpiSession::all_arrive(std::uint64_t value, double seconds) noexcept {
  // the maximum of value and of its complement: equal on all ranks if both are this rank's
  const std::array<std::uint64_t, 2> mine = {value, ~value};
  meeting_->highest = mine;
  if (MPI_Iallreduce(MPI_IN_PLACE, meeting_->highest.data(), 2, MPI_UINT64_T, MPI_MAX,
                     meeting_->comm.get(), &meeting_->request) != MPI_SUCCESS) {
    return false;
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int done = 0;
  while (std::chrono::steady_clock::now() < end) {
    if (MPI_Test(&meeting_->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
      return false;
    }
    if (done != 0) {
      return meeting_->highest == mine;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

void MpiSession::abort(int exit_status) noexcept {
  (void)std::fflush(nullptr);
  try {
    std::thread([exit_status] {
      std::this_thread::sleep_for(kAbortTimeout);
      _exit(exit_status);
    }).detach();
  } catch (const std::system_error&) {
    (void)std::fputs("no thread to time MPI_Abort\n", stderr);
  }
  MPI_Abort(MPI_COMM_WORLD, exit_status);
  _exit(exit_status);
}

void refuse_wrong_launcher(int world_size) {
  if (world_size > 1) {
    return;
  }
  // The launcher nearest to this process decides: mpirun inside a Slurm job sets its own variables,
  // and those of Slurm describe mpirun's daemons. SLURM_NTASKS would also be set in a batch script
  // that starts a single process by itself; srun alone sets SLURM_STEP_NUM_TASKS.
  constexpr std::array<const char*, 3> kNames = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                                 "SLURM_STEP_NUM_TASKS"};
  for (const char* name : kNames) {
    const std::optional<int> tasks = environment_number(name);
    if (!tasks) {
      continue;
    }
    if (*tasks > 1) {
      throw ConfigError(
          fmt::format(
              "the launcher started {} tasks ({}), but MPI knows of 1 rank: launcher and MPI "
              "library do not belong together, so every process would be rank 0 of 1. Start "
              "with the mpirun of the MPI this program was built with, or with srun --mpi=pmix",
              *tasks, name),
          TESSERA_HERE);
    }
    return;
  }
}

}  // namespace tessera
