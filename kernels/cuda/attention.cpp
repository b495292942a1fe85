// Attention on CUDA: what is asked for is checked here and given to one of the two methods.
#include "kernels/attention.h"

#include "kernels/attention_rows.h"
#include "kernels/cuda/attention_methods.h"
#include "kernels/cuda/require.h"

namespace tessera::cuda {
namespace {

// Of either pass's arguments.
template <typename Args>
void require_common(const Args& args) {
  const AttentionShape& shape = args.shape;
  const DType dtype = args.qkv.dtype;
  // Throws by itself where the shape or the options make no attention.
  const std::size_t workspace_bytes =
      attention_workspace_bytes(DeviceKind::cuda, shape, dtype, args.options);
  const Index tokens = shape.batch * shape.sequence;
  const QkRows qk = qk_rows(args);
  TESSERA_REQUIRE(dtype == DType::f32 || dtype == DType::bf16, "qkv is f32 or bf16");
  require_tensor(args.qkv, dtype, tokens * fused_width(shape), "qkv");
  require_tensor(qk.rows, dtype, tokens * qk.width, "rotated_qk");
  require_tensor(args.out, dtype, tokens * shape.query_heads * shape.head_dim, "out");
  require_tensor(args.lse, DType::f32, tokens * shape.query_heads, "lse");
  require_room(args.workspace, DType::u8, static_cast<Index>(workspace_bytes), "workspace");
  require_documents(args.documents, shape.batch, shape.sequence);
  TESSERA_REQUIRE(!args.documents.are_given() || args.options.documents,
                  "options say that there are documents: the workspace has room for them");
  TESSERA_REQUIRE(is_vector_aligned(args.qkv.data) && is_vector_aligned(qk.rows.data) &&
                      is_vector_aligned(args.out.data) && is_vector_aligned(args.lse.data) &&
                      is_vector_aligned(args.workspace.data),
                  "tensors of attention begin at a multiple of 16 bytes");
}

}  // namespace

void attention_forward(const AttentionForwardArgs& args, Stream& stream) {
  require_common(args);
  if (args.options.method == AttentionMethod::builtin) {
    builtin_attention_forward(args, stream);
  } else if (args.documents.are_given()) {
    cudnn_documents_forward(args, stream);
  } else {
    cudnn_attention_forward(args, stream);
  }
}

void attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  require_common(args);
  require_tensor(args.d_out, args.qkv.dtype, args.out.count(), "d_out");
  require_tensor(args.d_qkv, args.qkv.dtype, args.qkv.count(), "d_qkv");
  TESSERA_REQUIRE(is_vector_aligned(args.d_out.data) && is_vector_aligned(args.d_qkv.data),
                  "tensors of attention begin at a multiple of 16 bytes");
  if (args.options.method == AttentionMethod::builtin) {
    builtin_attention_backward(args, stream);
  } else if (args.documents.are_given()) {
    cudnn_documents_backward(args, stream);
  } else {
    cudnn_attention_backward(args, stream);
  }
}

void prepare_attention(const AttentionForwardArgs& forward, const AttentionBackwardArgs& backward,
                       Stream& stream) {
  require_common(forward);
  require_common(backward);
  if (forward.options.method == AttentionMethod::library) {
    prepare_cudnn_documents(forward, backward, stream);
  }
}

}  // namespace tessera::cuda
