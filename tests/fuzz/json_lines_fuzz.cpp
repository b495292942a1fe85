// Any bytes as a file of JSON Lines, plain or gzip: refused with a FormatError, or read; each record as a
// text and as a chat of every format, refused or written.
#include <array>
#include <cstdint>
#include <string_view>

#include "kernels/base/error.h"
#include "model/tokenizer/chat/chat_formats.h"
#include "runtime/data/json_lines.h"
#include "tests/fuzz/memory_file.h"

namespace {

constexpr std::array<std::string_view, 7> kFormats = {
    "chatml", "qwen2.5", "qwen3", "qwen3-instruct", "llama3", "llama3.1", "mistral"};

void write_chat(const tessera::Record& record) {
  const tessera::Chat chat = tessera::parse_chat(record);
  for (const std::string_view name : kFormats) {
    try {
      tessera::ChatText text;
      tessera::find_chat_format(name)->write(chat, text);
    } catch (const tessera::FormatError&) {
      continue;  // a format that has nothing for it
    }
  }
}

void read_line(std::string_view line) {
  try {
    std::optional<tessera::Record> record = tessera::parse_record(line);
    if (record) {
      try {
        write_chat(*record);
      } catch (const tessera::FormatError&) {
        (void)tessera::take_text(*record, "text");
      }
    }
  } catch (const tessera::FormatError&) {
    return;  // a bad line
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kMostLineBytes = std::size_t{1} << 20U;
  const std::filesystem::path path = tessera::fuzz::memory_file(data, size);
  try {
    tessera::LineReader reader(path, kMostLineBytes);
    while (const auto line = reader.next()) {
      read_line(*line);
    }
  } catch (const tessera::FormatError&) {
    return 0;
  } catch (const tessera::ConfigError&) {
    return 0;  // Zstandard, which is not in this build
  }
  return 0;
}
