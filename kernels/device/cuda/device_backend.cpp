// CUDA's table: device and pinned memory, non-blocking streams, events with times.
//
// Every function that takes a Device makes it current in the calling thread first: a thread that
// has not chosen one would otherwise get device 0 and a context there.
#include "kernels/device/device_backend.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <nvtx3/nvToolsExtCudaRt.h>
#include <sched.h>
#include <sys/mman.h>

#include "kernels/base/host_memory.h"
#include "kernels/base/trace.h"
#include "kernels/device/cuda/cuda_check.h"

namespace tessera::cuda {
namespace {

// From this size on, pinned memory is mapped, touched by several threads and registered, which is
// several times faster than cudaHostAlloc's one thread.
constexpr std::size_t kRegisterBytes = std::size_t{64} << 20U;
// Threads that touch it first: enough for the memory's rate, few enough for eight ranks on a node.
constexpr unsigned kTouchThreads = 8;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20U;
constexpr std::size_t kSmallPageBytes = 4096;

constexpr double kSecondsPerMillisecond = 1e-3;

// Without a tool that listens, each is a test of a pointer.
constexpr ProfilerRanges kNvtxRanges = {
    .push = [](const char* name) noexcept { (void)nvtxRangePushA(name); },
    .pop = []() noexcept { (void)nvtxRangePop(); }};

void make_current(Device device) {
  TESSERA_CHECK_CUDA(cudaSetDevice(device.ordinal));
}

cudaStream_t native(void* stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t native_event(void* event) {
  return static_cast<cudaEvent_t>(event);
}

[[noreturn]] void throw_no_room(const std::string& where, std::string_view label,
                                std::size_t wanted, std::size_t free, const std::string& reason) {
  throw DeviceError("no room in " + where + " for " + std::string(label) + ": needed " +
                        std::to_string(wanted) + " bytes of " + std::to_string(free) + " free (" +
                        reason + ")",
                    TESSERA_HERE);
}

/// True where registered host memory has the same address on the device, as on Linux with x86.
bool can_register(Device device) {
  int same_address = 0;
  TESSERA_CHECK_CUDA(cudaDeviceGetAttribute(
      &same_address, cudaDevAttrCanUseHostPointerForRegisteredMem, device.ordinal));
  return same_address != 0;
}

/// The same answer in allocate and release: it depends on the device and the size alone.
bool is_registered(Device device, std::size_t bytes) {
  return bytes >= kRegisterBytes && can_register(device);
}

/// Binds the calling thread to these processors; leaves it as it is where that is not allowed.
void bind_to(const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) {
    if (processor < CPU_SETSIZE) {
      CPU_SET(processor, &set);
    }
  }
  (void)sched_setaffinity(0, sizeof(set), &set);
}

/// Its place on the PCI bus; empty where that is not known.
std::string bus_id_of(int ordinal) {
  std::array<char, 32> bus_id{};
  if (cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), ordinal) !=
      cudaSuccess) {
    (void)cudaGetLastError();
    return {};
  }
  return bus_id.data();
}

/// Writes one byte of every page, a contiguous part each thread, so that the pages exist before
/// they are pinned, and are on the device's NUMA node, whose processors touch them first.
void touch(Device device, void* data, std::size_t bytes) {
  const std::vector<int> processors = processors_near(bus_id_of(device.ordinal));
  const std::size_t cores =
      processors.empty() ? std::max(1U, std::thread::hardware_concurrency()) : processors.size();
  const std::size_t threads = std::min<std::size_t>(cores, kTouchThreads);
  const std::size_t huge_pages = (bytes + kHugePageBytes - 1) / kHugePageBytes;
  const std::size_t part = (huge_pages + threads - 1) / threads * kHugePageBytes;
  auto* first = static_cast<volatile unsigned char*>(data);
  std::vector<std::jthread> workers;
  workers.reserve(threads);
  for (std::size_t begin = 0; begin < bytes; begin += part) {
    const std::size_t end = std::min(bytes, begin + part);
    workers.emplace_back([first, begin, end, &processors] {
      if (!processors.empty()) {
        bind_to(processors);
      }
      for (std::size_t at = begin; at < end; at += kSmallPageBytes) {
        first[at] = 0;
      }
    });
  }
}

/// False where the limit of locked memory (ulimit -l) holds for memory that CUDA pins. NVIDIA's
/// driver does not ask for it on the machines known to us, so a low limit alone is not a reason to
/// refuse: it is tried with a little more than the limit.
bool may_pin_beyond_locked_limit(std::size_t limit) {
  constexpr std::size_t kLargestTrial = std::size_t{256} << 20U;
  constexpr std::size_t kBeyond = std::size_t{1} << 20U;
  if (limit > kLargestTrial) {
    return true;  // too much for a trial: the allocation itself will say
  }
  const std::size_t bytes = limit + kBeyond;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {  // NOLINT(performance-no-int-to-ptr): the system's own macro
    return false;
  }
  const bool pinned = cudaHostRegister(data, bytes, cudaHostRegisterPortable) == cudaSuccess;
  if (pinned) {
    log_failure(cudaHostUnregister(data), "cudaHostUnregister(data)");
  } else {
    (void)cudaGetLastError();
  }
  (void)munmap(data, bytes);
  return pinned;
}

void* allocate_device(Device device, std::size_t bytes, std::string_view label) {
  void* data = nullptr;
  const cudaError_t code = cudaMalloc(&data, bytes);
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    std::size_t free = 0;
    std::size_t total = 0;
    TESSERA_CHECK_CUDA(cudaMemGetInfo(&free, &total));
    throw_no_room("the memory of CUDA device " + std::to_string(device.ordinal), label, bytes, free,
                  std::to_string(total) + " in all");
  }
  check(code, "cudaMalloc(&data, bytes)", TESSERA_HERE);
  return data;
}

void* allocate_registered(Device device, std::size_t bytes, std::string_view label) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {  // NOLINT(performance-no-int-to-ptr): the system's own macro
    throw_no_room("host memory", label, bytes, host_memory().room_bytes(), std::strerror(errno));
  }
  // A hint: fewer page faults and a shorter table to pin where the kernel has huge pages to give.
  (void)madvise(data, bytes, MADV_HUGEPAGE);
  try {
    touch(device, data, bytes);
    const cudaError_t code = cudaHostRegister(data, bytes, cudaHostRegisterPortable);
    if (code != cudaSuccess) {
      (void)cudaGetLastError();
      throw_no_room("pinned host memory", label, bytes, host_memory().room_bytes(),
                    std::string("cudaHostRegister: ") + cudaGetErrorName(code) + "; " +
                        host_memory().text() +
                        ": raise ulimit -l, or page less (--resident-bytes)");
    }
  } catch (...) {
    (void)munmap(data, bytes);
    throw;
  }
  return data;
}

void* allocate_pinned(Device device, std::size_t bytes, std::string_view label) {
  const HostMemory host = host_memory();
  const std::size_t available = host.room_bytes();
  if (bytes > available) {  // reported before the kernel ends the process for it
    throw_no_room("pinned host memory", label, bytes, available, host.text());
  }
  if (bytes > host.locked_limit_bytes && !may_pin_beyond_locked_limit(host.locked_limit_bytes)) {
    throw_no_room("pinned host memory", label, bytes, host.locked_limit_bytes,
                  "the limit of locked memory, ulimit -l: raise it, or page less");
  }
  if (is_registered(device, bytes)) {
    return allocate_registered(device, bytes, label);
  }
  void* data = nullptr;
  const cudaError_t code = cudaHostAlloc(&data, bytes, cudaHostAllocPortable);
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw_no_room("pinned host memory", label, bytes, available, "cudaHostAlloc");
  }
  check(code, "cudaHostAlloc(&data, bytes, cudaHostAllocPortable)", TESSERA_HERE);
  return data;
}

void* allocate_host(std::size_t bytes, std::string_view label) {
  const std::size_t rounded =
      (bytes + DeviceBuffer::kAlignment - 1) / DeviceBuffer::kAlignment * DeviceBuffer::kAlignment;
  void* data = std::aligned_alloc(DeviceBuffer::kAlignment, rounded);
  if (data == nullptr) {
    throw_no_room("host memory", label, bytes, host_memory().room_bytes(), "aligned_alloc");
  }
  return data;
}

void* allocate(Device device, MemoryKind kind, std::size_t bytes, std::string_view label) {
  make_current(device);
  switch (kind) {
    case MemoryKind::device:
      return allocate_device(device, bytes, label);
    case MemoryKind::pinned:
      return allocate_pinned(device, bytes, label);
    case MemoryKind::host:
      break;
  }
  return allocate_host(bytes, label);
}

void release_pinned(Device device, void* data, std::size_t bytes) noexcept {
  bool registered = false;
  try {
    registered = is_registered(device, bytes);
  } catch (const DeviceError&) {
    // The device is gone, and with it the pinning: whether to unmap or to free cannot be known any
    // more, and the process is about to end.
    return;
  }
  if (!registered) {
    log_failure(cudaFreeHost(data), "cudaFreeHost(data)");
    return;
  }
  log_failure(cudaHostUnregister(data), "cudaHostUnregister(data)");
  (void)munmap(data, bytes);
}

void release(Device device, MemoryKind kind, void* data, std::size_t bytes) noexcept {
  if (kind == MemoryKind::host) {
    std::free(data);  // NOLINT(cppcoreguidelines-no-malloc): from aligned_alloc
    return;
  }
  log_failure(cudaSetDevice(device.ordinal), "cudaSetDevice(device.ordinal)");
  if (kind == MemoryKind::pinned) {
    release_pinned(device, data, bytes);
  } else {
    log_failure(cudaFree(data), "cudaFree(data)");
  }
}

void copy(const void* from, void* to, std::size_t bytes, Stream& stream) {
  TESSERA_CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.cuda_handle()));
}

void fill_bytes(void* target, unsigned char value, std::size_t bytes, Stream& stream) {
  cudaPointerAttributes attributes{};
  TESSERA_CHECK_CUDA(cudaPointerGetAttributes(&attributes, target));
  if (attributes.type == cudaMemoryTypeUnregistered) {
    // Ordinary host memory, which the device cannot write: in stream order all the same.
    TESSERA_CHECK_CUDA(cudaStreamSynchronize(stream.cuda_handle()));
    std::memset(target, value, bytes);
    return;
  }
  TESSERA_CHECK_CUDA(cudaMemsetAsync(target, value, bytes, stream.cuda_handle()));
}

void* make_stream(Device device, StreamPriority priority, const char* name) {
  make_current(device);
  int lowest = 0;
  int highest = 0;
  TESSERA_CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t stream = nullptr;
  TESSERA_CHECK_CUDA(cudaStreamCreateWithPriority(
      &stream, cudaStreamNonBlocking, priority == StreamPriority::high ? highest : lowest));
  nvtxNameCudaStreamA(stream, name);
  return stream;
}

void release_stream(Device device, void* stream) noexcept {
  log_failure(cudaSetDevice(device.ordinal), "cudaSetDevice(device.ordinal)");
  log_failure(cudaStreamSynchronize(native(stream)), "cudaStreamSynchronize(stream)");
  log_failure(cudaStreamDestroy(native(stream)), "cudaStreamDestroy(stream)");
}

void synchronize_stream(Device device, void* stream) {
  make_current(device);
  TESSERA_CHECK_CUDA(cudaStreamSynchronize(native(stream)));
}

void* make_event(Device device, const char* name) {
  make_current(device);
  cudaEvent_t event = nullptr;
  TESSERA_CHECK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDefault));
  nvtxNameCudaEventA(event, name);
  return event;
}

void release_event(Device, void* event) noexcept {
  log_failure(cudaEventDestroy(native_event(event)), "cudaEventDestroy(event)");
}

void record_event(void* event, Stream& stream) {
  TESSERA_CHECK_CUDA(cudaEventRecord(native_event(event), stream.cuda_handle()));
}

void wait_event(Stream& stream, void* event) {
  TESSERA_CHECK_CUDA(cudaStreamWaitEvent(stream.cuda_handle(), native_event(event), 0));
}

void synchronize_event(Device device, void* event) {
  make_current(device);
  TESSERA_CHECK_CUDA(cudaEventSynchronize(native_event(event)));
}

bool event_complete(Device device, void* event) {
  make_current(device);
  const cudaError_t code = cudaEventQuery(native_event(event));
  if (code == cudaErrorNotReady) {
    (void)cudaGetLastError();  // an answer, not an error
    return false;
  }
  check(code, "cudaEventQuery(event)", TESSERA_HERE);
  return true;
}

double event_seconds(Device device, void* start, void* end) {
  make_current(device);
  float milliseconds = 0.0F;
  TESSERA_CHECK_CUDA(cudaEventElapsedTime(&milliseconds, native_event(start), native_event(end)));
  return static_cast<double>(milliseconds) * kSecondsPerMillisecond;
}

}  // namespace

const DeviceBackend& backend() {
  static constexpr DeviceBackend table = {
      .allocate = allocate,
      .release = release,
      .copy = copy,
      .fill_bytes = fill_bytes,
      .make_stream = make_stream,
      .release_stream = release_stream,
      .synchronize_stream = synchronize_stream,
      .make_event = make_event,
      .release_event = release_event,
      .record_event = record_event,
      .wait_event = wait_event,
      .synchronize_event = synchronize_event,
      .event_complete = event_complete,
      .event_seconds = event_seconds,
  };
  return table;
}

int count() {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) {
    (void)cudaGetLastError();  // no GPU, or no driver: none to use
    return 0;
  }
  check(code, "cudaGetDeviceCount(&devices)", TESSERA_HERE);
  return devices;
}

DeviceInfo info(int ordinal) {
  use(ordinal);
  cudaDeviceProp properties{};
  TESSERA_CHECK_CUDA(cudaGetDeviceProperties(&properties, ordinal));
  std::size_t free = 0;
  std::size_t total = 0;
  TESSERA_CHECK_CUDA(cudaMemGetInfo(&free, &total));
  return {.name = properties.name,
          .total_bytes = total,
          .free_bytes = free,
          .multiprocessors = properties.multiProcessorCount,
          .compute_capability = 10 * properties.major + properties.minor,
          .bus_id = bus_id_of(ordinal)};
}

void use(int ordinal) {
  const int devices = count();
  if (ordinal < 0 || ordinal >= devices) {
    throw ConfigError("CUDA device " + std::to_string(ordinal) +
                          " is not there: this process sees " + std::to_string(devices) +
                          "; start no more ranks on a host than it has "
                          "GPUs, or use --device cpu",
                      TESSERA_HERE);
  }
  TESSERA_CHECK_CUDA(cudaSetDevice(ordinal));
  trace::profiler().store(&kNvtxRanges, std::memory_order_relaxed);
}

}  // namespace tessera::cuda
