// The tensors of a unit that a run of its elements belongs to.
#pragma once

#include <algorithm>

#include "model/param_layout.h"

namespace tessera {

/// Calls visit(tensor, first, last) for each tensor that has elements of [begin, end), in their order:
/// it has [first, last) of them. All count elements of the unit, whose padding no tensor has.
template <typename Visit>
void for_each_tensor(const ParamUnit& unit, Index begin, Index end, const Visit& visit) {
  for (const ParamTensor& tensor : unit.tensors) {
    const Index first = std::max(begin, tensor.offset);
    const Index last = std::min(end, tensor.offset + tensor.count());
    if (first < last) {
      visit(tensor, first, last);
    }
  }
}

}  // namespace tessera
