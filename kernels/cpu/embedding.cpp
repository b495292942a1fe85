#include "kernels/embedding.h"

#include <algorithm>

#include <omp.h>

#include "kernels/cpu/partition.h"
#include "kernels/cpu/require.h"
#include "kernels/device/cpu/submit.h"

namespace tessera::cpu {
namespace {

// A row outside the table would be read or written past its end: the loader has checked the file's
// tokens against the vocabulary, so this is an internal error.
void require_in_table(const std::int32_t* tokens, Index count, Index vocab) {
  const auto outside = [vocab](std::int32_t token) { return token < 0 || token >= vocab; };
  const std::int32_t* found = std::find_if(tokens, tokens + count, outside);
  if (found != tokens + count) {
    throw ContractError("token " + std::to_string(*found) + " at position " +
                            std::to_string(found - tokens) + " is outside the table of " +
                            std::to_string(vocab) + " rows",
                        TESSERA_HERE);
  }
}

void forward(const EmbeddingForwardArgs& args) {
  const Index count = args.tokens.count();
  const Index vocab = args.table.shape[0];
  const Index width = args.table.shape[1];
  const auto* tokens = data_as<std::int32_t>(args.tokens);
  const auto* table = data_as<float>(args.table);
  auto* out = data_as<float>(args.out);
  require_in_table(tokens, count, vocab);
  const std::int32_t* order = nullptr;
  if (args.order.data != nullptr) {
    order = data_as<std::int32_t>(args.order);
    require_in_table(order, count, count);
  }
#pragma omp parallel for schedule(static) if (count * width > kParallelElements)
  for (Index i = 0; i < count; ++i) {
    const Index n = order == nullptr ? i : order[i];
    std::copy_n(table + tokens[n] * width, width, out + n * width);
  }
}

// Threads share the columns, not the rows: every element is added up by one thread in ascending n.
void backward(const EmbeddingBackwardArgs& args) {
  const Index count = args.tokens.count();
  const Index vocab = args.d_table.shape[0];
  const Index width = args.d_table.shape[1];
  const auto* tokens = data_as<std::int32_t>(args.tokens);
  const auto* order = data_as<std::int32_t>(args.order);
  const auto* d_out = data_as<float>(args.d_out);
  auto* d_table = data_as<float>(args.d_table);
  require_in_table(tokens, count, vocab);
  require_in_table(order, count, count);
#pragma omp parallel if (count * width > kParallelElements)
  {
    const Range columns = piece(width, omp_get_num_threads(), omp_get_thread_num());
    for (Index i = 0; i < count; ++i) {
      const Index n = order[i];
      const float* from = d_out + n * width;
      float* to = d_table + tokens[n] * width;
#pragma omp simd
      for (Index c = columns.begin; c < columns.end; ++c) {
        to[c] += from[c];
      }
    }
  }
}

}  // namespace

void embedding_forward(const EmbeddingForwardArgs& args, Stream& stream) {
  const Index count = args.tokens.count();
  TESSERA_REQUIRE(args.table.shape.rank() == 2, "embedding_forward takes the table as [V, C]");
  require_tensor(args.tokens, DType::i32, count, "tokens");
  if (args.order.data != nullptr) {
    require_tensor(args.order, DType::i32, count, "order");
  }
  require_tensor(args.table, DType::f32, args.table.count(), "table");
  require_tensor(args.out, DType::f32, count * args.table.shape[1], "out");
  submit(stream, [args] { forward(args); });
}

void embedding_backward(const EmbeddingBackwardArgs& args, Stream& stream) {
  const Index count = args.tokens.count();
  TESSERA_REQUIRE(args.d_table.shape.rank() == 2, "embedding_backward takes d_table as [V, C]");
  require_tensor(args.tokens, DType::i32, count, "tokens");
  require_tensor(args.order, DType::i32, count, "order");
  require_tensor(args.d_out, DType::f32, count * args.d_table.shape[1], "d_out");
  require_tensor(args.d_table, DType::f32, args.d_table.count(), "d_table");
  submit(stream, [args] { backward(args); });
}

}  // namespace tessera::cpu
