#include "runtime/run/run_data.h"

#include <algorithm>
#include <map>
#include <numbers>
#include <optional>
#include <utility>

#include "runtime/launch/agree.h"
#include "runtime/launch/start_agreement.h"
#include "runtime/run/option_checks.h"

namespace tessera {

RunData::RunData(const RunConfig& options, const ModelConfig& config, Index own_vocab,
                 Communicator& comm, Arena& arena)
    : arena_(arena),
      tokenizers_(options.data.allow_tokenizer_mismatch ? OnTokenizerMismatch::report
                                                        : OnTokenizerMismatch::refuse),
      documents_(options.data.documents.value_or(DocumentMode::joined)) {
  const BatchAllocator allocate = [this](Index elements, std::string_view name) {
    buffers_.push_back(arena_.allocate(MemoryKind::pinned, DType::i32, {elements}, name));
    return buffers_.back().view();
  };
  DataLoaderOptions loader;
  for (const std::string& text : options.data.files) {
    sets_.push_back(open_data_set(text));
    for (const std::filesystem::path& file : sets_.back().files) {
      loader.files.push_back({file, sets_.back().weight, std::ssize(sets_) - 1});
    }
  }
  loader.sequence_length = options.batch.seq;
  loader.micro_batch = options.batch.micro_batch;
  loader.global_batch = options.batch.global_batch;
  loader.seed = options.seed;
  loader.rank = comm.rank();
  loader.world_size = comm.world_size();
  loader.vocab = config.vocab_size;
  loader.documents = documents_;
  loader_ = std::make_unique<DataLoader>(std::move(loader), allocate);
  require_alike_sets();
  open_eval_sets(options, config.vocab_size, allocate);
  compare_tokenizers(own_vocab);
}

DataSet open_data_set(const std::string& text) {
  require_readable("--data", split_weight(text).path, kTokenFiles);
  return parse_data_set(text);
}

void RunData::require_alike_sets() const {
  const std::vector<TokenFile>& files = loader_->files();
  std::size_t next = 0;
  for (const DataSet& set : sets_) {
    std::vector<const TokenFile*> of_set;
    of_set.reserve(set.files.size());
    for (std::size_t i = 0; i < set.files.size(); ++i) {
      of_set.push_back(&files[next++]);
    }
    require_alike(set, of_set);
  }
}

void RunData::open_eval_sets(const RunConfig& options, Index vocab,
                             const BatchAllocator& allocate) {
  // The sets are evaluated one after another, and take the same memory.
  std::map<std::string, TensorView, std::less<>> shared;
  const BatchAllocator allocate_once = [&](Index elements, std::string_view name) {
    const auto found = shared.find(name);
    return found != shared.end() ? found->second
                                 : shared.emplace(name, allocate(elements, name)).first->second;
  };
  for (const EvalFile& file : options.eval.files) {
    EvalSet set = {.name = file.name, .sequences = nullptr};
    require_readable(option_text(set), file.path, kTokenFile, PathKind::file);
    set.sequences = std::make_unique<EvalSequences>(
        EvalSequencesOptions{.file = file.path,
                             .sequence_length = options.batch.seq,
                             .micro_batch = options.batch.micro_batch,
                             .max_sequences = options.eval.sequences,
                             .vocab = vocab,
                             .documents = documents_},
        allocate_once);
    eval_sets_.push_back(std::move(set));
  }
}

std::string option_text(const EvalSet& set) {
  return set.name.empty() ? "--eval-data" : "--eval-data " + set.name;
}

DataPass RunData::pass() const {
  DataPass pass = {.sequences = loader_->sequences()};
  for (const TokenFile& file : loader_->files()) {
    pass.tokens += file.token_count();
  }
  return pass;
}

Index RunData::file_count() const {
  return std::ssize(loader_->files());
}

Index RunData::document_count() const {
  Index count = 0;
  for (const TokenFile& file : loader_->files()) {
    count += file.document_count();
  }
  return count;
}

std::optional<PackingCounts> RunData::packing() const {
  return documents_ == DocumentMode::separate ? std::optional(loader_->packing()) : std::nullopt;
}

std::vector<NamedValue> RunData::values() const {
  std::vector<NamedValue> all;
  for (const TokenFile& file : loader_->files()) {
    all.push_back(data_value("--data", file));
  }
  all.push_back({"order of the data (hash)", loader_->data_hash()});
  for (const EvalSet& set : eval_sets_) {
    all.push_back(data_value(option_text(set), set.sequences->file()));
  }
  return all;
}

EvalContext RunData::context_of(const EvalSet& set, const EvalReport& report) {
  const TokenFile& file = set.sequences->file();
  EvalContext context = {.name = set.name,
                         .sequences = set.sequences->sequences(),
                         .file_sequences = set.sequences->file_sequences()};
  // Of masked targets the bytes are not known.
  if (report.loss && file.info().source_bytes != 0 && !file.has_mask()) {
    context.bits_per_byte = *report.loss / std::numbers::ln2 *
                            static_cast<double>(file.token_count()) /
                            static_cast<double>(file.info().source_bytes);
  }
  return context;
}

void RunData::compare_tokenizers(Index model_vocab) {
  const TokenizerFacts first = tokenizer();
  TokenizerFacts widest = first;
  for (const TokenFile& file : std::span(loader_->files()).subspan(1)) {
    const TokenizerFacts other = tokenizer_of(file, "--data");
    tokenizers_.compare(other, first);
    widest = other.vocab_size > widest.vocab_size ? other : widest;
  }
  for (const EvalSet& set : eval_sets_) {
    tokenizers_.compare(tokenizer_of(set.sequences->file(), option_text(set)), first);
  }
  tokenizers_.compare_vocabulary(widest, model_vocab);
}

namespace {

// Text beside chats: only the chats' file says how chats are written.
void add_chat_template(std::vector<TokenizerFile>& companions,
                       const std::vector<TokenizerFile>& of_another) {
  const auto find = [](const std::vector<TokenizerFile>& files) {
    return std::find_if(files.begin(), files.end(),
                        [](const TokenizerFile& file) { return file.name == kChatTemplate; });
  };
  if (const auto other = find(of_another);
      find(companions) == companions.end() && other != of_another.end()) {
    companions.push_back(*other);
  }
}

}  // namespace

RunTokenizer run_tokenizer(std::span<const TokenFile> data) {
  std::optional<RunTokenizer> all;
  for (const TokenFile& file : data) {
    RunTokenizer mine = {.kind = file.info().tokenizer,
                         .vocab_size = file.info().vocab_size,
                         .end_token = file.info().end_token,
                         .model = std::string(file.tokenizer_model()),
                         .companions = file.tokenizer_companions()};
    if (all && mine.kind == kIdsKind) {
      continue;  // made by one that the file does not tell: of those that are given it is
    }
    if (all && all->kind != kIdsKind && (all->kind != mine.kind || all->model != mine.model)) {
      return {.kind = std::string(kIdsKind), .vocab_size = 0, .end_token = -1, .model = {}};
    }
    if (!all || all->kind == kIdsKind || all->companions.empty()) {
      all = std::move(mine);
    } else {
      add_chat_template(all->companions, mine.companions);
    }
  }
  return *all;
}

void compare_tokenizer_of_weights(MpiSession& session, const RunIdentity& identity,
                                  const std::optional<ResumePoint>& point,
                                  const std::optional<InitWeights>& weights, RunData& data) {
  agree(session, [&] {
    std::optional<TokenizerFacts> theirs;
    if (session.rank() != 0) {
      return;
    }
    if (point) {
      if (point->info.data_hash != identity.data_hash) {  // else they are the same data
        theirs = tokenizer_of_folder(run_folder_of(point->folder), point->folder.string());
      }
    } else if (weights) {
      theirs = init_tokenizer(*weights);
    }
    if (theirs) {
      data.tokenizers().compare(data.tokenizer(), *theirs);
    }
  });
}

}  // namespace tessera
