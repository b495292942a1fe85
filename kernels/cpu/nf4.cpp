#include "kernels/nf4.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "kernels/base/parallel.h"
#include "kernels/cpu/partition.h"
#include "kernels/cpu/require.h"
#include "kernels/device/cpu/submit.h"

namespace tessera {
namespace {

constexpr std::size_t kBlock = kNf4Block;
constexpr std::size_t kScaleBlock = kNf4ScaleBlock;
constexpr unsigned kCodeBits = 4;
constexpr unsigned kCodeMask = 15;

// Between code k and k + 1: what is above takes the upper one.
constexpr std::array<float, 15> kBorders = [] {
  std::array<float, 15> borders{};
  for (std::size_t k = 0; k < borders.size(); ++k) {
    borders[k] = (kNf4Values[k] + kNf4Values[k + 1]) / 2.0F;
  }
  return borders;
}();

std::span<const float> block_of(std::span<const float> values, std::size_t block,
                                std::size_t size) {
  const std::size_t first = block * size;
  return values.subspan(first, std::min(size, values.size() - first));
}

// Infinity or NaN where the block holds one.
float largest_magnitude(std::span<const float> values) {
  constexpr std::uint32_t kMagnitude = 0x7FFFFFFFU;
  std::uint32_t largest = 0;
  for (const float value : values) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & kMagnitude);
  }
  return std::bit_cast<float>(largest);
}

void encode_block(std::span<const float> values, float absmax, std::uint8_t* packed) {
  constexpr float kLeast = 1e-38F;  // below it a block is of zeros
  constexpr std::uint8_t kZero = 7;
  std::array<std::uint8_t, kBlock> codes;  // NOLINT: written first
  codes.fill(kZero);
  const float factor = 1.0F / std::max(absmax, kLeast);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float scaled = values[i] * factor;
    std::uint8_t code = 0;
    for (const float border : kBorders) {
      code = static_cast<std::uint8_t>(code + (scaled > border ? 1 : 0));
    }
    codes[i] = code;
  }
  for (std::size_t i = 0; i < values.size(); i += 2) {
    packed[i / 2] = static_cast<std::uint8_t>(codes[i] << kCodeBits | codes[i + 1]);
  }
}

// Of what is not a number: 0.
std::uint8_t nearest_scale_code(float value) {
  const auto upper = static_cast<std::size_t>(
      std::lower_bound(kNf4ScaleMap.begin(), kNf4ScaleMap.end(), value) - kNf4ScaleMap.begin());
  if (upper == 0 || upper == kNf4ScaleMap.size()) {
    return static_cast<std::uint8_t>(upper == 0 ? 0 : upper - 1);
  }
  const bool takes_upper = kNf4ScaleMap[upper] - value < value - kNf4ScaleMap[upper - 1];
  return static_cast<std::uint8_t>(takes_upper ? upper : upper - 1);
}

// In one order, so that the mean is bit-identical on any number of threads.
float mean_of(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) {
    sum += static_cast<double>(value);
  }
  return values.empty() ? 0.0F : static_cast<float>(sum / static_cast<double>(values.size()));
}

void require_finite(std::string_view name, std::span<const float> values,
                    std::span<const float> absmax) {
  const auto bad = std::ranges::find_if(absmax, [](float x) { return !std::isfinite(x); });
  if (bad == absmax.end()) {
    return;
  }
  const auto first =
      std::ranges::find_if(values.subspan(static_cast<std::size_t>(bad - absmax.begin()) * kBlock),
                           [](float x) { return !std::isfinite(x); });
  throw FormatError(fmt::format("{}: element {} is {}, and 4-bit codes stand for finite numbers "
                                "only: quantise a model without such weights",
                                name, &*first - values.data(), *first),
                    TESSERA_HERE);
}

template <typename T>
T of_float(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return to_bfloat16(value);
  }
}

template <typename T>
void widen(const WidenNf4Args& args) {
  const auto count = static_cast<std::size_t>(args.out.count());
  const Nf4Parts parts = nf4_parts(args.out.count());
  const auto* packed = data_as<std::uint8_t>(args.packed);
  const std::uint8_t* codes = packed + parts.codes;
  const std::uint8_t* scale_codes = packed + parts.scale_codes;
  const auto* scale_scales = reinterpret_cast<const float*>(packed + parts.scale_scales);
  const float mean = *reinterpret_cast<const float*>(packed + parts.mean);
  auto* out = data_as<T>(args.out);
  const Index blocks = nf4_blocks(args.out.count());
#pragma omp parallel for schedule(static) if (args.out.count() > cpu::kParallelElements)
  for (Index block = 0; block < blocks; ++block) {
    const float absmax =
        kNf4ScaleMap[scale_codes[block]] * scale_scales[block / kNf4ScaleBlock] + mean;
    std::array<T, kNf4Values.size()> products;  // NOLINT: written first
    for (std::size_t k = 0; k < products.size(); ++k) {
      products[k] = of_float<T>(kNf4Values[k] * absmax);
    }
    const std::size_t first = static_cast<std::size_t>(block) * kBlock;
    const std::size_t end = std::min(first + kBlock, count);
    std::size_t at = first;
    for (; at + 1 < end; at += 2) {
      const unsigned both = codes[at / 2];
      out[at] = products[both >> kCodeBits];
      out[at + 1] = products[both & kCodeMask];
    }
    if (at < end) {
      out[at] = products[codes[at / 2] >> kCodeBits];
    }
  }
}

}  // namespace

void quantize_nf4(std::string_view name, std::span<const float> values, std::span<std::byte> packed,
                  Index threads) {
  const auto count = static_cast<Index>(values.size());
  const Nf4Parts parts = nf4_parts(count);
  TESSERA_REQUIRE(std::ssize(packed) == parts.bytes, "room for the packed tensor, and no more");
  std::ranges::fill(packed, std::byte{0});
  auto* bytes = reinterpret_cast<std::uint8_t*>(packed.data());
  const Index blocks = nf4_blocks(count);
  const Index scale_blocks = nf4_scale_blocks(count);
  std::vector<float> absmax(static_cast<std::size_t>(blocks));
  const auto share = [&](const auto& work) {
    share_among_threads(scale_blocks, threads, [&work] { return work; });
  };
  share([&](Index group) {
    const Index end = std::min(blocks, (group + 1) * kNf4ScaleBlock);
    for (Index block = group * kNf4ScaleBlock; block < end; ++block) {
      const auto at = static_cast<std::size_t>(block);
      const std::span<const float> of_block = block_of(values, at, kBlock);
      absmax[at] = largest_magnitude(of_block);
      encode_block(of_block, absmax[at], bytes + parts.codes + block * (kNf4Block / 2));
    }
  });
  require_finite(name, values, absmax);
  const float mean = mean_of(absmax);
  std::memcpy(bytes + parts.mean, &mean, sizeof mean);
  share([&](Index group) {
    std::array<float, kScaleBlock> distances;  // NOLINT: written first
    const std::span<const float> of_group =
        block_of(absmax, static_cast<std::size_t>(group), kScaleBlock);
    const std::span<float> centred(distances.data(), of_group.size());
    std::ranges::transform(of_group, centred.begin(), [mean](float x) { return x - mean; });
    const float scale = largest_magnitude(centred);
    const float factor = 1.0F / scale;
    std::memcpy(bytes + parts.scale_scales + group * Index{sizeof scale}, &scale, sizeof scale);
    std::uint8_t* codes = bytes + parts.scale_codes + group * kNf4ScaleBlock;
    for (const float distance : centred) {
      *codes++ = nearest_scale_code(distance * factor);
    }
  });
}

namespace cpu {

void widen_nf4(const WidenNf4Args& args, Stream& stream) {
  require_widen_nf4(DeviceKind::cpu, args);
  submit(stream,
         [args] { args.out.dtype == DType::f32 ? widen<float>(args) : widen<BFloat16>(args); });
}

}  // namespace cpu
}  // namespace tessera
