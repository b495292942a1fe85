#include "runtime/monitor/quantized_shares.h"

#include <nlohmann/json.hpp>

namespace tessera {
namespace {

nlohmann::ordered_json shares_of(const QuantizeCounts& counts, LinearKind kind,
                                 OperandKind operand) {
  const auto count = [&](QuantizeCount what) {
    return static_cast<double>(quantize_count(counts, kind, operand, what));
  };
  const double values = count(QuantizeCount::values);
  if (values == 0) {
    return nullptr;
  }
  return {{"saturated", count(QuantizeCount::saturated) / values},
          {"underflowed", count(QuantizeCount::underflowed) / values}};
}

}  // namespace

nlohmann::ordered_json quantized_shares(const QuantizeCounts& counts) {
  nlohmann::ordered_json shares;
  for (const LinearKind kind : kLinearLayers) {
    shares[linear_name(kind)] = {{"input", shares_of(counts, kind, OperandKind::input)},
                                 {"weight", shares_of(counts, kind, OperandKind::weight)},
                                 {"gradient", shares_of(counts, kind, OperandKind::gradient)}};
  }
  return shares;
}

}  // namespace tessera
