// `bench tokenize`: how fast text becomes ids, document by document on one thread and on several. Beside
// PyPI's tokenizers on the same documents: tokenizing.py.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "jobs/bench/bench.h"
#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/parallel.h"
#include "kernels/base/quantity.h"
#include "model/tokenizer/kinds.h"
#include "model/tokenizer/utf8.h"
#include "runtime/data/input_files.h"
#include "runtime/run/command_words.h"

namespace tessera::bench {
namespace {

constexpr std::size_t kMostCorpusBytes = std::size_t{4} << 30U;
constexpr double kMega = 1e6;

struct Corpus {
  std::vector<std::string> documents;
  std::size_t bytes = 0;
  Index skipped = 0;  // not UTF-8, or empty
};

Corpus read_corpus(const std::vector<std::filesystem::path>& paths) {
  Corpus corpus;
  for (const InputFiles::File& file : list_files(paths).files) {
    std::string text = read_whole_file(file.path, kMostCorpusBytes);
    if (text.empty() || utf8_bytes(text) != text.size()) {
      ++corpus.skipped;
      continue;
    }
    corpus.bytes += text.size();
    if (corpus.bytes > kMostCorpusBytes) {
      throw ConfigError(fmt::format("--corpus holds more than {}, which are kept in memory: give "
                                    "fewer files",
                                    format_bytes(kMostCorpusBytes)),
                        TESSERA_HERE);
    }
    corpus.documents.push_back(std::move(text));
  }
  if (corpus.documents.empty()) {
    throw ConfigError("--corpus holds no UTF-8 text", TESSERA_HERE);
  }
  return corpus;
}

struct Rate {
  double best = 0;  // bytes a second, of the fastest repetition
  double median = 0;
  Index tokens = 0;
};

// Every repetition encodes all documents; an untimed one comes first.
Rate measure(const Tokenizer& tokenizer, const Corpus& corpus, Index threads, int repetitions) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> rates;
  std::vector<std::vector<std::uint32_t>> ids(corpus.documents.size());
  for (int repetition = -1; repetition < repetitions; ++repetition) {
    for (std::vector<std::uint32_t>& document : ids) {
      document = {};  // what a caller pays for its memory counts
    }
    const Clock::time_point start = Clock::now();
    share_among_threads(std::ssize(corpus.documents), threads, [&] {
      return [&](Index i) {
        const auto place = static_cast<std::size_t>(i);
        tokenizer.encode(corpus.documents[place], ids[place]);
      };
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (repetition >= 0) {
      rates.push_back(static_cast<double>(corpus.bytes) / seconds);
    }
  }
  std::sort(rates.begin(), rates.end());
  Rate rate{.best = rates.back(), .median = rates[rates.size() / 2], .tokens = 0};
  for (const std::vector<std::uint32_t>& document : ids) {
    rate.tokens += std::ssize(document);
  }
  return rate;
}

int run(const Arguments& arguments) {
  namespace po = boost::program_options;
  std::string path;
  std::string kind;
  std::vector<std::string> corpus_paths;
  Index threads = std::max(1U, std::thread::hardware_concurrency());
  int repetitions = 5;
  po::options_description options = option_group("Options");
  options.add_options()("tokenizer", po::value(&path)->value_name("bytes|PATH"),
                        "as tokenize takes it: a Hugging Face folder, tokenizer.json, ...")(
      "tokenizer-kind", po::value(&kind), "as of tokenize")(
      "corpus", po::value(&corpus_paths)->multitoken()->value_name("PATH..."),
      "text files and folders: each UTF-8 file is a document")(
      "threads", count_value(threads, {1, kMostThreads}, "threads"),
      "of the second measurement; default: one a core")(
      "repetitions", count_value(repetitions, {1, kMostRepetitions}, "repetitions"),
      "timed passes over the corpus, after an untimed one");
  if (!read_options(arguments,
                    "bench tokenize --tokenizer PATH --corpus PATH...: MB of text a second, of the "
                    "fastest pass and of the median one",
                    options)) {
    return 0;
  }
  if (path.empty() || corpus_paths.empty()) {
    throw ConfigError("give --tokenizer PATH and --corpus PATH...", TESSERA_HERE);
  }
  const auto tokenizer = make_tokenizer(read_tokenizer_files(path, kind), path);
  const Corpus corpus = read_corpus({corpus_paths.begin(), corpus_paths.end()});
  std::cout << fmt::format(
      "{} documents, {:.2f} MB{}\n", grouped(std::ssize(corpus.documents)),
      static_cast<double>(corpus.bytes) / kMega,
      corpus.skipped == 0
          ? std::string()
          : fmt::format(" ({} files skipped: not UTF-8, or empty)", grouped(corpus.skipped)));
  std::vector<Index> counts = {1};
  if (threads > 1) {
    counts.push_back(threads);
  }
  for (const Index count : counts) {
    const Rate rate = measure(*tokenizer, corpus, count, repetitions);
    std::cout << fmt::format("{} thread{}: {:.2f} MB/s, median {:.2f} MB/s, {} tokens\n", count,
                             count == 1 ? "" : "s", rate.best / kMega, rate.median / kMega,
                             rate.tokens)
              << std::flush;
  }
  return 0;
}

const Benchmark kBenchmark("tokenize", "tokenizers: MB of text a second", &run);

}  // namespace
}  // namespace tessera::bench
