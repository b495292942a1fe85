#include "model/merge_adapters.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace tessera {
namespace {

std::vector<float> read(const UnitValues& values, UnitId unit, Index begin, Index count) {
  std::vector<float> all(static_cast<std::size_t>(count));
  values(unit, begin, all);
  return all;
}

struct Target {
  const ParamTensor& a;  // [r, in]
  const ParamTensor& b;  // [out, r]
  Index begin;           // first element of its rows in the base's unit
  ProjectionSizes sizes;
};

// Adds s B A to elements begin, begin + 1, ... of the base's unit, as far as they are the target's.
void add(const Target& target, Index rank, float scale, UnitId unit, const UnitValues& adapters,
         Index begin, std::span<float> values) {
  const Index in = target.sizes.in;
  const Index end = std::min(begin + std::ssize(values), target.begin + target.sizes.out * in);
  const Index first = std::max(begin, target.begin);
  if (first >= end) {
    return;
  }
  const Index first_row = (first - target.begin) / in;
  const Index last_row = (end - 1 - target.begin) / in;
  const std::vector<float> a = read(adapters, unit, target.a.offset, target.a.count());
  const std::vector<float> b =
      read(adapters, unit, target.b.offset + first_row * rank, (last_row + 1 - first_row) * rank);
  std::vector<float> sums(static_cast<std::size_t>(in));
  for (Index row = first_row; row <= last_row; ++row) {
    std::ranges::fill(sums, 0.0F);
    for (Index r = 0; r < rank; ++r) {
      const float factor = b[static_cast<std::size_t>((row - first_row) * rank + r)];
      const float* const line = a.data() + r * in;
      for (Index i = 0; i < in; ++i) {
        sums[static_cast<std::size_t>(i)] += factor * line[i];
      }
    }
    const Index row_begin = target.begin + row * in;
    for (Index i = std::max(first, row_begin); i < std::min(end, row_begin + in); ++i) {
      values[static_cast<std::size_t>(i - begin)] +=
          scale * sums[static_cast<std::size_t>(i - row_begin)];
    }
  }
}

}  // namespace

UnitValues merged_values(const ModelConfig& config, const AdapterLayout& adapters, UnitValues base,
                         UnitValues values) {
  return [&config, &adapters, base = std::move(base), own = std::move(values),
          model = ParamLayout(config)](UnitId unit, Index begin, std::span<float> out) {
    if (unit == 0 && adapters.embedding()) {
      own(*adapters.embedding(), begin, out);
      return;
    }
    base(unit, begin, out);
    if (unit == model.head()) {
      if (const auto head = adapters.head()) {  // its matrix comes first in the unit
        const Index count = part(model.unit(unit), "weight").count() - begin;
        if (count > 0) {
          own(*head, begin, out.first(static_cast<std::size_t>(std::min(count, std::ssize(out)))));
        }
      }
      return;
    }
    if (unit == 0) {
      return;
    }
    const AdapterConfig& shape = adapters.config();
    const UnitId block = adapters.block(unit - 1);
    for (const Projection projection : shape.targets) {
      const ProjectionRow& row = row_of(projection);
      const ProjectionSizes sizes = projection_sizes(config, projection);
      const ParamUnit& of_adapters = adapters.params().unit(block);
      const Target target = {part(of_adapters, std::string(row.suffix) + ".lora_a"),
                             part(of_adapters, std::string(row.suffix) + ".lora_b"),
                             part(model.unit(unit), row.fused).offset + sizes.first_row * sizes.in,
                             sizes};
      add(target, shape.rank, static_cast<float>(shape.scale()), block, own, begin, out);
    }
  };
}

}  // namespace tessera
