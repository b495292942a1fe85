// The other half of what the model needs of the rest: a unit's parameters may be read only while it
// holds a lease on them. How they are stored (replicated, sharded, paged) is the gate's business.
// See grad_sink.h for the gradients.
#pragma once

#include <utility>

#include "kernels/base/error.h"
#include "model/param_layout.h"

namespace tessera {

class ParamLease;

class ParamGate {
 public:
  /// Leases of one gate that may be held at a time: of a block, or of the head and an embedding
  /// that is tied to it.
  static constexpr int kMostLeases = 2;

  virtual ~ParamGate() = default;
  /// The parameters of `unit`, for work queued in `compute` until the lease ends: it starts once
  /// they are complete. Requires: fewer than kMostLeases leases are held; the gate and the stream
  /// outlive this one.
  [[nodiscard]] ParamLease acquire(UnitId unit, Stream& compute);
  /// The version that a lease of `unit` would have now, for who may do without one: what happens
  /// before a unit is acquired (ParamStore) happens, and nothing is queued in `compute`.
  [[nodiscard]] std::int64_t current_version(UnitId unit, Stream& compute) {
    prepare(unit, compute);
    return version(unit);
  }

 private:
  friend class ParamLease;
  /// The unit as its ParamUnit; what is queued in `compute` after this call waits for it.
  [[nodiscard]] virtual ConstTensorView open(UnitId unit, Stream& compute) = 0;
  virtual void prepare(UnitId /*unit*/, Stream& /*compute*/) {}
  /// Changes whenever the unit's parameters are written; never negative.
  [[nodiscard]] virtual std::int64_t version(UnitId unit) const = 0;
  /// The unit may go once the work queued in `compute` so far is done.
  virtual void close(UnitId unit, Stream& compute) noexcept = 0;

  int held_ = 0;
};

/// Move-only; its end says that the unit may go.
class ParamLease {
 public:
  ~ParamLease() {
    if (gate_ != nullptr) {
      gate_->close(unit_, *compute_);
      --gate_->held_;
    }
  }
  ParamLease(ParamLease&& other) noexcept
      : gate_(std::exchange(other.gate_, nullptr)),
        unit_(other.unit_),
        compute_(other.compute_),
        params_(other.params_),
        version_(other.version_) {}
  ParamLease(const ParamLease&) = delete;
  ParamLease& operator=(const ParamLease&) = delete;
  ParamLease& operator=(ParamLease&&) = delete;

  /// All of the unit, laid out as its ParamUnit; padding may follow.
  [[nodiscard]] const ConstTensorView& params() const noexcept { return params_; }
  /// The same as at another lease of the unit where its parameters are; never negative.
  [[nodiscard]] std::int64_t version() const noexcept { return version_; }

 private:
  friend class ParamGate;
  ParamLease(ParamGate& gate, UnitId unit, Stream& compute)
      : gate_(&gate),
        unit_(unit),
        compute_(&compute),
        params_(gate.open(unit, compute)),
        version_(gate.version(unit)) {
    ++gate_->held_;
  }

  ParamGate* gate_;  // null when moved from
  UnitId unit_;
  Stream* compute_;
  ConstTensorView params_;
  std::int64_t version_;
};

/// What a model computes with: all of its parameters, or those of a frozen base and of the adapters
/// beside it. Each gate has its own leases.
struct ModelParams {
  ParamGate& base;
  ParamGate* adapters = nullptr;  // null: there are none

  // NOLINTNEXTLINE(google-explicit-constructor): a model without adapters
  ModelParams(ParamGate& the_base, ParamGate* the_adapters = nullptr) noexcept
      : base(the_base), adapters(the_adapters) {}
};

inline ParamLease ParamGate::acquire(UnitId unit, Stream& compute) {
  TESSERA_REQUIRE(held_ < kMostLeases, "leases on parameters nest two deep");
  return {*this, unit, compute};
}

}  // namespace tessera
