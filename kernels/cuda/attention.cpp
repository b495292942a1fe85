// Attention on CUDA: what is asked for is checked here and given to one of the two methods.
#include "kernels/attention.h"

#include "kernels/cuda/attention_methods.h"
#include "kernels/cuda/require.h"

namespace tessera::cuda {
namespace {

void require_common(const AttentionShape& shape, const AttentionOptions& options,
                    const ConstTensorView& qkv, const ConstTensorView& out,
                    const ConstTensorView& lse, const ConstTensorView& workspace) {
  // Throws by itself where the shape or the options make no attention.
  const std::size_t workspace_bytes =
      attention_workspace_bytes(DeviceKind::cuda, shape, qkv.dtype, options);
  const Index tokens = shape.batch * shape.sequence;
  const Index row = (shape.query_heads + 2 * shape.kv_heads) * shape.head_dim;
  TESSERA_REQUIRE(qkv.dtype == DType::f32 || qkv.dtype == DType::bf16, "qkv is f32 or bf16");
  require_tensor(qkv, qkv.dtype, tokens * row, "qkv");
  require_tensor(out, qkv.dtype, tokens * shape.query_heads * shape.head_dim, "out");
  require_tensor(lse, DType::f32, tokens * shape.query_heads, "lse");
  require_room(workspace, DType::u8, static_cast<Index>(workspace_bytes), "workspace");
  TESSERA_REQUIRE(is_vector_aligned(qkv.data) && is_vector_aligned(out.data) &&
                      is_vector_aligned(lse.data) && is_vector_aligned(workspace.data),
                  "tensors of attention begin at a multiple of 16 bytes");
}

}  // namespace

void attention_forward(const AttentionForwardArgs& args, Stream& stream) {
  require_common(args.shape, args.options, args.qkv, args.out, args.lse, args.workspace);
  if (args.options.method == AttentionMethod::library) {
    cudnn_attention_forward(args, stream);
  } else {
    builtin_attention_forward(args, stream);
  }
}

void attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  require_common(args.shape, args.options, args.qkv, args.out, args.lse, args.workspace);
  require_tensor(args.d_out, args.qkv.dtype, args.out.count(), "d_out");
  require_tensor(args.d_qkv, args.qkv.dtype, args.qkv.count(), "d_qkv");
  TESSERA_REQUIRE(is_vector_aligned(args.d_out.data) && is_vector_aligned(args.d_qkv.data),
                  "tensors of attention begin at a multiple of 16 bytes");
  if (args.options.method == AttentionMethod::library) {
    cudnn_attention_backward(args, stream);
  } else {
    builtin_attention_backward(args, stream);
  }
}

}  // namespace tessera::cuda
