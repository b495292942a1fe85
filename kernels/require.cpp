#include "kernels/require.h"

#include <span>
#include <string>

#include "kernels/base/error.h"

namespace tessera {
namespace {

[[noreturn]] void refuse(DeviceKind where, const ConstTensorView& view, DType dtype, Index count,
                         const char* wanted, const char* name) {
  const bool on_cpu = where == DeviceKind::cpu;
  throw ContractError(std::string(on_cpu ? "CPU" : "CUDA") + " kernel: '" + name + "' has " +
                          std::to_string(view.count()) + " elements of " +
                          std::string(dtype_name(view.dtype)) +
                          (view.data == nullptr ? " and no memory" : "") + ", needed are " +
                          wanted + std::to_string(count) + " of " + std::string(dtype_name(dtype)) +
                          (on_cpu ? " in host memory" : " in device memory"),
                      TESSERA_HERE);
}

bool is_usable(DeviceKind where, const ConstTensorView& view, DType dtype, Index count) {
  return view.dtype == dtype && view.device.kind == where && (view.data != nullptr || count == 0);
}

}  // namespace

void require_tensor_in(DeviceKind where, const ConstTensorView& view, DType dtype, Index count,
                       const char* name) {
  if (view.count() != count || !is_usable(where, view, dtype, count)) {
    refuse(where, view, dtype, count, "", name);
  }
}

void require_room_in(DeviceKind where, const ConstTensorView& view, DType dtype, Index count,
                     const char* name) {
  if (view.count() < count || !is_usable(where, view, dtype, count)) {
    refuse(where, view, dtype, count, "at least ", name);
  }
}

void require_documents_in(DeviceKind where, const DocumentBounds& documents, Index batch,
                          Index sequence) {
  if (!documents.are_given()) {
    return;
  }
  const std::span<const std::int32_t> begins = documents.host_begins;
  require_room_in(where, documents.begins, DType::i32, 2, "documents");
  require_tensor_in(where, documents.positions, DType::i32, batch * sequence, "positions");
  TESSERA_REQUIRE(std::ssize(begins) == documents.begins.count(),
                  "the host knows all documents of the batch");
  TESSERA_REQUIRE(begins.front() == 0 && begins.back() == batch * sequence,
                  "documents cover the batch");
  for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
    TESSERA_REQUIRE(
        begins[i] < begins[i + 1] && begins[i] / sequence == (begins[i + 1] - 1) / sequence,
        "a document has tokens, all of one sequence");
  }
}

}  // namespace tessera
