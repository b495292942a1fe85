// The two implementations of attention on CUDA, behind kernels/cuda/attention.cpp, which has
// checked the arguments.
#pragma once

#include "kernels/attention.h"

namespace tessera::cuda {

/// attention_builtin.cu: f32 and bf16, bit-identical always.
AttentionForwardFn builtin_attention_forward;
AttentionBackwardFn builtin_attention_backward;

/// attention_cudnn.cpp: bf16.
AttentionForwardFn cudnn_attention_forward;
AttentionBackwardFn cudnn_attention_backward;

}  // namespace tessera::cuda
