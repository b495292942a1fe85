// CUPTI comes with the toolkit, or with Python's packages, or not at all: it is loaded when asked
// for.
#include "tests/support/run/driver_allocations.h"

#include <array>

#include <cupti.h>
#include <dlfcn.h>
#include <fmt/format.h>

namespace tessera::test {
namespace {

constexpr std::array<CUpti_CallbackId, 13> kAllocations = {
    CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemAllocPitch_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemAllocManaged,
    CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync,
    CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuMemAllocFromPoolAsync,
    CUPTI_DRIVER_TRACE_CBID_cuMemAllocFromPoolAsync_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuMemCreate,
    CUPTI_DRIVER_TRACE_CBID_cuMemHostAlloc,
    CUPTI_DRIVER_TRACE_CBID_cuMemHostAlloc_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemAllocHost_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemHostRegister,
    CUPTI_DRIVER_TRACE_CBID_cuMemHostRegister_v2,
};

template <typename Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

struct DriverCallback {
  static void CUPTIAPI called(void* counter, CUpti_CallbackDomain, CUpti_CallbackId,
                              const void* data) {
    if (static_cast<const CUpti_CallbackData*>(data)->callbackSite == CUPTI_API_ENTER) {
      ++static_cast<DriverAllocations*>(counter)->count_;
    }
  }
};

DriverAllocations::DriverAllocations() {
  const std::string name = fmt::format("libcupti.so.{}", CUDA_VERSION / 1000);
  library_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) {
    why_not_ = fmt::format("no {} here", name);
    return;
  }
  auto* const subscribe = find<decltype(cuptiSubscribe)>(library_, "cuptiSubscribe");
  auto* const enable = find<decltype(cuptiEnableCallback)>(library_, "cuptiEnableCallback");
  CUpti_SubscriberHandle handle = nullptr;
  if (subscribe == nullptr || enable == nullptr ||
      subscribe(&handle, &DriverCallback::called, this) != CUPTI_SUCCESS) {
    why_not_ = fmt::format("{} lets nobody subscribe", name);
    return;
  }
  subscriber_ = handle;
  for (const CUpti_CallbackId call : kAllocations) {
    if (enable(1, handle, CUPTI_CB_DOMAIN_DRIVER_API, call) != CUPTI_SUCCESS) {
      why_not_ = fmt::format("{} does not know driver call {}", name, call);
      return;
    }
  }
}

DriverAllocations::~DriverAllocations() {
  if (subscriber_ != nullptr) {
    auto* const unsubscribe = find<decltype(cuptiUnsubscribe)>(library_, "cuptiUnsubscribe");
    (void)unsubscribe(static_cast<CUpti_SubscriberHandle>(subscriber_));
  }
  // the library stays: it may have threads
}

}  // namespace tessera::test
