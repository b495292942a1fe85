#include "jobs/tokenize/ids.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "jobs/tokenize/outputs.h"
#include "kernels/base/error.h"
#include "kernels/base/hash.h"
#include "kernels/base/quantity.h"
#include "runtime/data/id_file.h"
#include "runtime/data/input_files.h"
#include "runtime/data/token_file.h"

namespace tessera::tokenize {
namespace {

constexpr std::size_t kBlockIds = std::size_t{1} << 16U;

// Ids of a file and, if there are masks, its mask, block by block.
class IdReader {
 public:
  IdReader(const Path& ids, const Path* mask, RawIds raw) : ids_(ids, raw) {
    if (mask != nullptr) {
      mask_.emplace(*mask);
      if (mask_->count() != ids_.count()) {
        throw FormatError(fmt::format("{} has {} values, but {} has {} ids", mask->string(),
                                      mask_->count(), ids.string(), ids_.count()),
                          TESSERA_HERE);
      }
    }
  }

  using TakeBlock =
      std::function<void(std::span<const std::uint32_t> ids, std::span<const std::uint8_t> mask)>;
  /// Hands over all blocks; every id is below `vocab`, every mask value 0 or 1.
  void read(Index vocab, const TakeBlock& take) {
    std::vector<std::int64_t> numbers;
    std::vector<std::uint32_t> ids;
    std::vector<std::uint8_t> mask;
    for (Index begin = 0; begin < ids_.count(); begin += static_cast<Index>(kBlockIds)) {
      numbers.resize(
          static_cast<std::size_t>(std::min(static_cast<Index>(kBlockIds), ids_.count() - begin)));
      ids_.read(begin, numbers);
      check(ids_, begin, numbers, vocab, "id", "outside the vocabulary");
      ids.assign(numbers.begin(), numbers.end());
      if (mask_) {
        mask_->read(begin, numbers);
        check(*mask_, begin, numbers, 2, "mask", "neither 0 nor 1");
        mask.assign(numbers.begin(), numbers.end());
      }
      take(ids, mask);
    }
  }
  [[nodiscard]] Index count() const { return ids_.count(); }
  /// Numbers of this file's type cannot reach `vocab`: larger ids were cut to their low bits when
  /// it was written, and look like others.
  void require_room_for(Index vocab) const {
    if (vocab > ids_.id_limit()) {
      refuse(fmt::format("{} holds ids of {} bits, up to {}, and --vocab is {}: larger ids cannot "
                         "be in it as they were; write it with a wider type (numpy: "
                         "ids.astype('uint32')), or give --vocab {} if no id is larger",
                         ids_.path().string(), ids_.bits(), grouped(ids_.id_limit() - 1),
                         grouped(vocab), ids_.id_limit()));
    }
  }

 private:
  static void check(const IdFile& file, Index begin, const std::vector<std::int64_t>& numbers,
                    Index limit, std::string_view what, std::string_view complaint) {
    const auto bad = std::find_if(numbers.begin(), numbers.end(), [limit](std::int64_t number) {
      return number < 0 || number >= limit;
    });
    if (bad != numbers.end()) {
      throw FormatError(
          fmt::format("token {} of {} has the {} {}, {} (0 to {})", begin + (bad - numbers.begin()),
                      file.path().string(), what, *bad, complaint, limit - 1),
          TESSERA_HERE);
    }
  }

  IdFile ids_;
  std::optional<IdFile> mask_;
};

// The files of ids, and their masks if there are any.
struct IdInputs {
  std::vector<Path> files;
  std::vector<Path> masks;
  RawIds raw;
  LeftOut left_out;

  explicit IdInputs(const Options& options) : masks(options.masks), raw(options.raw) {
    InputFiles found = list_files(options.paths);
    left_out = std::move(found.left_out);
    for (const InputFiles::File& file : found.files) {
      if (file.was_named || IdFile::has_name(file.path)) {
        files.push_back(file.path);
      } else {
        left_out.add("neither .npy nor .bin", file.path);
      }
    }
    if (!masks.empty() && masks.size() != files.size()) {
      refuse(
          fmt::format("{} for {}: give one --mask for each PATH",
                      count_of(static_cast<Index>(masks.size()), "mask", "masks"),
                      count_of(static_cast<Index>(files.size()), "file of ids", "files of ids")));
    }
  }
  [[nodiscard]] IdReader open(std::size_t i) const {
    return {files[i], masks.empty() ? nullptr : &masks[i], raw};
  }
};

// Writes ids as documents, each to the output that its number chooses.
class IdDocuments {
 public:
  IdDocuments(Outputs& outputs, Index end_token) : outputs_(outputs), end_token_(end_token) {}

  // `count`: of its ids; 0: not known.
  void begin(Index count) {
    const std::string number = fmt::format("document {}", documents_++);
    outputs_.begin_document(xxh3_128(bytes_of(number)).high, static_cast<std::uint64_t>(count));
  }
  void add(std::span<const std::uint32_t> ids, std::span<const std::uint8_t> mask) {
    while (!ids.empty()) {
      const auto end = std::find_if(ids.begin(), ids.end(), [this](std::uint32_t id) {
        return static_cast<Index>(id) == end_token_;
      });
      const bool ends = end != ids.end();
      const auto length = static_cast<std::size_t>(end - ids.begin()) + (ends ? 1 : 0);
      const std::size_t mask_length = mask.empty() ? 0 : length;
      outputs_.append(ids.first(length), mask.first(mask_length), length);
      ids = ids.subspan(length);
      mask = mask.subspan(mask_length);
      if (ends) {
        begin(0);
      }
    }
  }

 private:
  Outputs& outputs_;
  Index end_token_;
  std::uint64_t documents_ = 0;
};

}  // namespace

void tokenize_ids(const Options& options) {
  const IdInputs inputs(options);
  // everything is checked before anything is written; the highest id gives the vocabulary
  Index count = 0;
  std::uint32_t highest = 0;
  for (std::size_t i = 0; i < inputs.files.size(); ++i) {
    IdReader reader = inputs.open(i);
    reader.require_room_for(options.vocab.value_or(1));
    reader.read(options.vocab.value_or(kMaxVocab), [&](std::span<const std::uint32_t> ids, auto) {
      highest = std::max(highest, *std::max_element(ids.begin(), ids.end()));
    });
    count += reader.count();
  }
  if (count == 0) {
    refuse(fmt::format("no token ids in {}", source_of(options.paths)));
  }
  TokenFileInfo info;
  info.tokenizer = kIds;
  info.vocab_size = options.vocab.value_or(Index{highest} + 1);
  info.end_token = options.end_token.value_or(-1);
  info.source = source_of(options.paths);
  if (info.end_token >= info.vocab_size) {
    refuse(fmt::format("--end-token {} is above the highest id, {}: give --vocab N if it is right",
                       info.end_token, highest));
  }
  Outputs outputs(
      options, info, {},
      inputs.masks.empty() ? TokenFileWriter::Mask::absent : TokenFileWriter::Mask::present,
      static_cast<std::uint64_t>(count));
  IdDocuments documents(outputs, info.end_token);
  for (std::size_t i = 0; i < inputs.files.size(); ++i) {
    IdReader reader = inputs.open(i);
    documents.begin(info.end_token < 0 ? reader.count() : 0);
    reader.read(info.vocab_size,
                [&](std::span<const std::uint32_t> ids, std::span<const std::uint8_t> mask) {
                  documents.add(ids, mask);
                });
  }
  outputs.commit("documents of ready ids end with --end-token ID");
  std::cout << (options.vocab ? fmt::format("the highest id is {}, of a vocabulary of {}\n",
                                            grouped(highest), grouped(info.vocab_size))
                              : std::string("vocabulary: the highest id + 1; --vocab N sets it\n"));
  print_left_out(inputs.left_out);
}

}  // namespace tessera::tokenize
