// All parts of a training run on one rank, made in their order from one arena: what `train` works
// with, what the memory plan counts (over a dry arena nothing is allocated), what tests put
// together.
#pragma once

#include "model/adapter_layout.h"
#include "model/param_values.h"
#include "runtime/run/quantized_base.h"
#include "runtime/run/trainer.h"

namespace tessera {

/// How master weights are stored; `automatic`: packed where parameters hold values of bf16 and not
/// all state is resident. Bit-identical.
enum class MasterStorage : std::uint8_t { automatic, f32, packed };

/// How the frozen base of adapters is stored: as parameters are, or in 4 bits (optim/quantized_params.h).
enum class BaseStorage : std::uint8_t { params, nf4 };

/// Adapters that are trained in place of the model, and how they begin.
struct AdapterSettings {
  AdapterConfig config;
  AdapterInit init = AdapterInit::kaiming;
  BaseStorage base = BaseStorage::params;
  bool random_base = false;  // in nf4, for measurements: initialize_weights makes no other weights
};

/// The numbers that make a run, beside the model's and the ranks'.
struct RunSettings {
  TrainerOptions trainer;
  ScratchOptions scratch;  // batch.sequences equals trainer.micro_batch
  PagingOptions paging;
  OptimizerOptions optimizer;  // param_values and packs_masters: by the two that say how
  MasterStorage masters = MasterStorage::automatic;
  LrSchedule schedule;
  bool decay_all = false;
  ReduceMode reduce = ReduceMode::ordered;
  ZeroStage zero = ZeroStage::two;
  ParamPlacement params = ParamPlacement::device;  // host: sharded, at any stage
  Index param_blocks = 3;  // on the device at a time where they are sharded (ShardedParams)
  Index reduce_group = 1;
  int node_ranks = 1;               // consecutive ranks that share a node; 1 where there are none
  std::size_t host_grad_bytes = 0;  // as in ShardStateOptions
  Index piece_elements = kPieceElements;
  SlotContents on_acquire = SlotContents::leave;
  std::uint64_t seed = 0;                                  // of the initial weights
  std::optional<AdapterSettings> adapters = std::nullopt;  // none: the model itself is trained
};

/// Whether ranks store shards of the parameters (ShardedParams) and not whole copies. Alone, a rank's
/// shard is all there is: on the device nothing is gathered.
[[nodiscard]] bool shards_params(const RunSettings& settings, int world_size) noexcept;

class TrainingRun {
 public:
  /// Keeps references to `comm` and `data`. Collective where `arena` allocates.
  TrainingRun(const ModelConfig& config, const RunSettings& settings, Communicator& comm,
              BatchSource& data, Arena& arena);
  /// With other kernels than the device's table: instrumented ones, for measurements. Keeps a
  /// reference.
  TrainingRun(ModelConfig config, const RunSettings& settings, Communicator& comm,
              BatchSource& data, Arena& arena, const KernelTable& kernels);

  /// Of the steps to come. Between steps.
  void set_schedule(const LrSchedule& schedule) noexcept { settings_.schedule = schedule; }

  /// Fresh weights by global element number, of the base and of the adapters too. Collective with
  /// adapters.
  void initialize_weights();
  /// Of the model: what initialize_weights gives it.
  [[nodiscard]] UnitValues initial_model() const;
  /// Writes this rank's shards of the frozen base. Requires: adapters; what is packed is of a base in nf4.
  /// Collective. Throws, agreed on all ranks, what the source throws.
  void write_base(const BaseSource& source);
  void write_base(const UnitValues& values) { write_base(BaseSource{.values = values}); }
  /// Of --base-random. Requires: a base in nf4.
  [[nodiscard]] BaseSource random_base_source() const;
  /// Makes the base readable on every rank, and keeps its content hash. Collective.
  void gather_base();
  /// Fresh adapters, or those that `adapters` gives, and embeddings that are trained as `base`, the
  /// values of the model, has them.
  void initialize_adapters(const UnitValues& base, const UnitValues& adapters = {});
  /// Before the first step (Transformer::prepare).
  void prepare() { model_.prepare(compute_); }

  [[nodiscard]] const ModelConfig& config() const noexcept { return config_; }
  /// As they were given, and the optimizer's as they are.
  [[nodiscard]] const RunSettings& settings() const noexcept { return settings_; }
  /// What is trained: the model's, or that of the adapters.
  [[nodiscard]] const ParamLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] const ParamLayout& model_layout() const noexcept { return model_layout_; }
  /// Null where the base is not stored in nf4.
  [[nodiscard]] const PackedLayout* packed_base() const noexcept {
    return packed_ ? &*packed_ : nullptr;
  }
  /// Null where the model itself is trained.
  [[nodiscard]] const AdapterLayout* adapters() const noexcept {
    return adapters_ ? &*adapters_ : nullptr;
  }
  /// content_hash of the base, once it is written. Requires: adapters.
  [[nodiscard]] std::uint64_t base_hash() const noexcept { return base_hash_; }
  /// After gather_base: of a base that is known by another hash than that of what was read.
  void set_base_hash(std::uint64_t hash) noexcept { base_hash_ = hash; }
  /// Whether acquiring units of the model is collective (ParamStore::acquires_together).
  [[nodiscard]] bool acquires_together() const {
    return (base_ ? *base_ : *params_).acquires_together();
  }
  /// For whatever computes with the model.
  [[nodiscard]] ModelParams model_params() noexcept {
    return base_ ? ModelParams(*base_, params_.get()) : ModelParams(*params_);
  }
  [[nodiscard]] Communicator& comm() noexcept { return comm_; }
  [[nodiscard]] ShardState& shard() noexcept { return shard_; }
  [[nodiscard]] ParamStore& params() noexcept { return *params_; }
  [[nodiscard]] GradWorkspace& grads() noexcept { return grads_; }
  [[nodiscard]] PageSweep& optimizer() noexcept { return optimizer_; }
  /// Null where the optimizer does not orthogonalise matrices.
  [[nodiscard]] const Orthogonalizer* orthogonalizer() const noexcept {
    return orthogonalizer_.get();
  }
  [[nodiscard]] TrainingScratch& scratch() noexcept { return scratch_; }
  [[nodiscard]] Transformer& model() noexcept { return model_; }
  [[nodiscard]] Trainer& trainer() noexcept { return trainer_; }
  [[nodiscard]] Stream& compute() noexcept { return compute_; }

  /// XXH3-64 of all parameters that are trained, on this rank, padding left out: equal on every rank, and for
  /// every number of ranks. Waits for the run's queued work. `look` is given what is hashed, piece
  /// by piece, in host memory: elements begin, begin + 1, ... of a unit.
  using LookAtPiece = std::function<void(UnitId, Index begin, const ConstTensorView& values)>;
  [[nodiscard]] std::uint64_t parameter_hash(const LookAtPiece& look = {});

 private:
  [[nodiscard]] int threads_of_rank() const;
  [[nodiscard]] std::unique_ptr<ParamStore> make_base(Arena& arena);

  ModelConfig config_;
  RunSettings settings_;
  Communicator& comm_;
  ParamLayout model_layout_;
  std::optional<AdapterLayout> adapters_;
  const ParamLayout& layout_;  // of what is trained
  const KernelTable& kernels_;
  Stream compute_;
  Stream communication_;
  Stream page_in_;
  Stream update_;
  Stream page_out_;
  Stream fetch_;  // of parameters from the host
  TrainingScratch scratch_;
  std::optional<PackedLayout> packed_;    // of a base in nf4
  QuantizedParams* quantized_ = nullptr;  // base_ where it is in nf4
  std::unique_ptr<ParamStore> base_;      // null where the model itself is trained
  std::unique_ptr<ParamStore> params_;
  std::uint64_t base_hash_ = 0;  // this rank's part, and from gather_base on the sum
  std::unique_ptr<UpdateRule> rule_;
  ShardState shard_;
  GradWorkspace grads_;
  std::unique_ptr<Orthogonalizer> orthogonalizer_;  // null where the rule needs none
  PageSweep optimizer_;
  Transformer model_;
  Trainer trainer_;
};

}  // namespace tessera
