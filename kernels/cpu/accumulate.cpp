#include "kernels/accumulate.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/require.h"
#include "kernels/device/cpu/submit.h"

namespace tessera::cpu {
namespace {

// Elements that are taken through all rows before the next: their sums stay in the first-level
// cache.
constexpr Index kBlock = 2048;

inline float as_float(float value) {
  return value;
}
inline float as_float(BFloat16 value) {
  return to_float(value);
}

inline void store(float value, float* to) {
  *to = value;
}
inline void store(float value, BFloat16* to) {
  *to = to_bfloat16(value);
}

template <typename T>
void copy_row(const T* from, float* to, Index count) {
#pragma omp simd
  for (Index i = 0; i < count; ++i) {
    to[i] = as_float(from[i]);
  }
}

template <typename T>
void add_row(const T* from, float* to, Index count) {
#pragma omp simd
  for (Index i = 0; i < count; ++i) {
    to[i] += as_float(from[i]);
  }
}

// Elements [begin, begin + count) of all rows, count <= kBlock.
template <typename T>
void accumulate_block(const AccumulateArgs& args, Index begin, Index count) {
  const Index width = args.sum.count();
  const T* slices = data_as<T>(args.slices) + begin;
  float* sum = data_as<float>(args.sum) + begin;
  std::array<float, kBlock> group;  // NOLINT(cppcoreguidelines-pro-type-member-init): written first
  for (Index w = 0; w < args.count; ++w) {
    const T* row = slices + w * width;
    const Index number = args.first + w;
    const Index in_group = number % args.reduce_group;
    const bool ends_group = in_group == args.reduce_group - 1 || number == args.total - 1;
    const bool first_group = number < args.reduce_group;
    if (in_group == 0 && ends_group) {
      if (first_group) {
        copy_row(row, sum, count);
      } else {
        add_row(row, sum, count);
      }
      continue;
    }
    if (in_group == 0) {
      copy_row(row, group.data(), count);
    } else {
      if (w == 0) {
        std::copy_n(data_as<float>(args.partial) + begin, count, group.data());
      }
      add_row(row, group.data(), count);
    }
    if (ends_group && first_group) {
      copy_row(group.data(), sum, count);
    } else if (ends_group) {
      add_row(group.data(), sum, count);
    } else if (w == args.count - 1) {
      std::copy_n(group.data(), count, data_as<float>(args.partial) + begin);
    }
  }
}

template <typename T>
void accumulate_all(const AccumulateArgs& args) {
  const Index width = args.sum.count();
  const Index blocks = (width + kBlock - 1) / kBlock;
#pragma omp parallel for schedule(static) if (width * args.count > kParallelElements)
  for (Index block = 0; block < blocks; ++block) {
    const Index begin = block * kBlock;
    accumulate_block<T>(args, begin, std::min(kBlock, width - begin));
  }
}

template <typename From, typename To>
void cast_all(const CastRowsArgs& args) {
  const auto* from = data_as<From>(args.from);
  auto* to = data_as<To>(args.to);
#pragma omp parallel for schedule(static) if (args.rows * args.columns > kParallelElements)
  for (Index r = 0; r < args.rows; ++r) {
    const From* in = from + r * args.from_stride;
    To* out = to + r * args.to_stride;
#pragma omp simd
    for (Index k = 0; k < args.columns; ++k) {
      store(as_float(in[k]), out + k);
    }
  }
}

bool is_float_type(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16;
}

}  // namespace

void accumulate(const AccumulateArgs& args, Stream& stream) {
  const Index width = args.sum.count();
  TESSERA_REQUIRE(is_float_type(args.slices.dtype), "accumulate takes slices of f32 or bf16");
  TESSERA_REQUIRE(args.reduce_group >= 1, "reduce_group is 1 or more");
  TESSERA_REQUIRE(args.first >= 0 && args.count >= 1 && args.first + args.count <= args.total,
                  "the rows are micro-batches of the step");
  require_tensor(args.sum, DType::f32, width, "sum");
  require_room(args.slices, args.slices.dtype, args.count * width, "slices");
  const Index end = args.first + args.count;
  if (args.first % args.reduce_group != 0 || (end % args.reduce_group != 0 && end != args.total)) {
    require_tensor(args.partial, DType::f32, width, "partial");
  }
  submit(stream, [args] {
    if (args.slices.dtype == DType::f32) {
      accumulate_all<float>(args);
    } else {
      accumulate_all<BFloat16>(args);
    }
  });
}

void cast_rows(const CastRowsArgs& args, Stream& stream) {
  TESSERA_REQUIRE(is_float_type(args.from.dtype) && is_float_type(args.to.dtype),
                  "cast_rows takes f32 and bf16");
  TESSERA_REQUIRE(args.rows >= 0 && args.columns >= 0, "rows and columns are counts");
  TESSERA_REQUIRE(args.rows <= 1 || args.to_stride >= args.columns, "rows of `to` do not overlap");
  if (args.rows == 0 || args.columns == 0) {
    return;
  }
  require_room(args.from, args.from.dtype, (args.rows - 1) * args.from_stride + args.columns,
               "from");
  require_room(args.to, args.to.dtype, (args.rows - 1) * args.to_stride + args.columns, "to");
  submit(stream, [args] {
    const bool from_f32 = args.from.dtype == DType::f32;
    if (args.to.dtype == DType::f32) {
      from_f32 ? cast_all<float, float>(args) : cast_all<BFloat16, float>(args);
    } else {
      from_f32 ? cast_all<float, BFloat16>(args) : cast_all<BFloat16, BFloat16>(args);
    }
  });
}

}  // namespace tessera::cpu
