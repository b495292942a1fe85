#include <algorithm>
#include <array>

#include "kernels/cpu/adamw_element.h"
#include "kernels/cpu/master_weights.h"
#include "kernels/cpu/partition.h"

namespace tessera::cpu {
namespace {

template <typename T>
struct BlockOf {
  [[nodiscard]] T& operator[](Index i) { return values[static_cast<std::size_t>(i)]; }
  [[nodiscard]] const T& operator[](Index i) const { return values[static_cast<std::size_t>(i)]; }
  std::array<T, kMomentBlock> values;
};
using Block = BlockOf<float>;
using RandomBlock = BlockOf<std::uint32_t>;

constexpr std::uint32_t kLowerHalf = 0xFFFFU;
constexpr unsigned kHalfBits = 16;

std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

std::uint32_t scale_of(const Block& block) {
  std::uint32_t largest = 0;
  for (const float value : block.values) {
    largest = std::max(largest, bits_of(value) & detail::kMagnitude);
  }
  return block_scale(largest);
}

// Moments of a call in bf16: of its block `block`.
struct HalfMoments {
  explicit HalfMoments(const AdamWArgs& args)
      : m(data_as<BFloat16>(args.m)), v(data_as<BFloat16>(args.v)) {}
  void load(Index block, Block& first, Block& second) const {
    for (Index i = 0; i < kMomentBlock; ++i) {
      first[i] = to_float(m[block * kMomentBlock + i]);
      second[i] = to_float(v[block * kMomentBlock + i]);
    }
  }
  void store(Index block, const Block& first, const Block& second,
             const RandomBlock& random) const {
    for (Index i = 0; i < kMomentBlock; ++i) {
      m[block * kMomentBlock + i] = {signed_bf16(bits_of(first[i]), random[i] & kLowerHalf)};
      v[block * kMomentBlock + i] = {unsigned_bf16(bits_of(second[i]), random[i] >> kHalfBits)};
    }
  }
  BFloat16* m;
  BFloat16* v;
};

// The same in 8 bits.
struct ByteMoments {
  explicit ByteMoments(const AdamWArgs& args)
      : m(data_as<std::uint8_t>(args.m)),
        v(data_as<std::uint8_t>(args.v)),
        m_scales(data_as<float>(args.rounding.m_scales)),
        v_scales(data_as<float>(args.rounding.v_scales)) {}
  void load(Index block, Block& first, Block& second) const {
    const std::uint32_t m_scale = bits_of(m_scales[block]);
    const std::uint32_t v_scale = bits_of(v_scales[block]);
    for (Index i = 0; i < kMomentBlock; ++i) {
      first[i] = signed_number(m[block * kMomentBlock + i], m_scale);
      second[i] = unsigned_number(v[block * kMomentBlock + i], v_scale);
    }
  }
  void store(Index block, const Block& first, const Block& second,
             const RandomBlock& random) const {
    const std::uint32_t m_scale = scale_of(first);
    const std::uint32_t v_scale = scale_of(second);
    m_scales[block] = std::bit_cast<float>(m_scale);
    v_scales[block] = std::bit_cast<float>(v_scale);
    for (Index i = 0; i < kMomentBlock; ++i) {
      m[block * kMomentBlock + i] = signed_code(bits_of(first[i]), m_scale, random[i] & kLowerHalf);
      v[block * kMomentBlock + i] =
          unsigned_code(bits_of(second[i]), v_scale, random[i] >> kHalfBits);
    }
  }
  std::uint8_t* m;
  std::uint8_t* v;
  float* m_scales;
  float* v_scales;
};

template <typename Moments, typename Weights>
void update_block(const AdamWArgs& args, const AdamWFactors& factors, const Moments& moments,
                  const Weights& weights, Index block) {
  // NOLINTBEGIN(cppcoreguidelines-pro-type-member-init): written first
  Block first;
  Block second;
  RandomBlock random;
  // NOLINTEND(cppcoreguidelines-pro-type-member-init)
  const auto* grad = data_as<float>(args.grad) + block * kMomentBlock;
  moments.load(block, first, second);
  for (Index i = 0; i < kMomentBlock; ++i) {
    const Index at = block * kMomentBlock + i;
    const float kept = args.rounding.decays[i] ? factors.kept : 1.0F;
    weights.store(at,
                  updated_weight(factors, weights.load(at), kept, grad[i], first[i], second[i]));
  }
  const auto quad =
      static_cast<std::uint64_t>((args.rounding.first + block * kMomentBlock) / kRandomQuad);
  for (Index i = 0; i < kMomentBlock; i += kRandomQuad) {
    const auto words =
        random_quad(args.rounding.key, quad + static_cast<std::uint64_t>(i / kRandomQuad));
    std::copy(words.begin(), words.end(), &random[i]);
  }
  moments.store(block, first, second, random);
}

template <typename Moments>
void update_all(const AdamWArgs& args) {
  const Moments moments(args);
  const AdamWFactors factors(args);
  const Index blocks = args.grad.count() / kMomentBlock;
  with_weights(args.master, args.param, args.param_values, [&](const auto& weights) {
#pragma omp parallel for schedule(static) if (args.grad.count() > kParallelElements)
    for (Index block = 0; block < blocks; ++block) {
      update_block(args, factors, moments, weights, block);
    }
  });
}

}  // namespace

void adamw_rounded(const AdamWArgs& args) {
  if (args.m.dtype == DType::bf16) {
    update_all<HalfMoments>(args);
  } else {
    update_all<ByteMoments>(args);
  }
}

}  // namespace tessera::cpu
