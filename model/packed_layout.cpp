#include "model/packed_layout.h"

#include <utility>

#include "kernels/nf4.h"
#include "model/huggingface.h"

namespace tessera {
namespace {

// The matrices and what is between them.
std::vector<PackedPart> parts_of_block(const ParamUnit& unit,
                                       std::span<const HuggingFaceTensor> theirs) {
  std::vector<PackedPart> parts;
  const auto add_plain = [&parts](Index first, Index last) {
    if (first < last) {
      parts.push_back({.name = {},
                       .is_nf4 = false,
                       .first = first,
                       .count = last - first,
                       .byte = 0,
                       .bytes = 0});
    }
  };
  Index covered = 0;
  for (std::size_t i = 0; i < unit.tensors.size(); ++i) {
    const ParamTensor& tensor = unit.tensors[i];
    if (tensor.matrix_rows.empty()) {
      continue;
    }
    add_plain(covered, tensor.offset);
    for (const HuggingFacePart& part : theirs[i].parts) {
      parts.push_back({.name = part.name,
                       .is_nf4 = true,
                       .first = tensor.offset + part.offset,
                       .count = part.count(),
                       .byte = 0,
                       .bytes = 0});
    }
    covered = tensor.offset + tensor.count();
  }
  add_plain(covered, unit.count);
  return parts;
}

std::vector<std::vector<PackedPart>> parts_of(const ModelConfig& config, const ParamLayout& model,
                                              DType params) {
  const auto size = static_cast<Index>(size_in_bytes(params));
  const std::vector<HuggingFaceTensor> theirs = huggingface_tensors(config, model);
  std::span<const HuggingFaceTensor> left = theirs;
  std::vector<std::vector<PackedPart>> all;
  for (const ParamUnit& unit : model.units()) {
    std::vector<PackedPart> parts = parts_of_block(unit, left.first(unit.tensors.size()));
    left = left.subspan(unit.tensors.size());
    Index end = 0;
    for (PackedPart& part : parts) {
      part.byte = (end + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
      part.bytes = part.is_nf4 ? nf4_parts(part.count).bytes : part.count * size;
      end = part.byte + part.bytes;
    }
    all.push_back(std::move(parts));
  }
  return all;
}

std::vector<ParamUnit> units_of(const ParamLayout& model,
                                std::span<const std::vector<PackedPart>> parts) {
  std::vector<ParamUnit> units;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const ParamUnit& of = model.units()[i];
    units.push_back({.name = of.name,
                     .tensors = {},
                     .count = parts[i].back().byte + parts[i].back().bytes,
                     .place = of.place});
  }
  return units;
}

}  // namespace

PackedLayout::PackedLayout(const ModelConfig& config, const ParamLayout& model, DType params)
    : parts_(parts_of(config, model, params)),
      bytes_(units_of(model, parts_), {}),
      params_(params) {}

}  // namespace tessera
