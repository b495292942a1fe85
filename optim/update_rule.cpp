#include "optim/update_rule.h"

#include <array>

#include "optim/adamw_rule.h"
#include "optim/muon_rule.h"
#include "optim/sgd_rule.h"

namespace tessera {
namespace {

struct Row {
  OptimizerKind kind;
  std::string_view name;
  double decay;  // where none is given
  StateLayout (*layout)(const OptimizerOptions&);
  StateLayout (*matrix_layout)(const OptimizerOptions&);
  std::unique_ptr<UpdateRule> (*make)(const KernelTable&, const OptimizerOptions&);
};

template <typename Rule>
std::unique_ptr<UpdateRule> make(const KernelTable& kernels, const OptimizerOptions& options) {
  return std::make_unique<Rule>(kernels, options);
}

StateLayout no_layout(const OptimizerOptions& /*options*/) {
  return {};
}

// In the order of the enumerators.
constexpr std::array kRows = {
    Row{OptimizerKind::adamw, "adamw", 0.1, adamw_layout, no_layout, make<AdamWRule>},
    Row{OptimizerKind::sgd, "sgd", 0, sgd_layout, no_layout, make<SgdRule>},
    Row{OptimizerKind::muon, "muon", 0.1, muon_layout, muon_matrix_layout, make<MuonRule>},
};

constexpr bool is_in_order() {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<std::size_t>(kRows[i].kind) != i) {
      return false;
    }
  }
  return true;
}
static_assert(is_in_order());

const Row& row_of(OptimizerKind kind) {
  return kRows[static_cast<std::size_t>(kind)];
}

}  // namespace

UpdateRule::UpdateRule(const KernelTable& kernels, const OptimizerOptions& options)
    : kernels_(kernels),
      options_(options),
      layout_(state_layout(options)),
      matrix_layout_(matrix_state_layout(options)) {}

void UpdateRule::queue_params(const PageArgs& page, Stream& stream) const {
  if (layout_.packs_masters()) {
    return;
  }
  kernels_.write_params({.master = page.layout.values(page.state, page.count, StateArray::master),
                         .param = page.params,
                         .param_values = options_.param_values},
                        stream);
}

void UpdateRule::queue_matrices(const PageArgs& /*page*/, const UpdateStep& /*step*/,
                                Stream& /*stream*/) const {
  throw ContractError("an optimizer that orthogonalises hidden matrices", TESSERA_HERE);
}

std::string_view optimizer_name(OptimizerKind kind) noexcept {
  return row_of(kind).name;
}

std::optional<OptimizerKind> find_optimizer(std::string_view name) noexcept {
  for (const Row& row : kRows) {
    if (row.name == name) {
      return row.kind;
    }
  }
  return std::nullopt;
}

std::string optimizer_names() {
  std::string names;
  for (const Row& row : kRows) {
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return names;
}

double usual_decay(OptimizerKind kind) noexcept {
  return row_of(kind).decay;
}

const StateLayout& state_layout(OptimizerKind kind) {
  static const std::vector<StateLayout> layouts = [] {
    std::vector<StateLayout> all;
    all.reserve(kRows.size());
    for (const Row& row : kRows) {
      all.push_back(row.layout({.kind = row.kind, .adamw = {}, .sgd = {}}));
    }
    return all;
  }();
  return layouts[static_cast<std::size_t>(kind)];
}

StateLayout state_layout(const OptimizerOptions& options) {
  TESSERA_REQUIRE(!options.packs_masters || options.param_values == DType::bf16,
                  "masters are packed beside parameters of bf16 values");
  return row_of(options.kind).layout(options);
}

StateLayout matrix_state_layout(const OptimizerOptions& options) {
  return row_of(options.kind).matrix_layout(options);
}

std::unique_ptr<UpdateRule> make_update_rule(const KernelTable& kernels,
                                             const OptimizerOptions& options) {
  return row_of(options.kind).make(kernels, options);
}

}  // namespace tessera
