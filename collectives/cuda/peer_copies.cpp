#include "collectives/cuda/peer_copies.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <limits>
#include <thread>

#include <cuda.h>
#include <cuda_runtime.h>

#include "kernels/base/error.h"
#include "kernels/base/log.h"
#include "kernels/device/cuda/cuda_check.h"
#include "kernels/device/device_backend.h"

namespace tessera::cuda {
namespace {

constexpr std::size_t kFree = 0;
constexpr std::size_t kArrived = 1;
// Beyond any counter in flight: half of what a cyclic comparison of 32 bits tells apart, at most.
constexpr std::uint32_t kBeyond = std::numeric_limits<std::int32_t>::max() / 2;

constexpr std::size_t kTrialBytes = std::size_t{1} << 20;
constexpr std::chrono::seconds kTrialTimeout{5};
constexpr std::chrono::microseconds kTrialPoll{50};

/// Bytes that tell a rank from others, and each place from its neighbours.
std::vector<std::byte> trial_bytes(int rank) {
  constexpr std::size_t kPeriod = 251;  // prime: of no power of two
  std::vector<std::byte> bytes(kTrialBytes);
  for (std::size_t i = 0; i < kTrialBytes; ++i) {
    bytes[i] = static_cast<std::byte>(1 + (i + 37 * static_cast<std::size_t>(rank)) % kPeriod);
  }
  return bytes;
}

/// A function of the driver, which is there wherever there is a GPU; linking it would keep the
/// program from starting on a login node.
template <typename Function>
Function driver_function(const char* name) {
  constexpr unsigned kVersion = 12000;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult state = cudaDriverEntryPointSymbolNotFound;
  TESSERA_CHECK_CUDA(
      cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &state));
  if (state != cudaDriverEntryPointSuccess) {
    throw DeviceError(std::string("the CUDA driver has no ") + name + ": it is older than 12.0",
                      TESSERA_HERE);
  }
  return reinterpret_cast<Function>(found);
}

void require_done(CUresult code, const char* call) {
  if (code != CUDA_SUCCESS) {
    throw DeviceError(
        std::string(call) + " failed: error " + std::to_string(code) + " of the CUDA driver",
        TESSERA_HERE);
  }
}

CUdeviceptr address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

/// A number that no other allocation of this process has had; 0 where there is none at `pointer`.
std::uint64_t allocation_of(const void* pointer) {
  static const auto get =
      driver_function<decltype(&cuPointerGetAttribute)>("cuPointerGetAttribute");
  std::uint64_t id = 0;
  return get(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address(pointer)) == CUDA_SUCCESS ? id : 0;
}

std::byte* allocation_begin(const void* pointer) {
  static const auto get = driver_function<decltype(&cuMemGetAddressRange)>("cuMemGetAddressRange");
  CUdeviceptr begin = 0;
  require_done(get(&begin, nullptr, address(pointer)), "cuMemGetAddressRange");
  return reinterpret_cast<std::byte*>(begin);
}

/// What other processes need to map the allocation that `begin` is in; empty where it cannot be
/// shared.
std::string shared_handle(const std::byte* begin) {
  cudaIpcMemHandle_t handle{};
  if (cudaIpcGetMemHandle(&handle, allocation_begin(begin)) != cudaSuccess) {
    (void)cudaGetLastError();
    return {};
  }
  return {std::begin(handle.reserved), std::end(handle.reserved)};
}

}  // namespace

PeerCopies::PeerCopies(Communicator& control, Device device)
    : control_(control),
      device_(device),
      releasing_(std::in_place, device, StreamPriority::high, "release"),
      done_(
          std::make_unique<std::atomic<Counter>[]>(static_cast<std::size_t>(control.world_size()))),
      last_(device, "peer copies") {
  const std::size_t bytes = 2 * static_cast<std::size_t>(control.world_size()) * sizeof(Counter);
  void* counters = nullptr;
  TESSERA_CHECK_CUDA(cudaMalloc(&counters, bytes));
  counters_ = static_cast<std::byte*>(counters);
  TESSERA_CHECK_CUDA(cudaMemset(counters_, 0, bytes));
  TESSERA_CHECK_CUDA(cudaDeviceSynchronize());
}

std::unique_ptr<PeerCopies> PeerCopies::connect(Communicator& control, Device device) {
  std::unique_ptr<PeerCopies> made;
  try {
    use_device(device);
    made.reset(new PeerCopies(control, device));
  } catch (const DeviceError&) {
    made = nullptr;  // the others must hear of it
  }
  if (!control.all_agree(made != nullptr) || !made->map_counters()) {
    return nullptr;
  }
  if (!made->passes_trial()) {
    if (control.rank() == 0) {
      log_line(LogLevel::warning,
               "copies between this host's GPUs do not arrive as they were sent (an IOMMU in their "
               "way?): NCCL moves gradients and parameters instead");
    }
    return nullptr;
  }
  return made;
}

PeerCopies::~PeerCopies() {
  if (std::uncaught_exceptions() > 0 || cudaDeviceSynchronize() != cudaSuccess) {
    return;  // the run ends, and the process gives all of it back
  }
  for (const auto& [key, begin] : opened_) {
    log_failure(cudaIpcCloseMemHandle(begin), "cudaIpcCloseMemHandle");
  }
  log_failure(cudaFree(counters_), "cudaFree");
}

// Collective: every rank gathers bytes of each other one, as any operation does.
bool PeerCopies::passes_trial() {
  const auto W = static_cast<std::size_t>(control_.world_size());
  const std::vector<std::byte> mine = trial_bytes(control_.rank());
  const Shape slice = {static_cast<Index>(kTrialBytes)};
  DeviceBuffer send(device_, MemoryKind::device, DType::u8, slice, "peer copies' trial");
  DeviceBuffer recv(device_, MemoryKind::device, DType::u8, {static_cast<Index>(W) * slice[0]},
                    "peer copies' trial");
  Stream stream(device_, StreamPriority::normal, "peer copies' trial");
  copy_async(ConstTensorView(mine.data(), DType::u8, slice, Device{}), send.view(), stream);
  zero_async(recv.view(), stream);
  if (!all_gather(send.view(), recv.view(), stream)) {
    return false;
  }
  const auto deadline = std::chrono::steady_clock::now() + kTrialTimeout;
  while (!last_.is_complete() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kTrialPoll);
  }
  bool passed = control_.all_agree(last_.is_complete());
  if (!passed) {
    release();
  }
  std::vector<std::byte> arrived(W * kTrialBytes);
  copy_async(recv.view(), {arrived.data(), DType::u8, recv.view().shape, Device{}}, stream);
  stream.synchronize();
  for (std::size_t r = 0; r < W && passed; ++r) {
    const std::vector<std::byte> sent = trial_bytes(static_cast<int>(r));
    passed = std::equal(sent.begin(), sent.end(),
                        arrived.begin() + static_cast<std::ptrdiff_t>(r * kTrialBytes));
  }
  mappings_.erase(recv.view().data);  // before the buffer is no more
  forget_freed();
  return control_.all_agree(passed);
}

bool PeerCopies::map_counters() {
  Mapping mapped = map(counters_);
  peer_counters_ = std::move(mapped.begins);
  return !peer_counters_.empty();
}

// Collective. An empty text says that this rank cannot share the buffer.
PeerCopies::Mapping PeerCopies::map(std::byte* begin) {
  Mapping mapped{.allocation = allocation_of(begin), .begins = {}};
  std::string mine = shared_handle(begin);
  if (!mine.empty()) {
    const std::int64_t offset = begin - allocation_begin(begin);
    std::array<char, sizeof(offset)> bytes{};
    std::memcpy(bytes.data(), &offset, sizeof(offset));
    mine.append(bytes.begin(), bytes.end());
  }
  const std::vector<std::string> all = control_.gather_text(mine);
  bool complete = mapped.allocation != 0;
  for (int r = 0; r < control_.world_size() && complete; ++r) {
    const std::string& text = all[static_cast<std::size_t>(r)];
    if (r == control_.rank()) {
      mapped.begins.push_back(nullptr);
      continue;
    }
    if (text.size() != sizeof(cudaIpcMemHandle_t) + sizeof(std::int64_t)) {
      complete = false;
      break;
    }
    std::int64_t offset = 0;
    std::memcpy(&offset, text.data() + sizeof(cudaIpcMemHandle_t), sizeof(offset));
    std::byte* const opened = open(r, text.substr(0, sizeof(cudaIpcMemHandle_t)));
    complete = opened != nullptr;
    mapped.begins.push_back(complete ? opened + offset : nullptr);
  }
  if (!control_.all_agree(complete)) {
    mapped.begins.clear();
  }
  return mapped;
}

// Null where it cannot be mapped here.
std::byte* PeerCopies::open(int rank, const std::string& handle) {
  const auto [entry, is_new] = opened_.try_emplace({rank, handle}, nullptr);
  if (is_new) {
    cudaIpcMemHandle_t raw{};
    std::copy(handle.begin(), handle.end(), std::begin(raw.reserved));
    void* begin = nullptr;
    if (cudaIpcOpenMemHandle(&begin, raw, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) {
      (void)cudaGetLastError();
      opened_.erase(entry);
      return nullptr;
    }
    entry->second = static_cast<std::byte*>(begin);
  }
  return entry->second;
}

const PeerCopies::Mapping& PeerCopies::mapping_of(TensorView recv) {
  const auto known = mappings_.find(recv.data);
  if (known != mappings_.end() && known->second.allocation == allocation_of(recv.data)) {
    return known->second;
  }
  forget_freed();
  Mapping& made = mappings_[recv.data];
  made = map(static_cast<std::byte*>(recv.data));
  return made;
}

// Receive buffers that are no more are no more on any rank: what was mapped for them is given back.
void PeerCopies::forget_freed() {
  std::vector<std::byte*> used = peer_counters_;
  for (auto entry = mappings_.begin(); entry != mappings_.end();) {
    if (entry->second.allocation != allocation_of(entry->first)) {
      entry = mappings_.erase(entry);
    } else {
      used.insert(used.end(), entry->second.begins.begin(), entry->second.begins.end());
      ++entry;
    }
  }
  const auto is_used = [&](std::byte* begin) {
    return std::any_of(used.begin(), used.end(), [&](std::byte* inside) {
      return inside != nullptr && allocation_begin(inside) == allocation_begin(begin);
    });
  };
  for (auto entry = opened_.begin(); entry != opened_.end();) {
    if (is_used(entry->second)) {
      ++entry;
    } else {
      log_failure(cudaIpcCloseMemHandle(entry->second), "cudaIpcCloseMemHandle");
      entry = opened_.erase(entry);
    }
  }
}

void PeerCopies::write(std::byte* counters, std::size_t place, Counter value,
                       Stream& stream) const {
  static const auto queue =
      driver_function<decltype(&cuStreamWriteValue32)>("cuStreamWriteValue32");
  require_done(queue(stream.cuda_handle(), address(counters + place * sizeof(Counter)), value,
                     CU_STREAM_WRITE_VALUE_DEFAULT),
               "cuStreamWriteValue32");
}

void PeerCopies::wait(std::size_t place, Counter value, Stream& stream) const {
  static const auto queue = driver_function<decltype(&cuStreamWaitValue32)>("cuStreamWaitValue32");
  require_done(queue(stream.cuda_handle(), address(counters_ + place * sizeof(Counter)), value,
                     CU_STREAM_WAIT_VALUE_GEQ),
               "cuStreamWaitValue32");
}

// Operations have one order, whatever their streams.
void PeerCopies::follow_last(Stream& stream) {
  if (last_stream_ != nullptr && last_stream_ != stream.cuda_handle()) {
    stream.wait(last_);
  }
  last_stream_ = stream.cuda_handle();
}

// `routes`: one to each rank of the operation but this, in the order in which they are sent.
void PeerCopies::move(const OwnSlice& own, const std::vector<Route>& routes, const std::byte* send,
                      std::size_t size, const Mapping& mapping, Stream& stream) {
  const auto W = static_cast<std::size_t>(control_.world_size());
  const auto here = static_cast<std::size_t>(control_.rank());
  follow_last(stream);
  if (own.from != own.to) {
    TESSERA_CHECK_CUDA(
        cudaMemcpyAsync(own.to, own.from, size, cudaMemcpyDeviceToDevice, stream.cuda_handle()));
  }
  for (const Route& route : routes) {
    const auto to = static_cast<std::size_t>(route.rank);
    write(peer_counters_[to], kFree * W + here, ++done_[to], stream);
  }
  for (const Route& route : routes) {
    const auto to = static_cast<std::size_t>(route.rank);
    const Counter n = done_[to];
    wait(kFree * W + to, n, stream);
    TESSERA_CHECK_CUDA(cudaMemcpyAsync(mapping.begins[to] + route.at, send + route.from, size,
                                       cudaMemcpyDeviceToDevice, stream.cuda_handle()));
    write(peer_counters_[to], kArrived * W + here, n, stream);
  }
  for (const Route& route : routes) {
    const auto from = static_cast<std::size_t>(route.rank);
    wait(kArrived * W + from, done_[from], stream);
  }
  last_.record(stream);
}

bool PeerCopies::all_to_all(const RankGroup& group, ConstTensorView send, TensorView recv,
                            Stream& stream) {
  const Mapping& mapping = mapping_of(recv);
  if (mapping.begins.empty()) {
    return false;
  }
  const std::size_t size =
      static_cast<std::size_t>(send.count() / group.count) * size_in_bytes(send.dtype);
  const int place = group.place_of(control_.rank());
  routes_.clear();
  // In step i every rank sends to the i-th rank after it, so that no two send to one.
  for (int i = 1; i < group.count; ++i) {
    const int to = (place + i) % group.count;
    routes_.push_back({.rank = group.rank(to),
                       .from = size * static_cast<std::size_t>(to),
                       .at = size * static_cast<std::size_t>(place)});
  }
  const auto* from = static_cast<const std::byte*>(send.data);
  auto* to = static_cast<std::byte*>(recv.data);
  const std::size_t own = size * static_cast<std::size_t>(place);
  move({.from = from + own, .to = to + own}, routes_, from, size, mapping, stream);
  return true;
}

bool PeerCopies::all_gather(ConstTensorView send, TensorView recv, Stream& stream) {
  const Mapping& mapping = mapping_of(recv);
  if (mapping.begins.empty()) {
    return false;
  }
  const std::size_t size = static_cast<std::size_t>(send.count()) * size_in_bytes(send.dtype);
  const int W = control_.world_size();
  const std::size_t own = size * static_cast<std::size_t>(control_.rank());
  routes_.clear();
  for (int i = 1; i < W; ++i) {
    routes_.push_back({.rank = (control_.rank() + i) % W, .from = 0, .at = own});
  }
  const auto* from = static_cast<const std::byte*>(send.data);
  auto* to = static_cast<std::byte*>(recv.data);
  move({.from = from, .to = to + own}, routes_, from, size, mapping, stream);
  return true;
}

void PeerCopies::release() noexcept {
  try {
    use_device(device_);
    const auto W = static_cast<std::size_t>(control_.world_size());
    for (std::size_t r = 0; r < W; ++r) {
      for (const std::size_t kind : {kFree, kArrived}) {
        write(counters_, kind * W + r, done_[r] + kBeyond, *releasing_);
      }
    }
  } catch (const std::exception&) {  // the device itself failed: nothing waits on it any more
    return;
  }
}

}  // namespace tessera::cuda
