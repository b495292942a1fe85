// A build without libzstd: files of Zstandard are refused.
#include <fmt/format.h>

#include "kernels/base/error.h"
#include "runtime/data/byte_stream.h"

namespace tessera {

std::unique_ptr<ByteStream> make_zstd_stream(BlockReader file) {
  throw ConfigError(fmt::format("{} is compressed with Zstandard, which this build does not read: "
                                "decompress it first (zstd -d), or install libzstd-dev and build "
                                "tessera again",
                                file.path().string()),
                    TESSERA_HERE);
}

}  // namespace tessera
