// Any bytes as a token file, and as ready ids (.npy, .bin): refused with a FormatError, or readable
// to the last token.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/data/id_file.h"
#include "runtime/data/token_file.h"
#include "tests/fuzz/memory_file.h"

namespace {

constexpr tessera::Index kPiece = 1000;

void read_tokens(const std::filesystem::path& path) {
  const tessera::TokenFile file(path);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(kPiece));
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(kPiece));
  std::vector<tessera::Index> starts;
  for (tessera::Index begin = 0; begin < file.token_count(); begin += kPiece) {
    const auto count = std::min(kPiece, file.token_count() - begin);
    (void)file.read_tokens(begin, std::span(tokens).first(static_cast<std::size_t>(count)));
    if (file.has_mask()) {
      file.read_mask(begin, std::span(mask).first(static_cast<std::size_t>(count)));
    }
    file.document_starts(begin, begin + count, starts);
  }
  (void)file.has_targets();
  file.require_unchanged();
  file.verify_content();
}

void read_ids(const std::filesystem::path& path) {
  tessera::IdFile file(path);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(kPiece));
  for (tessera::Index begin = 0; begin < file.count(); begin += kPiece) {
    const auto count = std::min(kPiece, file.count() - begin);
    file.read(begin, std::span(ids).first(static_cast<std::size_t>(count)));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::filesystem::path path = tessera::fuzz::memory_file(data, size);
  for (const auto read : {read_tokens, read_ids}) {
    try {
      read(path);
    } catch (const tessera::FormatError&) {
      continue;  // what every unsound file must come to
    }
  }
  return 0;
}
