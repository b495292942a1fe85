// Documents through the library's attention, as kernels/attention_documents.h says: rows are
// gathered into dense batches, and results scattered. A document that is a whole sequence is not
// moved.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "kernels/attention_documents.h"
#include "kernels/attention_rows.h"
#include "kernels/cuda/attention_methods.h"
#include "kernels/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 128;
constexpr Index kVectorElements = sizeof(uint4) / sizeof(BFloat16);

/// The documents of one call, for a kernel: by value.
struct CallDocuments {
  std::int32_t begins[kMostDocumentsOfCall];  // first tokens in the batch
  std::int32_t lengths[kMostDocumentsOfCall];
};

/// Columns of rows of the batch, and where they are among the gathered rows; in vectors.
struct Columns {
  uint4* batch;
  uint4* gathered;
  Index batch_stride;
  Index gathered_stride;
  int count;
};
constexpr int kMostColumns = 4;
struct AllColumns {
  Columns columns[kMostColumns];
  int count;
};

/// One block a gathered row: the batch's row, or zeros behind the end of its document.
__global__ void __launch_bounds__(kThreads)
    gather_rows(CallDocuments documents, Index padded, AllColumns all) {
  const Index row = blockIdx.x;
  const auto slot = static_cast<int>(row / padded);
  const Index t = row % padded;
  const bool is_there = t < documents.lengths[slot];
  const Index token = documents.begins[slot] + t;
  for (int c = 0; c < all.count; ++c) {
    const Columns& columns = all.columns[c];
    for (int i = static_cast<int>(threadIdx.x); i < columns.count; i += kThreads) {
      columns.gathered[row * columns.gathered_stride + i] =
          is_there ? columns.batch[token * columns.batch_stride + i] : make_uint4(0, 0, 0, 0);
    }
  }
}

/// The way back, of the rows that are of a document.
__global__ void __launch_bounds__(kThreads)
    scatter_rows(CallDocuments documents, Index padded, AllColumns all) {
  const Index row = blockIdx.x;
  const auto slot = static_cast<int>(row / padded);
  const Index t = row % padded;
  if (t >= documents.lengths[slot]) {
    return;
  }
  const Index token = documents.begins[slot] + t;
  for (int c = 0; c < all.count; ++c) {
    const Columns& columns = all.columns[c];
    for (int i = static_cast<int>(threadIdx.x); i < columns.count; i += kThreads) {
      columns.batch[token * columns.batch_stride + i] =
          columns.gathered[row * columns.gathered_stride + i];
    }
  }
}

/// lse [B, Hq, T] of the batch, `gathered` [documents, Hq, padded]. One block a document's head.
template <bool kScatter>
__global__ void __launch_bounds__(kThreads)
    move_lse(CallDocuments documents, Index padded, Index heads, Index sequence, float* lse,
             float* gathered) {
  const Index h = blockIdx.x % heads;
  const auto slot = static_cast<int>(blockIdx.x / heads);
  const Index token = documents.begins[slot];
  float* of_batch = lse + (token / sequence * heads + h) * sequence + token % sequence;
  float* of_call = gathered + blockIdx.x * padded;
  for (Index t = threadIdx.x; t < padded; t += kThreads) {
    const bool is_there = t < documents.lengths[slot];
    if (kScatter && is_there) {
      of_batch[t] = of_call[t];
    } else if (!kScatter) {
      of_call[t] = is_there ? of_batch[t] : 0.0F;
    }
  }
}

/// What one of the two passes reads and writes, of either's arguments.
template <typename Args>
class DocumentPass {
 public:
  DocumentPass(const Args& args, Stream& stream)
      : args_(args), room_(document_room(args.shape)), stream_(stream) {}

  /// `dense(args)` does a batch without documents.
  template <typename Dense>
  void run(Dense dense) {
    std::map<Index, std::vector<Index>> waiting;  // numbers of documents by padded length
    const std::span<const std::int32_t> begins = args_.documents.host_begins;
    for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
      const Index length = begins[i + 1] - begins[i];
      if (length == args_.shape.sequence && is_readable_in_place()) {
        dense(whole_sequence(begins[i]));
      } else {
        waiting[padded_document_length(length, args_.shape.sequence)].push_back(
            static_cast<Index>(i));
      }
    }
    for (const auto& [padded, numbers] : waiting) {
      std::span<const Index> left = numbers;
      while (!left.empty()) {
        const Index count = documents_of_call(std::ssize(left), padded);
        run_call({.padded = padded, .documents = count},
                 left.first(static_cast<std::size_t>(count)), dense);
        left = left.subspan(static_cast<std::size_t>(count));
      }
    }
  }

  /// Everything that `run` may ask of `dense`, once, on whatever is in the memory.
  template <typename Dense>
  void run_all(Dense dense) {
    for (const DocumentCall& call : document_calls(args_.shape)) {
      dense(dense_batch(call));
    }
    if (is_readable_in_place()) {
      dense(whole_sequence(0));
    }
  }

 private:
  static constexpr bool kIsBackward = requires(const Args& args) { args.d_qkv; };

  /// Rows of bf16 begin at multiples of 16 bytes; those of lse may not.
  [[nodiscard]] bool is_readable_in_place() const {
    constexpr Index kLseUnit = 4;
    return args_.shape.query_heads * args_.shape.sequence % kLseUnit == 0;
  }

  template <typename View>
  [[nodiscard]] static View rows_of(const View& view, Index first, Index count, Index width) {
    return view.data == nullptr ? view : view.slice(first * width, (first + count) * width);
  }

  /// The arguments of the sequence that begins at `token` alone.
  [[nodiscard]] Args whole_sequence(Index token) const {
    const AttentionShape& shape = args_.shape;
    const Index T = shape.sequence;
    const Index out_width = shape.query_heads * shape.head_dim;
    Args one = args_;
    one.documents = {};
    one.shape.batch = 1;
    one.qkv = rows_of(args_.qkv, token, T, fused_width(shape));
    one.rotated_qk = rows_of(args_.rotated_qk, token, T, qk_rows(args_).width);
    one.out = rows_of(args_.out, token, T, out_width);
    one.lse = rows_of(args_.lse, token, T, shape.query_heads);
    if constexpr (kIsBackward) {
      one.d_out = rows_of(args_.d_out, token, T, out_width);
      one.d_qkv = rows_of(args_.d_qkv, token, T, fused_width(shape));
    }
    return one;
  }

  [[nodiscard]] TensorView room(std::size_t begin, DType dtype, Index elements) const {
    return {static_cast<std::byte*>(args_.workspace.data) + begin,
            dtype,
            {elements},
            args_.workspace.device};
  }

  /// Columns `first` to first + width of the batch's rows, and of the gathered rows from
  /// `gathered_first` on, in elements of bf16.
  struct Place {
    const void* rows;
    Index stride;
    Index first;
  };
  static Columns columns(const Place& batch, const Place& gathered, Index width) {
    const auto at = [](const Place& place) {
      // what is only read is not written through it
      auto* data = const_cast<void*>(place.rows);  // NOLINT(*-const-cast)
      return static_cast<uint4*>(data) + place.first / kVectorElements;
    };
    return {.batch = at(batch),
            .gathered = at(gathered),
            .batch_stride = batch.stride / kVectorElements,
            .gathered_stride = gathered.stride / kVectorElements,
            .count = static_cast<int>(width / kVectorElements)};
  }

  void move_rows(void (*kernel)(CallDocuments, Index, AllColumns), const CallDocuments& documents,
                 const DocumentCall& call, const AllColumns& all) {
    kernel<<<block_count(call.rows(), 1), kThreads, 0, stream_.cuda_handle()>>>(documents,
                                                                                call.padded, all);
    TESSERA_CHECK_CUDA(cudaGetLastError());
  }

  template <bool kScatter>
  void move_lse_of(const CallDocuments& documents, const DocumentCall& call, float* gathered) {
    const AttentionShape& shape = args_.shape;
    auto* lse = const_cast<float*>(data_as<float>(args_.lse));  // NOLINT(*-const-cast)
    move_lse<kScatter><<<block_count(call.documents * shape.query_heads, 1), kThreads, 0,
                         stream_.cuda_handle()>>>(documents, call.padded, shape.query_heads,
                                                  shape.sequence, lse, gathered);
    TESSERA_CHECK_CUDA(cudaGetLastError());
  }

  /// The arguments of a call over gathered rows, in the workspace.
  [[nodiscard]] Args dense_batch(const DocumentCall& call) const {
    const AttentionShape& shape = args_.shape;
    const Index out_elements = call.rows() * shape.query_heads * shape.head_dim;
    const Index fused_elements = call.rows() * fused_width(shape);
    Args dense = args_;
    dense.documents = {};
    dense.shape = shape_of_call(shape, call);
    dense.rotated_qk = {};
    dense.qkv = room(room_.fused, DType::bf16, fused_elements);
    dense.out = room(room_.out, DType::bf16, out_elements);
    dense.lse = room(room_.lse, DType::f32, call.rows() * shape.query_heads);
    if constexpr (kIsBackward) {
      dense.d_out = room(room_.d_out, DType::bf16, out_elements);
      dense.d_qkv = room(room_.d_fused, DType::bf16, fused_elements);
    }
    dense.workspace =
        args_.workspace.slice(static_cast<Index>(room_.library), args_.workspace.count());
    return dense;
  }

  template <typename Dense>
  void run_call(const DocumentCall& call, std::span<const Index> numbers, Dense dense) {
    const AttentionShape& shape = args_.shape;
    CallDocuments documents = {};
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto number = static_cast<std::size_t>(numbers[i]);
      documents.begins[i] = args_.documents.host_begins[number];
      documents.lengths[i] = args_.documents.host_begins[number + 1] - documents.begins[i];
    }
    const QkRows qk = qk_rows(args_);
    const Index fused = fused_width(shape);
    const Index qk_width = (shape.query_heads + shape.kv_heads) * shape.head_dim;
    const Index v_width = shape.kv_heads * shape.head_dim;
    const Index out_width = shape.query_heads * shape.head_dim;
    const Args gathered = dense_batch(call);
    auto* lse = static_cast<float*>(room(room_.lse, DType::f32, 0).data);
    const Columns out =
        columns({args_.out.data, out_width, 0}, {gathered.out.data, out_width, 0}, out_width);
    AllColumns from = {};
    from.columns[from.count++] =
        columns({qk.rows.data, qk.width, 0}, {gathered.qkv.data, fused, 0}, qk_width);
    from.columns[from.count++] =
        columns({args_.qkv.data, fused, qk_width}, {gathered.qkv.data, fused, qk_width}, v_width);
    AllColumns to = {};
    if constexpr (kIsBackward) {
      from.columns[from.count++] = out;
      from.columns[from.count++] =
          columns({args_.d_out.data, out_width, 0}, {gathered.d_out.data, out_width, 0}, out_width);
      to.columns[to.count++] =
          columns({args_.d_qkv.data, fused, 0}, {gathered.d_qkv.data, fused, 0}, fused);
      move_lse_of<false>(documents, call, lse);
    } else {
      to.columns[to.count++] = out;
    }
    move_rows(gather_rows, documents, call, from);
    dense(gathered);
    move_rows(scatter_rows, documents, call, to);
    if constexpr (!kIsBackward) {
      move_lse_of<true>(documents, call, lse);
    }
  }

  const Args& args_;
  DocumentRoom room_;
  Stream& stream_;
};

}  // namespace

void cudnn_documents_forward(const AttentionForwardArgs& args, Stream& stream) {
  DocumentPass(args, stream).run([&](const AttentionForwardArgs& dense) {
    cudnn_attention_forward(dense, stream);
  });
}

void cudnn_documents_backward(const AttentionBackwardArgs& args, Stream& stream) {
  DocumentPass(args, stream).run([&](const AttentionBackwardArgs& dense) {
    cudnn_attention_backward(dense, stream);
  });
}

void prepare_cudnn_documents(const AttentionForwardArgs& forward,
                             const AttentionBackwardArgs& backward, Stream& stream) {
  DocumentPass(forward, stream).run_all([&](const AttentionForwardArgs& dense) {
    cudnn_attention_forward(dense, stream);
  });
  DocumentPass(backward, stream).run_all([&](const AttentionBackwardArgs& dense) {
    cudnn_attention_backward(dense, stream);
  });
}

}  // namespace tessera::cuda
