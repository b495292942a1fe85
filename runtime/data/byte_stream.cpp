#include "runtime/data/byte_stream.h"

#include <array>
#include <utility>

namespace tessera {
namespace {

constexpr std::string_view kGzip = "\x1f\x8b";
constexpr std::string_view kZstd = "\x28\xb5\x2f\xfd";

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(BlockReader file) : file_(std::move(file)) {}
  [[nodiscard]] std::size_t read(std::span<char> target) override { return file_.read(target); }
  [[nodiscard]] std::uint64_t file_bytes_read() const override { return file_.offset(); }

 private:
  BlockReader file_;
};

}  // namespace

bool is_compressed(std::string_view first_bytes) noexcept {
  return first_bytes.starts_with(kGzip) || first_bytes.starts_with(kZstd);
}

std::unique_ptr<ByteStream> open_byte_stream(const std::filesystem::path& path) {
  File file = File::open_read(path);
  std::array<char, kZstd.size()> begin = {};
  const std::size_t count = file.read_up_to(0, std::as_writable_bytes(std::span(begin)));
  const std::string_view magic(begin.data(), count);
  BlockReader blocks(std::move(file));
  if (magic.starts_with(kGzip)) {
    return make_gzip_stream(std::move(blocks));
  }
  if (magic == kZstd) {
    return make_zstd_stream(std::move(blocks));
  }
  return std::make_unique<PlainStream>(std::move(blocks));
}

}  // namespace tessera
