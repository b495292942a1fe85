// Lines of JSON to token ids, on several threads, in bounded memory.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/types.h"

namespace tessera::tokenize {

/// What became of a line.
struct EncodedLine {
  std::string text;        // of the line
  std::size_t source = 0;  // which file it is of
  Index number = 0;        // of the line, from 1
  std::vector<std::uint32_t> ids;
  std::vector<std::uint8_t> mask;  // empty: there is none
  Index text_bytes = 0;            // of the record's own text
  Index lost_line_ends = 0;
  std::string bad;        // why it is not a record; empty: it is one
  bool is_blank = false;  // nothing but white space
};

/// Encodes lines in batches: while one is encoded on all threads, the next is read.
class LineEncoder {
 public:
  /// Fills in what is behind `number`; from several threads. What it throws as FormatError becomes
  /// EncodedLine::bad.
  using Encode = std::function<void(EncodedLine& line)>;
  /// Gets the lines in their order, on the thread that calls `add` and `flush`.
  using Take = std::function<void(const EncodedLine& line)>;

  LineEncoder(unsigned threads, Encode encode, Take take)
      : threads_(threads), encode_(std::move(encode)), take_(std::move(take)) {}
  ~LineEncoder() = default;
  LineEncoder(const LineEncoder&) = delete;
  LineEncoder& operator=(const LineEncoder&) = delete;

  /// Throws what `take` and `encode` threw for earlier lines.
  void add(std::string_view text, std::size_t source, Index number);
  void flush();

 private:
  void submit();
  void finish();

  unsigned threads_;
  Encode encode_;
  Take take_;
  std::vector<EncodedLine> batch_;  // that is filled
  std::size_t bytes_ = 0;
  std::vector<EncodedLine> in_work_;
  std::future<void> work_;  // the last member: its end waits for what uses the others
};

}  // namespace tessera::tokenize
