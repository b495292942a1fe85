#include "collectives/mpi_communicator.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>
#include <mpi.h>

#include "collectives/comm_check.h"
#include "collectives/mpi_handle.h"
#include "collectives/mpi_session.h"
#include "kernels/base/progress.h"
#include "kernels/device/cpu/submit.h"

namespace tessera {
namespace {

// Peers a rank talks to at one time in all_to_all: enough to keep every link busy, few enough
// that a large run does not post thousands of messages.
constexpr int kPeersAtOnce = 8;
constexpr int kSliceTag = 1;

Index bytes_of(const ConstTensorView& view) {
  return view.count() * static_cast<Index>(size_in_bytes(view.dtype));
}

// Elements [begin, begin + count) of a tensor from and to the scratch buffer.
void load(const ConstTensorView& from, Index begin, Index count, float* scratch) {
  if (from.dtype == DType::bf16) {
    const BFloat16* source = data_as<BFloat16>(from) + begin;
    std::transform(source, source + count, scratch, [](BFloat16 value) { return to_float(value); });
  } else {
    std::copy_n(data_as<float>(from) + begin, count, scratch);
  }
}

void store(const float* scratch, const TensorView& to, Index begin, Index count) {
  if (to.dtype == DType::bf16) {
    std::transform(scratch, scratch + count, data_as<BFloat16>(to) + begin,
                   [](float value) { return to_bfloat16(value); });
  } else {
    std::copy_n(scratch, count, data_as<float>(to) + begin);
  }
}

// A datatype made for one operation; freed when it is done.
class StridedBytes {
 public:
  // `bytes` bytes that are `stride` bytes apart from the next such piece.
  StridedBytes(Index bytes, Index stride) {
    MPI_Datatype packed = MPI_DATATYPE_NULL;
    TESSERA_CHECK_MPI(MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &packed));
    const int code = MPI_Type_create_resized(packed, 0, stride, &type_);
    TESSERA_CHECK_MPI(MPI_Type_free(&packed));
    TESSERA_CHECK_MPI(code);
    TESSERA_CHECK_MPI(MPI_Type_commit(&type_));
  }
  ~StridedBytes() {
    const int code = MPI_Type_free(&type_);
    if (code != MPI_SUCCESS) {
      log_mpi_error(code, "MPI_Type_free");
    }
  }
  StridedBytes(const StridedBytes&) = delete;
  StridedBytes& operator=(const StridedBytes&) = delete;
  [[nodiscard]] MPI_Datatype get() const noexcept { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

}  // namespace

struct MpiCommunicator::Requests {
  std::array<MPI_Request, std::size_t{2} * kPeersAtOnce> entries;
};

MpiCommunicator::MpiCommunicator(const MpiSession& session, const MpiCommunicatorOptions& options)
    : Communicator(session.rank(), session.world_size()),
      options_(options),
      comm_(std::make_unique<MpiHandle>(MPI_COMM_WORLD)),
      requests_(std::make_unique<Requests>()) {
  // one float of every rank must fit in
  const Index least_bytes = static_cast<Index>(sizeof(float)) * world_size();
  TESSERA_REQUIRE(
      options.max_call_bytes >= least_bytes && options.max_call_bytes <= INT32_MAX,
      fmt::format("{} bytes a call, for {} ranks", options.max_call_bytes, world_size()));
  const Index scratch_bytes =
      std::clamp(options.scratch_bytes, least_bytes, options.max_call_bytes);
  scratch_.resize(static_cast<std::size_t>(scratch_bytes) / sizeof(float));
}

MpiCommunicator::~MpiCommunicator() = default;

void MpiCommunicator::do_all_to_all(const RankGroup& group, ConstTensorView send, TensorView recv,
                                    Stream& stream) {
  cpu::submit(stream, [this, group, send, recv] {
    const CollectiveMark mark("all_to_all", bytes_of(send));
    swap_slices(group, static_cast<const std::byte*>(send.data), static_cast<std::byte*>(recv.data),
                bytes_of(send) / group.count);
  });
}

void MpiCommunicator::do_reduce_scatter(ConstTensorView send, TensorView recv, Stream& stream) {
  cpu::submit(stream, [this, send, recv] {
    const CollectiveMark mark("reduce_scatter", bytes_of(send));
    reduce_slices(send, recv);
  });
}

void MpiCommunicator::do_all_gather(ConstTensorView send, TensorView recv, Stream& stream) {
  cpu::submit(stream, [this, send, recv] {
    const CollectiveMark mark("all_gather", bytes_of(recv));
    gather_slices(static_cast<const std::byte*>(send.data), static_cast<std::byte*>(recv.data),
                  bytes_of(send));
  });
}

void MpiCommunicator::swap_slices(const RankGroup& group, const std::byte* send, std::byte* recv,
                                  Index slice_bytes) {
  // In step i every rank sends to the i-th rank after it and receives from the i-th before it.
  for (int first = 1; first < group.count; first += kPeersAtOnce) {
    const int last = std::min(first + kPeersAtOnce, group.count);
    for (Index begin = 0; begin < slice_bytes; begin += options_.max_call_bytes) {
      const Index count = std::min(options_.max_call_bytes, slice_bytes - begin);
      swap_parts(group, send + begin, recv + begin, slice_bytes, count, first, last);
    }
  }
  const Index own = slice_bytes * group.place_of(rank());
  std::memcpy(recv + own, send + own, static_cast<std::size_t>(slice_bytes));
}

void MpiCommunicator::swap_parts(const RankGroup& group, const std::byte* send, std::byte* recv,
                                 Index slice_bytes, Index part_bytes, int first, int last) {
  const int W = group.count;
  const int own = group.place_of(rank());
  const auto count = static_cast<int>(part_bytes);
  std::size_t pending = 0;
  for (int i = first; i < last; ++i) {
    const int from = (own + W - i) % W;
    TESSERA_CHECK_MPI(MPI_Irecv(recv + slice_bytes * from, count, MPI_BYTE, group.rank(from),
                                kSliceTag, comm_->get(), &requests_->entries[pending]));
    ++pending;
  }
  for (int i = first; i < last; ++i) {
    const int to = (own + i) % W;
    TESSERA_CHECK_MPI(MPI_Isend(send + slice_bytes * to, count, MPI_BYTE, group.rank(to), kSliceTag,
                                comm_->get(), &requests_->entries[pending]));
    ++pending;
  }
  TESSERA_CHECK_MPI(
      MPI_Waitall(static_cast<int>(pending), requests_->entries.data(), MPI_STATUSES_IGNORE));
}

void MpiCommunicator::gather_slices(const std::byte* send, std::byte* recv, Index slice_bytes) {
  const int W = world_size();
  std::byte* own = recv + slice_bytes * rank();
  const Index part_bytes = options_.max_call_bytes / W;
  if (slice_bytes <= part_bytes) {
    const auto count = static_cast<int>(slice_bytes);
    const bool in_place = send == own;
    TESSERA_CHECK_MPI(MPI_Allgather(in_place ? MPI_IN_PLACE : send, count, MPI_BYTE, recv, count,
                                    MPI_BYTE, comm_->get()));
    return;
  }
  // Parts of all slices at a time; in `recv` they are a slice apart.
  if (send != own) {
    std::memcpy(own, send, static_cast<std::size_t>(slice_bytes));
  }
  for (Index begin = 0; begin < slice_bytes; begin += part_bytes) {
    const StridedBytes part(std::min(part_bytes, slice_bytes - begin), slice_bytes);
    TESSERA_CHECK_MPI(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, recv + begin, 1, part.get(),
                                    comm_->get()));
  }
}

void MpiCommunicator::reduce_slices(const ConstTensorView& send, const TensorView& recv) {
  const Index W = world_size();
  const Index S = recv.count();
  const bool in_place = static_cast<const std::byte*>(recv.data) ==
                        static_cast<const std::byte*>(send.data) + bytes_of(recv) * rank();
  if (send.dtype != DType::bf16 && !in_place && bytes_of(send) <= options_.max_call_bytes) {
    TESSERA_CHECK_MPI(MPI_Reduce_scatter_block(send.data, recv.data, static_cast<int>(S), MPI_FLOAT,
                                               MPI_SUM, comm_->get()));
    return;
  }
  // Parts of all slices at a time, side by side in the scratch buffer.
  float* scratch = scratch_.data();
  const Index part = std::ssize(scratch_) / W;
  for (Index begin = 0; begin < S; begin += part) {
    const Index count = std::min(part, S - begin);
    for (Index r = 0; r < W; ++r) {
      load(send, r * S + begin, count, scratch + r * count);
    }
    TESSERA_CHECK_MPI(MPI_Reduce_scatter_block(MPI_IN_PLACE, scratch, static_cast<int>(count),
                                               MPI_FLOAT, MPI_SUM, comm_->get()));
    store(scratch, recv, begin, count);
  }
}

}  // namespace tessera
