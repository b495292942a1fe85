// Files of gzip, by zlib.
#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <zlib.h>

#include "kernels/base/error.h"
#include "runtime/data/byte_stream.h"

namespace tessera {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 18U;

class GzipStream final : public ByteStream {
 public:
  explicit GzipStream(BlockReader file) : file_(std::move(file)), block_(kBlockBytes) {
    constexpr int kGzipHeader = 16 + MAX_WBITS;
    if (inflateInit2(&state_, kGzipHeader) != Z_OK) {
      throw std::bad_alloc();
    }
  }
  ~GzipStream() override { inflateEnd(&state_); }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  [[nodiscard]] std::size_t read(std::span<char> target) override {
    constexpr std::size_t kMost = std::numeric_limits<uInt>::max();
    const std::size_t wanted = std::min(target.size(), kMost);
    state_.next_out = reinterpret_cast<Bytef*>(target.data());
    state_.avail_out = static_cast<uInt>(wanted);
    while (state_.avail_out == wanted) {
      if (state_.avail_in == 0 && !fill()) {
        if (is_within_member_) {
          refuse("is truncated: its compressed data ends too early");
        }
        return 0;
      }
      if (!is_within_member_) {
        inflateReset(&state_);
        is_within_member_ = true;
      }
      const int result = inflate(&state_, Z_NO_FLUSH);
      if (result == Z_STREAM_END) {
        is_within_member_ = false;
      } else if (result == Z_MEM_ERROR) {
        throw std::bad_alloc();
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        refuse(fmt::format("is damaged: it is not gzip data before byte {} ({})", file_.offset(),
                           state_.msg == nullptr ? "of an unknown kind" : state_.msg));
      }
    }
    return wanted - state_.avail_out;
  }
  [[nodiscard]] std::uint64_t file_bytes_read() const override { return file_.offset(); }

 private:
  bool fill() {
    const std::size_t count = file_.read(block_);
    state_.next_in = reinterpret_cast<Bytef*>(block_.data());
    state_.avail_in = static_cast<uInt>(count);
    return count != 0;
  }
  [[noreturn]] void refuse(const std::string& reason) const {
    throw FormatError(fmt::format("{} {}", file_.path().string(), reason), TESSERA_HERE);
  }

  BlockReader file_;
  std::vector<char> block_;
  z_stream state_ = {};
  bool is_within_member_ = true;  // an empty file is not gzip: a member has begun
};

}  // namespace

std::unique_ptr<ByteStream> make_gzip_stream(BlockReader file) {
  return std::make_unique<GzipStream>(std::move(file));
}

}  // namespace tessera
