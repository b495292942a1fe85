#include "tests/support/run/small_run.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "kernels/base/random.h"
#include "tests/support/compare.h"

namespace tessera::test {
namespace {

constexpr Index kVocabulary = 67;
constexpr Index kLength = 16;
constexpr Index kSequences = 40;

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace

bool operator==(const RunBits& a, const RunBits& b) {
  return same_bits(a.losses, b.losses) && same_bits(a.norms, b.norms) &&
         a.parameters == b.parameters;
}

std::string text_of(const RunBits& bits) {
  std::ostringstream out;
  out.precision(17);
  for (std::size_t i = 0; i < bits.losses.size(); ++i) {
    out << "step " << i + 1 << " loss " << bits.losses[i] << " norm " << bits.norms[i] << "; ";
  }
  out << "parameters " << std::hex << bits.parameters;
  return out.str();
}

ModelConfig small_config(bool tied) {
  ModelConfig c;
  c.vocab_size = kVocabulary;
  c.hidden_size = 32;
  c.intermediate_size = 48;
  c.num_layers = 2;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 8;
  c.tie_embeddings = tied;
  c.rope_theta = 1e4;
  return c;
}

RunSettings small_settings() {
  RunSettings s;
  s.trainer = {.global_batch = 16, .micro_batch = 2, .clip_norm = 1.0};
  s.scratch.batch = {2, kLength};
  s.scratch.attention.method = AttentionMethod::builtin;
  s.schedule = {.kind = ScheduleKind::constant, .lr = 1e-2};
  s.seed = kSeed;
  return s;
}

SmallRunOptions small_options(bool tied) {
  SmallRunOptions options;
  options.config = small_config(tied);
  options.settings = small_settings();
  constexpr std::uint64_t kTokenStream = 77;
  for (Index i = 0; i < kSequences * kLength; ++i) {
    const auto words = philox(kSeed, kTokenStream, static_cast<std::uint64_t>(i));
    options.tokens.push_back(static_cast<std::int32_t>(words[0] % kVocabulary));
    const bool ignored = words[1] % 8 == 0 || i >= (kSequences - 1) * kLength;
    options.targets.push_back(ignored ? kIgnoreTarget
                                      : static_cast<std::int32_t>(words[2] % kVocabulary));
  }
  return options;
}

MemoryBatchesOptions batches_of(const SmallRunOptions& options, const Communicator& comm) {
  return {.tokens = options.tokens,
          .targets = options.targets,
          .documents = options.documents,
          .length = options.settings.scratch.batch.length,
          .micro_batch = options.settings.trainer.micro_batch,
          .global_batch = options.settings.trainer.global_batch,
          .rank = comm.rank(),
          .world_size = comm.world_size()};
}

RunBits run_small(const SmallRunOptions& options, Communicator& comm) {
  Arena arena(options.device, ArenaMode::allocate);
  MemoryBatches batches(batches_of(options, comm));
  TrainingRun run(options.config, options.settings, comm, batches, arena);
  run.initialize_weights();
  run.trainer().gather_parameters();
  arena.freeze();
  if (options.before) {
    options.before(run);
  }
  RunBits bits;
  for (int step = 0; step < options.steps; ++step) {
    const StepReport report = run.trainer().step();
    bits.losses.push_back(report.loss);
    bits.norms.push_back(report.grad_norm);
    if (options.after_step) {
      options.after_step(run, report);
    }
  }
  bits.parameters = run.parameter_hash();
  for (UnitId unit = 0; unit < run.layout().unit_count(); ++unit) {
    for (const StateArraySpec& spec : run.shard().numbers().arrays()) {
      // the padding too: arrays with scales are read in whole blocks
      std::vector<float> values(static_cast<std::size_t>(run.shard().range(unit).shard_size()));
      run.shard().read(
          unit, spec.array, 0,
          {values.data(), DType::f32, Shape{static_cast<Index>(values.size())}, Device{}});
      bits.state.insert(bits.state.end(), values.begin(),
                        values.begin() + run.shard().real_count(unit));
    }
  }
  return bits;
}

std::vector<EvalReport> evaluations_of(SmallRunOptions options, Communicator& comm) {
  MemoryBatchesOptions data = batches_of(options, comm);
  data.global_batch = 14;
  MemoryBatches held_out(data);
  held_out.prefetch(0);
  (void)held_out.prefetched_targets();
  held_out.take();
  std::vector<EvalReport> reports;
  options.after_step = [&](TrainingRun& run, const StepReport&) {
    reports.push_back(
        run.trainer().evaluate(7, [&](Index i) { return held_out.batch(i / comm.world_size()); }));
  };
  (void)run_small(options, comm);
  return reports;
}

}  // namespace tessera::test
