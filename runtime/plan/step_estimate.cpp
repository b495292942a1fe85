#include "runtime/plan/step_estimate.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/decoder.h"
#include "model/fused_linear_cross_entropy.h"
#include "model/linear_adapter.h"
#include "optim/grad_workspace.h"
#include "optim/quantized_params.h"
#include "optim/sharded_params.h"

namespace tessera {
namespace {

// Measured on H100 SXM and H200, 2026-11-27/28. Where a file is named it is in jobs/bench/results.

// Products inside a step and their share of its work there: the 30 products of the two budgets of
// 2026-11-28-h100-budget.md, fitted to 6% each, and their sums to 1%.
constexpr double kProductFlops = 745e12;
constexpr double kProductShare = 0.66;
// What the rate loses with that share: Qwen3-0.6B (0.46) ran 10% above it, Qwen3-8B (0.72) 3%
// below.
constexpr double kProductSlope = 0.5;
// cuDNN attention in the same two budgets, causal, deterministic backward pass in slices:
// 506 and 323 TFLOP/s for heads of 128 at T 4096, 276 and 188 for heads of 64 at T 1024. Of a
// causal pass, T / (T + 600) of these limits is reached (the trial's T 4096 beside T 16384).
constexpr double kAttentionTokens = 600;
constexpr double kForwardLimit128 = 580e12;
constexpr double kBackwardLimit128 = 370e12;
constexpr double kForwardLimit64 = 438e12;
constexpr double kBackwardLimit64 = 298e12;
// Of a block of layers, forward and backward: about thirty kernels of 3 us each. Assumed, not measured.
constexpr double kLaunchSecondsOfBlock = 30 * 3e-6;
constexpr double kPageLaunchSeconds =
    1.5e-6;  // of the update, a page: 8 MiB beside 128 MiB, same file
// Paging while a forward pass runs: copies both ways at once (the design's table of ceilings).
constexpr double kPageBytesBeside = 32e9;
// With two ranks of a node paging at once: the same table, and 2026-11-28-h200.md.
constexpr double kPageBytesShared = 33e9;
// All-to-all of shards and all-gather, two ranks, 31 to 780 MB: bytes that a rank sends, and what a
// call takes beside them (the sum taken off, which counts as memory's).
constexpr double kExchangeBytes = 240e9;
constexpr double kExchangeSeconds = 60e-6;
constexpr double kGatherBytes = 300e9;
constexpr double kGatherSeconds = 30e-6;
// The same by copy engines (2026-11-28-h200-two.md and -h200-four.md, 31 to 780 MB among two and
// four ranks): bytes that a rank sends, and what each copy takes beside them.
constexpr double kCopyBytes = 257e9;
constexpr double kCopySeconds = 22e-6;
// Where there are several cards the slowest sets the pace: of two, 0.2% to 2%. With that, a second
// in which NCCL moves something inside a node costs a second of the products: Qwen3-0.6B on two
// H200s lost 24.1 ms to collectives of 14.4 ms, Qwen3-1.7B on two H100s about 19 ms to 16 ms.
// Copies take no multiprocessor, but memory: fitted to the rows of the two files above.
constexpr double kSlowestCard = 1.01;
constexpr double kCostOfKernels = 1.0;
constexpr double kCostOfCopies = 0.5;
// Assumed: NCCL's blocks hold 16 of 132 multiprocessors while the network moves.
constexpr double kHeldByNetwork = 16.0 / 132;

// The largest nodes that were measured.
constexpr int kMeasuredOfNode = 4;

constexpr double kAttentionBackward = 2.5;  // times the forward pass
constexpr double kParamBytes = 2;           // of a bf16 parameter
constexpr double kUpdateBytes = 6;          // of an element's f32 gradient, and bf16 parameter
constexpr double kF32 = sizeof(float);

struct CardRates {
  const char* name;
  int capability;            // 90: 9.0
  std::size_t device_bytes;  // as its maker counts: what a plan has where nothing else is given
  double products;           // rate of products and attention beside that of the cards measured
  double memory_bytes;       // read and written a second by kernels inside a step
  double page_bytes;         // each way, both ways at once, one rank, nothing beside it
  bool is_measured;
};

// Memory: the same budgets (2.49 and 2.67 TB/s where a copy reaches 3.0); on H200, whose copies
// reach 4.16 TB/s, from the steps of 2026-11-28-h200.md. Pages: sweeps of 1.5 to 98 GB.
// Assumed: A100 and B200, as their makers' peak rates of bf16 (312, 989 and 2,250 TFLOP/s without
// sparsity) and of memory (2.04, 3.35 and 8 TB/s) stand to an H100's; pages of A100 through PCIe 4.
const CardRates& rates_of(Card card) {
  static const CardRates a100 = {"A100", 80, 80'000'000'000, 0.315, 1.55e12, 20e9, false};
  static const CardRates h100 = {"H100", 90, 80'000'000'000, 1, 2.55e12, 41e9, true};
  static const CardRates h200 = {"H200", 90, 141'000'000'000, 1, 3.2e12, 46e9, true};
  static const CardRates b200 = {"B200", 100, 180'000'000'000, 2.27, 6.1e12, 46e9, false};
  switch (card) {
    case Card::a100:
      return a100;
    case Card::h200:
      return h200;
    case Card::b200:
      return b200;
    case Card::h100:
      break;
  }
  return h100;
}

// Seconds of a device, by what they are spent on.
struct Work {
  double products = 0;
  double attention = 0;
  double memory = 0;
  [[nodiscard]] double total() const { return products + attention + memory; }
  friend Work operator+(const Work& a, const Work& b) {
    return {a.products + b.products, a.attention + b.attention, a.memory + b.memory};
  }
  friend Work operator*(double n, const Work& w) {
    return {n * w.products, n * w.attention, n * w.memory};
  }
};

// The work of one micro-batch, kernel by kernel as model/transformer_block.cpp calls them.
class MicroBatch {
 public:
  MicroBatch(const RunConfig& o, const ModelConfig& c, std::size_t logits_bytes)
      : rates_(rates_of(o.plan.card)),
        config_(c),
        logits_bytes_(logits_bytes),
        adapters_(adapter_config(o)),
        bytes_(static_cast<double>(size_in_bytes(compute_dtype(o)))),
        N_(static_cast<double>(o.batch.micro_batch * o.batch.seq)),
        T_(static_cast<double>(o.batch.seq)),
        L_(static_cast<double>(c.num_layers)),
        C_(static_cast<double>(c.hidden_size)),
        F_(static_cast<double>(c.intermediate_size)),
        Q_(static_cast<double>(c.qkv_width())),
        A_(static_cast<double>(c.query_width())),
        V_(static_cast<double>(c.vocab_size)) {}

  [[nodiscard]] Work forward() const {
    const Work down = rows(3 * F_) + product(N_, F_, C_, bytes_ * N_ * C_);
    return L_ * (attention_part() + output_part() + gate_up_part() + down + adapters_forward()) +
           rows(2 * C_);
  }

  // Without what is computed again.
  [[nodiscard]] Work backward() const {
    const double bias = (config_.attention_bias ? Q_ : 0) + (config_.attention_out_bias ? C_ : 0) +
                        (config_.mlp_bias ? 2 * F_ + C_ : 0);
    const Work block = gradients(C_, Q_) + gradients(A_, C_) + gradients(C_, 2 * F_) +
                       gradients(F_, C_) + rows(2 * 5 * C_ + rotary_elements() + 6 * F_ + bias) +
                       attention(kAttentionBackward, kBackwardLimit64, kBackwardLimit128);
    return L_ * (block + adapters_backward());
  }

  // What is computed again behind a forward pass of the same micro-batch.
  [[nodiscard]] Work again(const RecomputeLevels& levels) const {
    Work work;
    for (Index layer = 0; layer < config_.num_layers; ++layer) {
      work = work + again(levels.computed_again(layer, config_.num_layers));
    }
    return work;
  }
  // The same where several micro-batches run side by side: all blocks, whatever their levels.
  [[nodiscard]] Work again_from_inputs() const { return L_ * again(Recompute::block); }

  // Three products a chunk of logits, the weight's gradient added to in f32; the logits read and
  // written once; the last norm, and the embedding's gradient.
  [[nodiscard]] Work head() const {
    const auto chunk = static_cast<double>(
        chunk_rows_for(static_cast<Index>(N_), config_.vocab_size,
                       bytes_ == kF32 ? DType::f32 : DType::bf16, logits_bytes_));
    const double chunks = std::ceil(N_ / chunk);
    const double M = N_ / chunks;
    const double wider = (chunks > 1 ? 2 * kF32 : kF32) - bytes_;
    const Work weight =
        adapters_ && !adapters_->trains_embeddings ? Work{} : product(V_, M, C_, wider * V_ * C_);
    const Work each = product(M, C_, V_) + product(M, V_, C_) + weight;
    return chunks * each + rows(2 * V_ + (2 + 5) * C_ + 5 * C_);
  }

  [[nodiscard]] Work memory(double bytes) const { return {0, 0, bytes / rates_.memory_bytes}; }

 private:
  // What a level has one layer compute again.
  [[nodiscard]] Work again(Recompute level) const {
    Work work;
    work = drops_attention(level) ? work + attention_part() : work;
    work = drops_middle(level) ? work + output_part() : work;
    work = drops_adapters(level) ? work + adapters_again(level) : work;
    return drops_mlp(level) ? work + gate_up_part() : work;
  }
  // Reads and writes `elements` for each token.
  [[nodiscard]] Work rows(double elements) const { return memory(bytes_ * elements * N_); }
  // `more_bytes`: what is added to, and results wider than the inputs.
  [[nodiscard]] Work product(double m, double k, double n, double more_bytes = 0) const {
    const double flops = 2 * m * k * n / (kProductFlops * rates_.products);
    const double bytes = bytes_ * (m * k + k * n + m * n) + more_bytes;
    return {std::hypot(flops, bytes / rates_.memory_bytes), 0, 0};
  }
  // Of a layer's input and, where it is trained, of its weight.
  [[nodiscard]] Work gradients(double in, double out) const {
    const Work input = product(N_, out, in);
    return adapters_ ? input : input + product(in, N_, out);
  }
  // Of one block's adapters, as model/linear_adapter.cpp has them: each(row, in, out, rank) of those
  // there are.
  template <typename Each>
  [[nodiscard]] Work of_adapters(const Each& each) const {
    Work work;
    for (const ProjectionRow& row : projection_table()) {
      if (adapters_ && adapters_->has(row.projection)) {
        const ProjectionSizes sizes = projection_sizes(config_, row.projection);
        work = work + each(row, static_cast<double>(sizes.in), static_cast<double>(sizes.out),
                           static_cast<double>(adapters_->rank));
      }
    }
    return work;
  }
  [[nodiscard]] Work adapter_forward(double in, double out, double r) const {
    return product(N_, in, r) + product(N_, r, out, bytes_ * N_ * out);
  }
  [[nodiscard]] Work adapters_forward() const {
    return of_adapters([this](const ProjectionRow& /*row*/, double in, double out, double r) {
      return adapter_forward(in, out, r);
    });
  }
  // d_y is read once for two products of its size.
  [[nodiscard]] Work adapters_backward() const {
    return of_adapters([this](const ProjectionRow& /*row*/, double in, double out, double r) {
      return product(N_, out, 2 * r) + product(N_, r, in, bytes_ * N_ * in) + product(r, N_, in);
    });
  }
  // Those beside what is computed again; of the others x A^T, and d_y is read twice.
  [[nodiscard]] Work adapters_again(Recompute level) const {
    return of_adapters([&](const ProjectionRow& row, double in, double out, double r) {
      return finds_hidden(row.fused, level) ? adapter_forward(in, out, r)
                                            : product(N_, in, r) + product(out, N_, r);
    });
  }
  [[nodiscard]] Work attention(double passes, double limit_64, double limit_128) const {
    const double wide = std::clamp((static_cast<double>(config_.head_dim) - 64) / 64, 0.0, 1.0);
    const double limit = limit_64 + wide * (limit_128 - limit_64);
    const double rate = rates_.products * limit * T_ / (T_ + kAttentionTokens);
    return {0, passes * 2 * A_ * T_ * N_ / rate, 0};
  }
  // Queries and keys read and written, and kept as they were where they are normalised.
  [[nodiscard]] double rotary_elements() const {
    const double queries_and_keys = (A_ + Q_) / 2;
    return (config_.qk_norm ? 3 : 2) * queries_and_keys;
  }
  [[nodiscard]] Work attention_part() const {
    return rows(2 * C_ + rotary_elements()) + product(N_, C_, Q_) +
           attention(1, kForwardLimit64, kForwardLimit128);
  }
  [[nodiscard]] Work output_part() const { return product(N_, A_, C_, bytes_ * N_ * C_); }
  [[nodiscard]] Work gate_up_part() const { return rows(2 * C_) + product(N_, C_, 2 * F_); }

  const CardRates& rates_;
  const ModelConfig& config_;
  std::size_t logits_bytes_;
  std::optional<AdapterConfig> adapters_;  // none: the model itself is trained
  double bytes_;
  double N_;
  double T_;
  double L_;
  double C_;
  double F_;
  double Q_;
  double A_;
  double V_;
};

// What one collective or a row of them takes: on the links inside a node, and beyond that on the
// network.
struct Transfer {
  double link = 0;
  double network = 0;     // seconds more than `link`
  double bytes = 0;       // over the network
  double on_network = 0;  // seconds, beside `link` or not
  friend Transfer operator+(const Transfer& a, const Transfer& b) {
    return {a.link + b.link, a.network + b.network, a.bytes + b.bytes, a.on_network + b.on_network};
  }
  friend Transfer operator*(double n, const Transfer& t) {
    return {n * t.link, n * t.network, n * t.bytes, n * t.on_network};
  }
};

class Links {
 public:
  Links(const RunConfig& o, const RankPlaces& places)
      : W_(places.world_size),
        R_(places.per_node),
        nodes_(std::ceil(W_ / R_)),
        by_copies_(o.compute.device == DeviceKind::cuda && o.parallel.peer_copies && nodes_ == 1),
        network_(network_of(o, places)),
        latency_(o.plan.network_latency) {}

  [[nodiscard]] double nodes() const { return nodes_; }
  [[nodiscard]] const MeasuredNetwork& network() const { return network_; }

  // What a second in which something moves inside a node costs the products beside it.
  [[nodiscard]] double cost(ExchangeRoute route) const {
    return by_copies_ && route != ExchangeRoute::native ? kCostOfCopies : kCostOfKernels;
  }

  // Slices of a buffer among `ranks` ranks, `here` of them on this node.
  [[nodiscard]] Transfer exchange(double buffer_bytes, double ranks, double here) const {
    const double slice = buffer_bytes / ranks;
    if (by_copies_) {
      return copies(slice, ranks);
    }
    return both(kExchangeSeconds + slice * (here - 1) / kExchangeBytes, slice * (ranks - here),
                network_.exchange, ranks - here);
  }
  [[nodiscard]] Transfer exchange(double buffer_bytes) const {
    return exchange(buffer_bytes, W_, R_);
  }
  [[nodiscard]] Transfer gather(double buffer_bytes) const {
    return by_copies_ ? copies(buffer_bytes / W_, W_) : ring(buffer_bytes);
  }
  // A ring over all ranks, which enters and leaves each node once on every rank's network card.
  [[nodiscard]] Transfer ring(double buffer_bytes) const {
    return both(kGatherSeconds + buffer_bytes * (W_ - 1) / W_ / kGatherBytes,
                buffer_bytes * (nodes_ - 1) / nodes_ / R_, network_.gather, nodes_ - 1);
  }

 private:
  // To each of the other ranks one after the other.
  [[nodiscard]] static Transfer copies(double slice, double ranks) {
    return {(ranks - 1) * (kCopySeconds + slice / kCopyBytes), 0, 0, 0};
  }
  // Links and network at once.
  [[nodiscard]] Transfer both(double link, double bytes, double rate, double messages) const {
    const double network = bytes / rate + messages * latency_;
    return {link, std::max(0.0, network - link), bytes, network};
  }
  static MeasuredNetwork network_of(const RunConfig& o, const RankPlaces& places) {
    const auto assumed = static_cast<double>(o.plan.network_bandwidth);
    return places.network.value_or(MeasuredNetwork{assumed, assumed});
  }

  double W_;
  double R_;
  double nodes_;
  bool by_copies_;  // PeerCopies of collectives/cuda
  MeasuredNetwork network_;
  double latency_;
};

// Gradients of one unit to their owners, as the reducers of optim/ send them.
Transfer exchange_unit(const Links& links, ExchangeRoute route, double elements, double bytes,
                       double pieces, const RankPlaces& places, Index reduce_group) {
  const double piece = elements / pieces;
  switch (route) {
    case ExchangeRoute::flat:
      return pieces * links.exchange(piece * bytes);
    case ExchangeRoute::native:
      return pieces * links.ring(piece * bytes);
    case ExchangeRoute::hierarchical:
      break;
  }
  const auto G = static_cast<double>(reduce_group);
  const Transfer inside = links.exchange(piece * bytes, G, G);
  const Transfer outside =
      links.exchange(piece * kF32 / G, places.world_size / G, places.per_node / G);
  return pieces * (inside + outside);
}

ExchangeRoute route_of(const RunConfig& o, const RankPlaces& places) {
  if (o.parallel.reduce == ReduceMode::native) {
    return ExchangeRoute::native;
  }
  return reduces_hierarchically(o.parallel.reduce_group, places.world_size, places.node_ranks)
             ? ExchangeRoute::hierarchical
             : ExchangeRoute::flat;
}

double packed_block_bytes(const RunConfig& o, const ModelConfig& c) {
  const ParamLayout layout(c);
  return static_cast<double>(PackedLayout(c, layout, compute_dtype(o)).bytes().unit(1).count);
}

}  // namespace

std::size_t planned_device_bytes(const RunConfig& options) {
  return options.plan.device_bytes.value_or(rates_of(options.plan.card).device_bytes);
}

bool rates_are_measured(Card card) {
  return rates_of(card).is_measured;
}

std::string planned_card_refusal(const RunConfig& options) {
  const CardRates& card = rates_of(options.plan.card);
  return options.compute.device == DeviceKind::cuda && precision_choice(options) == Precision::fp8
             ? card_refusal(options.compute.recipe, card.capability, card.name)
             : std::string();
}

double recompute_seconds(const RunConfig& o, const ModelConfig& c, const RecomputeLevels& levels) {
  return MicroBatch(o, c, resolved(o).compute.logits_bytes).again(levels).total();
}

StepEstimate estimate_step(const RunConfig& o, const ModelConfig& c, const RankPlaces& places,
                           const PlannedState& kept) {
  const CardRates& rates = rates_of(o.plan.card);
  const Links links(o, places);
  const auto W = static_cast<double>(places.world_size);
  const std::optional<AdapterConfig> adapters = adapter_config(o);
  const auto model = static_cast<double>(parameter_count(c));
  // What is trained: gradients, update and gather are of it alone.
  const auto P = static_cast<double>(adapters ? AdapterLayout(c, *adapters).params().total_count()
                                              : parameter_count(c));
  const auto L = static_cast<double>(c.num_layers);
  const auto table = static_cast<double>(c.vocab_size * c.hidden_size);  // elements
  const double vocabularies = c.tie_embeddings ? 1 : 2;
  const double vocabulary = adapters && !adapters->trains_embeddings ? 0 : table;  // trained
  const double block = (P - vocabularies * vocabulary) / L;
  const double model_block = (model - vocabularies * table) / L;
  const Index micro_batches = o.batch.global_batch / o.batch.micro_batch;
  const auto rounds = static_cast<double>(micro_batches_of(0, micro_batches, places.world_size));
  const double together = std::min(static_cast<double>(o.batch.batched_forward), rounds);
  const auto bytes = static_cast<double>(size_in_bytes(compute_dtype(o)));
  const bool once = o.parallel.zero == ZeroStage::one;  // gradients are exchanged once a step

  StepEstimate e;
  e.card = o.plan.card;
  e.places = places;
  e.nodes = static_cast<int>(links.nodes());
  e.network = links.network();
  e.route = route_of(o, places);

  // The device.
  const RunSettings settings = run_settings(o, c, 0);
  const MicroBatch micro(o, c, settings.scratch.logits_bytes);
  const Work forward = micro.forward();
  const bool in_groups = together > 1 && o.batch.batched_backward;
  const double side_by_side = in_groups ? rounds : together > 1 ? together : 0;
  const Work each_again = micro.again(settings.scratch.recompute);
  const Work again =
      (rounds - side_by_side) * each_again + side_by_side * micro.again_from_inputs();
  const Work backward = micro.backward() + each_again + micro.head();
  const Work backward_beside = micro.backward() + micro.again_from_inputs() + micro.head();
  const double packed =
      e.route == ExchangeRoute::hierarchical
          ? 2 * bytes * P + 2 * kF32 * P / static_cast<double>(o.parallel.reduce_group)
          : 0;
  const double sums = once ? rounds * (bytes + 2 * kF32) * P + kF32 * P / W
                           : rounds * (bytes * P + 2 * kF32 * P / W + packed) - kF32 * P / W;
  const bool is_fp8 = precision_choice(o) == Precision::fp8;
  const double passes = rounds - side_by_side +
                        (in_groups      ? std::ceil(rounds / together)
                         : together > 1 ? 1
                                        : 0);
  const double backward_passes = in_groups ? std::ceil(rounds / together) : rounds;
  double codes = 0;
  if (is_fp8 && kept.fp8_weights == CodeStorage::at_use) {
    codes = L * block * (passes * (bytes + 1) + rounds * (bytes + 2));
  } else if (is_fp8 && kept.fp8_weights == CodeStorage::one_layout) {
    codes = L * block * 2 * backward_passes;  // read and written transposed
  }
  const bool is_nf4 = adapters && o.adapters.base == BaseStorage::nf4;
  const double block_bytes = is_nf4 ? packed_block_bytes(o, c) : model_block * bytes;
  // A pass widens all blocks but those that the last one left.
  const double widened = is_nf4
                             ? (passes + backward_passes) *
                                   std::max(0.0, L - static_cast<double>(QuantizedParams::kSlots)) *
                                   (block_bytes + bytes * model_block)
                             : 0;
  const double casts = rounds * (kF32 + bytes) * vocabularies * vocabulary;
  const double squares = kF32 * P / W;
  const Work all = rounds * (forward + micro.backward() + micro.head()) + again +
                   micro.memory(sums + casts + squares + codes + widened);
  const double slower = 1 / (1 - kProductSlope * (all.products / all.total() - kProductShare));
  const auto seconds = [slower](const Work& work) {
    return slower * work.products + work.attention + work.memory;
  };
  const double pace = places.world_size > 1 ? kSlowestCard : 1;
  e.compute_seconds = seconds(all) * pace;
  e.recompute_seconds = seconds(again) * pace;
  e.widen_seconds = seconds(micro.memory(widened)) * pace;
  const double hiding_gather = std::max(together, 1.0) * seconds(forward);
  const double hiding_exchange = seconds(backward);

  // Between ranks.
  Transfer exchange;
  Transfer last;  // the embedding's, behind which there is nothing
  Transfer gather;
  Transfer first;  // the embedding's, before which nothing can start
  if (places.world_size > 1) {
    const double travelling = once ? kF32 : bytes;
    const bool in_pieces = e.route == ExchangeRoute::hierarchical;
    const auto unit = [&](double elements, double pieces) {
      return exchange_unit(links, e.route, elements, travelling, std::max(1.0, pieces), places,
                           o.parallel.reduce_group);
    };
    const double two_pieces = std::max(block, 2.0 * static_cast<double>(kPieceElements));
    last = unit(vocabulary, std::ceil(2 * vocabulary / two_pieces));
    exchange = vocabularies * last + L * unit(block, in_pieces ? 2 : 1);
    first = links.gather(vocabulary * bytes);
    gather = vocabularies * first;
    if (!kept.params_in_shards || adapters) {
      gather = gather + L * links.gather(block * bytes);
    }
    if (kept.orthogonalizing_bytes > 0) {
      gather = gather + 2 * L * links.exchange(kept.orthogonalizing_bytes / L);
    }
  }
  const double exchanges = once ? 1 : rounds;
  // What is on the links costs the products something, except where they wait for it.
  const auto exposed_link = [](double link, double waited_link, double cost) {
    return waited_link + cost * (link - waited_link);
  };
  const double over = std::max(0.0, exchange.network - hiding_exchange);
  const double waited = (exchanges - 1) * over + std::max(over, last.network);
  e.exchange_seconds = exchanges * (exchange.link + exchange.network);
  const double waited_link =
      last.link + exchanges * std::max(0.0, exchange.link - last.link - hiding_exchange);
  e.exposed_exchange_seconds =
      exposed_link(exchanges * exchange.link, waited_link, links.cost(e.route)) + waited +
      kHeldByNetwork * (exchanges * exchange.network - waited);
  e.network_bytes = exchanges * exchange.bytes + gather.bytes;
  e.network_seconds = exchanges * exchange.on_network + gather.on_network;

  // The update: resident state is the device's work; pages and gathers run behind forward passes.
  const auto paged = static_cast<double>(kept.paged_bytes);
  const double state = kept.element_bytes;
  const double beside = kUpdateBytes + (kept.packs_masters ? kParamBytes : 0);
  const double resident = P / W - paged / state;
  const std::size_t resident_page =
      kept.paged_bytes == 0 && settings.paging.resident_page_bytes != 0
          ? settings.paging.resident_page_bytes
          : settings.paging.page_bytes;
  const double resident_pages = resident * state / static_cast<double>(resident_page);
  const double update = resident * (2 * state + beside) / rates.memory_bytes +
                        (resident > 0 ? resident_pages * kPageLaunchSeconds : 0) +
                        kept.orthogonalizing_flops / (kProductFlops * rates.products);
  const double page_bytes = places.per_node > 1 ? kPageBytesShared : rates.page_bytes;
  const double first_pages = paged * vocabulary / P;
  const double waited_pages =
      first_pages / page_bytes +
      std::max(0.0, paged - first_pages - hiding_gather * kPageBytesBeside) / page_bytes;
  const double waited_gather =
      first.network + std::max(0.0, gather.network - first.network - hiding_gather);
  e.update_seconds = update + paged / page_bytes + gather.link + gather.network;
  e.exposed_update_seconds =
      update + exposed_link(gather.link, first.link, links.cost(ExchangeRoute::flat)) +
      std::max(waited_pages, waited_gather) + kHeldByNetwork * (gather.network - waited_gather);
  // Sums on the host go there and back at each micro-batch, behind its backward pass.
  const double host_sums = static_cast<double>(kept.host_grad_bytes) / kPageBytesBeside;
  e.exposed_exchange_seconds += rounds * std::max(0.0, host_sums - hiding_exchange);

  // Blocks that come at each pass, less those that the ring still has where a pass turns.
  if (kept.params_in_shards) {
    const Transfer one = places.world_size > 1 ? links.gather(block_bytes) : Transfer{};
    const double fetch =
        kept.params_on_host
            ? block_bytes / W / (places.per_node > 1 ? kPageBytesShared : kPageBytesBeside)
            : 0;
    const double each = std::max(one.link + one.network, fetch);
    const double turned = L - std::min(static_cast<double>(kept.param_blocks), L);
    const auto pass = [&](double blocks, double hiding) {
      const double all_blocks = blocks * each;
      const double waited_for = std::max(0.0, all_blocks - hiding);
      e.param_seconds += all_blocks;
      e.exposed_param_seconds += exposed_link(std::max(blocks * one.link, waited_for), waited_for,
                                              links.cost(ExchangeRoute::flat));
      e.network_bytes += blocks * one.bytes;
      e.network_seconds += blocks * one.on_network;
    };
    const bool codes_are_enough = is_fp8 && kept.fp8_weights != CodeStorage::at_use;
    for (double round = 0; round < rounds;) {
      const bool is_beside = round < side_by_side;
      const double group = is_beside ? std::min(together, rounds - round) : 1;
      pass(round == 0 ? L : turned, group * seconds(forward));
      round += group;
      if (codes_are_enough) {
        break;
      }
      const double behind = seconds(is_beside ? backward_beside : backward);
      for (double i = 0; i < (in_groups ? 1 : group); ++i) {
        pass(turned, (in_groups ? group : 1) * behind);
      }
    }
    if (o.sample.every > 0) {
      const Index prompt = sample_capacity(o) - o.sample.tokens;  // tokens, at most
      const Index tiles = (prompt + Decoder::kTile - 1) / Decoder::kTile;
      // gathered once for all texts, each of which then reads them, and the head
      const double read =
          static_cast<double>(sample_texts(o)) * bytes * (L * model_block + vocabulary);
      e.sample_token_seconds = std::max(L * each, read / rates.memory_bytes);
      e.sample_seconds = static_cast<double>(tiles + o.sample.tokens) * e.sample_token_seconds;
    }
  }

  // Block inputs go to the host behind the forward passes, and come back behind the backward ones.
  if (o.memory.inputs == InputPlacement::host) {
    const double hosted = std::max(0.0, L + 1 - static_cast<double>(BlockInputs::kSlots));
    const auto tokens = static_cast<double>(o.batch.micro_batch * o.batch.seq);
    const double one_way =
        hosted * tokens * static_cast<double>(c.hidden_size) * bytes / kPageBytesBeside;
    e.input_seconds = 2 * rounds * one_way;
    e.exposed_input_seconds = rounds * (std::max(0.0, one_way - seconds(forward)) +
                                        std::max(0.0, one_way - seconds(backward)));
  }

  e.is_bound_by_launches = e.compute_seconds < rounds * L * kLaunchSecondsOfBlock;
  e.step_seconds = e.compute_seconds + e.exposed_seconds();
  e.tokens_per_second = static_cast<double>(o.batch.global_batch * o.batch.seq) / e.step_seconds;
  return e;
}

std::string StepEstimate::basis_text() const {
  const CardRates& rates = rates_of(card);
  std::vector<std::string> not_measured;
  if (!rates.is_measured) {
    not_measured.push_back(fmt::format("any step on {}s", rates.name));
  }
  if (nodes > 1 && !places.network) {
    not_measured.push_back(
        fmt::format("the network: {:.1f} GB/s a rank are assumed (--network-bandwidth)",
                    network.exchange / 1e9));
  }
  if (is_bound_by_launches) {
    not_measured.emplace_back(
        "steps this small, in which launching kernels takes longer than they do");
  }
  if (places.per_node > kMeasuredOfNode) {
    not_measured.push_back(fmt::format("nodes of more than {} GPUs", kMeasuredOfNode));
  }
  return fmt::format("Estimated for {}s from {} rates.{}\n", rates.name,
                     rates.is_measured ? "measured" : "assumed",
                     not_measured.empty()
                         ? std::string()
                         : fmt::format(" Not measured: {}.", fmt::join(not_measured, "; ")));
}

std::string StepEstimate::text() const {
  if (is_bound_by_launches) {
    return "A step this small is not estimated: launching its kernels takes longer than they do.\n";
  }
  const auto part = [this](double seconds) { return 100 * seconds / step_seconds; };
  const char* name = route == ExchangeRoute::flat           ? "every rank to every rank"
                     : route == ExchangeRoute::hierarchical ? "inside groups, then between them"
                                                            : "the library's";
  std::string out =
      fmt::format("Estimated for {}s from {} (runtime/plan/step_estimate.h):\n"
                  "  step {:.4f} s, {:.0f} tokens/s: compute {:.4f} s{}\n",
                  rates_of(card).name,
                  rates_of(card).is_measured ? "measured rates"
                                             : "assumed rates: no step was measured on this card",
                  step_seconds, tokens_per_second, compute_seconds,
                  recompute_seconds > 0 ? fmt::format(", {:.4f} s ({:.1f}%) of it recomputation",
                                                      recompute_seconds, part(recompute_seconds))
                                        : std::string());
  if (widen_seconds > 0) {
    out += fmt::format("  of it widening the base {:.4f} s ({:.1f}%)\n", widen_seconds,
                       part(widen_seconds));
  }
  if (places.world_size > 1) {
    out += fmt::format("  gradients' exchange {:.4f} s ({}), exposed {:.4f} s ({:.1f}%)\n",
                       exchange_seconds, name, exposed_exchange_seconds,
                       part(exposed_exchange_seconds));
  }
  out += fmt::format("  update and gather {:.4f} s, exposed {:.4f} s ({:.1f}%)\n", update_seconds,
                     exposed_update_seconds, part(exposed_update_seconds));
  if (param_seconds > 0) {
    out += fmt::format("  parameters, block by block {:.4f} s, exposed {:.4f} s ({:.1f}%)\n",
                       param_seconds, exposed_param_seconds, part(exposed_param_seconds));
  }
  if (input_seconds > 0) {
    out += fmt::format("  block inputs to the host and back {:.4f} s, exposed {:.4f} s ({:.1f}%)\n",
                       input_seconds, exposed_input_seconds, part(exposed_input_seconds));
  }
  if (nodes > 1 && places.network) {
    out += fmt::format(
        "  {} nodes: a rank sends {:.2f} GB to others in {:.4f} s, at the {:.2f} GB/s of an "
        "all-to-all and {:.2f} GB/s of an all-gather that it got when this run started\n",
        nodes, network_bytes / 1e9, network_seconds, network.exchange / 1e9, network.gather / 1e9);
  } else if (nodes > 1) {
    out += fmt::format(
        "  {} nodes: a rank sends {:.2f} GB to others, at {:.1f} GB/s. No network was measured: "
        "this is what --network-bandwidth and --network-latency assume\n",
        nodes, network_bytes / 1e9, network.exchange / 1e9);
  }
  if (places.per_node > kMeasuredOfNode) {
    out += fmt::format("  not measured: nodes of more than {} GPUs\n", kMeasuredOfNode);
  }
  return out;
}

}  // namespace tessera
