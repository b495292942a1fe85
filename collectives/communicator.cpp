#include "collectives/communicator.h"

#include <cstddef>
#include <functional>

#include <fmt/format.h>

#include "collectives/mpi_communicator.h"
#include "collectives/mpi_session.h"
#include "kernels/base/error.h"

namespace tessera {
namespace {

std::size_t bytes_of(const ConstTensorView& view) {
  return static_cast<std::size_t>(view.count()) * size_in_bytes(view.dtype);
}

const std::byte* begin_of(const ConstTensorView& view) {
  return static_cast<const std::byte*>(view.data);
}

bool overlap(const ConstTensorView& a, const ConstTensorView& b) {
  const std::less<> before;  // ordered for any two pointers
  return before(begin_of(a), begin_of(b) + bytes_of(b)) &&
         before(begin_of(b), begin_of(a) + bytes_of(a));
}

void require_usable(const ConstTensorView& view, const char* name, const Stream& stream) {
  TESSERA_REQUIRE(view.count() > 0, fmt::format("{} has no elements", name));
  TESSERA_REQUIRE(view.data != nullptr, fmt::format("{} has no memory (a dry run?)", name));
  TESSERA_REQUIRE(view.device == stream.device(),
                  fmt::format("{} is not on the device of stream {}", name, stream.name()));
}

void require_same_type(const ConstTensorView& send, const TensorView& recv) {
  TESSERA_REQUIRE(
      send.dtype == recv.dtype,
      fmt::format("send is {}, recv is {}", dtype_name(send.dtype), dtype_name(recv.dtype)));
}

// The large side is the small one W times; they may overlap only where `small` is slice `rank`.
void require_slices(const ConstTensorView& large, const ConstTensorView& small, int rank,
                    int ranks) {
  TESSERA_REQUIRE(
      large.count() == small.count() * ranks,
      fmt::format("{} elements are not {} slices of {}", large.count(), ranks, small.count()));
  const bool in_place =
      begin_of(small) == begin_of(large) + static_cast<std::size_t>(rank) * bytes_of(small);
  TESSERA_REQUIRE(in_place || !overlap(large, small),
                  fmt::format("send and recv overlap, but not in slice {} of this rank", rank));
}

}  // namespace

void Communicator::count(const ConstTensorView& sent, std::int64_t copies, std::int64_t parts,
                         int ranks) {
  ++traffic_.operations;
  traffic_.bytes += copies * (ranks - 1) * (static_cast<std::int64_t>(bytes_of(sent)) / parts);
}

void Communicator::all_to_all(ConstTensorView send, TensorView recv, Stream& stream) {
  all_to_all({.first = 0, .stride = 1, .count = world_size()}, send, recv, stream);
}

void Communicator::all_to_all(const RankGroup& group, ConstTensorView send, TensorView recv,
                              Stream& stream) {
  TESSERA_REQUIRE(group.count >= 1 && group.stride >= 1 && group.first >= 0 &&
                      group.rank(group.count - 1) < world_size(),
                  fmt::format("{} ranks from {} on, {} apart, of {}", group.count, group.first,
                              group.stride, world_size()));
  TESSERA_REQUIRE(rank() >= group.first && rank() <= group.rank(group.count - 1) &&
                      (rank() - group.first) % group.stride == 0,
                  fmt::format("rank {} is not in the group", rank()));
  require_usable(send, "send", stream);
  require_usable(recv, "recv", stream);
  require_same_type(send, recv);
  TESSERA_REQUIRE(send.count() == recv.count(),
                  fmt::format("send has {} elements, recv {}", send.count(), recv.count()));
  TESSERA_REQUIRE(send.count() % group.count == 0,
                  fmt::format("{} elements do not make {} slices", send.count(), group.count));
  TESSERA_REQUIRE(!overlap(send, recv), "send and recv overlap");
  count(send, 1, group.count, group.count);
  do_all_to_all(group, send, recv, stream);
}

void Communicator::reduce_scatter(ConstTensorView send, TensorView recv, Stream& stream) {
  require_usable(send, "send", stream);
  require_usable(recv, "recv", stream);
  require_same_type(send, recv);
  TESSERA_REQUIRE(send.dtype == DType::f32 || send.dtype == DType::bf16,
                  fmt::format("f32 or bf16 are added, not {}", dtype_name(send.dtype)));
  require_slices(send, recv, rank(), world_size());
  count(send, 1, world_size(), world_size());
  do_reduce_scatter(send, recv, stream);
}

void Communicator::all_gather(ConstTensorView send, TensorView recv, Stream& stream) {
  require_usable(send, "send", stream);
  require_usable(recv, "recv", stream);
  require_same_type(send, recv);
  require_slices(recv, send, rank(), world_size());
  count(send, 1, 1, world_size());
  do_all_gather(send, recv, stream);
}

std::unique_ptr<Communicator> make_communicator(MpiSession& session, Device device,
                                                const CommunicatorOptions& options) {
  if (device.kind == DeviceKind::cuda) {
    return make_nccl_communicator(session, device, options);
  }
  return std::make_unique<MpiCommunicator>(session, MpiCommunicatorOptions{});
}

}  // namespace tessera
