// Any bytes as a safetensors file: refused with a FormatError, or sound and readable to the last
// element.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/base/error.h"
#include "model/safetensors.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using tessera::Index;
  try {
    const tessera::SafetensorsFile file(tessera::fuzz::memory_file(data, size));
    for (const tessera::SafetensorsTensor& tensor : file.tensors()) {
      if (file.find(tensor.name) != &tensor) {
        std::abort();
      }
      std::vector<float> values(static_cast<std::size_t>(tensor.count));
      std::vector<std::int64_t> integers(values.size());
      try {
        file.read(tensor, 0, values);
      } catch (const tessera::FormatError&) {
        file.read(tensor, 0, integers);
      }
    }
  } catch (const tessera::FormatError&) {
    return 0;  // what every unsound file must come to
  }
  return 0;
}
