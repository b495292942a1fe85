// Files of Zstandard, by libzstd.
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <zstd.h>

#include "kernels/base/error.h"
#include "runtime/data/byte_stream.h"

namespace tessera {
namespace {

class ZstdStream final : public ByteStream {
 public:
  explicit ZstdStream(BlockReader file)
      : file_(std::move(file)), block_(ZSTD_DStreamInSize()), state_(ZSTD_createDStream()) {
    if (state_ == nullptr) {
      throw std::bad_alloc();
    }
  }

  [[nodiscard]] std::size_t read(std::span<char> target) override {
    ZSTD_outBuffer out = {target.data(), target.size(), 0};
    while (out.pos == 0) {
      if (in_.pos == in_.size && !fill()) {
        if (is_within_frame_) {
          refuse("is truncated: its compressed data ends too early");
        }
        return 0;
      }
      const std::size_t result = ZSTD_decompressStream(state_.get(), &out, &in_);
      if (ZSTD_isError(result) != 0) {
        refuse(fmt::format("cannot be decompressed before byte {}: {}", file_.offset(),
                           ZSTD_getErrorName(result)));
      }
      is_within_frame_ = result != 0;
    }
    return out.pos;
  }
  [[nodiscard]] std::uint64_t file_bytes_read() const override { return file_.offset(); }

 private:
  struct Free {
    void operator()(ZSTD_DStream* state) const noexcept { ZSTD_freeDStream(state); }
  };

  bool fill() {
    in_ = {block_.data(), file_.read(block_), 0};
    return in_.size != 0;
  }
  [[noreturn]] void refuse(const std::string& reason) const {
    throw FormatError(fmt::format("{} {}", file_.path().string(), reason), TESSERA_HERE);
  }

  BlockReader file_;
  std::vector<char> block_;
  std::unique_ptr<ZSTD_DStream, Free> state_;
  ZSTD_inBuffer in_ = {nullptr, 0, 0};
  bool is_within_frame_ = false;
};

}  // namespace

std::unique_ptr<ByteStream> make_zstd_stream(BlockReader file) {
  return std::make_unique<ZstdStream>(std::move(file));
}

}  // namespace tessera
