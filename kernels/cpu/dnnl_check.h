// The check of oneDNN calls: its functions return a status.
#pragma once

#include <string>

#include <dnnl.h>

#include "kernels/base/error.h"

/// Throws DeviceError with the call's text unless it returns dnnl_success.
#define TESSERA_CHECK_DNNL(call)                                                                \
  do {                                                                                          \
    const dnnl_status_t tessera_status = (call);                                                \
    if (tessera_status != dnnl_success) {                                                       \
      throw ::tessera::DeviceError(                                                             \
          "oneDNN: " #call " returned status " + std::to_string(tessera_status), TESSERA_HERE); \
    }                                                                                           \
  } while (false)
