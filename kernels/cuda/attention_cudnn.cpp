// Attention through cuDNN's graphs (cudnn-frontend): bf16 in and out, f32 within. A graph is
// compiled for each shape of slice and kept; that takes 0.1 s, once.
//
// The only file that includes the frontend's header, which takes most of the time to compile.
#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "kernels/attention_rows.h"
#include "kernels/cuda/attention_methods.h"
#include "kernels/device/cuda/cuda_check.h"

namespace tessera::cuda {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

enum class Direction : std::uint8_t { forward, backward };

/// What a graph is compiled for: one slice of a whole, or a tile of one.
struct GraphKey {
  int ordinal;
  Direction direction;
  AttentionOrder order;  // of the backward pass
  Index sequences;
  Index groups;   // key/value heads
  Index queries;  // of each sequence
  Index keys;
  TileMask mask;
  // The whole's, which give the distances between rows.
  Index sequence;
  Index query_heads;
  Index kv_heads;
  Index head_dim;
  Index qk_row;    // of the rows that q and k are read from
  Index d_q_row;   // of those that d_q is written to
  Index d_kv_row;  // of those that d_k and d_v are written to
  Index lse_row;   // from head to head
  Index window;    // as AttentionShape's
  float scale;
  // clang-tidy 14 takes the 0 that <=> is compared with for a pointer
  // NOLINTNEXTLINE(modernize-use-nullptr,readability-implicit-bool-conversion)
  friend auto operator<=>(const GraphKey&, const GraphKey&) = default;
};

struct CompiledGraph {
  std::shared_ptr<fe::graph::Graph> graph;
  std::size_t workspace_bytes;
};

// Names of the tensors for cuDNN.
constexpr std::int64_t kQ = 1;
constexpr std::int64_t kK = 2;
constexpr std::int64_t kV = 3;
constexpr std::int64_t kOut = 4;
constexpr std::int64_t kLse = 5;
constexpr std::int64_t kDOut = 6;
constexpr std::int64_t kDQ = 7;
constexpr std::int64_t kDK = 8;
constexpr std::int64_t kDV = 9;

/// Where a tensor of a slice is stored: extents and distances in the order B, H, T, D.
struct Layout {
  std::vector<std::int64_t> extents;
  std::vector<std::int64_t> strides;
};

struct Layouts {
  Layout q;
  Layout k;
  Layout v;
  Layout d_q;
  Layout d_kv;
  Layout out;  // also d_out
  Layout lse;
};

Layouts layouts_of(const GraphKey& key) {
  const Index T = key.sequence;
  const Index D = key.head_dim;
  const Index heads = key.groups * (key.query_heads / key.kv_heads);
  const Index row = (key.query_heads + 2 * key.kv_heads) * D;
  const auto of_queries = [&](Index width) {
    return Layout{{key.sequences, heads, key.queries, D}, {T * width, D, width, 1}};
  };
  const auto of_keys = [&](Index width) {
    return Layout{{key.sequences, key.groups, key.keys, D}, {T * width, D, width, 1}};
  };
  return {.q = of_queries(key.qk_row),
          .k = of_keys(key.qk_row),
          .v = of_keys(row),
          .d_q = of_queries(key.d_q_row),
          .d_kv = of_keys(key.d_kv_row),
          .out = of_queries(key.query_heads * D),
          .lse = {{key.sequences, heads, key.queries, 1},
                  {key.query_heads * key.lse_row, key.lse_row, 1, 1}}};
}

std::string key_text(const GraphKey& key) {
  return std::to_string(key.sequences) + " x " + std::to_string(key.queries) + " tokens, " +
         (key.keys == key.queries ? "" : std::to_string(key.keys) + " keys, ") +
         std::to_string(key.groups * (key.query_heads / key.kv_heads)) + " query and " +
         std::to_string(key.groups) + " key/value heads of " + std::to_string(key.head_dim) +
         (key.window > 0 ? ", a window of " + std::to_string(key.window) : "") +
         (key.direction == Direction::forward ? ", forward" : ", backward") +
         (key.direction == Direction::backward && key.order == AttentionOrder::deterministic
              ? ", deterministic"
              : "");
}

/// For the steps at which cuDNN says that it does not do such a thing: there is another method.
void require_supported(fe::error_t status, const GraphKey& key) {
  if (!status.is_good()) {
    throw ConfigError("cuDNN " + std::to_string(cudnnGetVersion()) + " does not do attention for " +
                          key_text(key) + ": " + status.get_message() +
                          "; use the builtin attention",
                      TESSERA_HERE);
  }
}

void require_done(fe::error_t status, const char* what, const GraphKey& key) {
  if (!status.is_good()) {
    throw DeviceError(std::string("cuDNN attention: ") + what + " failed for " + key_text(key) +
                          ": " + status.get_message(),
                      TESSERA_HERE);
  }
}

Tensor input(fe::graph::Graph& graph, const char* name, std::int64_t uid, const Layout& layout) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_name(name)
                          .set_uid(uid)
                          .set_dim(layout.extents)
                          .set_stride(layout.strides));
}

void make_output(const Tensor& tensor, std::int64_t uid, const Layout& layout) {
  tensor->set_output(true).set_uid(uid).set_dim(layout.extents).set_stride(layout.strides);
}

/// Query t sees keys 0 .. t, or the last `window` of them, or as the key's mask says.
template <typename Attributes>
void set_mask(Attributes& attributes, const GraphKey& key) {
  attributes.set_attn_scale(key.scale);
  if (key.mask == TileMask::none) {
    return;
  }
  attributes
      .set_diagonal_alignment(key.mask == TileMask::end ? fe::DiagonalAlignment_t::BOTTOM_RIGHT
                                                        : fe::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
  if (key.window > 0) {
    attributes.set_diagonal_band_left_bound(key.window);
  }
}

void describe_forward(fe::graph::Graph& graph, const GraphKey& key) {
  const Layouts layouts = layouts_of(key);
  const Tensor q = input(graph, "q", kQ, layouts.q);
  const Tensor k = input(graph, "k", kK, layouts.k);
  const Tensor v = input(graph, "v", kV, layouts.v);
  fe::graph::SDPA_attributes attributes;
  attributes.set_name("attention").set_generate_stats(true);
  set_mask(attributes, key);
  const auto [out, lse] = graph.sdpa(q, k, v, attributes);
  make_output(out, kOut, layouts.out);
  make_output(lse, kLse, layouts.lse);
  lse->set_data_type(fe::DataType_t::FLOAT);
}

void describe_backward(fe::graph::Graph& graph, const GraphKey& key) {
  const Layouts layouts = layouts_of(key);
  const Tensor q = input(graph, "q", kQ, layouts.q);
  const Tensor k = input(graph, "k", kK, layouts.k);
  const Tensor v = input(graph, "v", kV, layouts.v);
  const Tensor out = input(graph, "out", kOut, layouts.out);
  const Tensor d_out = input(graph, "d_out", kDOut, layouts.out);
  const Tensor lse = input(graph, "lse", kLse, layouts.lse);
  lse->set_data_type(fe::DataType_t::FLOAT);
  fe::graph::SDPA_backward_attributes attributes;
  attributes.set_name("attention_backward")
      .set_deterministic_algorithm(key.order == AttentionOrder::deterministic);
  set_mask(attributes, key);
  const auto [d_q, d_k, d_v] = graph.sdpa_backward(q, k, v, out, d_out, lse, attributes);
  make_output(d_q, kDQ, layouts.d_q);
  make_output(d_k, kDK, layouts.d_kv);
  make_output(d_v, kDV, layouts.d_kv);
}

CompiledGraph compile(cudnnHandle_t handle, const GraphKey& key) {
  auto graph = std::make_shared<fe::graph::Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  try {
    if (key.direction == Direction::forward) {
      describe_forward(*graph, key);
    } else {
      describe_backward(*graph, key);
    }
    require_supported(graph->validate(), key);
    require_supported(graph->build_operation_graph(handle), key);
    require_supported(graph->create_execution_plans({fe::HeurMode_t::A}), key);
    require_supported(graph->check_support(handle), key);
    require_done(graph->build_plans(handle), "compiling the graph", key);
    std::int64_t workspace_bytes = 0;
    require_done(graph->get_workspace_size(workspace_bytes), "asking for its workspace", key);
    return {std::move(graph), static_cast<std::size_t>(workspace_bytes)};
  } catch (const fe::cudnnException& error) {  // some of the frontend throws instead
    throw DeviceError("cuDNN attention for " + key_text(key) + ": " + error.what(), TESSERA_HERE);
  }
}

/// The handles and graphs of this process, under one lock.
class GraphCache {
 public:
  /// Queues the graph for `key`, compiled if it is new, over `tensors`, a map of its own for every
  /// call because the frontend adds to it. Throws DeviceError if the graph needs more than
  /// `workspace`, which is all of it that there is.
  void run(const GraphKey& key, std::unordered_map<std::int64_t, void*> tensors,
           const TensorView& workspace, Stream& stream) {
    const std::lock_guard guard(lock_);
    cudnnHandle_t handle = handle_of(key.ordinal);
    auto found = graphs_.find(key);
    if (found == graphs_.end()) {
      found = graphs_.emplace(key, compile(handle, key)).first;
    }
    require_room(key, found->second, workspace);
    TESSERA_CHECK_CUDNN(cudnnSetStream(handle, stream.cuda_handle()));
    require_done(found->second.graph->execute(handle, tensors, workspace.data), "queuing it", key);
  }

 private:
  cudnnHandle_t handle_of(int ordinal) {
    TESSERA_CHECK_CUDA(cudaSetDevice(ordinal));
    const auto found = handles_.find(ordinal);
    if (found != handles_.end()) {
      return found->second;
    }
    cudnnHandle_t handle = nullptr;
    TESSERA_CHECK_CUDNN(cudnnCreate(&handle));
    return handles_.emplace(ordinal, handle).first->second;
  }

  static void require_room(const GraphKey& key, const CompiledGraph& compiled,
                           const TensorView& workspace) {
    const auto bytes = static_cast<std::size_t>(workspace.count());
    if (compiled.workspace_bytes > bytes) {
      throw DeviceError("cuDNN " + std::to_string(cudnnGetVersion()) + " needs " +
                            std::to_string(compiled.workspace_bytes) +
                            " bytes of workspace for attention over " + key_text(key) +
                            ", and attention_workspace_bytes gives it " + std::to_string(bytes) +
                            ": use the builtin attention",
                        TESSERA_HERE);
    }
  }

  std::mutex lock_;
  std::map<int, cudnnHandle_t> handles_;
  std::map<GraphKey, CompiledGraph> graphs_;
};

/// Never destroyed: handles and graphs are left to the end of the process, when the CUDA runtime
/// may go before they could.
GraphCache& cache() {
  static GraphCache& the_cache = *std::make_unique<GraphCache>().release();
  return the_cache;
}

/// Where a slice begins in the tensors of the whole, in elements.
struct SliceBegin {
  Index q;
  Index k;
  Index d_q;  // in the fused rows, as the next two
  Index d_k;
  Index v;  // also d_v
  Index out;
  Index lse;
};
SliceBegin begin_of_slice(const AttentionShape& shape, const QkRows& qk, Index first_sequence,
                          Index first_group) {
  const Index T = shape.sequence;
  const Index D = shape.head_dim;
  const Index first_head = first_group * (shape.query_heads / shape.kv_heads);
  const Index of_q = first_head * D;
  const Index of_k = (shape.query_heads + first_group) * D;
  const Index fused = first_sequence * T * fused_width(shape);
  return {.q = first_sequence * T * qk.width + of_q,
          .k = first_sequence * T * qk.width + of_k,
          .d_q = fused + of_q,
          .d_k = fused + of_k,
          .v = fused + (shape.query_heads + shape.kv_heads + first_group) * D,
          .out = (first_sequence * T * shape.query_heads + first_head) * D,
          .lse = (first_sequence * shape.query_heads + first_head) * T};
}

GraphKey key_of(const AttentionShape& shape, const QkRows& qk, Direction direction,
                AttentionOrder order, float scale, int ordinal) {
  return {.ordinal = ordinal,
          .direction = direction,
          .order = order,
          .sequences = shape.batch,
          .groups = shape.kv_heads,
          .queries = shape.sequence,
          .keys = shape.sequence,
          .mask = TileMask::diagonal,
          .sequence = shape.sequence,
          .query_heads = shape.query_heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .qk_row = qk.width,
          .d_q_row = fused_width(shape),
          .d_kv_row = fused_width(shape),
          .lse_row = shape.sequence,
          .window = shape.window,
          .scale = scale};
}

/// cuDNN takes pointers to what it only reads as pointers to void all the same.
void* read_only(const void* data) {
  return const_cast<void*>(data);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

}  // namespace

void cudnn_attention_forward(const AttentionForwardArgs& args, Stream& stream) {
  const QkRows from = qk_rows(args);
  const GraphKey key = key_of(args.shape, from, Direction::forward, AttentionOrder::deterministic,
                              args.scale, stream.device().ordinal);
  const auto* qk = data_as<BFloat16>(from.rows);
  const auto* qkv = data_as<BFloat16>(args.qkv);
  const SliceBegin begin = begin_of_slice(args.shape, from, 0, 0);
  cache().run(key,
              {{kQ, read_only(qk + begin.q)},
               {kK, read_only(qk + begin.k)},
               {kV, read_only(qkv + begin.v)},
               {kOut, args.out.data},
               {kLse, args.lse.data}},
              args.workspace, stream);
}

void cudnn_attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  const AttentionShape& shape = args.shape;
  const AttentionSlices slices = attention_slices(shape, args.options);
  if (slices.tile > 0) {
    attention_backward_in_tiles(args, slices, stream);
    return;
  }
  const QkRows from = qk_rows(args);
  GraphKey key = key_of(shape, from, Direction::backward, args.options.order, args.scale,
                        stream.device().ordinal);
  const auto* qk = data_as<BFloat16>(from.rows);
  const auto* qkv = data_as<BFloat16>(args.qkv);
  const auto* out = data_as<BFloat16>(args.out);
  const auto* d_out = data_as<BFloat16>(args.d_out);
  const auto* lse = data_as<float>(args.lse);
  auto* d_qkv = data_as<BFloat16>(args.d_qkv);
  for (Index sequence = 0; sequence < shape.batch; sequence += slices.sequences) {
    key.sequences = std::min(slices.sequences, shape.batch - sequence);
    for (Index group = 0; group < shape.kv_heads; group += slices.groups) {
      key.groups = std::min(slices.groups, shape.kv_heads - group);
      const SliceBegin begin = begin_of_slice(shape, from, sequence, group);
      cache().run(key,
                  {{kQ, read_only(qk + begin.q)},
                   {kK, read_only(qk + begin.k)},
                   {kV, read_only(qkv + begin.v)},
                   {kOut, read_only(out + begin.out)},
                   {kDOut, read_only(d_out + begin.out)},
                   {kLse, read_only(lse + begin.lse)},
                   {kDQ, d_qkv + begin.d_q},
                   {kDK, d_qkv + begin.d_k},
                   {kDV, d_qkv + begin.v}},
                  args.workspace, stream);
    }
  }
}

void cudnn_attention_tile_backward(const AttentionTile& tile, TensorView workspace,
                                   Stream& stream) {
  const AttentionShape& shape = tile.shape;
  GraphKey key = key_of(shape, {.rows = {}, .width = tile.qk_row}, Direction::backward,
                        AttentionOrder::deterministic, tile.scale, stream.device().ordinal);
  key.sequences = 1;
  key.groups = tile.groups;
  key.queries = tile.queries;
  key.keys = tile.keys;
  key.mask = tile.mask;
  key.d_q_row = tile.d_q_row;
  key.d_kv_row = tile.d_kv_row;
  key.lse_row = tile.lse_row;
  cache().run(key,
              {{kQ, read_only(tile.q)},
               {kK, read_only(tile.k)},
               {kV, read_only(tile.v)},
               {kOut, read_only(tile.out)},
               {kDOut, read_only(tile.d_out)},
               {kLse, read_only(tile.lse)},
               {kDQ, tile.d_q},
               {kDK, tile.d_k},
               {kDV, tile.d_v}},
              workspace, stream);
}

}  // namespace tessera::cuda
