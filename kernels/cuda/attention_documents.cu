// Documents through the library's attention, as kernels/attention_documents.h says. A long document's
// call reads the batch's rows where they are. Behind the document these are other documents' rows:
// as queries they get no gradient (zeros as d_out) and no probability (a huge lse), as keys the
// document's queries do not see them, and what the call writes to them is written again by a later
// one. Rows of short documents are gathered, and results scattered.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention_documents.h"
#include "kernels/attention_rows.h"
#include "kernels/cuda/attention_methods.h"
#include "kernels/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 128;
constexpr Index kVectorElements = sizeof(uint4) / sizeof(BFloat16);

// lse behind a document: no query there gives any key a probability, whatever its scores are.
constexpr float kNoProbability = 1e30F;

/// The documents of a group, for a kernel: by value.
struct PlacedDocuments {
  PlacedDocument documents[kMostDocumentsOfGroup];  // rows ascend
  int count;
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
/// What a kernel moves of each row.
struct RowParts {
  Columns columns[kMostColumns];
  int count;
  float* lse;           // [B, Hq, T] of the batch
  float* gathered_lse;  // [documents, Hq, padded] of each call; null: stays where it is
  Index heads;
  Index sequence;
};

/// The document that `row` of the group belongs to.
__device__ const PlacedDocument& document_of(const PlacedDocuments& placed, Index row) {
  int first = 0;
  int last = placed.count - 1;
  while (first < last) {
    const int middle = (first + last + 1) / 2;
    if (placed.documents[middle].row <= row) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return placed.documents[first];
}

/// Where lse of a head of token `t` of the document is: in the batch, and in its call.
__device__ float& batch_lse(const RowParts& parts, Index token, Index head) {
  return parts
      .lse[(token / parts.sequence * parts.heads + head) * parts.sequence + token % parts.sequence];
}
__device__ float& call_lse(const RowParts& parts, const PlacedDocument& document, Index t,
                           Index head) {
  return parts.gathered_lse[document.row * parts.heads + head * document.padded + t];
}

/// One block a row of the group: the batch's row, or what stands behind a document.
__global__ void __launch_bounds__(kThreads)
    gather_rows(const __grid_constant__ PlacedDocuments placed,
                const __grid_constant__ RowParts parts) {
  const Index row = blockIdx.x;
  const PlacedDocument& document = document_of(placed, row);
  const Index t = row - document.row;
  if (t >= document.padded) {
    return;  // between two calls
  }
  const bool is_there = t < document.length;
  const Index token = document.begin + t;
  for (int c = 0; c < parts.count; ++c) {
    const Columns& columns = parts.columns[c];
    for (int i = static_cast<int>(threadIdx.x); i < columns.count; i += kThreads) {
      columns.gathered[row * columns.gathered_stride + i] =
          is_there ? columns.batch[token * columns.batch_stride + i] : make_uint4(0, 0, 0, 0);
    }
  }
  if (parts.gathered_lse != nullptr) {
    for (Index h = threadIdx.x; h < parts.heads; h += kThreads) {
      call_lse(parts, document, t, h) = is_there ? batch_lse(parts, token, h) : kNoProbability;
    }
  }
}

/// The way back, of the rows that are of a document.
__global__ void __launch_bounds__(kThreads)
    scatter_rows(const __grid_constant__ PlacedDocuments placed,
                 const __grid_constant__ RowParts parts) {
  const Index row = blockIdx.x;
  const PlacedDocument& document = document_of(placed, row);
  const Index t = row - document.row;
  if (t >= document.length) {
    return;
  }
  const Index token = document.begin + t;
  for (int c = 0; c < parts.count; ++c) {
    const Columns& columns = parts.columns[c];
    for (int i = static_cast<int>(threadIdx.x); i < columns.count; i += kThreads) {
      columns.batch[token * columns.batch_stride + i] =
          columns.gathered[row * columns.gathered_stride + i];
    }
  }
  if (parts.gathered_lse != nullptr) {
    for (Index h = threadIdx.x; h < parts.heads; h += kThreads) {
      batch_lse(parts, token, h) = call_lse(parts, document, t, h);
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
    for (const DocumentGroup& group : document_groups(args_.shape, args_.documents.host_begins)) {
      move_rows(gather_rows, group, rows_in(group));
      std::size_t next = 0;
      for (const DocumentCall& call : group.calls) {
        const PlacedDocument& first = group.documents[next];
        dense(group.is_in_place ? call_in_place(call, first) : dense_batch(call, first.row));
        next += static_cast<std::size_t>(call.documents);
      }
      move_rows(scatter_rows, group, rows_out(group));
    }
  }

  /// Everything that `run` may ask of `dense`, once, on whatever is in the memory.
  template <typename Dense>
  void run_all(Dense dense) {
    for (const DocumentCall& call : document_calls(args_.shape)) {
      dense(dense_batch(call, 0));
    }
  }

 private:
  static constexpr bool kIsBackward = requires(const Args& args) { args.d_qkv; };

  template <typename View>
  [[nodiscard]] static View rows_of(const View& view, Index first, Index count, Index width) {
    return view.data == nullptr ? view : view.slice(first * width, (first + count) * width);
  }

  /// The arguments of a document on the batch's rows; its lse and d_out, behind which something else
  /// stands than in the batch, in the workspace.
  [[nodiscard]] Args call_in_place(const DocumentCall& call, const PlacedDocument& document) const {
    const Index out_width = args_.shape.query_heads * args_.shape.head_dim;
    const Args gathered = dense_batch(call, document.row);
    const auto rows = [&](const auto& view, Index width) {
      return rows_of(view, document.begin, call.padded, width);
    };
    Args one = gathered;
    one.qkv = rows(args_.qkv, fused_width(args_.shape));
    one.rotated_qk = rows(args_.rotated_qk, qk_rows(args_).width);
    one.out = rows(args_.out, out_width);
    if constexpr (kIsBackward) {
      one.d_qkv = rows(args_.d_qkv, fused_width(args_.shape));
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

  void move_rows(void (*kernel)(PlacedDocuments, RowParts), const DocumentGroup& group,
                 const RowParts& parts) {
    if (parts.count == 0 && parts.gathered_lse == nullptr) {
      return;
    }
    PlacedDocuments placed = {};
    std::copy(group.documents.begin(), group.documents.end(), placed.documents);
    placed.count = static_cast<int>(group.documents.size());
    kernel<<<block_count(group.rows, 1), kThreads, 0, stream_.cuda_handle()>>>(placed, parts);
    TESSERA_CHECK_CUDA(cudaGetLastError());
  }

  /// The arguments of a call over gathered rows, in the workspace from `row` on. They are as far
  /// apart as the batch's, so that both have one graph.
  [[nodiscard]] Args dense_batch(const DocumentCall& call, Index row) const {
    const AttentionShape& shape = args_.shape;
    const Index out_width = shape.query_heads * shape.head_dim;
    const auto rows = [&](std::size_t begin, DType dtype, Index width) {
      return room(begin, dtype, (row + call.rows()) * width)
          .slice(row * width, (row + call.rows()) * width);
    };
    Args dense = args_;
    dense.documents = {};
    dense.shape = shape_of_call(shape, call);
    dense.qkv = rows(room_.fused, DType::bf16, fused_width(shape));
    dense.rotated_qk = {};
    if (args_.rotated_qk.data != nullptr) {
      dense.rotated_qk = rows(room_.qk, DType::bf16, qk_rows(args_).width);
    }
    dense.out = rows(room_.out, DType::bf16, out_width);
    dense.lse = rows(room_.lse, DType::f32, shape.query_heads);
    if constexpr (kIsBackward) {
      dense.d_out = rows(room_.d_out, DType::bf16, out_width);
      dense.d_qkv = rows(room_.d_fused, DType::bf16, fused_width(shape));
    }
    dense.workspace =
        args_.workspace.slice(static_cast<Index>(room_.library), args_.workspace.count());
    return dense;
  }

  [[nodiscard]] RowParts lse_parts(bool moves) const {
    auto* lse = const_cast<float*>(data_as<float>(args_.lse));  // NOLINT(*-const-cast)
    return {
        .lse = lse,
        .gathered_lse = moves ? static_cast<float*>(room(room_.lse, DType::f32, 0).data) : nullptr,
        .heads = args_.shape.query_heads,
        .sequence = args_.shape.sequence};
  }

  /// What the calls of the group read.
  [[nodiscard]] RowParts rows_in(const DocumentGroup& group) const {
    const AttentionShape& shape = args_.shape;
    const QkRows qk = qk_rows(args_);
    const Index fused = fused_width(shape);
    const Index qk_width = (shape.query_heads + shape.kv_heads) * shape.head_dim;
    const Index out_width = shape.query_heads * shape.head_dim;
    RowParts parts = lse_parts(kIsBackward);
    const auto add = [&](const Place& batch, const Place& gathered, Index width) {
      parts.columns[parts.count++] = columns(batch, gathered, width);
    };
    const auto at = [&](std::size_t begin) { return room(begin, DType::bf16, 0).data; };
    if (!group.is_in_place) {
      const std::size_t qk_room = args_.rotated_qk.data == nullptr ? room_.fused : room_.qk;
      add({qk.rows.data, qk.width, 0}, {at(qk_room), qk.width, 0}, qk_width);
      add({args_.qkv.data, fused, qk_width}, {at(room_.fused), fused, qk_width}, fused - qk_width);
    }
    if constexpr (kIsBackward) {
      add({args_.d_out.data, out_width, 0}, {at(room_.d_out), out_width, 0}, out_width);
      if (!group.is_in_place) {
        add({args_.out.data, out_width, 0}, {at(room_.out), out_width, 0}, out_width);
      }
    }
    return parts;
  }

  /// What they write.
  [[nodiscard]] RowParts rows_out(const DocumentGroup& group) const {
    RowParts parts = lse_parts(!kIsBackward);
    if (!group.is_in_place) {
      const Index width =
          kIsBackward ? fused_width(args_.shape) : args_.shape.query_heads * args_.shape.head_dim;
      const std::size_t begin = kIsBackward ? room_.d_fused : room_.out;
      const void* batch = args_.out.data;
      if constexpr (kIsBackward) {
        batch = args_.d_qkv.data;
      }
      parts.columns[parts.count++] =
          columns({batch, width, 0}, {room(begin, DType::bf16, 0).data, width, 0}, width);
    }
    return parts;
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
