// Documents in, ids out, for compare_tokenizers.py: stdin holds documents, each as its bytes' count (u64)
// and its bytes; stdout gets for each the count of ids (u64), the ids (u32), and 1 if decoding them gives
// `text` (the normalized form is the caller's to judge), else 0 (u8).
//
//   encode_documents TOKENIZER [KIND] [--time THREADS]
//   encode_documents --pattern PATTERN
//
// With --time nothing is written but a line: bytes, ids, seconds of reading the tokenizer and of encoding.
// With --pattern the "ids" are the lengths of the pieces that Oniguruma's PATTERN splits a document into.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/parallel.h"
#include "model/tokenizer/kinds.h"
#include "model/tokenizer/pattern_syntax.h"
#include "model/tokenizer/split_pattern.h"

namespace tessera {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<std::string> read_documents() {
  std::vector<std::string> documents;
  std::uint64_t size = 0;
  while (std::cin.read(reinterpret_cast<char*>(&size), sizeof(size))) {
    documents.emplace_back(size, '\0');
    std::cin.read(documents.back().data(), static_cast<std::streamsize>(size));
  }
  return documents;
}

template <typename T>
void write(const T* values, std::size_t count) {
  std::cout.write(reinterpret_cast<const char*>(values),
                  static_cast<std::streamsize>(count * sizeof(T)));
}

std::vector<std::uint32_t> piece_lengths(const SplitPattern& pattern, std::string_view text,
                                         PatternScratch& scratch) {
  std::vector<std::uint32_t> lengths;
  std::size_t done = 0;
  const auto add = [&](std::size_t end) {
    if (end > done) {
      lengths.push_back(static_cast<std::uint32_t>(end - done));
      done = end;
    }
  };
  while (const auto match = pattern.find(text, done, scratch)) {
    add(match->begin);
    add(match->end);
  }
  add(text.size());
  return lengths;
}

int split(std::string_view expression) {
  const SplitPattern pattern(pcre2_from_oniguruma(expression));
  PatternScratch scratch;
  for (const std::string& document : read_documents()) {
    const std::vector<std::uint32_t> lengths = piece_lengths(pattern, document, scratch);
    const std::uint64_t count = lengths.size();
    write(&count, 1);
    write(lengths.data(), lengths.size());
    const std::uint8_t is_same = 1;
    write(&is_same, 1);
  }
  std::cout.flush();
  return std::cout ? 0 : 1;
}

int run(const std::vector<std::string>& words) {
  if (words.at(0) == "--pattern") {
    return split(words.at(1));
  }
  const bool is_timed = words.size() >= 2 && words[words.size() - 2] == "--time";
  const std::string kind = words.size() == (is_timed ? 4 : 2) ? words[1] : "";
  const auto start = std::chrono::steady_clock::now();
  const auto tokenizer = make_tokenizer(read_tokenizer_files(words.at(0), kind), words.at(0));
  const double load_seconds = seconds_since(start);
  const std::vector<std::string> documents = read_documents();
  std::vector<std::vector<std::uint32_t>> ids(documents.size());
  const auto begin = std::chrono::steady_clock::now();
  share_among_threads(std::ssize(documents), is_timed ? std::stol(words.back()) : 1, [&] {
    return [&](Index i) {
      const auto place = static_cast<std::size_t>(i);
      tokenizer->encode(documents[place], ids[place]);
    };
  });
  const double seconds = seconds_since(begin);
  std::uint64_t bytes = 0;
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    bytes += documents[i].size();
    count += ids[i].size();
    if (!is_timed) {
      const std::uint64_t own = ids[i].size();
      write(&own, 1);
      write(ids[i].data(), ids[i].size());
      const std::uint8_t is_same =
          tokenizer->decode(std::vector<std::int32_t>(ids[i].begin(), ids[i].end())) == documents[i]
              ? 1
              : 0;
      write(&is_same, 1);
    }
  }
  if (is_timed) {
    std::cout << bytes << ' ' << count << ' ' << load_seconds << ' ' << seconds << '\n';
  }
  std::cout.flush();
  return std::cout ? 0 : 1;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  try {
    return tessera::run({argv + 1, argv + argc});
  } catch (const tessera::Error& error) {
    std::cerr << "encode_documents: " << error.message() << '\n';
    return error.exit_status();
  }
}
