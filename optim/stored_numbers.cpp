#include "optim/stored_numbers.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/device/master_code.h"
#include "kernels/device/moment_code.h"

namespace tessera {
namespace {

std::uint16_t bits_of_param(BFloat16 param) {
  return param.bits;
}
std::uint16_t bits_of_param(float param) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(param) >> 16U);
}

void store_param(float master, BFloat16& param) {
  param = param_of(master);
}
void store_param(float master, float& param) {
  param = to_float(param_of(master));
}

template <typename Param>
void join_masters(const StoredNumbers& from, std::span<float> numbers) {
  const auto* remainder = data_as<std::uint16_t>(from.values);
  const auto* param = data_as<Param>(from.params);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = std::bit_cast<float>(master_bits(bits_of_param(param[i]), remainder[i]));
  }
}

template <typename Param>
void split_masters(std::span<const float> numbers, const StoredNumbers& to) {
  auto* remainder = data_as<std::uint16_t>(to.values);
  auto* param = data_as<Param>(to.params);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    remainder[i] = remainder_bits(std::bit_cast<std::uint32_t>(numbers[i]));
    store_param(numbers[i], param[i]);
  }
}

bool is_second_moment(const StateArraySpec& spec) {
  return spec.array == StateArray::exp_avg_sq;
}

std::uint32_t bits_of(float number) {
  return std::bit_cast<std::uint32_t>(number);
}

constexpr std::uint32_t kNearestHalf = kNearest & 0xFFFFU;

void decode_bytes(const StoredNumbers& from, std::span<float> numbers) {
  const auto* codes = data_as<std::uint8_t>(from.values);
  const auto* scales = data_as<float>(from.scales);
  const bool is_second = is_second_moment(from.spec);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::uint32_t scale = bits_of(scales[i / kMomentBlock]);
    numbers[i] = is_second ? unsigned_number(codes[i], scale) : signed_number(codes[i], scale);
  }
}

void encode_bytes(std::span<const float> numbers, const StoredNumbers& to) {
  auto* codes = data_as<std::uint8_t>(to.values);
  auto* scales = data_as<float>(to.scales);
  const bool is_second = is_second_moment(to.spec);
  for (std::size_t begin = 0; begin < numbers.size(); begin += kMomentBlock) {
    const std::span block = numbers.subspan(begin, kMomentBlock);
    std::uint32_t largest = 0;
    for (const float number : block) {
      largest = std::max(largest, bits_of(number) & detail::kMagnitude);
    }
    const std::uint32_t scale = block_scale(largest);
    scales[begin / kMomentBlock] = std::bit_cast<float>(scale);
    for (std::size_t i = 0; i < block.size(); ++i) {
      const std::uint32_t bits = bits_of(block[i]);
      codes[begin + i] = is_second ? unsigned_code(bits, scale, kNearestHalf)
                                   : signed_code(bits, scale, kNearestHalf);
    }
  }
}

void decode_halves(const StoredNumbers& from, std::span<float> numbers) {
  const auto* halves = data_as<BFloat16>(from.values);
  std::transform(halves, halves + numbers.size(), numbers.begin(),
                 [](BFloat16 half) { return to_float(half); });
}

void encode_halves(std::span<const float> numbers, const StoredNumbers& to) {
  auto* halves = data_as<BFloat16>(to.values);
  const bool is_second = is_second_moment(to.spec);
  std::transform(numbers.begin(), numbers.end(), halves, [is_second](float number) {
    return BFloat16{is_second ? unsigned_bf16(bits_of(number), kNearestHalf)
                              : signed_bf16(bits_of(number), kNearestHalf)};
  });
}

}  // namespace

Index least_elements(const StateArraySpec& spec) noexcept {
  return std::max<Index>(spec.block_elements, 1);
}

StoredNumbers stored_numbers(const StateLayout& layout, StateArray array, const TensorView& state,
                             const TensorView& params, Index elements, Index begin, Index count) {
  const StateArraySpec& spec = layout.storage_of(array);
  const bool is_packed = spec.array == StateArray::master_remainder;
  const Index block = spec.block_elements;
  TESSERA_REQUIRE(begin % least_elements(spec) == 0 && count % least_elements(spec) == 0,
                  "whole blocks of an array that has scales");
  return {.spec = spec,
          .values = layout.values(state, elements, spec.array).slice(begin, begin + count),
          .params = is_packed ? params.slice(begin, begin + count) : TensorView{},
          .scales = block == 0 ? TensorView{}
                               : layout.scales(state, elements, spec.array)
                                     .slice(begin / block, (begin + count) / block)};
}

void decode(const StoredNumbers& from, std::span<float> numbers) {
  TESSERA_REQUIRE(from.values.count() == std::ssize(numbers), "a number for each element");
  if (from.spec.array == StateArray::master_remainder) {
    from.params.dtype == DType::bf16 ? join_masters<BFloat16>(from, numbers)
                                     : join_masters<float>(from, numbers);
    return;
  }
  switch (from.spec.dtype) {
    case DType::bf16:
      decode_halves(from, numbers);
      return;
    case DType::u8:
      decode_bytes(from, numbers);
      return;
    default:
      std::copy_n(data_as<float>(from.values), numbers.size(), numbers.data());
  }
}

void encode(std::span<const float> numbers, const StoredNumbers& to) {
  TESSERA_REQUIRE(to.values.count() == std::ssize(numbers), "an element for each number");
  if (to.spec.array == StateArray::master_remainder) {
    to.params.dtype == DType::bf16 ? split_masters<BFloat16>(numbers, to)
                                   : split_masters<float>(numbers, to);
    return;
  }
  switch (to.spec.dtype) {
    case DType::bf16:
      encode_halves(numbers, to);
      return;
    case DType::u8:
      encode_bytes(numbers, to);
      return;
    default:
      std::copy_n(numbers.data(), numbers.size(), data_as<float>(to.values));
  }
}

}  // namespace tessera
