#include "jobs/tokenize/record_encoder.h"

#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/parallel.h"

namespace tessera::tokenize {
namespace {

// Two batches are held in memory, with their ids.
constexpr std::size_t kBatchBytes = std::size_t{8} << 20U;
constexpr std::size_t kBatchLines = 16384;

}  // namespace

void LineEncoder::add(std::string_view text, std::size_t source, Index number) {
  EncodedLine line;
  line.text = text;
  line.source = source;
  line.number = number;
  batch_.push_back(std::move(line));
  bytes_ += text.size();
  if (bytes_ >= kBatchBytes || batch_.size() >= kBatchLines) {
    submit();
  }
}

void LineEncoder::flush() {
  submit();
  finish();
}

void LineEncoder::submit() {
  finish();
  in_work_ = std::exchange(batch_, {});
  bytes_ = 0;
  work_ = std::async(std::launch::async, [this] {
    share_among_threads(std::ssize(in_work_), threads_, [this] {
      return [this](Index i) {
        EncodedLine& line = in_work_[static_cast<std::size_t>(i)];
        try {
          encode_(line);
        } catch (const FormatError& error) {
          line.bad = error.message();
        }
      };
    });
  });
}

void LineEncoder::finish() {
  if (!work_.valid()) {
    return;
  }
  work_.get();
  for (const EncodedLine& line : in_work_) {
    take_(line);
  }
  in_work_.clear();
}

}  // namespace tessera::tokenize
