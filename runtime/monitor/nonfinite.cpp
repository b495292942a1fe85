#include "runtime/monitor/nonfinite.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "collectives/communicator.h"
#include "collectives/mpi_session.h"
#include "kernels/base/error.h"
#include "kernels/base/hash.h"
#include "kernels/base/log.h"
#include "kernels/base/quantity.h"
#include "runtime/launch/agree.h"
#include "runtime/launch/rank_table.h"
#include "runtime/run/training_run.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// An IEEE number is finite where its exponent is not all ones.
constexpr std::uint32_t kF32Exponent = 0x7F800000U;
constexpr std::uint16_t kBf16Exponent = 0x7F80U;

template <typename Word>
Index count_nonfinite(const Word* words, Index count, Word exponent) {
  Index found = 0;
  for (Index i = 0; i < count; ++i) {
    Word word = 0;
    std::memcpy(&word, words + i, sizeof word);  // it may be a float
    found += (word & exponent) == exponent ? 1 : 0;
  }
  return found;
}

// Whether any number is not finite, eight bytes at a time: nearly always there is none. One more in
// the last place of an exponent of all ones, sign and fraction left out, carries into the sign.
template <typename Word>
bool has_nonfinite(const Word* words, Index count, Word exponent) {
  constexpr Index kLanes = sizeof(std::uint64_t) / sizeof(Word);
  const auto in_all_lanes = [](Word word) {
    std::uint64_t lanes = 0;
    for (Index lane = 0; lane < kLanes; ++lane) {
      lanes = lanes << (8 * sizeof(Word)) | word;
    }
    return lanes;
  };
  const auto lowest = static_cast<Word>(exponent & (~exponent + 1));
  const std::uint64_t exponents = in_all_lanes(exponent);
  const std::uint64_t ones = in_all_lanes(lowest);
  const std::uint64_t signs = in_all_lanes(static_cast<Word>(exponent + lowest));
  std::uint64_t carries = 0;
  const Index whole = count / kLanes;
  for (Index i = 0; i < whole; ++i) {
    std::uint64_t lanes = 0;
    std::memcpy(&lanes, words + i * kLanes, sizeof lanes);
    carries |= (lanes & exponents) + ones;
  }
  return (carries & signs) != 0 ||
         count_nonfinite(words + whole * kLanes, count - whole * kLanes, exponent) > 0;
}

template <typename Word>
void add_words(const ParamUnit& unit, Index begin, const Word* words, Index count, Word exponent,
               std::vector<NonFiniteTensor>& found) {
  if (!has_nonfinite(words, count, exponent)) {
    return;
  }
  for_each_tensor(
      unit, begin, begin + count, [&](const ParamTensor& tensor, Index first, Index last) {
        const Index bad = count_nonfinite(words + (first - begin), last - first, exponent);
        if (bad == 0) {
          return;
        }
        if (!found.empty() && found.back().name == tensor.name) {
          found.back().count += bad;
        } else {
          found.push_back({tensor.name, bad});
        }
      });
}

Json to_json(std::span<const NonFiniteTensor> tensors) {
  Json json = Json::array();
  for (const NonFiniteTensor& tensor : tensors) {
    json.push_back({tensor.name, tensor.count});
  }
  return json;
}

// What all ranks have found, in layout order.
std::vector<NonFiniteTensor> merged(const ParamLayout& layout, std::span<const Json> lists) {
  std::vector<NonFiniteTensor> all;
  for (const ParamUnit& unit : layout.units()) {
    for (const ParamTensor& tensor : unit.tensors) {
      Index count = 0;
      for (const Json& list : lists) {
        for (const Json& entry : list) {
          count += entry[0] == tensor.name ? entry[1].get<Index>() : 0;
        }
      }
      if (count > 0) {
        all.push_back({tensor.name, count});
      }
    }
  }
  return all;
}

// The f32 sums of this rank's shard.
std::vector<NonFiniteTensor> nonfinite_gradients(TrainingRun& run) {
  constexpr Index kPiece = Index{1} << 20;
  std::vector<NonFiniteTensor> found;
  std::vector<float> host;
  ShardState& shard = run.shard();
  for (UnitId unit = 0; unit < run.layout().unit_count(); ++unit) {
    const TensorView sums = shard.grad(unit);
    const Index real = shard.real_count(unit);
    for (Index begin = 0; begin < real; begin += kPiece) {
      const Index end = std::min(real, begin + kPiece);
      host.resize(static_cast<std::size_t>(end - begin));
      const TensorView values = {host.data(), DType::f32, Shape{end - begin}, Device{}};
      copy_async(sums.slice(begin, end), values, run.compute());
      run.compute().synchronize();
      add_nonfinite(run.layout().unit(unit), shard.range(unit).param_start + begin, values, found);
    }
  }
  return found;
}

std::string advice_for(const std::vector<NonFiniteTensor>& parameters, const Trainer& trainer,
                       const WeightsOrigin& origin) {
  if (!parameters.empty()) {
    return origin.is_finite
               ? std::string("the weights themselves are no longer finite, and no later step can "
                             "repair them: continue an earlier save with a lower --lr, a longer "
                             "--warmup or a smaller --clip")
               : fmt::format("{} were not finite from the start: give others", origin.what);
  }
  if (trainer.position().updates == 0) {
    return fmt::format("no update has been made, so --lr is not the reason: look at {} and at the "
                       "data",
                       origin.what);
  }
  return "lower --lr, lengthen --warmup or set --clip; if it is always the same step, look at its "
         "data";
}

}  // namespace

void add_nonfinite(const ParamUnit& unit, Index begin, const ConstTensorView& values,
                   std::vector<NonFiniteTensor>& found) {
  if (values.dtype == DType::bf16) {
    add_words(unit, begin, static_cast<const std::uint16_t*>(values.data), values.count(),
              kBf16Exponent, found);
    return;
  }
  TESSERA_REQUIRE(values.dtype == DType::f32, "f32 or bf16");
  add_words(unit, begin, static_cast<const std::uint32_t*>(values.data), values.count(),
            kF32Exponent, found);
}

std::string nonfinite_text(std::span<const NonFiniteTensor> tensors) {
  constexpr std::size_t kMostNamed = 3;
  std::vector<std::string> named;
  for (const NonFiniteTensor& tensor : tensors.first(std::min(kMostNamed, tensors.size()))) {
    named.push_back(fmt::format("{} ({})", tensor.name, counted(tensor.count, "number")));
  }
  std::string text = fmt::format("{}", fmt::join(named, ", "));
  if (tensors.size() > kMostNamed) {
    const std::size_t more = tensors.size() - kMostNamed;
    text += fmt::format(" and {} more tensor{}", more, more == 1 ? "" : "s");
  }
  return text;
}

ParameterCheck check_parameters(TrainingRun& run) {
  Communicator& comm = run.comm();
  std::vector<NonFiniteTensor> mine;
  Index piece = 0;
  ParameterCheck check;
  check.hash = run.parameter_hash([&](UnitId unit, Index begin, const ConstTensorView& values) {
    if (piece++ % comm.world_size() == comm.rank()) {
      add_nonfinite(run.layout().unit(unit), begin, values, mine);
    }
  });
  const Json values = {{"hash", hash_text(check.hash)}, {"tensors", to_json(mine)}};
  std::vector<Json> lists;
  std::string first;
  const std::vector<std::string> all = comm.gather_text(values.dump());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    Json theirs = Json::parse(all[rank]);
    const auto hash = theirs["hash"].get<std::string>();
    first = rank == 0 ? hash : first;
    if (hash != first) {
      throw_agreed(
          {ContractError("", TESSERA_HERE).exit_status(),
           fmt::format("rank {} has other parameters than rank 0 after loading (hashes {} "
                       "and {}): an internal error in tessera, or damaged memory of a machine",
                       rank, hash, first)},
          TESSERA_HERE);
    }
    lists.push_back(std::move(theirs["tensors"]));
  }
  check.nonfinite = merged(run.layout(), lists);
  return check;
}

WeightsOrigin compare_parameters(TrainingRun& run, const std::string& what) {
  const ParameterCheck check = check_parameters(run);
  if (!check.nonfinite.empty() && run.comm().rank() == 0) {
    log_line(LogLevel::warning,
             fmt::format("{} are not finite: {}; every step that meets them will be skipped", what,
                         nonfinite_text(check.nonfinite)));
  }
  return {what, check.nonfinite.empty()};
}

SkipReason find_skip_reason(TrainingRun& run, const StepReport& report,
                            const WeightsOrigin& origin) {
  Communicator& comm = run.comm();
  const std::vector<NonFiniteTensor> parameters = check_parameters(run).nonfinite;
  const Json values = {{"host", host_name()},
                       {"losses", report.nonfinite_losses},
                       {"tensors", to_json(nonfinite_gradients(run))}};
  std::vector<int> ranks;  // whose loss was not finite
  std::set<std::string> hosts;
  std::vector<Json> lists;
  const std::vector<std::string> all = comm.gather_text(values.dump());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    Json theirs = Json::parse(all[rank]);
    if (theirs["losses"].get<Index>() > 0) {
      ranks.push_back(static_cast<int>(rank));
      hosts.insert(theirs["host"].get<std::string>());
    }
    lists.push_back(std::move(theirs["tensors"]));
  }
  std::vector<std::string> parts;
  if (!parameters.empty()) {
    parts.push_back("the parameters " + nonfinite_text(parameters));
  }
  const std::vector<NonFiniteTensor> gradients = merged(run.layout(), lists);
  if (!ranks.empty()) {
    parts.push_back(
        fmt::format("the loss on rank{} {} ({}), and so the gradient of {}",
                    ranks.size() == 1 ? "" : "s", ranges_text(ranks),
                    hosts.size() == 1 ? *hosts.begin() : fmt::format("{} hosts", hosts.size()),
                    counted(std::ssize(gradients), "tensor")));
  } else if (!gradients.empty()) {
    parts.push_back("the gradient of " + nonfinite_text(gradients));
  }
  SkipReason reason;
  reason.what = parts.empty() ? std::string("a sum of finite numbers, which is too large")
                              : fmt::format("{}", fmt::join(parts, "; "));
  reason.advice = advice_for(parameters, run.trainer(), origin);
  return reason;
}

}  // namespace tessera
