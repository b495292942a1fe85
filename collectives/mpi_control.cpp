#include "collectives/mpi_control.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include <mpi.h>

#include "collectives/comm_check.h"
#include "collectives/mpi_handle.h"
#include "kernels/base/progress.h"
#include "kernels/device/cpu/deferred.h"
#include "kernels/device/stream.h"

namespace tessera {
namespace {

// Most a single call may carry: MPI counts are int. Larger ones go in several calls.
constexpr Index kMaxCallBytes = Index{1} << 30;

// Round trips of one rank's clock: enough that some meet no other process's turn on the core.
constexpr int kClockTrips = 64;
constexpr int kClockTag = 1;

int as_count(Index count) {
  TESSERA_REQUIRE(count >= 0 && count <= kMaxCallBytes, "more than one MPI call can carry");
  return static_cast<int>(count);
}

}  // namespace

MpiControl::MpiControl() : comm_(std::make_unique<MpiHandle>(MPI_COMM_WORLD)) {}

MpiControl::~MpiControl() = default;

void MpiControl::barrier() {
  cpu::run_all_deferred();
  const CollectiveMark mark("barrier", 0);
  TESSERA_CHECK_MPI(MPI_Barrier(comm_->get()));
}

bool MpiControl::all_agree(bool ok) {
  cpu::run_all_deferred();
  const CollectiveMark mark("all_agree", sizeof(int));
  int all = ok ? 1 : 0;
  TESSERA_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, comm_->get()));
  return all == 1;
}

// NOLINTBEGIN(mpi-type-mismatch): clang-tidy takes std::int64_t for long, which MPI_INT64_T is here
void MpiControl::sum(std::span<std::int64_t> values) {
  cpu::run_all_deferred();
  const CollectiveMark mark("sum", static_cast<Index>(values.size_bytes()));
  const std::size_t most = kMaxCallBytes / sizeof(std::int64_t);
  for (std::size_t begin = 0; begin < values.size(); begin += most) {
    const std::span<std::int64_t> part =
        values.subspan(begin, std::min(most, values.size() - begin));
    TESSERA_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, part.data(), as_count(std::ssize(part)),
                                    MPI_INT64_T, MPI_SUM, comm_->get()));
  }
}

std::vector<std::string> MpiControl::gather_text(std::string_view text) {
  cpu::run_all_deferred();
  const CollectiveMark mark("gather_text", std::ssize(text));
  int ranks = 0;
  TESSERA_CHECK_MPI(MPI_Comm_size(comm_->get(), &ranks));
  const auto W = static_cast<std::size_t>(ranks);
  const std::int64_t length = std::ssize(text);
  std::vector<std::int64_t> lengths(W);
  TESSERA_CHECK_MPI(
      MPI_Allgather(&length, 1, MPI_INT64_T, lengths.data(), 1, MPI_INT64_T, comm_->get()));
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::string> texts(W);
  std::vector<int> counts(W);
  std::vector<int> offsets(W);
  std::string received;
  const std::int64_t part = std::max<std::int64_t>(kMaxCallBytes / ranks, 1);
  for (std::int64_t begin = 0; begin < longest; begin += part) {
    const auto part_of = [&](std::int64_t all) {
      return std::clamp<std::int64_t>(all - begin, 0, part);
    };
    std::transform(lengths.begin(), lengths.end(), counts.begin(),
                   [&](std::int64_t all) { return as_count(part_of(all)); });
    std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), 0);
    received.resize(static_cast<std::size_t>(Index{offsets.back()} + counts.back()));
    const std::string_view mine =
        text.substr(std::min(static_cast<std::size_t>(begin), text.size()),
                    static_cast<std::size_t>(part_of(length)));
    TESSERA_CHECK_MPI(MPI_Allgatherv(mine.data(), as_count(std::ssize(mine)), MPI_BYTE,
                                     received.data(), counts.data(), offsets.data(), MPI_BYTE,
                                     comm_->get()));
    for (std::size_t r = 0; r < W; ++r) {
      texts[r].append(received, static_cast<std::size_t>(offsets[r]),
                      static_cast<std::size_t>(counts[r]));
    }
  }
  return texts;
}
// NOLINTEND(mpi-type-mismatch)

double MpiControl::clock_offset(const std::function<double()>& clock) {
  cpu::run_all_deferred();
  const CollectiveMark mark("clock_offset", 0);
  int rank = 0;
  int ranks = 0;
  TESSERA_CHECK_MPI(MPI_Comm_rank(comm_->get(), &rank));
  TESSERA_CHECK_MPI(MPI_Comm_size(comm_->get(), &ranks));
  double offset = 0;
  double shortest = std::numeric_limits<double>::infinity();
  // One rank after the other, so that rank 0 answers at once.
  for (int asking = 1; asking < ranks; ++asking) {
    if (rank != 0 && rank != asking) {
      continue;
    }
    for (int trip = 0; trip < kClockTrips; ++trip) {
      double time = 0;
      if (rank == 0) {
        TESSERA_CHECK_MPI(
            MPI_Recv(&time, 1, MPI_DOUBLE, asking, kClockTag, comm_->get(), MPI_STATUS_IGNORE));
        time = clock();
        TESSERA_CHECK_MPI(MPI_Send(&time, 1, MPI_DOUBLE, asking, kClockTag, comm_->get()));
        continue;
      }
      const double sent = clock();
      TESSERA_CHECK_MPI(MPI_Send(&sent, 1, MPI_DOUBLE, 0, kClockTag, comm_->get()));
      TESSERA_CHECK_MPI(
          MPI_Recv(&time, 1, MPI_DOUBLE, 0, kClockTag, comm_->get(), MPI_STATUS_IGNORE));
      const double received = clock();
      if (received - sent < shortest) {
        shortest = received - sent;
        offset = time - (sent + received) / 2;
      }
    }
  }
  return offset;
}

}  // namespace tessera
