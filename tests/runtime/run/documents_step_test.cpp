// Documents that see nothing of each other, in whole steps: packed into sequences they have the
// losses that they have alone, bit for bit, on any number of ranks and in every way to run a step.
#define BOOST_TEST_MODULE documents_step
#include <cmath>
#include <functional>
#include <numeric>

#include <boost/test/unit_test.hpp>

#include "collectives/mpi_session.h"
#include "kernels/base/random.h"
#include "kernels/device/device_backend.h"
#include "tests/support/compare.h"
#include "tests/support/run/check_bits.h"
#include "tests/support/test_bench.h"
#include "tests/support/test_session.h"

namespace tessera::test {
namespace {

struct DeviceIsPresent {
  DeviceIsPresent() { skip_without(TESSERA_TEST_DEVICE); }
};
BOOST_TEST_GLOBAL_FIXTURE(DeviceIsPresent);

constexpr bool kIsCuda = TESSERA_TEST_DEVICE == DeviceKind::cuda;
constexpr Index kLength = 16;
constexpr Index kVocabulary = 67;

struct Document {
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;
};

std::vector<Document> documents_of(const std::vector<Index>& lengths) {
  constexpr std::uint64_t kStream = 78;
  std::vector<Document> documents;
  std::uint64_t next = 0;
  for (const Index length : lengths) {
    Document& document = documents.emplace_back();
    for (Index t = 0; t < length; ++t) {
      const auto words = philox(kSeed, kStream, next++);
      document.inputs.push_back(static_cast<std::int32_t>(words[0] % kVocabulary));
      document.targets.push_back(
          words[1] % 8 == 0 ? kIgnoreTarget : static_cast<std::int32_t>(words[2] % kVocabulary));
    }
  }
  return documents;
}

// Sequences that hold these documents by number, padded.
SmallRunOptions options_of(const std::vector<Document>& documents,
                           const std::vector<std::vector<std::size_t>>& sequences) {
  SmallRunOptions options = small_options();
  options.device = own_device();
  options.tokens.clear();
  options.targets.clear();
  for (const std::vector<std::size_t>& sequence : sequences) {
    std::vector<Index>& lengths = options.documents.emplace_back();
    for (const std::size_t number : sequence) {
      const Document& document = documents[number];
      options.tokens.insert(options.tokens.end(), document.inputs.begin(), document.inputs.end());
      options.targets.insert(options.targets.end(), document.targets.begin(),
                             document.targets.end());
      lengths.push_back(std::ssize(document.inputs));
    }
    const Index padding = kLength - std::accumulate(lengths.begin(), lengths.end(), Index{0});
    if (padding > 0) {
      lengths.push_back(padding);
      options.tokens.insert(options.tokens.end(), static_cast<std::size_t>(padding), 0);
      options.targets.insert(options.targets.end(), static_cast<std::size_t>(padding),
                             kIgnoreTarget);
    }
  }
  options.settings.scratch.attention.documents = true;
  return options;
}

// 38 documents in 16 sequences: one that fills its sequence, 16 of one token, pairs, threes, and
// some with padding behind them.
const std::vector<std::vector<Index>> kPacked = {{16},         std::vector<Index>(16, 1),
                                                 {9, 7},       {5, 6, 5},
                                                 {15, 1},      {3, 12},
                                                 {8, 8},       {11},
                                                 {2, 2, 2, 9}, {13, 2},
                                                 {4, 10},      {7, 9},
                                                 {1, 14},      {6, 6},
                                                 {16},         {10, 3, 3}};

std::vector<Document> packed_documents() {
  std::vector<Index> lengths;
  for (const std::vector<Index>& sequence : kPacked) {
    lengths.insert(lengths.end(), sequence.begin(), sequence.end());
  }
  return documents_of(lengths);
}

// In `count` sequences, those behind the packed ones without any document.
SmallRunOptions packed_options(std::size_t count = kPacked.size()) {
  std::vector<std::vector<std::size_t>> sequences;
  std::size_t next = 0;
  for (const std::vector<Index>& sequence : kPacked) {
    sequences.emplace_back(sequence.size());
    std::iota(sequences.back().begin(), sequences.back().end(), next);
    next += sequence.size();
  }
  sequences.resize(count);
  return options_of(packed_documents(), sequences);
}

// Losses of a step's one micro-batch, token by token, and its gradients by unit.
struct Tokens {
  std::vector<float> losses;
  std::vector<std::vector<float>> gradients;
};
Tokens tokens_of(SmallRunOptions options, Index sequences) {
  options.steps = 1;
  options.settings.trainer.global_batch = sequences;
  options.settings.trainer.micro_batch = sequences;
  options.settings.scratch.batch.sequences = sequences;
  Tokens tokens;
  options.after_step = [&](TrainingRun& run, const StepReport&) {
    run.trainer().synchronize();
    const TensorView losses = run.scratch().losses();
    tokens.losses.resize(static_cast<std::size_t>(losses.count()));
    copy_async(losses, {tokens.losses.data(), DType::f32, losses.shape, Device{}}, run.compute());
    for (UnitId unit = 0; unit < run.layout().unit_count(); ++unit) {
      const TensorView grad = run.shard().grad(unit).slice(0, run.layout().unit(unit).count);
      std::vector<float>& values = tokens.gradients.emplace_back();
      values.resize(static_cast<std::size_t>(grad.count()));
      copy_async(grad, {values.data(), DType::f32, grad.shape, Device{}}, run.compute());
    }
    run.compute().synchronize();
  };
  Alone comm;
  (void)run_small(options, comm);
  return tokens;
}

// Each token's loss, where it stands packed and where it stands alone in a padded sequence. A
// library's products may add in another order for another number of rows, so that both batches have
// as many sequences on CUDA. `order` bounds gradients, the same sums in another order.
void check_packed_like_alone(const std::function<void(SmallRunOptions&)>& change, double order) {
  const std::vector<Document> documents = packed_documents();
  std::vector<std::vector<std::size_t>> sequences;
  for (std::size_t number = 0; number < documents.size(); ++number) {
    sequences.push_back({number});
  }
  const auto tokens_with = [&](SmallRunOptions options, std::size_t count) {
    change(options);
    return tokens_of(std::move(options), static_cast<Index>(count));
  };
  const std::size_t count = kIsCuda ? sequences.size() : kPacked.size();
  const Tokens packed = tokens_with(packed_options(count), count);
  const Tokens alone = tokens_with(options_of(documents, sequences), sequences.size());
  std::size_t next = 0;
  for (std::size_t s = 0; s < kPacked.size(); ++s) {
    std::size_t place = s * kLength;
    for (const Index length : kPacked[s]) {
      for (Index t = 0; t < length; ++t, ++place) {
        const float expected = alone.losses[next * kLength + static_cast<std::size_t>(t)];
        BOOST_TEST(packed.losses[place] == expected, "document " << next << ", token " << t << ": "
                                                                 << packed.losses[place] << " for "
                                                                 << expected);
      }
      ++next;
    }
  }
  for (std::size_t unit = 0; unit < packed.gradients.size(); ++unit) {
    double difference = 0;
    double size = 0;
    for (std::size_t i = 0; i < packed.gradients[unit].size(); ++i) {
      const auto mine = static_cast<double>(packed.gradients[unit][i]);
      const auto other = static_cast<double>(alone.gradients[unit][i]);
      difference += (mine - other) * (mine - other);
      size += other * other;
    }
    BOOST_TEST(std::sqrt(difference) <= order * std::sqrt(size), "unit " << unit);
    BOOST_TEST(size > 0);
  }
}

std::unique_ptr<Communicator> all_ranks() {
  return make_communicator(session(), own_device());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(documents_step)

BOOST_AUTO_TEST_CASE(a_packed_document_has_the_losses_that_it_has_alone) {
  check_packed_like_alone([](SmallRunOptions&) {}, 1e-5);
}

// What runs train with on GPUs: 16-bit numbers, and the library's attention.
BOOST_AUTO_TEST_CASE(in_bf16_a_packed_document_has_the_losses_that_it_has_alone,
                     *boost::unit_test::enable_if<kIsCuda>()) {
  constexpr Index kLibraryDim = 64;
  constexpr double kRounded = 1.0 / 64;  // gradients of 8 bits
  check_packed_like_alone(
      [](SmallRunOptions& options) {
        options.config.head_dim = kLibraryDim;
        options.settings.scratch.precision = precision_of(Precision::bf16);
        options.settings.scratch.attention.method = AttentionMethod::library;
      },
      kRounded);
}

// The sum of losses is exact, so that it tells of every token: of the first step, where parameters
// are the same.
BOOST_AUTO_TEST_CASE(packed_and_padded_steps_have_one_loss_on_any_number_of_ranks) {
  const auto comm = all_ranks();
  const std::vector<Document> documents = packed_documents();
  std::vector<std::vector<std::size_t>> sequences;
  for (std::size_t number = 0; number < documents.size(); ++number) {
    sequences.push_back({number});
  }
  if (sequences.size() % 2 != 0) {
    sequences.emplace_back();  // padding alone, to fill the last micro-batch
  }
  SmallRunOptions padded = options_of(documents, sequences);
  padded.settings.trainer.global_batch = std::ssize(sequences);
  padded.steps = 1;
  SmallRunOptions packed = packed_options();
  packed.steps = 1;
  const RunBits of_packed = run_small(packed, *comm);
  const RunBits of_padded = run_small(padded, *comm);
  BOOST_TEST(of_packed.losses.front() == of_padded.losses.front());
  constexpr double kOrder = 1e-5;
  BOOST_TEST(std::abs(of_packed.norms.front() / of_padded.norms.front() - 1) <= kOrder);
}

BOOST_AUTO_TEST_CASE(any_number_of_ranks_and_every_way_to_run_give_the_bits_of_one) {
  const auto comm = all_ranks();
  const SmallRunOptions plain = packed_options();
  const RunBits expected = alone(plain);
  BOOST_TEST(std::isfinite(expected.losses.back()));
  BOOST_TEST(expected.losses.back() < expected.losses.front());
  check_same(run_small(plain, *comm), expected, "plain");
  for (const Recompute recompute : {Recompute::attention, Recompute::mlp, Recompute::block}) {
    SmallRunOptions options = plain;
    options.settings.scratch.recompute = recompute;
    options.settings.paging = {.page_bytes = std::size_t{12} << 10U, .page_all = true};
    check_same(run_small(options, *comm), expected, "recomputed, paged");
  }
  SmallRunOptions together = plain;
  together.settings.scratch.recompute = Recompute::block;
  together.settings.scratch.inputs = InputPlacement::host;
  together.settings.trainer.batched_forward = 3;
  check_same(run_small(together, *comm), expected, "forward passes side by side");
}

// What was there before is not what comes now: documents differ from joined ones, and a change in
// one document changes no other.
BOOST_AUTO_TEST_CASE(a_document_does_not_depend_on_its_neighbours) {
  SmallRunOptions options = packed_options();
  const Tokens before = tokens_of(options, std::ssize(kPacked));
  SmallRunOptions joined = options;
  joined.documents.clear();
  joined.settings.scratch.attention.documents = false;
  const Tokens without = tokens_of(joined, std::ssize(kPacked));
  constexpr std::size_t kChanged = 2;  // its second document
  const std::size_t begin = kChanged * kLength + static_cast<std::size_t>(kPacked[kChanged][0]);
  options.tokens[begin] = (options.tokens[begin] + 1) % static_cast<std::int32_t>(kVocabulary);
  const Tokens after = tokens_of(options, std::ssize(kPacked));
  Index differing = 0;
  Index joined_differing = 0;
  for (std::size_t place = 0; place < before.losses.size(); ++place) {
    const bool is_of_changed = place >= begin && place < (kChanged + 1) * kLength;
    differing += before.losses[place] == after.losses[place] ? 0 : 1;
    BOOST_TEST((is_of_changed || before.losses[place] == after.losses[place]));
    joined_differing += before.losses[place] == without.losses[place] ? 0 : 1;
  }
  BOOST_TEST(differing > 0);
  BOOST_TEST(joined_differing > 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
