#include "runtime/data/data_loader.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <boost/test/unit_test.hpp>

#include "runtime/data/data_set.h"
#include "tests/runtime/checkpoint/saves.h"
#include "tests/runtime/data/count_allocations.h"
#include "tests/runtime/data/token_files.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

// Host memory for a loader, kept as long as this.
class Memory {
 public:
  [[nodiscard]] BatchAllocator allocator() {
    return [this](Index elements, std::string_view name) {
      names_.emplace_back(name);
      blocks_.emplace_back(static_cast<std::size_t>(elements), -7);
      return TensorView{blocks_.back().data(), DType::i32, {elements}, Device{}};
    };
  }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::vector<std::int32_t>> blocks_;
  std::vector<std::string> names_;
};

// A loader and its memory. The vector of blocks may move, its blocks do not.
struct Loader {
  explicit Loader(const DataLoaderOptions& options) : loader(options, memory.allocator()) {}
  Memory memory;
  DataLoader loader;

  Index step(Index position) {
    loader.prefetch(position);
    const Index targets = loader.prefetched_targets();
    loader.take();
    return targets;
  }
};

std::vector<std::int32_t> values(const ConstTensorView& view) {
  const auto* data = data_as<std::int32_t>(view);
  return {data, data + view.count()};
}

// One file, one rank, batch of one sequence, unless changed.
DataLoaderOptions options_for(const std::filesystem::path& path, Index T) {
  return {.files = {{path, std::nullopt}},
          .sequence_length = T,
          .micro_batch = 1,
          .global_batch = 1,
          .seed = 3,
          .rank = 0,
          .world_size = 1,
          .vocab = 256};
}

struct Row {
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 behind <=> for a pointer
  // clang-tidy 14 takes the 0 that <=> is compared with for a pointer
  // NOLINTNEXTLINE(modernize-use-nullptr,readability-implicit-bool-conversion)
  friend auto operator<=>(const Row&, const Row&) = default;
};

// The rows of `steps` steps from `position` on, as `world_size` ranks together see them, by
// position.
std::map<Index, Row> rows_of(DataLoaderOptions options, int world_size, Index position,
                             Index steps) {
  std::map<Index, Row> rows;
  const Index T = options.sequence_length;
  const Index B = options.micro_batch;
  const Index M = options.global_batch / B;
  options.world_size = world_size;
  for (int rank = 0; rank < world_size; ++rank) {
    options.rank = rank;
    Loader ranked(options);
    for (Index step = 0; step < steps; ++step) {
      const Index first = position + step * options.global_batch;
      const Index targets = ranked.step(first);
      Index counted = 0;
      for (Index round = 0; round * world_size + rank < M; ++round) {
        const Batch batch = ranked.loader.batch(round);
        const std::vector<std::int32_t> inputs = values(batch.inputs);
        const std::vector<std::int32_t> targets_of = values(batch.targets);
        counted += batch.target_count;
        for (Index b = 0; b < B; ++b) {
          const Index at = first + (round * world_size + rank) * B + b;
          BOOST_REQUIRE(!rows.contains(at));
          rows[at] = {{inputs.begin() + b * T, inputs.begin() + (b + 1) * T},
                      {targets_of.begin() + b * T, targets_of.begin() + (b + 1) * T}};
        }
      }
      BOOST_REQUIRE_EQUAL(counted, targets);
    }
  }
  return rows;
}

// Row of sequence `sequence` of a file of one document without mask that holds `ids`.
Row expected_row(const std::vector<std::uint32_t>& ids, Index T, Index sequence) {
  Row row;
  for (Index i = sequence * T; i < (sequence + 1) * T; ++i) {
    const auto at = static_cast<std::size_t>(i);
    row.inputs.push_back(at < ids.size() ? static_cast<std::int32_t>(ids[at]) : 0);
    row.targets.push_back(at + 1 < ids.size() ? static_cast<std::int32_t>(ids[at + 1])
                                              : kIgnoreTarget);
  }
  return row;
}

BOOST_AUTO_TEST_SUITE(data_loader)

BOOST_AUTO_TEST_CASE(files_of_exact_and_nearly_exact_sizes_are_seen_whole) {
  const TempFolder folder;
  const Index T = 8;
  const Index B = 2;
  for (const int W : {1, 2, 3}) {
    for (const Index tokens : {T + 1, B * T, B * T + 1, B * T * W, B * T * W + 1, B * T * W + 5}) {
      const std::vector<std::uint32_t> ids = counting(static_cast<std::size_t>(tokens));
      const std::filesystem::path path = folder / "a.h5";
      write_tokens(path, {ids});
      DataLoaderOptions options = options_for(path, T);
      options.micro_batch = B;
      options.global_batch = B * W;
      const Loader one(options);
      const Index sequences = (tokens - 1 + T - 1) / T;
      BOOST_REQUIRE_EQUAL(one.loader.sequences(), sequences);
      const Index steps = (sequences + options.global_batch - 1) / options.global_batch;
      const std::map<Index, Row> rows = rows_of(options, W, 0, steps);
      const std::vector<SequenceId> ids_of =
          one.loader.sequence_ids(0, steps * options.global_batch);
      std::set<Index> seen;
      Index targets = 0;
      for (const auto& [position, row] : rows) {
        const Index sequence = ids_of[static_cast<std::size_t>(position)].sequence;
        BOOST_REQUIRE((row == expected_row(ids, T, sequence)));
        if (seen.insert(sequence).second) {
          targets += T - std::count(row.targets.begin(), row.targets.end(), kIgnoreTarget);
        }
      }
      BOOST_TEST(static_cast<Index>(seen.size()) == sequences);
      BOOST_TEST(targets == tokens - 1);  // each token but the first is a target once an epoch
    }
  }
}

BOOST_AUTO_TEST_CASE(a_sequence_longer_than_the_file_is_refused_with_both_numbers) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "x.h5";
  write_tokens(path, {counting(1024)});
  Memory memory;
  for (const Index T : {Index{1024}, Index{4096}}) {
    const std::string message = message_of<ConfigError>(
        [&] { const DataLoader loader(options_for(path, T), memory.allocator()); });
    BOOST_TEST(
        contains(message, fmt::format("--seq {} exceeds the 1024 tokens of {}", T, path.string())),
        message);
  }
  BOOST_TEST(Loader(options_for(path, 1023)).loader.sequences() == 1);
}

BOOST_AUTO_TEST_CASE(the_first_token_of_a_document_is_no_target) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  // sequences of 4: documents begin in the middle of one, at the start of one, one after another
  write_tokens(path, {counting(2), counting(6), counting(1), counting(1), counting(7)});
  const std::map<Index, Row> rows = rows_of(options_for(path, 4), 1, 0, 4);
  const Loader one(options_for(path, 4));
  const std::vector<SequenceId> ids = one.loader.sequence_ids(0, 4);
  constexpr std::int32_t kNo = kIgnoreTarget;
  const std::vector<Row> expected = {{{0, 1, 0, 1}, {1, kNo, 1, 2}},
                                     {{2, 3, 4, 5}, {3, 4, 5, kNo}},
                                     {{0, 0, 0, 1}, {kNo, kNo, 1, 2}},
                                     {{2, 3, 4, 5}, {3, 4, 5, 6}}};
  for (const auto& [position, row] : rows) {
    const Index sequence = ids[static_cast<std::size_t>(position)].sequence;
    BOOST_TEST((row == expected[static_cast<std::size_t>(sequence)]), "sequence " << sequence);
  }
}

// Four ranks stop after some steps; any number continues at the position in their checkpoint.
BOOST_AUTO_TEST_CASE(sequences_after_a_checkpoint_neither_repeat_nor_skip_on_any_number_of_ranks) {
  const TempFolder folder;
  const Index T = 8;
  constexpr Index kSequences = 29;
  constexpr Index kSteps = 9;  // of 8 sequences: more than two epochs
  constexpr int kSavedBy = 4;
  const std::vector<std::uint32_t> ids = counting(static_cast<std::size_t>(kSequences * T + 1));
  write_tokens(folder / "a.h5", {ids});
  DataLoaderOptions options = options_for(folder / "a.h5", T);
  options.global_batch = 8;
  std::map<Row, Index> sequence_of;  // by what is in it
  for (Index sequence = 0; sequence < kSequences; ++sequence) {
    sequence_of[expected_row(ids, T, sequence)] = sequence;
  }
  BOOST_REQUIRE_EQUAL(static_cast<Index>(sequence_of.size()), kSequences);
  // The sequences that all ranks train on in these steps, in the order of their positions.
  const auto sequences_used = [&](int world_size, Index position, Index steps) {
    std::vector<Index> sequences;
    for (const auto& [at, row] : rows_of(options, world_size, position, steps)) {
      BOOST_REQUIRE_EQUAL(at, position + std::ssize(sequences));
      sequences.push_back(sequence_of.at(row));
    }
    return sequences;
  };

  const std::vector<Index> straight = sequences_used(1, 0, kSteps);
  for (Index epoch = 0; (epoch + 1) * kSequences <= std::ssize(straight); ++epoch) {
    const auto begin = straight.begin() + epoch * kSequences;
    BOOST_TEST(std::set<Index>(begin, begin + kSequences).size() == kSequences);
  }
  for (const Index steps : {Index{2}, Index{3}, Index{4}}) {  // the first epoch ends in the fourth
    SaveOptions saved;
    saved.step = steps;
    saved.world_size = kSavedBy;
    const CheckpointReader reader(save(folder / fmt::format("run {}", steps), saved).folder);
    const Index position = reader.info().windows_taken;
    BOOST_TEST(position == steps * options.global_batch);
    const std::vector<Index> before = sequences_used(kSavedBy, 0, steps);
    for (const int world_size : {1, 2, 3, 5, 8}) {
      std::vector<Index> sequences = before;
      const std::vector<Index> after = sequences_used(world_size, position, kSteps - steps);
      sequences.insert(sequences.end(), after.begin(), after.end());
      BOOST_TEST(sequences == straight, boost::test_tools::per_element());
    }
  }
}

BOOST_AUTO_TEST_CASE(masked_tokens_are_inputs_but_no_targets) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  write_tokens(path, {{1, 2, 3, 4, 5}}, 256, {1, 0, 1, 0, 1});
  Loader one(options_for(path, 4));
  BOOST_TEST(one.step(0) == 2);
  BOOST_TEST(values(one.loader.batch(0).inputs) == (std::vector<std::int32_t>{1, 2, 3, 4}),
             boost::test_tools::per_element());
  BOOST_TEST(values(one.loader.batch(0).targets) ==
                 (std::vector<std::int32_t>{kIgnoreTarget, 3, kIgnoreTarget, 5}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_batch_without_any_target_is_a_batch) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  write_tokens(path, {counting(9)}, 256, {0, 0, 0, 0, 0, 0, 0, 0, 1});
  std::set<Index> counts;
  for (const Index position : {0, 1}) {
    Loader one(options_for(path, 4));
    const Index targets = one.step(position);
    BOOST_TEST(one.loader.batch(0).target_count == targets);
    counts.insert(targets);
  }
  BOOST_TEST(counts == (std::set<Index>{0, 1}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_training_file_without_any_target_is_refused_by_name) {
  const TempFolder folder;
  const std::filesystem::path good = folder / "good.h5";
  const std::filesystem::path bad = folder / "bad.h5";
  write_tokens(good, {counting(40)});
  const auto refusal = [&] {
    DataLoaderOptions options = options_for(good, 4);
    options.files.push_back({bad, std::nullopt});
    Memory memory;
    return message_of<FormatError>([&] { const DataLoader loader(options, memory.allocator()); });
  };
  write_tokens(bad, {{1, 2, 3, 4, 5}}, 256, {1, 0, 0, 0, 0});
  BOOST_TEST(contains(refusal(), bad.string() + " has no target to train on: its mask"));
  write_tokens(bad, {{1}, {2}, {3}, {4}, {5}});
  BOOST_TEST(contains(refusal(), bad.string() + " has no target to train on: no document"));
}

BOOST_AUTO_TEST_CASE(a_file_that_is_truncated_between_steps_is_named) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  write_tokens(path, {counting(20'000)});
  Loader one(options_for(path, 64));
  BOOST_TEST(one.step(0) == 64);
  std::filesystem::resize_file(path, 4096);
  one.loader.prefetch(1);
  BOOST_TEST(
      contains(message_of<FormatError>([&] { static_cast<void>(one.loader.prefetched_targets()); }),
               path.string() + " was truncated while it was in use"));
}

// One id of a whole file becomes another one, and nothing else tells of it.
void damage_token(const std::filesystem::path& path, std::uint64_t behind_header) {
  constexpr std::uint64_t kHeader = 4096;
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(0, std::ios::end);
  BOOST_REQUIRE(static_cast<std::uint64_t>(file.tellg()) > kHeader + behind_header);
  file.seekg(static_cast<std::streamoff>(kHeader + behind_header));
  const auto byte = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(kHeader + behind_header));
  file.put(static_cast<char>(byte ^ 1));
}

BOOST_AUTO_TEST_CASE(content_that_is_not_what_was_written_is_found_beside_the_steps) {
  const TempFolder folder;
  const std::filesystem::path good = folder / "good.h5";
  const std::filesystem::path path = folder / "a.h5";
  constexpr Index kTokens = 9'000'000;  // more than two steps look at
  write_tokens(good, {counting(20'000)});
  write_tokens(path, {counting(kTokens)});
  const auto failing_step = [&] {
    DataLoaderOptions options = options_for(good, 64);
    options.files.push_back({path, std::nullopt});
    Loader both(options);
    constexpr Index kSteps = 8;
    for (Index step = 0; step < kSteps; ++step) {
      both.loader.prefetch(step);
      try {
        static_cast<void>(both.loader.prefetched_targets());
      } catch (const FormatError& error) {
        BOOST_TEST(
            contains(error.message(), path.string() + " is damaged: its content has the hash"));
        BOOST_TEST(
            contains(error.message(), "copy the file again, or make it again with tokenize"));
        return step;
      }
      both.loader.take();
    }
    return Index{-1};
  };
  BOOST_TEST(failing_step() == -1);
  const std::uint64_t tokens_at = std::filesystem::file_size(path) - kTokens - 4096;
  damage_token(path, tokens_at + kTokens / 2);
  // one step for the small file, and three for what is read 4 MiB at a time
  BOOST_TEST(failing_step() == 3);
  Memory memory;
  EvalSequences eval(
      {.file = path, .sequence_length = 64, .micro_batch = 1, .max_sequences = 4, .vocab = 256},
      memory.allocator());
  static_cast<void>(eval.batch(0));
  static_cast<void>(eval.batch(1));
  BOOST_TEST(contains(message_of<FormatError>([&] { static_cast<void>(eval.batch(2)); }),
                      path.string() + " is damaged"));
}

BOOST_AUTO_TEST_CASE(a_mask_of_another_value_is_named) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  RawTokenFile raw;
  raw.mask = std::vector<std::uint32_t>{1, 1, 1, 1, 1, 2, 1, 1};
  write_raw(path, raw);
  Loader one(options_for(path, 7));
  one.loader.prefetch(0);
  BOOST_TEST(message_of<FormatError>([&] { static_cast<void>(one.loader.prefetched_targets()); }) ==
             fmt::format("the mask of token 5 of {} is 2, neither 0 nor 1", path.string()));
}

BOOST_AUTO_TEST_CASE(a_token_at_or_beyond_the_vocabulary_is_named_with_file_and_position) {
  const TempFolder folder;
  for (const std::uint32_t bad : {300U, 301U, 65535U, 0x80000000U, 0xFFFFFFFFU}) {
    const std::filesystem::path path = folder / fmt::format("a b {}.h5", bad);
    write_raw(
        path,
        {.token_type = H5T_STD_U32LE, .tokens = {1, 2, 299, 4, bad, 6, 7, bad}, .vocab = 300});
    DataLoaderOptions options = options_for(path, 7);
    options.vocab = 300;
    Loader one(options);
    one.loader.prefetch(0);
    for (int again = 0; again < 2; ++again) {
      BOOST_TEST(
          message_of<FormatError>([&] { static_cast<void>(one.loader.prefetched_targets()); }) ==
          fmt::format(
              "token 4 of {} has the id {}, outside the vocabulary of 300 tokens (0 to 299)",
              path.string(), bad));
    }
    BOOST_CHECK_THROW(one.loader.take(), ContractError);
  }
}

BOOST_AUTO_TEST_CASE(a_file_for_a_larger_vocabulary_is_refused_at_the_start) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  write_tokens(path, {counting(100)}, 257);
  Memory memory;
  BOOST_TEST(contains(message_of<ConfigError>([&] {
                        const DataLoader loader(options_for(path, 8), memory.allocator());
                      }),
                      path.string() + " has a vocabulary of 257 tokens, the model one of 256"));
}

BOOST_AUTO_TEST_CASE(vocabularies_of_any_size_work) {
  const TempFolder folder;
  for (const std::uint32_t V : {1U, 2U, 63U, 127U, 50257U}) {
    const std::filesystem::path path = folder / fmt::format("{}.h5", V);
    const std::vector<std::uint32_t> ids = counting(65, V, V - 1);
    write_tokens(path, {ids}, V);
    DataLoaderOptions options = options_for(path, 16);
    options.micro_batch = 4;
    options.global_batch = 4;
    options.vocab = V;
    Loader one(options);
    BOOST_TEST(one.step(0) == 64);
    const Batch batch = one.loader.batch(0);
    const std::vector<std::int32_t> inputs = values(batch.inputs);
    std::vector<std::int32_t> order(inputs.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<std::int32_t>(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return inputs[static_cast<std::size_t>(a)] < inputs[static_cast<std::size_t>(b)];
    });
    BOOST_TEST(values(batch.token_order) == order, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(any_number_of_ranks_sees_the_same_sequences_each_once_an_epoch) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  write_tokens(path, {counting(900, 256), counting(101, 199)});
  DataLoaderOptions options = options_for(path, 8);  // 125 sequences
  options.micro_batch = 1;
  options.global_batch = 25;
  const std::map<Index, Row> rows = rows_of(options, 1, 0, 10);  // two epochs
  for (const int W : {2, 3, 5, 40}) {                            // 40: ranks without a batch
    BOOST_TEST((rows_of(options, W, 0, 10) == rows), W << " ranks");
  }
  options.micro_batch = 5;
  BOOST_TEST((rows_of(options, 3, 0, 10) == rows), "another micro-batch");
  options.global_batch = 50;
  BOOST_TEST((rows_of(options, 2, 0, 5) == rows), "another global batch");
  const Loader one(options);
  const std::vector<SequenceId> first = one.loader.sequence_ids(0, 125);
  const std::vector<SequenceId> second = one.loader.sequence_ids(125, 250);
  BOOST_TEST(std::set<SequenceId>(first.begin(), first.end()).size() == 125U);
  BOOST_TEST(std::set<SequenceId>(second.begin(), second.end()).size() == 125U);
  BOOST_TEST((first != second));
  BOOST_TEST(one.loader.epoch_of(124) == 0);
  BOOST_TEST(one.loader.epoch_of(125) == 1);
}

BOOST_AUTO_TEST_CASE(a_run_continues_at_any_position_with_other_ranks) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  write_tokens(path, {counting(1000)});
  DataLoaderOptions options = options_for(path, 8);
  options.global_batch = 6;
  std::map<Index, Row> whole = rows_of(options, 1, 0, 30);
  std::map<Index, Row> parts = rows_of(options, 4, 0, 13);
  parts.merge(rows_of(options, 3, Index{13} * 6, 17));
  BOOST_TEST((parts == whole));
}

BOOST_AUTO_TEST_CASE(files_are_mixed_by_weight_and_without_weights_by_size) {
  const TempFolder folder;
  write_tokens(folder / "a.h5", {counting(801)});  // 100 sequences of 8
  write_tokens(folder / "b.h5", {counting(241)});  // 30
  DataLoaderOptions options = options_for("", 8);
  options.files = {{folder / "a.h5", 0.7}, {folder / "b.h5", 0.3}};
  const Loader weighted(options);
  std::size_t of_b = 0;
  const std::vector<SequenceId> ids = weighted.loader.sequence_ids(0, 1000);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    of_b += ids[i].file;
    BOOST_REQUIRE_LE(std::abs(static_cast<double>(of_b) - 0.3 * static_cast<double>(i + 1)), 1.0);
  }
  BOOST_TEST(of_b == 300U);
  // each file has its own epochs: b's 30 sequences come ten times each
  std::map<SequenceId, int> times;
  for (const SequenceId& id : ids) {
    ++times[id];
  }
  for (Index sequence = 0; sequence < 30; ++sequence) {
    BOOST_TEST((times[{1, sequence}]) == 10);
  }
  options.files = {{folder / "a.h5", std::nullopt}, {folder / "b.h5", std::nullopt}};
  const Loader by_size(options);
  const std::vector<SequenceId> epoch = by_size.loader.sequence_ids(0, 130);
  BOOST_TEST(std::set<SequenceId>(epoch.begin(), epoch.end()).size() == 130U);
  options.files = {{folder / "a.h5", 1.0}, {folder / "b.h5", std::nullopt}};
  Memory memory;
  BOOST_TEST(contains(
      message_of<ConfigError>([&] { const DataLoader loader(options, memory.allocator()); }),
      "weights to 1 of 2 files, not to " + (folder / "b.h5").string()));
}

BOOST_AUTO_TEST_CASE(a_taken_batch_stays_while_the_next_two_are_prepared) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  write_tokens(path, {counting(1000)});
  Loader one(options_for(path, 8));
  one.step(0);
  const Batch first = one.loader.batch(0);
  const std::vector<std::int32_t> inputs = values(first.inputs);
  const std::vector<std::int32_t> order = values(first.token_order);
  for (Index position = 1; position <= 2; ++position) {
    one.step(position);
    BOOST_TEST(values(one.loader.batch(0).inputs) != inputs);
    BOOST_TEST(values(first.inputs) == inputs, boost::test_tools::per_element());
    BOOST_TEST(values(first.token_order) == order, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(steps_allocate_nothing_on_the_calling_thread) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  write_tokens(path, {counting(1000)});
  Loader one(options_for(path, 8));
  one.step(0);
  start_counting_allocations();
  for (Index position = 1; position < 20; ++position) {
    one.step(position);
    static_cast<void>(one.loader.batch(0));
  }
  BOOST_TEST(stop_counting_allocations() == 0);
  start_counting_allocations();  // the control: the counter does count
  const std::vector<int> control(3);
  BOOST_TEST(stop_counting_allocations() == 1);
  BOOST_TEST(control.size() == 3U);
}

BOOST_AUTO_TEST_CASE(calls_in_the_wrong_order_are_refused) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  write_tokens(path, {counting(100)});
  Loader one(options_for(path, 8));
  BOOST_CHECK_THROW(static_cast<void>(one.loader.prefetched_targets()), ContractError);
  BOOST_CHECK_THROW(one.loader.take(), ContractError);
  BOOST_CHECK_THROW(static_cast<void>(one.loader.batch(0)), ContractError);
  BOOST_CHECK_THROW(one.loader.prefetch(-1), ContractError);
  one.loader.prefetch(0);
  BOOST_CHECK_THROW(one.loader.prefetch(1), ContractError);
  BOOST_TEST(one.loader.prefetched_targets() == 8);
  one.loader.take();
  BOOST_CHECK_THROW(one.loader.take(), ContractError);
  BOOST_CHECK_THROW(static_cast<void>(one.loader.batch(1)), ContractError);
}

BOOST_AUTO_TEST_CASE(a_loader_may_go_while_it_reads) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  write_tokens(path, {counting(100'000)});
  for (int i = 0; i < 20; ++i) {
    Loader one(options_for(path, 50'000));
    one.loader.prefetch(0);
  }
}

BOOST_AUTO_TEST_CASE(a_dry_run_names_its_memory_and_reads_nothing) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  write_tokens(path, {counting(100)});
  std::map<std::string, Index> asked;
  DataLoaderOptions options = options_for(path, 8);
  options.micro_batch = 2;
  options.global_batch = 10;  // 5 micro-batches over 2 ranks: 3 and 2
  options.world_size = 2;
  DataLoader loader(options, [&](Index elements, std::string_view name) {
    asked[std::string(name)] = elements;
    return TensorView{nullptr, DType::i32, {elements}, Device{}};
  });
  BOOST_TEST((asked == std::map<std::string, Index>{{"batches/0", 3 * 3 * 16},
                                                    {"batches/1", 3 * 3 * 16},
                                                    {"batches/2", 3 * 3 * 16},
                                                    {"batches/token counts", 257}}));
  BOOST_CHECK_THROW(loader.prefetch(0), ContractError);
}

BOOST_AUTO_TEST_CASE(batch_sizes_that_do_not_fit_together_are_refused) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  write_tokens(path, {counting(100)});
  Memory memory;
  const auto error_of = [&](Index T, Index B, Index global) {
    DataLoaderOptions options = options_for(path, T);
    options.micro_batch = B;
    options.global_batch = global;
    return message_of<ConfigError>([&] { const DataLoader loader(options, memory.allocator()); });
  };
  BOOST_TEST(error_of(8, 4, 10) == "--global-batch 10 must be a multiple of --micro-batch 4");
  BOOST_TEST(contains(error_of(8, 4, 0), "--global-batch 0"));
  BOOST_TEST(contains(error_of(8, 0, 4), "--micro-batch 0"));
  BOOST_TEST(contains(error_of(0, 1, 1), "--seq 0"));
  BOOST_TEST(
      contains(error_of(8, Index{1} << 30U, Index{1} << 30U), "more than 2147483647 tokens"));
}

BOOST_AUTO_TEST_CASE(the_data_hash_is_of_what_fixes_the_order) {
  const TempFolder folder;
  write_tokens(folder / "a.h5", {counting(100)});
  write_tokens(folder / "copy.h5", {counting(100)});
  write_tokens(folder / "b.h5", {counting(100, 7)});
  const auto hash_of = [&](const auto& change) {
    DataLoaderOptions options = options_for(folder / "a.h5", 8);
    change(options);
    return Loader(options).loader.data_hash();
  };
  const std::string hash = hash_of([](DataLoaderOptions&) {});
  BOOST_TEST(hash.size() == 32U);
  BOOST_TEST(hash == hash_of([&](DataLoaderOptions& o) { o.files[0].path = folder / "copy.h5"; }));
  BOOST_TEST(hash == hash_of([](DataLoaderOptions& o) { o.global_batch = 4; }));
  BOOST_TEST(hash != hash_of([&](DataLoaderOptions& o) { o.files[0].path = folder / "b.h5"; }));
  BOOST_TEST(hash != hash_of([](DataLoaderOptions& o) { o.sequence_length = 9; }));
  BOOST_TEST(hash != hash_of([](DataLoaderOptions& o) { o.seed = 4; }));
  write_tokens(folder / "two.h5", {counting(50), counting(50)});
  const auto of_two = [&](DocumentMode mode) {
    return hash_of([&, mode](DataLoaderOptions& o) {
      o.files[0].path = folder / "two.h5";
      o.documents = mode;
    });
  };
  BOOST_TEST(of_two(DocumentMode::joined) != of_two(DocumentMode::separate));
  const auto two = [&](double weight) {
    return hash_of([&, weight](DataLoaderOptions& o) {
      o.files = {{folder / "a.h5", weight}, {folder / "b.h5", 1.0}};
    });
  };
  BOOST_TEST(two(1.0) != two(2.0));
}

// Documents of 3, 9 and 5 tokens in sequences of 8: the second takes a whole one; the others share
// one, the longer first, and two places are padding.
BOOST_AUTO_TEST_CASE(separate_documents_are_whole_and_count_their_positions) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  write_tokens(path, {counting(3), counting(9, 251, 100), counting(5, 251, 200), counting(1)});
  DataLoaderOptions options = options_for(path, 8);
  options.documents = DocumentMode::separate;
  options.micro_batch = 2;
  options.global_batch = 2;
  Loader one(options);
  BOOST_TEST(one.loader.sequences() == 2);
  const PackingCounts packing = one.loader.packing();
  BOOST_TEST(packing.documents == 3);
  BOOST_TEST(packing.left_out == 1);
  BOOST_TEST(packing.padding(8) == 2);
  BOOST_TEST(one.step(0) == 14);
  BOOST_TEST(one.loader.sequence_ids(0, 2).size() == 2U);
  const Batch batch = one.loader.batch(0);
  constexpr std::int32_t kNo = kIgnoreTarget;
  const std::vector<std::int32_t> whole = {100, 101, 102, 103, 104, 105, 106, 107};
  const std::vector<std::int32_t> shared = {200, 201, 202, 203, 0, 1, 0, 0};
  const std::vector<std::int32_t> whole_targets = {101, 102, 103, 104, 105, 106, 107, 108};
  const std::vector<std::int32_t> shared_targets = {201, 202, 203, 204, 1, 2, kNo, kNo};
  const bool is_whole_first = one.loader.sequence_ids(0, 1).front().sequence == 0;
  const auto joined = [&](std::vector<std::int32_t> a, std::vector<std::int32_t> b) {
    if (!is_whole_first) {
      std::swap(a, b);
    }
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  const auto per_element = boost::test_tools::per_element();
  BOOST_TEST(values(batch.inputs) == joined(whole, shared), per_element);
  BOOST_TEST(values(batch.targets) == joined(whole_targets, shared_targets), per_element);
  BOOST_TEST(values(batch.positions) == joined({0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 0, 1, 0, 1}),
             per_element);
  const std::vector<std::int32_t> begins = is_whole_first
                                               ? std::vector<std::int32_t>{0, 8, 12, 14, 16}
                                               : std::vector<std::int32_t>{0, 4, 6, 8, 16};
  BOOST_TEST(values(batch.document_begins) == begins, per_element);
}

// Every target of every document once an epoch, on any number of ranks; a document that is cut
// loses none.
BOOST_AUTO_TEST_CASE(an_epoch_of_separate_documents_has_every_target_once) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  constexpr Index kT = 8;
  Documents documents;
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < 60; ++i) {
    const std::size_t length = 1 + i * 7 % 23;
    documents.push_back(counting(length, 1000, next));  // no token twice
    next += static_cast<std::uint32_t>(length);
  }
  write_tokens(path, documents, 1000);
  std::map<std::int32_t, std::int32_t> expected;  // target of an input
  for (const std::vector<std::uint32_t>& document : documents) {
    for (std::size_t t = 0; t + 1 < document.size(); ++t) {
      expected[static_cast<std::int32_t>(document[t])] = static_cast<std::int32_t>(document[t + 1]);
    }
  }
  DataLoaderOptions options = options_for(path, kT);
  options.documents = DocumentMode::separate;
  options.vocab = 1000;
  options.global_batch = 6;
  const Index sequences = Loader(options).loader.sequences();
  std::map<Index, std::vector<std::int32_t>> straight;  // inputs by position
  for (const int world_size : {1, 2, 3, 5}) {
    std::map<std::int32_t, std::int32_t> seen;
    Index padding = 0;
    Index all_padding = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      options.rank = rank;
      options.world_size = world_size;
      Loader one(options);
      all_padding = one.loader.packing().padding(kT);
      for (Index position = 0; position < sequences; position += 6) {
        static_cast<void>(one.step(position));
        for (Index round = 0; round * world_size + rank < 6; ++round) {
          const Index at = position + round * world_size + rank;
          const Batch batch = one.loader.batch(round);
          const std::vector<std::int32_t> inputs = values(batch.inputs);
          if (world_size == 1) {
            straight[at] = inputs;
          }
          BOOST_TEST(inputs == straight[at], boost::test_tools::per_element());
          if (at >= sequences) {
            continue;  // of the next epoch
          }
          const std::vector<std::int32_t> targets = values(batch.targets);
          for (std::size_t i = 0; i < inputs.size(); ++i) {
            if (targets[i] != kIgnoreTarget) {
              BOOST_TEST(seen.emplace(inputs[i], targets[i]).second);
            } else {
              ++padding;
            }
          }
        }
      }
    }
    BOOST_TEST((seen == expected));
    BOOST_TEST(padding == all_padding);
  }
}

BOOST_AUTO_TEST_CASE(a_file_without_borders_is_refused_where_documents_are_separate) {
  const TempFolder folder;
  write_tokens(folder / "a.h5", {counting(100)});
  write_tokens(folder / "short.h5", {counting(9)});
  Memory memory;
  DataLoaderOptions options = options_for(folder / "a.h5", 8);
  options.documents = DocumentMode::separate;
  const std::string message =
      message_of<ConfigError>([&] { const DataLoader loader(options, memory.allocator()); });
  BOOST_TEST(contains(message, (folder / "a.h5").string() + " has no border between documents"),
             message);
  options.files = {{folder / "short.h5", std::nullopt}};
  BOOST_TEST(Loader(options).loader.sequences() == 1);
}

BOOST_AUTO_TEST_CASE(separate_documents_are_evaluated_whole) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  write_tokens(path, {counting(3), counting(9, 251, 100), counting(5, 251, 200)});
  Memory memory;
  EvalSequences eval({.file = path,
                      .sequence_length = 8,
                      .micro_batch = 3,
                      .max_sequences = 0,
                      .vocab = 256,
                      .documents = DocumentMode::separate},
                     memory.allocator());
  BOOST_TEST(eval.file_sequences() == 2);
  BOOST_TEST(eval.packing().value().documents == 3);
  const Batch batch = eval.batch(0);
  BOOST_TEST(batch.target_count == 14);
  const std::vector<std::int32_t> begins = {0, 8, 12, 14, 16, 24};
  BOOST_TEST(values(batch.document_begins) == begins, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(sources_are_a_file_and_perhaps_a_weight) {
  const TempFolder folder;
  const auto check = [](std::string_view text, std::string_view path, double weight) {
    const DataSet source = split_weight(text);
    BOOST_TEST(source.path.string() == path);
    BOOST_TEST(source.weight.value_or(-1) == weight);
  };
  check("a.h5", "a.h5", -1);
  check("a.h5:0.7", "a.h5", 0.7);
  check("a b:c.h5:3", "a b:c.h5", 3);
  check("a:b.h5", "a:b.h5", -1);
  check("a.h5:1e-3", "a.h5", 1e-3);
  check("a.h5:", "a.h5:", -1);
  const std::string named = (folder / "x:5").string();
  write_tokens(named, {counting(10)});
  check(named, named, -1);
  check(named + ":2", named, 2);
  for (const char* text : {"a.h5:0", "a.h5:-1", "a.h5:nan", "a.h5:inf", "a.h5:1e999"}) {
    BOOST_TEST(
        contains(message_of<ConfigError>([&] { static_cast<void>(split_weight(text)); }), text));
  }
}

BOOST_AUTO_TEST_CASE(evaluation_takes_sequences_spread_evenly_over_the_file) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a.h5";
  const std::vector<std::uint32_t> ids = counting(75);
  write_tokens(path, {ids});
  for (const auto& [wanted, sequences] :
       {std::pair<Index, Index>{0, 10}, {5, 5}, {10, 10}, {11, 10}, {1, 1}}) {
    Memory memory;
    EvalSequences eval({.file = path,
                        .sequence_length = 8,
                        .micro_batch = 3,
                        .max_sequences = wanted,
                        .vocab = 256},
                       memory.allocator());
    BOOST_TEST(eval.sequences() == sequences);
    BOOST_TEST(eval.file_sequences() == 10);
    const std::vector<Index> chosen = sequences == 5 ? std::vector<Index>{1, 3, 5, 7, 9}
                                      : sequences == 1
                                          ? std::vector<Index>{5}
                                          : std::vector<Index>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    BOOST_TEST(eval.micro_batches() == (sequences + 2) / 3);
    Index targets = 0;
    for (Index index = 0; index < eval.micro_batches(); ++index) {
      const Batch batch = eval.batch(index);
      targets += batch.target_count;
      const std::vector<std::int32_t> inputs = values(batch.inputs);
      const std::vector<std::int32_t> batch_targets = values(batch.targets);
      for (Index b = 0; b < 3; ++b) {
        const Row row = {{inputs.begin() + b * 8, inputs.begin() + (b + 1) * 8},
                         {batch_targets.begin() + b * 8, batch_targets.begin() + (b + 1) * 8}};
        const Row nothing = {std::vector<std::int32_t>(8, 0),
                             std::vector<std::int32_t>(8, kIgnoreTarget)};
        const Index sequence = index * 3 + b;
        BOOST_TEST((row == (sequence < sequences
                                ? expected_row(ids, 8, chosen[static_cast<std::size_t>(sequence)])
                                : nothing)));
      }
    }
    // the file's last sequence has two targets
    BOOST_TEST(targets == sequences * 8 - (chosen.back() == 9 ? 6 : 0));
    BOOST_CHECK_THROW(static_cast<void>(eval.batch(eval.micro_batches())), ContractError);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
