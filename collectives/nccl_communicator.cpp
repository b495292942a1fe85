#include "collectives/nccl_communicator.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <cuda_runtime.h>
#include <fmt/format.h>

#include "collectives/mpi_session.h"
#include "collectives/nccl_check.h"
#include "kernels/base/log.h"
#include "kernels/base/process_exit.h"
#include "kernels/base/progress.h"
#include "kernels/device/cuda/cuda_check.h"
#include "kernels/device/device_backend.h"

namespace tessera {
namespace {

// Between two questions whether NCCL is ready: short beside a connection's set-up, long beside a
// call.
constexpr std::chrono::microseconds kPollInterval{50};
// The first questions come without a pause: after the first operation the answer is there at once.
constexpr int kEagerPolls = 100;
// Thread blocks, so multiprocessors, of one operation: the rest belongs to the GEMMs that run
// beside it (measured: jobs/bench/results/notes.md). NCCL_MAX_CTAS overrides it.
constexpr int kMostBlocks = 16;
// How long a destructor waits for its peers before it leaves them.
constexpr std::chrono::seconds kFarewellSeconds{10};
// How long an abort waits for a call under way, none of which should block; it may be one that only
// the abort makes return.
constexpr std::chrono::milliseconds kCallTimeout{200};

Index bytes_of(const ConstTensorView& view) {
  return view.count() * static_cast<Index>(size_in_bytes(view.dtype));
}

const std::byte* begin_of(const ConstTensorView& view) {
  return static_cast<const std::byte*>(view.data);
}
std::byte* begin_of(const TensorView& view) {
  return static_cast<std::byte*>(view.data);
}

/// One start of one machine: containers of different machines may have one host name.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::string pci_bus_id(Device device) {
  constexpr int kLength = 32;
  std::array<char, kLength> id{};
  TESSERA_CHECK_CUDA(cudaDeviceGetPCIBusId(id.data(), kLength, device.ordinal));
  return id.data();
}

void copy_bytes(const void* from, void* to, Index bytes, Stream& stream) {
  if (from != to) {
    TESSERA_CHECK_CUDA(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes),
                                       cudaMemcpyDeviceToDevice, stream.cuda_handle()));
  }
}

// What gather_text carries from a rank that failed begins with this, which no host name does.
constexpr char kFailureMark = '!';

/// What `work` gives, or its error as text, so that a rank which fails alone still meets the
/// others.
template <typename Work>
std::string text_or_failure(Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const Error& error) {
    return kFailureMark + error.message();
  }
}

bool is_failure(const std::string& text) {
  return !text.empty() && text.front() == kFailureMark;
}

}  // namespace

void check_nccl(ncclResult_t code, ncclComm_t comm, const char* call, SourceLocation where) {
  if (code != ncclSuccess && code != ncclInProgress) {
    park_if_exiting();
    const char* warning = ncclGetLastError(comm);
    throw CommError(
        fmt::format("{} failed: {}{}", call, ncclGetErrorString(code),
                    warning == nullptr || *warning == '\0' ? "" : fmt::format(" ({})", warning)),
        where);
  }
}

void log_nccl_error(ncclResult_t code, const char* call) noexcept {
  try {
    log_line(LogLevel::warning, fmt::format("{} failed: {}", call, ncclGetErrorString(code)));
  } catch (const std::exception&) {  // no memory for a message: there is nobody left to tell
    return;
  }
}

NcclCommunicator::NcclCommunicator(const MpiSession& session, Device device,
                                   const CommunicatorOptions& options)
    : Communicator(session.rank(), session.world_size()), device_(device) {
  require_own_devices(session);
  if (world_size() == 1) {
    return;
  }
  const ncclUniqueId id = shared_id();
  const CollectiveMark mark("ncclCommInitRank", 0);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = kMostBlocks;
  use_device(device);
  try {
    finish(ncclCommInitRankConfig(&comm_, world_size(), id, rank(), &config),
           "ncclCommInitRankConfig");
    if (options.peer_copies) {
      peers_ = cuda::PeerCopies::connect(*this, device);
    }
  } catch (...) {
    abort();
    throw;
  }
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ == nullptr) {
    return;
  }
  // Where an exception is under way, the peers may wait in another operation permanently.
  if (!healthy_ || std::uncaught_exceptions() > 0 || !finalize()) {
    abort();
    return;
  }
  const ncclResult_t code = ncclCommDestroy(comm_);
  if (code != ncclSuccess && code != ncclInProgress) {
    log_nccl_error(code, "ncclCommDestroy");
  }
}

void NcclCommunicator::require_own_devices(const MpiSession& session) {
  const std::string mine = text_or_failure([&] {
    use_device(device_);
    return fmt::format("{} {} of host {}", boot_id(), pci_bus_id(device_), session.host());
  });
  const std::vector<std::string> all = gather_text(mine);
  std::map<std::string, std::size_t> first_rank;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (is_failure(all[r])) {
      throw DeviceError(fmt::format("rank {} has no CUDA device: {}", r, all[r].substr(1)),
                        TESSERA_HERE);
    }
    const auto [entry, is_new] = first_rank.emplace(all[r], r);
    if (!is_new) {
      throw ConfigError(
          fmt::format("ranks {} and {} both use CUDA device {}: start no more ranks on a host than "
                      "it has GPUs, each with a device of its own",
                      entry->second, r, all[r].substr(all[r].find(' ') + 1)),
          TESSERA_HERE);
    }
  }
}

ncclUniqueId NcclCommunicator::shared_id() {
  const std::string mine = text_or_failure([&]() -> std::string {
    if (rank() != 0) {
      return {};
    }
    ncclUniqueId made{};
    TESSERA_CHECK_NCCL(ncclGetUniqueId(&made));
    return " " + std::string(std::begin(made.internal), std::end(made.internal));
  });
  const std::string first = gather_text(mine).front();
  if (is_failure(first)) {
    throw CommError("rank 0 could not start NCCL: " + first.substr(1), TESSERA_HERE);
  }
  ncclUniqueId id{};
  TESSERA_REQUIRE(first.size() == sizeof(id.internal) + 1, "rank 0 sends an NCCL id");
  std::memcpy(static_cast<void*>(id.internal), first.data() + 1, sizeof(id.internal));
  return id;
}

template <typename Call>
std::optional<ncclResult_t> NcclCommunicator::unless_aborted(Call&& call) {
  const std::lock_guard lock(call_);
  return aborted_ ? std::nullopt : std::optional(std::forward<Call>(call)(comm_));
}

void NcclCommunicator::throw_aborted() {
  park_if_exiting();
  throw CommError("NCCL was aborted on this rank", TESSERA_HERE);
}

bool NcclCommunicator::goes_by_copies() const {
  if (peers_ != nullptr && aborted_) {
    throw_aborted();
  }
  return peers_ != nullptr;
}

void NcclCommunicator::finish(std::optional<ncclResult_t> code, const char* call) {
  // Where the call itself failed, the communicator may not even exist.
  std::optional<ncclResult_t> state = code;
  for (int polls = 0; state == ncclSuccess || state == ncclInProgress; ++polls) {
    state = unless_aborted([](ncclComm_t comm) {
      ncclResult_t now = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(comm, &now);
      return asked == ncclSuccess ? now : asked;
    });
    if (state == ncclSuccess) {
      return;
    }
    if (polls >= kEagerPolls) {
      std::this_thread::sleep_for(kPollInterval);
    }
  }
  if (!state) {
    throw_aborted();
  }
  healthy_ = false;
  check_nccl(*state, comm_, call, TESSERA_HERE);
}

void NcclCommunicator::check_health() {
  if (comm_ == nullptr) {
    return;
  }
  const std::unique_lock lock(call_, std::try_to_lock);
  if (!lock) {
    return;  // the call under way will tell
  }
  if (aborted_) {
    throw_aborted();
  }
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  const ncclResult_t worst = asked == ncclSuccess ? state : asked;
  if (worst != ncclSuccess && worst != ncclInProgress) {
    healthy_ = false;
    check_nccl(worst, comm_, "an NCCL operation of this rank or of a peer", TESSERA_HERE);
  }
}

bool NcclCommunicator::finalize() noexcept {
  const auto deadline = std::chrono::steady_clock::now() + kFarewellSeconds;
  ncclResult_t state = ncclCommFinalize(comm_);
  while (state == ncclSuccess || state == ncclInProgress) {
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
    if (asked != ncclSuccess) {
      state = asked;
    } else if (state == ncclSuccess) {
      return true;
    } else if (std::chrono::steady_clock::now() > deadline) {
      break;
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  log_nccl_error(state, "ncclCommFinalize");
  return false;
}

void NcclCommunicator::abort() noexcept {
  healthy_ = false;
  if (comm_ == nullptr || aborted_.exchange(true)) {
    return;
  }
  if (peers_ != nullptr) {
    peers_->release();
  }
  const std::unique_lock lock(call_, kCallTimeout);
  // In a thread of its own: NCCL stops its kernels at once, but may then wait for its own threads.
  // One that does not come back is left to the end of the process.
  try {
    auto done =
        std::make_shared<std::promise<void>>();  // shared: the thread may outlive this object
    std::future<void> finished = done->get_future();
    std::thread([done, comm = comm_, ordinal = device_.ordinal] {
      if (cudaSetDevice(ordinal) == cudaSuccess) {
        const ncclResult_t code = ncclCommAbort(comm);
        if (code != ncclSuccess && code != ncclInProgress) {
          log_nccl_error(code, "ncclCommAbort");
        }
      }
      done->set_value();
    }).detach();
    if (finished.wait_for(kFarewellSeconds) != std::future_status::ready) {
      log_line(LogLevel::warning, "ncclCommAbort does not return; continuing without it");
    }
  } catch (const std::exception& error) {
    log_line(LogLevel::warning, error.what());
  }
}

void NcclCommunicator::do_all_to_all(const RankGroup& group, ConstTensorView send, TensorView recv,
                                     Stream& stream) {
  const CollectiveMark mark("all_to_all", bytes_of(send));
  if (group.count > 1 && goes_by_copies() && peers_->all_to_all(group, send, recv, stream)) {
    return;
  }
  const int place = group.place_of(rank());
  const Index slice_bytes = bytes_of(send) / group.count;
  const Index own = slice_bytes * place;
  copy_bytes(begin_of(send) + own, begin_of(recv) + own, slice_bytes, stream);
  if (group.count == 1) {
    return;
  }
  const auto bytes = static_cast<std::size_t>(slice_bytes);
  const auto swap = [&](ncclComm_t comm) {
    check_nccl(ncclGroupStart(), comm, "ncclGroupStart", TESSERA_HERE);
    ncclResult_t failed = ncclSuccess;
    const auto note = [&failed](ncclResult_t code) {
      if (failed == ncclSuccess && code != ncclInProgress) {
        failed = code;
      }
    };
    // In step i every rank sends to the i-th rank after it and receives from the i-th before it.
    for (int i = 1; i < group.count; ++i) {
      const int to = (place + i) % group.count;
      const int from = (place + group.count - i) % group.count;
      note(ncclSend(begin_of(send) + slice_bytes * to, bytes, ncclUint8, group.rank(to), comm,
                    stream.cuda_handle()));
      note(ncclRecv(begin_of(recv) + slice_bytes * from, bytes, ncclUint8, group.rank(from), comm,
                    stream.cuda_handle()));
    }
    note(ncclGroupEnd());
    return failed;
  };
  finish(unless_aborted(swap), "ncclSend and ncclRecv of all_to_all");
}

void NcclCommunicator::do_reduce_scatter(ConstTensorView send, TensorView recv, Stream& stream) {
  const CollectiveMark mark("reduce_scatter", bytes_of(send));
  if (comm_ == nullptr) {
    copy_bytes(send.data, recv.data, bytes_of(recv), stream);
    return;
  }
  finish(unless_aborted([&](ncclComm_t comm) {
           return ncclReduceScatter(send.data, recv.data, static_cast<std::size_t>(recv.count()),
                                    send.dtype == DType::bf16 ? ncclBfloat16 : ncclFloat32, ncclSum,
                                    comm, stream.cuda_handle());
         }),
         "ncclReduceScatter");
}

void NcclCommunicator::do_all_gather(ConstTensorView send, TensorView recv, Stream& stream) {
  const CollectiveMark mark("all_gather", bytes_of(recv));
  if (comm_ == nullptr) {
    copy_bytes(send.data, recv.data, bytes_of(recv), stream);
    return;
  }
  if (goes_by_copies() && peers_->all_gather(send, recv, stream)) {
    return;
  }
  finish(unless_aborted([&](ncclComm_t comm) {
           return ncclAllGather(send.data, recv.data, static_cast<std::size_t>(bytes_of(send)),
                                ncclUint8, comm, stream.cuda_handle());
         }),
         "ncclAllGather");
}

std::string nccl_library() {
  constexpr int kMajor = 10'000;
  constexpr int kMinor = 100;
  int version = 0;
  TESSERA_CHECK_NCCL(ncclGetVersion(&version));
  return fmt::format("NCCL {}.{}.{}", version / kMajor, version % kMajor / kMinor,
                     version % kMinor);
}

std::unique_ptr<Communicator> make_nccl_communicator(MpiSession& session, Device device,
                                                     const CommunicatorOptions& options) {
  return std::make_unique<NcclCommunicator>(session, device, options);
}

}  // namespace tessera
