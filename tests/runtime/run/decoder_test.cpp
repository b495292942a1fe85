// Decoding with kept keys and values: bit-identical to decoding without, and transformers' greedy
// tokens on the golden models. Several texts side by side: each with the bits that it has alone.
#define BOOST_TEST_MODULE decoder
#include "model/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "model/sampler.h"
#include "model/whole_model.h"
#include "runtime/run/training_scratch.h"
#include "tests/support/run/golden.h"
#include "tests/support/test_bench.h"

namespace tessera::test {
namespace {

struct DeviceIsPresent {
  DeviceIsPresent() { skip_without(TESSERA_TEST_DEVICE); }
};
BOOST_TEST_GLOBAL_FIXTURE(DeviceIsPresent);

constexpr Index kCapacity = 60;
constexpr Device kDevice = {TESSERA_TEST_DEVICE, 0};

ScratchOptions scratch_options(const BatchShape& batch, DType dtype) {
  ScratchOptions options;
  options.batch = batch;
  options.precision = precision_of(dtype);
  options.decodes = true;
  return options;
}

// Counts how often each unit of another gate is acquired.
class CountingGate final : public ParamGate {
 public:
  explicit CountingGate(ParamGate& inner) : inner_(inner) {}
  std::map<UnitId, int> opened;

 private:
  ConstTensorView open(UnitId unit, Stream& compute) override {
    ++opened[unit];
    return leases_.emplace(unit, inner_.acquire(unit, compute)).first->second.params();
  }
  [[nodiscard]] std::int64_t version(UnitId unit) const override {
    return leases_.at(unit).version();
  }
  void close(UnitId unit, Stream& /*compute*/) noexcept override { leases_.erase(unit); }

  ParamGate& inner_;
  std::map<UnitId, ParamLease> leases_;
};

// A golden model on the device, and its decoder.
class GoldenDecoder {
 public:
  GoldenDecoder(const Golden& golden, DType dtype, const BatchShape& batch = {1, Decoder::kTile},
                Index capacity = kCapacity, Index texts = 1)
      : arena_(kDevice, ArenaMode::allocate),
        stream_(kDevice, StreamPriority::normal, "compute"),
        model_(
            golden.layout(), dtype,
            [&golden](UnitId unit, std::span<float> values) {
              std::ranges::copy(golden.weights(unit), values.begin());
            },
            arena_, stream_),
        scratch_(kernel_table(kDevice.kind), golden.config(), scratch_options(batch, dtype),
                 arena_),
        decoder_(kernel_table(kDevice.kind), golden.config(), golden.layout(), capacity, dtype,
                 scratch_.decoder_work(), arena_, nullptr, texts),
        gate_(model_) {}
  // What a training step may do in between.
  void poison() {
    const DecoderWork& work = scratch_.decoder_work();
    for (const TensorView& view :
         {work.tokens, work.hidden, work.middle, work.normed, work.qkv, work.attended, work.gate_up,
          work.product, work.logits, work.gemm, work.host_logits}) {
      poison_async(view, stream_);
    }
    stream_.synchronize();
  }
  [[nodiscard]] std::size_t generation_bytes() const {
    std::size_t bytes = 0;
    for (const ArenaEntry& entry : arena_.entries()) {
      bytes += entry.name.starts_with("generation/") ? entry.bytes : 0;
    }
    return bytes;
  }
  [[nodiscard]] const TrainingScratch& scratch() const noexcept { return scratch_; }
  std::vector<float> append(std::span<const std::int32_t> tokens) {
    const std::span<const float> logits = decoder_.append(tokens, model_, stream_);
    return {logits.begin(), logits.end()};
  }
  std::vector<std::int32_t> greedy(std::span<const std::int32_t> prompt, Index count, Index vocab,
                                   KeyCache cache) {
    std::vector<std::int32_t> tokens;
    generate(decoder_, model_, stream_, prompt,
             {.sampling = {.temperature = 0, .top_p = 1, .seed = 0},
              .max_tokens = count,
              .vocab = vocab,
              .end_tokens = {},
              .cache = cache},
             [&tokens](std::int32_t id) {
               tokens.push_back(id);
               return true;
             });
    return tokens;
  }
  // As many texts side by side as the decoder has, with seed 5.
  std::vector<std::vector<std::int32_t>> sampled(
      const std::vector<std::vector<std::int32_t>>& prompts, Index count, Index vocab,
      const std::vector<std::int32_t>& end_tokens, std::uint64_t first_text, KeyCache cache) {
    std::vector<std::vector<std::int32_t>> tokens(prompts.size());
    generate(decoder_, model_, stream_, prompts,
             {.sampling = {.temperature = 1, .top_p = 1, .seed = 5, .text = first_text},
              .max_tokens = count,
              .vocab = vocab,
              .end_tokens = end_tokens,
              .cache = cache},
             [&tokens](std::span<const std::int32_t> next) {
               for (std::size_t text = 0; text < next.size(); ++text) {
                 if (next[text] != kNoToken) {
                   tokens[text].push_back(next[text]);
                 }
               }
               return true;
             });
    return tokens;
  }
  // Logits of the texts that have more tokens.
  std::vector<std::vector<float>> append_all(const std::vector<std::vector<std::int32_t>>& tokens) {
    const std::vector<std::span<const std::int32_t>> spans(tokens.begin(), tokens.end());
    decoder_.append(spans, gate_, stream_);
    std::vector<std::vector<float>> all(tokens.size());
    for (std::size_t text = 0; text < tokens.size(); ++text) {
      if (!tokens[text].empty()) {
        const std::span<const float> logits = decoder_.logits(static_cast<Index>(text));
        all[text].assign(logits.begin(), logits.end());
      }
    }
    return all;
  }
  // How often each unit was acquired since the last call, by append_all.
  std::map<UnitId, int> acquired() { return std::exchange(gate_.opened, {}); }
  Decoder& decoder() noexcept { return decoder_; }

 private:
  Arena arena_;
  Stream stream_;
  WholeModel model_;
  TrainingScratch scratch_;
  Decoder decoder_;
  CountingGate gate_;
};

std::vector<DType> float_types() {
  return kDevice.kind == DeviceKind::cpu ? std::vector{DType::f32}
                                         : std::vector{DType::f32, DType::bf16};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(decoder)

BOOST_AUTO_TEST_CASE(tokens_one_by_one_give_the_bits_of_tokens_together) {
  for (const char* variant : {"tied", "untied"}) {
    const Golden golden(variant);
    std::vector<std::int32_t> tokens;
    tokens.reserve(kCapacity);
    for (std::int32_t i = 0; i < kCapacity; ++i) {
      tokens.push_back((i * 37 + 11) % 128);
    }
    for (const DType dtype : float_types()) {
      GoldenDecoder one(golden, dtype);
      GoldenDecoder whole(golden, dtype);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const std::vector<float> kept = one.append(std::span(tokens).subspan(i, 1));
        whole.decoder().forget();
        const std::vector<float> all = whole.append(std::span(tokens).first(i + 1));
        BOOST_REQUIRE_MESSAGE(same_bits(kept, all), variant << " token " << i);
      }
      // In pieces of any length, and after other tokens have been there.
      for (const std::size_t piece : {3U, 7U, 16U, 19U}) {
        one.decoder().forget();
        std::vector<float> last;
        for (std::size_t i = 0; i < tokens.size(); i += piece) {
          last = one.append(std::span(tokens).subspan(i, std::min(piece, tokens.size() - i)));
        }
        whole.decoder().forget();
        BOOST_REQUIRE(same_bits(last, whole.append(tokens)));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(buffers_that_steps_use_too_change_no_bit) {
  const Golden golden("tied");
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < kCapacity; ++i) {
    tokens.push_back((i * 37 + 11) % 128);
  }
  for (const DType dtype : float_types()) {
    GoldenDecoder plain(golden, dtype);
    // of a large batch, and of one that has too little room for a tile
    GoldenDecoder large(golden, dtype, {4, 16});
    GoldenDecoder small(golden, dtype, {1, 5});
    BOOST_TEST(large.scratch().decoder_lent_bytes() > small.scratch().decoder_lent_bytes());
    BOOST_TEST(large.generation_bytes() < small.generation_bytes());
    for (std::size_t i = 0; i < tokens.size(); i += 7) {
      const auto piece = std::span(tokens).subspan(i, std::min<std::size_t>(7, tokens.size() - i));
      const std::vector<float> expected = plain.append(piece);
      for (GoldenDecoder* lent : {&large, &small}) {
        lent->poison();
        BOOST_REQUIRE_MESSAGE(same_bits(lent->append(piece), expected), "token " << i);
      }
    }
  }
}

std::vector<std::int32_t> numbered_tokens(std::size_t count, std::int32_t first) {
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < count; ++i) {
    tokens.push_back((static_cast<std::int32_t>(i) * 37 + first) % 128);
  }
  return tokens;
}

// Prompts of one, two and three tiles; then a token of each at a time, until one text after the
// other has ended.
BOOST_AUTO_TEST_CASE(texts_side_by_side_have_the_bits_that_each_has_alone) {
  const std::vector<std::size_t> lengths = {1, 15, 16, 17, 40};
  const auto texts = static_cast<Index>(lengths.size());
  for (const char* variant : {"tied", "untied"}) {
    const Golden golden(variant);
    const Index layers = golden.config().num_layers;
    for (const DType dtype : float_types()) {
      GoldenDecoder all(golden, dtype, {1, Decoder::kTile}, kCapacity, texts);
      for (int round = 0; round < 2; ++round) {  // the second one after other texts
        all.decoder().forget();
        std::vector<std::vector<std::int32_t>> more;
        std::vector<std::vector<std::int32_t>> whole;
        for (std::size_t text = 0; text < lengths.size(); ++text) {
          const std::size_t length = lengths[round == 0 ? text : lengths.size() - 1 - text];
          more.push_back(numbered_tokens(length, static_cast<std::int32_t>(11 * text) + round));
        }
        whole.resize(more.size());
        for (std::int32_t added = 0; added < 18; ++added) {
          const std::vector<std::vector<float>> logits = all.append_all(more);
          const int passes = added == 0 ? 3 : 1;  // 40 tokens
          std::map<UnitId, int> expected;
          for (Index layer = 0; layer < layers; ++layer) {
            expected[static_cast<UnitId>(layer) + 1] = passes;
          }
          const bool is_tied = golden.config().tie_embeddings;
          expected[0] = passes + (is_tied ? 1 : 0);
          expected[golden.layout().head()] = 1;
          BOOST_TEST((all.acquired() == expected), variant << " after " << added << " tokens");
          for (std::size_t text = 0; text < more.size(); ++text) {
            whole[text].insert(whole[text].end(), more[text].begin(), more[text].end());
            if (!more[text].empty() && (added < 3 || added == 17)) {
              GoldenDecoder alone(golden, dtype);
              BOOST_REQUIRE_MESSAGE(same_bits(logits[text], alone.append(whole[text])),
                                    variant << " text " << text << " after " << added << " tokens");
            }
            BOOST_TEST(all.decoder().length(static_cast<Index>(text)) == std::ssize(whole[text]));
            const bool has_ended = added > 2 * static_cast<std::int32_t>(text) + 1 && text != 3;
            more[text] = has_ended
                             ? std::vector<std::int32_t>{}
                             : numbered_tokens(1, 5 * added + static_cast<std::int32_t>(text));
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(samples_side_by_side_are_those_of_each_alone) {
  const Golden golden("untied");
  const Index vocab = golden.config().vocab_size;
  const std::vector<std::vector<std::int32_t>> prompts = {
      numbered_tokens(17, 3), numbered_tokens(2, 50), numbered_tokens(17, 3)};
  constexpr Index kTokens = 12;
  GoldenDecoder all(golden, DType::f32, {1, Decoder::kTile}, kCapacity, std::ssize(prompts));
  GoldenDecoder alone(golden, DType::f32);
  const auto free = all.sampled(prompts, kTokens, vocab, {}, 0, KeyCache::keep);
  BOOST_TEST((free[0] != free[2]));                              // random numbers of its own
  const std::vector<std::int32_t> end_tokens = {free[1].at(3)};  // ends text 1, or more
  for (const KeyCache cache : {KeyCache::keep, KeyCache::rebuild}) {
    for (const std::vector<std::int32_t>& ends : {std::vector<std::int32_t>{}, end_tokens}) {
      const auto together = all.sampled(prompts, kTokens, vocab, ends, 0, cache);
      for (std::size_t text = 0; text < prompts.size(); ++text) {
        const auto one = alone.sampled({prompts[text]}, kTokens, vocab, ends, text, cache);
        BOOST_TEST(together[text] == one[0], boost::test_tools::per_element());
      }
    }
  }
  BOOST_TEST(all.sampled(prompts, kTokens, vocab, end_tokens, 0, KeyCache::keep)[1].size() < 4U);
}

BOOST_AUTO_TEST_CASE(greedy_tokens_are_those_of_transformers_with_the_cache_and_without) {
  for (const std::string variant : {"tied", "untied"}) {
    const Golden golden(variant);
    GoldenDecoder model(golden, DType::f32);
    std::ifstream file(golden.folder() / "greedy.json");
    const nlohmann::json expected = nlohmann::json::parse(file);
    for (const nlohmann::json& entry : expected.at("cases")) {
      const auto prompt = entry.at("prompt").get<std::vector<std::int32_t>>();
      const auto tokens = entry.at("tokens").get<std::vector<std::int32_t>>();
      BOOST_REQUIRE(!tokens.empty());
      for (const KeyCache cache : {KeyCache::keep, KeyCache::rebuild}) {
        BOOST_TEST(
            model.greedy(prompt, std::ssize(tokens), golden.config().vocab_size, cache) == tokens,
            boost::test_tools::per_element());
      }
    }
  }
}

// Rotary scaling and sliding windows; tests/interop/make_golden_logits.py wrote the numbers.
BOOST_AUTO_TEST_CASE(logits_are_those_of_transformers_for_each_form_of_config) {
  const Golden plain("untied");
  std::ifstream file(plain.folder().parent_path() / "rope" / "logits.json");
  const nlohmann::json golden_logits = nlohmann::json::parse(file);
  std::ifstream base_file(plain.folder() / "config.json");
  nlohmann::json base = nlohmann::json::parse(base_file);
  base.erase("rope_theta");
  base.erase("rope_parameters");
  const auto tokens = golden_logits.at("tokens").get<std::vector<std::int32_t>>();
  for (const nlohmann::json& entry : golden_logits.at("cases")) {
    const auto name = entry.at("name").get<std::string>();
    for (const nlohmann::json& form : entry.at("configs")) {
      nlohmann::json config = base;
      config.update(form);
      const Golden golden("untied", parse_config_json(config.dump(), name));
      GoldenDecoder model(golden, DType::f32, {1, Decoder::kTile}, std::ssize(tokens));
      for (const auto& [position, expected] : entry.at("logits").items()) {
        model.decoder().forget();
        const std::vector<float> logits =
            model.append(std::span(tokens).first(std::stoul(position) + 1));
        double worst = 0;
        for (std::size_t i = 0; i < logits.size(); ++i) {
          worst = std::max(worst, std::abs(logits[i] - expected.at(i).get<double>()));
        }
        BOOST_TEST(worst < 1e-5,
                   name << ", " << form.dump() << ", position " << position << ": " << worst);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(more_tokens_than_there_is_room_for_are_refused) {
  const Golden golden("tied");
  GoldenDecoder model(golden, DType::f32);
  const std::vector<std::int32_t> many(static_cast<std::size_t>(model.decoder().capacity()) + 1, 1);
  BOOST_CHECK_THROW((void)model.append(many), ContractError);
  BOOST_CHECK_THROW((void)model.append(std::vector<std::int32_t>{128}), ContractError);
  BOOST_CHECK_THROW((void)model.append({}), ContractError);
  GoldenDecoder two(golden, DType::f32, {1, Decoder::kTile}, kCapacity, 2);
  BOOST_CHECK_THROW((void)two.append(std::vector<std::int32_t>{1}), ContractError);
  BOOST_CHECK_THROW((void)two.append_all({{}, {}}), ContractError);
  BOOST_CHECK_THROW((void)two.append_all({{1}, {1}, {1}}), ContractError);
  BOOST_CHECK_THROW((void)two.append_all({{1}, many}), ContractError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
