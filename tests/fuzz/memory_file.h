// The fuzzer's bytes as a file with a name, without a disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

namespace tessera::fuzz {

/// A path that holds these bytes until the next call.
inline std::filesystem::path memory_file(const std::uint8_t* data, std::size_t size) {
  static const int descriptor = ::memfd_create("fuzz", 0);
  if (descriptor < 0 || ::ftruncate(descriptor, 0) != 0 ||
      ::pwrite(descriptor, data, size, 0) != static_cast<ssize_t>(size)) {
    std::abort();
  }
  return "/proc/self/fd/" + std::to_string(descriptor);
}

}  // namespace tessera::fuzz
