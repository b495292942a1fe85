// How the CPU's optimizers read master weights and write them with their parameters.
#pragma once

#include "kernels/cpu/require.h"
#include "kernels/device/master_code.h"

namespace tessera::cpu {

/// Masters and parameters are the same numbers.
struct ExactWeights {
  float* master;
  float* param;
  [[nodiscard]] float load(Index i) const { return master[i]; }
  void store(Index i, float weight) const {
    master[i] = weight;
    param[i] = weight;
  }
};

/// Parameters are stored in f32 and hold values of bf16.
struct RoundedWeights {
  float* master;
  float* param;
  [[nodiscard]] float load(Index i) const { return master[i]; }
  void store(Index i, float weight) const {
    master[i] = weight;
    param[i] = to_float(param_of(weight));
  }
};

/// The same parameters beside the remainders of their masters.
struct SplitWeights {
  std::uint16_t* remainder;
  float* param;
  [[nodiscard]] float load(Index i) const {
    const auto bits = std::bit_cast<std::uint32_t>(param[i]);
    return std::bit_cast<float>(master_bits(static_cast<std::uint16_t>(bits >> 16U), remainder[i]));
  }
  void store(Index i, float weight) const {
    remainder[i] = remainder_bits(std::bit_cast<std::uint32_t>(weight));
    param[i] = to_float(param_of(weight));
  }
};

/// Throws ContractError unless `master` and `param` are what an optimizer's kernel takes.
inline void require_weights(const TensorView& master, const TensorView& param, DType values,
                            Index count) {
  TESSERA_REQUIRE(values == DType::f32 || values == DType::bf16,
                  "parameters of f32 or bf16 values");
  TESSERA_REQUIRE(master.dtype != DType::u16 || values == DType::bf16,
                  "remainders beside parameters of bf16 values");
  require_tensor(master, master.dtype == DType::u16 ? DType::u16 : DType::f32, count, "master");
  require_tensor(param, DType::f32, count, "param");
}

/// Calls `body` with the weights that `require_weights` accepted.
template <typename Body>
void with_weights(const TensorView& master, const TensorView& param, DType values,
                  const Body& body) {
  if (master.dtype == DType::u16) {
    body(SplitWeights{data_as<std::uint16_t>(master), data_as<float>(param)});
  } else if (values == DType::f32) {
    body(ExactWeights{data_as<float>(master), data_as<float>(param)});
  } else {
    body(RoundedWeights{data_as<float>(master), data_as<float>(param)});
  }
}

}  // namespace tessera::cpu
