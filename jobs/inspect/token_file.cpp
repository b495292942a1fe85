#include "jobs/inspect/token_file.h"

#include <algorithm>
#include <array>
#include <iostream>
#include <vector>

#include <fmt/format.h>

#include "jobs/program.h"
#include "kernels/base/error.h"
#include "kernels/base/quantity.h"
#include "runtime/data/document_packing.h"
#include "runtime/data/token_file.h"

namespace tessera::inspect {
namespace {

constexpr Index kUsualSequence = 512;  // the first of those that are shown
constexpr Index kShortest = 64;
constexpr int kSequences = 6;

void refuse_other_options(const Options& options) {
  const bool is_other = options.stats || options.hash || !options.param.empty() ||
                        !options.at.empty() || !options.diff.empty() || options.command;
  if (is_other) {
    throw ConfigError(
        fmt::format("{} is a token file: of --stats, --param, --at, --hash, "
                    "--command and --diff, which are of checkpoints, none can be given",
                    options.target.string()),
        TESSERA_HERE);
  }
}

// Tokens of every document, ascending.
std::vector<Index> document_lengths(const TokenFile& file) {
  const Index count = file.document_count();
  std::vector<std::uint64_t> starts(static_cast<std::size_t>(count));
  file.read_document_starts(0, starts);
  std::vector<Index> lengths(starts.size());
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::uint64_t end =
        i + 1 < starts.size() ? starts[i + 1] : static_cast<std::uint64_t>(file.token_count());
    lengths[i] = static_cast<Index>(end - starts[i]);
  }
  std::sort(lengths.begin(), lengths.end());
  return lengths;
}

void describe_lengths(const TokenFile& file, const std::vector<Index>& lengths, Output& out) {
  const auto at_share = [&](double share) {
    return lengths[static_cast<std::size_t>(share * static_cast<double>(lengths.size() - 1))];
  };
  const double mean = static_cast<double>(file.token_count()) / static_cast<double>(lengths.size());
  constexpr double kTenth = 0.1;
  constexpr double kHalf = 0.5;
  out.document["document_lengths"] = {
      {"shortest", lengths.front()},       {"tenth", at_share(kTenth)},
      {"median", at_share(kHalf)},         {"mean", mean},
      {"ninetieth", at_share(1 - kTenth)}, {"longest", lengths.back()}};
  if (out.is_text()) {
    print_lines(fmt::format(
        "  documents have {} to {} tokens: {:.1f} on average, {} in the median, a tenth up to {}, "
        "a tenth from {} on\n",
        grouped(lengths.front()), grouped(lengths.back()), mean, grouped(at_share(kHalf)),
        grouped(at_share(kTenth)), grouped(at_share(1 - kTenth))));
  }
}

void describe_packing(const TokenFile& file, Index median, const Options& options, Output& out) {
  // From one that takes most documents, if they are short.
  Index first = kShortest;
  while (first < kUsualSequence && first < median) {
    first *= 2;
  }
  std::vector<Index> sequences;
  for (int i = 0; i < kSequences; ++i) {
    sequences.push_back(first << i);
  }
  if (options.seq > 0) {
    sequences = {options.seq};
  }
  TextTable table({"--seq", "sequences", "full", "places of padding", "documents cut"});
  out.document["separate_documents"] = Json::array();
  for (const Index length : sequences) {
    const PackingCounts counts = DocumentPacking(file, length).counts();
    out.document["separate_documents"].push_back({{"seq", length},
                                                  {"sequences", counts.sequences},
                                                  {"fill", counts.fill(length)},
                                                  {"padding", counts.padding(length)},
                                                  {"cut", counts.cut},
                                                  {"left_out", counts.left_out}});
    constexpr double kPercent = 100;
    table.add({fmt::format("{}", length), fmt::format("{}", counts.sequences),
               fmt::format("{:.1f}%", kPercent * counts.fill(length)),
               fmt::format("{}", counts.padding(length)), fmt::format("{}", counts.cut)});
    if (counts.sequences <= 1) {
      break;  // longer ones hold no more
    }
  }
  if (out.is_text()) {
    std::cout << "\npacked by train --documents separate:\n";
    table.print();
  }
}

}  // namespace

void describe_token_file(const Options& options, Output& out) {
  refuse_other_options(options);
  const TokenFile file(options.target);
  const TokenFileInfo& info = file.info();
  const Index targets = file.target_count();
  out.document["token_file"] = options.target.string();
  out.document["tokens"] = file.token_count();
  out.document["documents"] = file.document_count();
  out.document["targets"] = targets;
  out.document["has_mask"] = file.has_mask();
  out.document["vocabulary"] = info.vocab_size;
  out.document["tokenizer"] = info.tokenizer;
  out.document["content_hash"] = file.content_hash();
  if (out.is_text()) {
    print_lines(fmt::format("{}\n  {} tokens, of which {} are targets{}; {}; vocabulary {}\n",
                            options.target.string(), grouped(file.token_count()), grouped(targets),
                            file.has_mask() ? " by its mask" : "",
                            counted(file.document_count(), "document"), grouped(info.vocab_size)));
    print_lines(fmt::format("  tokenizer {}{}{}, source {}, content hash {}\n", info.tokenizer,
                            info.tokenizer_name.empty() ? "" : " ", info.tokenizer_name,
                            info.source, file.content_hash()));
  }
  const std::vector<Index> lengths = document_lengths(file);
  describe_lengths(file, lengths, out);
  describe_packing(file, lengths[lengths.size() / 2], options, out);
  if (options.verify) {
    file.verify_content();
    out.document["verify"] = {{"is_whole", true}};
    if (out.is_text()) {
      std::cout << "every token, document and mask is as it was written\n";
    }
  }
}

}  // namespace tessera::inspect
