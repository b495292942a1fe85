#include "runtime/data/data_loader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/hash.h"
#include "kernels/base/round_up.h"
#include "kernels/base/trace.h"

namespace tessera {
namespace {

constexpr Index kMaxMicroBatchTokens = std::numeric_limits<std::int32_t>::max();
// Of content that is compared with its hash beside each step or batch: a file is through in hours
// at most, and the data thread late by milliseconds.
constexpr std::uint64_t kCheckedBytes = std::uint64_t{4} << 20U;
constexpr std::size_t kBufferSets = 3;  // the current step, the one before it, the next

// A file that packs its documents has borders between them, or is one that needs no cut.
void require_borders(const TokenFile& file, Index T) {
  if (file.document_count() == 1 && file.token_count() > T + 1) {
    throw ConfigError(
        fmt::format("{} has no border between documents, and --documents separate keeps documents "
                    "apart: tokenise a file a document, JSON Lines or chats, or give --documents "
                    "joined",
                    file.path().string()),
        TESSERA_HERE);
  }
}

TokenFile open_for(const std::filesystem::path& path, Index T, Index vocab,
                   DocumentMode documents) {
  TokenFile file(path);
  if (documents == DocumentMode::separate) {
    require_borders(file, T);
  } else if (file.token_count() < T + 1) {
    throw ConfigError(
        fmt::format(
            "--seq {} exceeds the {} tokens of {}: a sequence takes {} (one more for the last "
            "target); give a smaller --seq or more text",
            T, file.token_count(), path.string(), T + 1),
        TESSERA_HERE);
  }
  if (file.info().vocab_size > vocab) {
    throw ConfigError(
        fmt::format(
            "{0} has a vocabulary of {2} tokens, the model one of {1}: choose a model with a "
            "vocabulary of at least {2}, tokenise for this one, or give it more rows: "
            "convert import MODEL OUT --resize-vocab {2}",
            path.string(), vocab, file.info().vocab_size),
        TESSERA_HERE);
  }
  return file;
}

void require_targets(const TokenFile& file) {
  if (!file.has_targets()) {
    throw FormatError(
        fmt::format("{} has no target to train on: {}", file.path().string(),
                    file.has_mask() ? "its mask leaves out every token that could be one (1 in the "
                                      "file of tokenize --mask: the token counts)"
                                    : "no document has a second token"),
        TESSERA_HERE);
  }
}

void check_sizes(Index T, Index B, Index vocab) {
  TESSERA_REQUIRE(vocab > 0, "no vocabulary");
  if (T <= 0) {
    throw ConfigError(fmt::format("--seq {} must be above 0", T), TESSERA_HERE);
  }
  if (B <= 0) {
    throw ConfigError(fmt::format("--micro-batch {} must be above 0", B), TESSERA_HERE);
  }
  if (B > kMaxMicroBatchTokens / T) {
    throw ConfigError(fmt::format("--micro-batch {} of --seq {} makes a micro-batch of more than "
                                  "{} tokens; give a smaller one",
                                  B, T, kMaxMicroBatchTokens),
                      TESSERA_HERE);
  }
}

// Sequences of a file whose documents are not packed.
Index joined_sequences(const TokenFile& file, Index T) {
  return divide_up(file.token_count() - 1, T);
}

// Memory for one micro-batch and what its counting sort needs.
struct MicroBatch {
  std::span<std::int32_t> inputs;
  std::span<std::int32_t> targets;
  std::span<std::int32_t> order;
  std::span<std::int32_t> positions;        // empty where documents are joined, as the next
  std::span<std::int32_t> document_begins;  // [N + 1], of which the first document_count + 1 are
                                            // there
  Index document_count = 0;
  Index padding = 0;  // places that no document takes, where documents are separate
  Index target_count = 0;

  void clear() {
    document_count = 0;
    padding = 0;
    target_count = 0;
  }
};

// `count` micro-batches of N tokens out of one allocation; none of a dry run.
std::vector<MicroBatch> make_micro_batches(Index count, Index N, DocumentMode documents,
                                           const BatchAllocator& allocate,
                                           const std::string& name) {
  std::vector<MicroBatch> batches(static_cast<std::size_t>(count));
  const TensorView memory = allocate(count * batch_elements(N, documents), name);
  if (memory.data == nullptr) {
    return batches;
  }
  auto* next = data_as<std::int32_t>(memory);
  const auto take = [&next](Index elements) {
    const std::span<std::int32_t> taken(next, static_cast<std::size_t>(elements));
    next += elements;
    return taken;
  };
  for (MicroBatch& batch : batches) {
    batch.inputs = take(N);
    batch.targets = take(N);
    batch.order = take(N);
    if (documents == DocumentMode::separate) {
      batch.positions = take(N);
      batch.document_begins = take(N + 1);
    }
  }
  return batches;
}

// Fills micro-batches sequence by sequence. Used by one thread at a time; allocates nothing after
// the constructor.
class WindowReader {
 public:
  WindowReader(Index T, Index vocab, const BatchAllocator& allocate)
      : T_(T),
        vocab_(vocab),
        tokens_(static_cast<std::size_t>(T) + 1),
        mask_(static_cast<std::size_t>(T)) {
    starts_.reserve(static_cast<std::size_t>(T));
    pieces_.reserve(static_cast<std::size_t>(T));
    const TensorView memory = allocate(vocab + 1, "batches/token counts");
    if (memory.data != nullptr) {
      counts_ = {data_as<std::int32_t>(memory), static_cast<std::size_t>(vocab) + 1};
    }
  }

  /// Row `row` of `batch` becomes sequence `sequence` of `file`; rows are filled in order. Packing
  /// is null where documents are joined.
  void fill(const TokenFile& file, const DocumentPacking* packing, Index sequence, Index row,
            MicroBatch& batch) {
    const Index end = (row + 1) * T_;
    Index place = row * T_;
    if (packing != nullptr) {
      packing->pieces(file, sequence, pieces_);
      for (const DocumentPiece& piece : pieces_) {
        begin_document(batch, place, piece.tokens);
        fill_part(file, piece.begin, piece.tokens, place, batch);
        place += piece.tokens;
      }
      pad(batch, place, end);
      return;
    }
    const Index begin = sequence * T_;
    const Index count = std::min(T_, file.token_count() - 1 - begin);
    fill_part(file, begin, count, place, batch);
    ignore_first_tokens(file, begin + 1, count, place, batch);
    place += count;
    pad(batch, place, end);
    if (place < end) {  // the file's last token, which is not only a target
      batch.inputs[static_cast<std::size_t>(place)] = tokens_[static_cast<std::size_t>(count)];
    }
  }

  /// Row `row` of `batch` becomes a sequence without targets.
  void fill_nothing(Index row, MicroBatch& batch) const { pad(batch, row * T_, (row + 1) * T_); }

  /// Positions of the inputs in the order of their tokens: a counting sort, which keeps the order
  /// of equal ones.
  void sort(MicroBatch& batch) {
    std::fill(counts_.begin(), counts_.end(), 0);
    for (const std::int32_t id : batch.inputs) {
      ++counts_[static_cast<std::size_t>(id) + 1];
    }
    for (std::size_t id = 1; id < counts_.size(); ++id) {
      counts_[id] += counts_[id - 1];
    }
    for (std::size_t i = 0; i < batch.inputs.size(); ++i) {
      std::int32_t& next = counts_[static_cast<std::size_t>(batch.inputs[i])];
      batch.order[static_cast<std::size_t>(next)] = static_cast<std::int32_t>(i);
      ++next;
    }
  }

 private:
  // Tokens begin .. begin + count - 1 of the file become inputs from `place` of the batch on, and
  // those behind them targets.
  void fill_part(const TokenFile& file, Index begin, Index count, Index place, MicroBatch& batch) {
    const auto at = static_cast<std::size_t>(place);
    const auto length = static_cast<std::size_t>(count);
    const std::span<std::int32_t> targets = batch.targets.subspan(at, length);
    const auto tokens = std::span(tokens_).first(length + 1);
    if (static_cast<Index>(file.read_tokens(begin, tokens)) >= vocab_) {
      refuse_token(file, begin, tokens);
    }
    std::copy_n(tokens.begin(), length, batch.inputs.begin() + place);
    std::copy_n(tokens.begin() + 1, length, targets.begin());
    if (file.has_mask()) {
      apply_mask(file, begin + 1, targets);
    }
    batch.target_count += std::count_if(targets.begin(), targets.end(),
                                        [](std::int32_t id) { return id != kIgnoreTarget; });
  }

  // Of the targets from `place` on, tokens begin .. begin + count - 1 of the file, those that are the
  // first of a document are none.
  void ignore_first_tokens(const TokenFile& file, Index begin, Index count, Index place,
                           MicroBatch& batch) {
    file.document_starts(begin, begin + count, starts_);
    for (const Index start : starts_) {
      std::int32_t& target = batch.targets[static_cast<std::size_t>(place + start - begin)];
      batch.target_count -= target == kIgnoreTarget ? 0 : 1;
      target = kIgnoreTarget;
    }
  }

  // Places without a target; where documents are separate, one of its own.
  static void pad(MicroBatch& batch, Index begin, Index end) {
    if (begin == end) {
      return;
    }
    std::fill(batch.inputs.begin() + begin, batch.inputs.begin() + end, 0);
    std::fill(batch.targets.begin() + begin, batch.targets.begin() + end, kIgnoreTarget);
    if (!batch.positions.empty()) {
      begin_document(batch, begin, end - begin);
      batch.padding += end - begin;
    }
  }

  static void begin_document(MicroBatch& batch, Index place, Index tokens) {
    std::iota(batch.positions.begin() + place, batch.positions.begin() + place + tokens, 0);
    const auto number = static_cast<std::size_t>(batch.document_count);
    batch.document_begins[number] = static_cast<std::int32_t>(place);
    batch.document_begins[number + 1] = static_cast<std::int32_t>(place + tokens);
    ++batch.document_count;
  }

  [[noreturn]] void refuse_token(const TokenFile& file, Index begin,
                                 std::span<const std::int32_t> tokens) const {
    const auto bad = std::find_if(tokens.begin(), tokens.end(), [this](std::int32_t id) {
      return static_cast<Index>(static_cast<std::uint32_t>(id)) >= vocab_;
    });
    throw FormatError(
        fmt::format("token {} of {} has the id {}, outside the vocabulary of {} tokens (0 to {})",
                    begin + (bad - tokens.begin()), file.path().string(),
                    static_cast<std::uint32_t>(*bad), vocab_, vocab_ - 1),
        TESSERA_HERE);
  }

  // targets[i] is token begin + i of the file
  void apply_mask(const TokenFile& file, Index begin, std::span<std::int32_t> targets) {
    const std::span<std::uint8_t> mask = std::span(mask_).first(targets.size());
    file.read_mask(begin, mask);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (mask[i] > 1) {
        throw FormatError(fmt::format("the mask of token {} of {} is {}, neither 0 nor 1",
                                      begin + static_cast<Index>(i), file.path().string(), mask[i]),
                          TESSERA_HERE);
      }
      targets[i] = mask[i] == 0 ? kIgnoreTarget : targets[i];
    }
  }

  Index T_;
  Index vocab_;
  std::vector<std::int32_t> tokens_;  // [T + 1] one sequence and its last target
  std::vector<std::uint8_t> mask_;    // [T] of its targets
  std::vector<Index> starts_;         // of documents among its targets
  std::vector<DocumentPiece> pieces_;
  std::span<std::int32_t> counts_;  // [V + 1]
};

Batch view_of(const MicroBatch& batch) {
  const auto view = [](std::span<const std::int32_t> values) {
    return ConstTensorView(values.data(), DType::i32, {static_cast<Index>(values.size())},
                           Device{});
  };
  Batch whole = {view(batch.inputs), view(batch.targets), view(batch.order), batch.target_count};
  if (!batch.positions.empty()) {
    whole.document_begins =
        view(batch.document_begins.first(static_cast<std::size_t>(batch.document_count) + 1));
    whole.positions = view(batch.positions);
  }
  return whole;
}

// The end of the set that file `begin` begins.
std::size_t end_of_set(const std::vector<TokenSource>& sources, std::size_t begin) {
  std::size_t end = begin + 1;
  while (end < sources.size() && sources[begin].set >= 0 &&
         sources[end].set == sources[begin].set) {
    ++end;
  }
  return end;
}

// Whole numbers in the proportions of the weights. Without weights those of the sequences, so that
// an epoch is exact.
std::vector<Index> whole_weights(const std::vector<TokenSource>& sources,
                                 const std::vector<Index>& sequences) {
  const auto given = std::count_if(sources.begin(), sources.end(), [](const TokenSource& source) {
    return source.weight.has_value();
  });
  if (given == 0) {
    return sequences;
  }
  double sum = 0;
  for (std::size_t f = 0; f < sources.size(); f = end_of_set(sources, f)) {
    if (!sources[f].weight) {
      throw ConfigError(fmt::format("--data gives weights to {} of {} files, not to {}: give each "
                                    "one a weight (FILE:WEIGHT), or none",
                                    given, sources.size(), sources[f].path.string()),
                        TESSERA_HERE);
    }
    sum += *sources[f].weight;
  }
  constexpr double kResolution = 0x1p40;  // exact in a double, and leaves room for 2^20 files
  std::vector<Index> weights;
  for (std::size_t f = 0; f < sources.size();) {
    const std::size_t end = end_of_set(sources, f);
    const auto of_set = static_cast<double>(
        std::accumulate(sequences.begin() + static_cast<std::ptrdiff_t>(f),
                        sequences.begin() + static_cast<std::ptrdiff_t>(end), Index{0}));
    const double set_share = *sources[f].weight / sum;
    for (; f < end; ++f) {
      const double share = set_share * (static_cast<double>(sequences[f]) / of_set);
      if (!(share * kResolution >= 1.0)) {
        throw ConfigError(fmt::format("--data {}: the weight {} is too small beside the others",
                                      sources[f].path.string(), *sources[f].weight),
                          TESSERA_HERE);
      }
      weights.push_back(std::llround(share * kResolution));
    }
  }
  return weights;
}

}  // namespace

// inputs, targets, token_order; positions, document_begins
Index batch_elements(Index N, DocumentMode documents) {
  return documents == DocumentMode::joined ? 3 * N : 5 * N + 1;
}

struct DataLoader::Impl {
  Impl(DataLoaderOptions the_options, const BatchAllocator& allocate);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  void run();
  void prepare(Index first, std::vector<MicroBatch>& batches);

  DataLoaderOptions options;
  [[nodiscard]] const DocumentPacking* packing_of(std::size_t file) const {
    return packings.empty() ? nullptr : &packings[file];
  }

  std::vector<TokenFile> files;
  std::vector<DocumentPacking> packings;  // of the files; none where documents are joined
  std::optional<SequenceOrder> order;
  Index sequences = 0;
  Index rounds = 0;  // micro-batches of this rank in a step
  std::string hash;
  std::optional<WindowReader> reader;
  std::array<std::vector<MicroBatch>, kBufferSets> sets;
  std::vector<ContentCheck> checks;  // of files, the next one last; of the loader's thread

  // of the calling thread
  std::size_t current = kBufferSets - 1;  // set that take() chose last
  bool taken = false;
  bool ready = false;  // prefetched_targets() has returned for the next set

  // between the threads, under `mutex`
  enum class Job : std::uint8_t { none, wanted, done };
  std::mutex mutex;
  std::condition_variable changed;
  Job job = Job::none;
  Index position = 0;
  Index targets = 0;
  Index padding = 0;
  std::exception_ptr failure;
  bool stopping = false;
  std::thread thread;
};

DataLoader::Impl::Impl(DataLoaderOptions the_options, const BatchAllocator& allocate)
    : options(std::move(the_options)) {
  const Index T = options.sequence_length;
  const Index B = options.micro_batch;
  check_sizes(T, B, options.vocab);
  TESSERA_REQUIRE(options.rank >= 0 && options.rank < options.world_size, "rank out of range");
  if (options.global_batch <= 0 || options.global_batch % B != 0) {
    throw ConfigError(fmt::format("--global-batch {} must be a multiple of --micro-batch {}",
                                  options.global_batch, B),
                      TESSERA_HERE);
  }
  if (options.files.empty()) {
    throw ConfigError("--data names no token file", TESSERA_HERE);
  }
  std::vector<Index> counts;
  for (const TokenSource& source : options.files) {
    files.push_back(open_for(source.path, T, options.vocab, options.documents));
    require_targets(files.back());
    checks.insert(checks.begin(), ContentCheck(files.back()));
    if (options.documents == DocumentMode::separate) {
      packings.emplace_back(files.back(), T);
    }
    counts.push_back(packings.empty() ? joined_sequences(files.back(), T)
                                      : packings.back().sequences());
    sequences += counts.back();
  }
  const std::vector<Index> weights = whole_weights(options.files, counts);
  order.emplace(counts, weights, options.seed);

  Xxh3 all(HashWidth::bits128);
  all.add(fmt::format("tessera data order 1\nseq {}\nseed {}\n", T, options.seed));
  if (options.documents == DocumentMode::separate) {
    all.add(fmt::format("separate documents, packing {}\n", kPackingVersion));
  }
  for (std::size_t f = 0; f < files.size(); ++f) {
    all.add(fmt::format("{} {}\n", files[f].content_hash(), weights[f]));
  }
  hash = all.digest128().text();

  const Index micro_batches = options.global_batch / B;
  rounds = options.rank < micro_batches
               ? divide_up(micro_batches - options.rank, options.world_size)
               : 0;
  reader.emplace(T, options.vocab, allocate);
  for (std::size_t set = 0; set < sets.size(); ++set) {
    sets[set] = make_micro_batches(rounds, B * T, options.documents, allocate,
                                   fmt::format("batches/{}", set));
  }
  thread = std::thread([this] { run(); });
}

DataLoader::Impl::~Impl() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  changed.notify_all();
  if (thread.joinable()) {
    thread.join();
  }
}

// Body of the thread.
void DataLoader::Impl::run() {
  std::size_t next = 0;
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return stopping || job == Job::wanted; });
    if (stopping) {
      return;
    }
    const Index first = position;
    lock.unlock();
    std::exception_ptr thrown;
    Index count = 0;
    Index unused = 0;
    try {
      prepare(first, sets[next]);
      for (const MicroBatch& batch : sets[next]) {
        count += batch.target_count;
        unused += batch.padding;
      }
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    targets = count;
    padding = unused;
    failure = thrown;
    job = Job::done;
    next = (next + 1) % kBufferSets;
    changed.notify_all();
  }
}

void DataLoader::Impl::prepare(Index first, std::vector<MicroBatch>& batches) {
  const TraceRange range({TraceCategory::data, "read batches", {}}, "data");
  const Index B = options.micro_batch;
  for (Index round = 0; round < rounds; ++round) {
    MicroBatch& batch = batches[static_cast<std::size_t>(round)];
    batch.clear();
    const Index number = round * options.world_size + options.rank;
    for (Index b = 0; b < B; ++b) {
      const SequenceId id = order->at(first + number * B + b);
      reader->fill(files[id.file], packing_of(id.file), id.sequence, b, batch);
    }
    reader->sort(batch);
  }
  for (const TokenFile& file : files) {
    file.require_unchanged();
  }
  while (!checks.empty() && checks.back().is_done()) {
    checks.pop_back();
  }
  if (!checks.empty()) {
    checks.back().advance(kCheckedBytes);
  }
}

DataLoader::DataLoader(DataLoaderOptions options, const BatchAllocator& allocate)
    : impl_(std::make_unique<Impl>(std::move(options), allocate)) {}
DataLoader::~DataLoader() = default;

void DataLoader::prefetch(Index position) {
  Impl& self = *impl_;
  TESSERA_REQUIRE(position >= 0, "a position before the first");
  TESSERA_REQUIRE(self.rounds == 0 || !self.sets[0][0].inputs.empty(), "a loader of a dry run");
  {
    const std::lock_guard lock(self.mutex);
    TESSERA_REQUIRE(self.job == Impl::Job::none, "the step before has not been taken");
    self.position = position;
    self.job = Impl::Job::wanted;
  }
  self.changed.notify_all();
}

Index DataLoader::prefetched_targets() {
  Impl& self = *impl_;
  std::unique_lock lock(self.mutex);
  TESSERA_REQUIRE(self.job != Impl::Job::none, "nothing was prefetched");
  self.changed.wait(lock, [&self] { return self.job == Impl::Job::done; });
  if (self.failure) {
    std::rethrow_exception(self.failure);
  }
  self.ready = true;
  return self.targets;
}

Index DataLoader::prefetched_padding() const {
  TESSERA_REQUIRE(impl_->ready, "prefetched_targets() has not returned");
  return impl_->padding;
}

void DataLoader::take() {
  Impl& self = *impl_;
  TESSERA_REQUIRE(self.ready, "prefetched_targets() has not returned");
  self.ready = false;
  self.current = (self.current + 1) % kBufferSets;
  self.taken = true;
  const std::lock_guard lock(self.mutex);
  self.job = Impl::Job::none;
}

Batch DataLoader::batch(Index round) {
  const Impl& self = *impl_;
  TESSERA_REQUIRE(self.taken, "no step was taken");
  TESSERA_REQUIRE(round >= 0 && round < self.rounds,
                  fmt::format("this rank has {} micro-batches, not {}", self.rounds, round + 1));
  return view_of(self.sets[self.current][static_cast<std::size_t>(round)]);
}

Index DataLoader::sequences() const noexcept {
  return impl_->sequences;
}

std::vector<SequenceId> DataLoader::sequence_ids(Index begin, Index end) const {
  std::vector<SequenceId> ids;
  for (Index position = begin; position < end; ++position) {
    ids.push_back(impl_->order->at(position));
  }
  return ids;
}

const std::string& DataLoader::data_hash() const noexcept {
  return impl_->hash;
}
const std::vector<TokenFile>& DataLoader::files() const noexcept {
  return impl_->files;
}

PackingCounts DataLoader::packing() const {
  TESSERA_REQUIRE(!impl_->packings.empty(), "documents are joined");
  PackingCounts all;
  for (const DocumentPacking& packing : impl_->packings) {
    all += packing.counts();
  }
  return all;
}

struct EvalSequences::Impl {
  Impl(EvalSequencesOptions the_options, const BatchAllocator& allocate)
      : options(std::move(the_options)),
        file(open_for(options.file, options.sequence_length, options.vocab, options.documents)),
        packing(options.documents == DocumentMode::separate
                    ? std::optional<DocumentPacking>(std::in_place, file, options.sequence_length)
                    : std::nullopt),
        file_sequences(packing ? packing->sequences()
                               : joined_sequences(file, options.sequence_length)),
        sequences(options.max_sequences > 0 ? std::min(options.max_sequences, file_sequences)
                                            : file_sequences),
        check(file),
        reader(options.sequence_length, options.vocab, allocate) {
    buffers = make_micro_batches(static_cast<Index>(kBufferSets),
                                 options.micro_batch * options.sequence_length, options.documents,
                                 allocate, "batches/evaluation");
  }

  EvalSequencesOptions options;
  TokenFile file;
  std::optional<DocumentPacking> packing;  // where documents are separate
  Index file_sequences;
  Index sequences;
  ContentCheck check;
  WindowReader reader;
  std::vector<MicroBatch> buffers;
  std::size_t next = 0;
};

EvalSequences::EvalSequences(EvalSequencesOptions options, const BatchAllocator& allocate) {
  check_sizes(options.sequence_length, options.micro_batch, options.vocab);
  impl_ = std::make_unique<Impl>(std::move(options), allocate);
}
EvalSequences::~EvalSequences() = default;

Index EvalSequences::sequences() const noexcept {
  return impl_->sequences;
}
Index EvalSequences::file_sequences() const noexcept {
  return impl_->file_sequences;
}
Index EvalSequences::micro_batches() const noexcept {
  return divide_up(impl_->sequences, impl_->options.micro_batch);
}
const TokenFile& EvalSequences::file() const noexcept {
  return impl_->file;
}

std::optional<PackingCounts> EvalSequences::packing() const {
  return impl_->packing ? std::optional(impl_->packing->counts()) : std::nullopt;
}

Batch EvalSequences::batch(Index index) {
  Impl& self = *impl_;
  TESSERA_REQUIRE(index >= 0 && index < micro_batches(), "no such micro-batch");
  TESSERA_REQUIRE(!self.buffers[0].inputs.empty(), "evaluation sequences of a dry run");
  MicroBatch& batch = self.buffers[self.next];
  self.next = (self.next + 1) % kBufferSets;
  batch.clear();
  const Index B = self.options.micro_batch;
  for (Index b = 0; b < B; ++b) {
    const Index sequence = index * B + b;
    if (sequence < self.sequences) {
      self.reader.fill(self.file, self.packing ? &*self.packing : nullptr,
                       evenly_spread(sequence, self.sequences, self.file_sequences), b, batch);
    } else {
      self.reader.fill_nothing(b, batch);
    }
  }
  self.file.require_unchanged();
  self.check.advance(kCheckedBytes);
  self.reader.sort(batch);
  return view_of(batch);
}

}  // namespace tessera
