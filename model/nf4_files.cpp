#include "model/nf4_files.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/file_status.h"
#include "kernels/base/hash.h"
#include "kernels/base/parallel.h"
#include "kernels/nf4.h"
#include "model/huggingface.h"
#include "model/json_text.h"
#include "model/param_values.h"

namespace tessera {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kScaleCodes = ".absmax";
constexpr std::string_view kScales = ".nested_absmax";
constexpr std::string_view kMap = ".quant_map";
constexpr std::string_view kScaleMap = ".nested_quant_map";
constexpr std::string_view kState = ".quant_state.bitsandbytes__nf4";
constexpr const char* kQuantization = "quantization_config";
constexpr const char* kBaseHash = "tessera_base_hash";
constexpr const char* kContentHash = "tessera_content_hash";
constexpr std::int64_t kLargestConfigBytes = std::int64_t{16} << 20U;
constexpr Index kLargestStateBytes = Index{1} << 16U;
constexpr std::size_t kRoundedElements = 1U << 16U;  // written at a time, from the stack

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& message) {
  throw FormatError(fmt::format("{}: {}", file.string(), message), TESSERA_HERE);
}

std::string with(std::string_view name, std::string_view suffix) {
  return std::string(name).append(suffix);
}

// ---- what the files hold ------------------------------------------------------------------------

std::string state_text(const Nf4Tensor& tensor, SafetensorsType type, float mean) {
  const OrderedJson state = {{"quant_type", "nf4"},
                             {"blocksize", kNf4Block},
                             {"dtype", torch_type(type)},
                             {"shape", tensor.shape},
                             {"nested_blocksize", kNf4ScaleBlock},
                             {"nested_dtype", "float32"},
                             {"nested_offset", static_cast<double>(mean)}};
  return state.dump();
}

// Of the state's text, which is filled up with spaces: its length is in the header before any mean is
// known.
Index state_bytes(const Nf4Tensor& tensor, SafetensorsType type) {
  constexpr Index kLongestNumber = 24;
  return std::ssize(state_text(tensor, type, 0.0F)) + kLongestNumber;
}

std::vector<SafetensorsSpec> specs_of(const Nf4Tensor& tensor, SafetensorsType type) {
  if (!tensor.is_packed) {
    return {{tensor.name, type, tensor.shape}};
  }
  constexpr auto kByte = SafetensorsType::u8;
  constexpr auto kFloat = SafetensorsType::f32;
  return {{tensor.name, kByte, {divide_up(tensor.count, 2), 1}},
          {with(tensor.name, kScaleCodes), kByte, {nf4_blocks(tensor.count)}},
          {with(tensor.name, kScales), kFloat, {nf4_scale_blocks(tensor.count)}},
          {with(tensor.name, kMap), kFloat, {std::ssize(kNf4Values)}},
          {with(tensor.name, kScaleMap), kFloat, {std::ssize(kNf4ScaleMap)}},
          {with(tensor.name, kState), kByte, {state_bytes(tensor, type)}}};
}

std::int64_t bytes_of_spec(const SafetensorsSpec& spec) {
  auto bytes = static_cast<Index>(size_in_bytes(spec.type));
  for (const Index extent : spec.shape) {
    bytes *= extent;
  }
  return bytes;
}

struct OutgoingFile {
  std::string name;
  std::vector<SafetensorsSpec> specs;
};

// Fills files up to max_shard_bytes, in order; in a file wide types come first, so that each number is
// at a multiple of its size.
std::vector<OutgoingFile> outgoing_files(std::span<const Nf4Tensor> tensors,
                                         const HuggingFaceOptions& options) {
  TESSERA_REQUIRE(options.type == SafetensorsType::bf16 || options.type == SafetensorsType::f32,
                  "bf16 or f32");
  TESSERA_REQUIRE(options.max_shard_bytes > 0, "a size above 0");
  std::vector<OutgoingFile> files(1);
  std::int64_t used = 0;
  for (const Nf4Tensor& tensor : tensors) {
    std::vector<SafetensorsSpec> specs = specs_of(tensor, options.type);
    std::int64_t bytes = 0;
    for (const SafetensorsSpec& spec : specs) {
      bytes += bytes_of_spec(spec);
    }
    if (used > 0 && used + bytes > options.max_shard_bytes) {
      files.emplace_back();
      used = 0;
    }
    used += bytes;
    std::ranges::move(specs, std::back_inserter(files.back().specs));
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::ranges::stable_sort(files[i].specs, std::greater{},
                             [](const SafetensorsSpec& spec) { return size_in_bytes(spec.type); });
    files[i].name = weight_file_name(i, files.size());
  }
  return files;
}

std::string config_text(const ModelConfig& config, SafetensorsType type) {
  OrderedJson json = OrderedJson::parse(to_config_json(config));
  // The name before transformers 5, which it still reads.
  json["torch_dtype"] = torch_type(type);
  json[kQuantization] = {{"quant_method", "bitsandbytes"},
                         {"load_in_4bit", true},
                         {"load_in_8bit", false},
                         {"bnb_4bit_quant_type", "nf4"},
                         {"bnb_4bit_use_double_quant", true},
                         {"bnb_4bit_compute_dtype", torch_type(type)},
                         {"bnb_4bit_quant_storage", "uint8"},
                         {"llm_int8_skip_modules", {"lm_head"}}};
  return json.dump(2) + "\n";
}

}  // namespace

std::vector<Nf4Tensor> nf4_tensors(const ModelConfig& config, const ParamLayout& layout) {
  std::vector<Nf4Tensor> tensors;
  const std::vector<HuggingFaceTensor> theirs = huggingface_tensors(config, layout);
  auto next = theirs.begin();
  for (UnitId unit = 0; unit < layout.unit_count(); ++unit) {
    for (const ParamTensor& ours : layout.unit(unit).tensors) {
      for (const HuggingFacePart& part : next->parts) {
        tensors.push_back({.name = part.name,
                           .shape = part.shape,
                           .unit = unit,
                           .first = ours.offset + part.offset,
                           .count = part.count(),
                           .is_packed = !ours.matrix_rows.empty()});
      }
      ++next;
    }
  }
  return tensors;
}

// ---- out ----------------------------------------------------------------------------------------

void create_nf4_files(const std::filesystem::path& folder, const ModelConfig& config,
                      const HuggingFaceOptions& options) {
  for (const OutgoingFile& file :
       outgoing_files(nf4_tensors(config, ParamLayout(config)), options)) {
    create_safetensors(folder / file.name, file.specs, weight_file_metadata());
  }
}

Nf4Writer::Nf4Writer(std::filesystem::path folder, ModelConfig config,
                     const HuggingFaceOptions& options, SafetensorsShare share)
    : folder_(std::move(folder)),
      config_(std::move(config)),
      options_(options),
      tensors_(nf4_tensors(config_, ParamLayout(config_))) {
  for (const OutgoingFile& file : outgoing_files(tensors_, options_)) {
    files_.push_back(std::make_unique<SafetensorsWriter>(folder_ / file.name, file.specs,
                                                         weight_file_metadata(), share));
    std::int64_t offset = 0;
    for (const SafetensorsSpec& spec : file.specs) {
      weight_map_.emplace(spec.name, file.name);
      places_.emplace(spec.name, Place{files_.back().get(), offset});
      offset += bytes_of_spec(spec);
    }
    tensor_bytes_ += offset;
  }
}

void Nf4Writer::write_at(const std::string& name, std::int64_t offset,
                         std::span<const std::byte> bytes) {
  const Place& place = places_.at(name);
  place.file->write(place.offset + offset, bytes);
  written_bytes_ += std::ssize(bytes);
}

void Nf4Writer::write(const Nf4Tensor& tensor, std::span<const std::byte> packed) {
  const Nf4Parts parts = nf4_parts(tensor.count);
  TESSERA_REQUIRE(tensor.is_packed && std::ssize(packed) == parts.bytes, "a packed matrix");
  const auto part = [&packed](Index begin, Index bytes) {
    return packed.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(bytes));
  };
  float mean = 0;
  std::memcpy(&mean, packed.data() + parts.mean, sizeof mean);
  std::string state = state_text(tensor, options_.type, mean);
  state.resize(static_cast<std::size_t>(state_bytes(tensor, options_.type)), ' ');
  write_at(tensor.name, 0, part(parts.codes, divide_up(tensor.count, 2)));
  write_at(with(tensor.name, kScaleCodes), 0, part(parts.scale_codes, nf4_blocks(tensor.count)));
  write_at(with(tensor.name, kScales), 0,
           part(parts.scale_scales, nf4_scale_blocks(tensor.count) * Index{sizeof(float)}));
  write_at(with(tensor.name, kMap), 0, std::as_bytes(std::span(kNf4Values)));
  write_at(with(tensor.name, kScaleMap), 0, std::as_bytes(std::span(kNf4ScaleMap)));
  write_at(with(tensor.name, kState), 0, bytes_of(state));
}

void Nf4Writer::write(const Nf4Tensor& tensor, Index begin, std::span<const float> values) {
  TESSERA_REQUIRE(!tensor.is_packed && begin >= 0 && begin + std::ssize(values) <= tensor.count,
                  "elements of a tensor that is not packed");
  if (options_.type == SafetensorsType::f32) {
    write_at(tensor.name, begin * Index{sizeof(float)}, std::as_bytes(values));
    return;
  }
  std::array<BFloat16, kRoundedElements> rounded;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  while (!values.empty()) {
    const auto piece = values.first(std::min(values.size(), rounded.size()));
    std::ranges::transform(piece, rounded.begin(), to_bfloat16);
    write_at(tensor.name, begin * Index{sizeof(BFloat16)},
             std::as_bytes(std::span(rounded).first(piece.size())));
    begin += std::ssize(piece);
    values = values.subspan(piece.size());
  }
}

void Nf4Writer::close() {
  for (const auto& file : files_) {
    file->close();
  }
}

void Nf4Writer::write_config() const {
  write_folder_texts(folder_, config_text(config_, options_.type),
                     {files_.size(), tensor_bytes_, weight_map_});
}

// ---- in -----------------------------------------------------------------------------------------

namespace {

Json read_config(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kConfigFile;
  Json json = parse_json(read_whole_file(file, kLargestConfigBytes), file.string());
  if (!json.is_object()) {
    refuse(file, "it is not a JSON object");
  }
  return json;
}

bool says_four_bits(const Json& config) {
  const auto found = config.find(kQuantization);
  return found != config.end() && found->is_object() &&
         found->value("load_in_4bit", Json()) == true;
}

void require_nf4(const Json& config, const std::filesystem::path& file) {
  if (!says_four_bits(config)) {
    throw ConfigError(
        fmt::format("{}: it has no quantization_config of bitsandbytes' 4 bits", file.string()),
        TESSERA_HERE);
  }
  const Json& given = config.at(kQuantization);
  const auto require = [&](const char* name, const Json& wanted) {
    if (const Json value = given.value(name, wanted); value != wanted) {
      throw ConfigError(fmt::format("{}: quantization_config has {} {}, where {} is needed: "
                                    "`convert quantise` the model itself",
                                    file.string(), name, shown_json(value), wanted.dump()),
                        TESSERA_HERE);
    }
  };
  require("quant_method", "bitsandbytes");
  require("bnb_4bit_quant_type", "nf4");
  require("bnb_4bit_use_double_quant", true);
  require("bnb_4bit_quant_storage", "uint8");
  if (!given.contains("bnb_4bit_quant_type") || !given.contains("bnb_4bit_use_double_quant")) {
    throw ConfigError(  // bitsandbytes' own defaults
        fmt::format("{}: quantization_config has codes of fp4 or scales that are not quantised: "
                    "`convert quantise` the model itself",
                    file.string()),
        TESSERA_HERE);
  }
}

ModelConfig read_nf4_config(const std::filesystem::path& folder) {
  require_folder(folder, "config.json and the weights");
  const std::filesystem::path file = folder / kConfigFile;
  Json json = read_config(folder);
  require_nf4(json, file);
  json.erase(kQuantization);
  return parse_config_json(json.dump(), file.string());
}

std::optional<std::uint64_t> read_hash(const Json& json, const char* key,
                                       const std::filesystem::path& file) {
  const auto found = json.find(key);
  if (found == json.end()) {
    return std::nullopt;
  }
  constexpr int kHexadecimal = 16;
  constexpr std::size_t kDigits = 16;
  const std::string text = found->is_string() ? found->get<std::string>() : std::string();
  std::uint64_t hash = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), hash, kHexadecimal);
  if (text.size() != kDigits || error != std::errc() || end != text.data() + text.size()) {
    refuse(file, fmt::format("\"{}\" is not 16 hexadecimal digits", key));
  }
  return hash;
}

std::optional<Nf4Origin> read_origin(const Json& json, const std::filesystem::path& file) {
  const std::optional<std::uint64_t> base = read_hash(json, kBaseHash, file);
  const std::optional<std::uint64_t> content = read_hash(json, kContentHash, file);
  return base && content ? std::optional(Nf4Origin{*base, *content}) : std::nullopt;
}

}  // namespace

bool is_nf4_folder(const std::filesystem::path& folder) {
  return path_exists(folder / kConfigFile) && says_four_bits(read_config(folder));
}

// What finds the tensors of an opened folder and looks at them, one by one.
class Nf4Reader::Opening {
 public:
  Opening(const std::filesystem::path& folder, std::span<const SafetensorsFile> files)
      : folder_(folder), found_(tensors_by_name(files)) {}

  Source take(const Nf4Tensor& tensor) {
    if (!tensor.is_packed) {
      const auto [file, values] = take(tensor.name, tensor.shape);
      if (values->type != SafetensorsType::f32 && values->type != SafetensorsType::bf16 &&
          values->type != SafetensorsType::f16) {
        refuse(file->path(),
               fmt::format("tensor '{}' is of type {}, where F32, BF16 or F16 is needed",
                           tensor.name, type_name(values->type)));
      }
      return {.tensor = tensor, .file = file, .values = values};
    }
    if (found_.contains(tensor.name) && !found_.contains(with(tensor.name, kState))) {
      refuse(folder_,
             fmt::format("tensor '{}' is not in nf4, where all matrices of blocks are needed "
                         "so: `convert quantise` the model itself",
                         tensor.name));
    }
    const std::vector<SafetensorsSpec> specs = specs_of(tensor, SafetensorsType::bf16);
    const auto [file, values] = take(specs[0]);
    Source source = {.tensor = tensor,
                     .file = file,
                     .values = values,
                     .scale_codes = take_beside(*file, specs[1]),
                     .scales = take_beside(*file, specs[2])};
    compare_map(*file, *take_beside(*file, specs[3]), kNf4Values);
    compare_map(*file, *take_beside(*file, specs[4]), kNf4ScaleMap);
    require_finite(*file, *source.scales);
    source.mean = read_state(tensor, *file, *take_state(*file, tensor));
    return source;
  }

  void refuse_others(const ModelConfig& config) const {
    if (!found_.empty()) {
      const auto& [name, place] = *found_.begin();
      refuse(place.file->path(), fmt::format("tensor {} belongs to no {} model in nf4 of this "
                                             "config.json",
                                             printable(name), config.model_type));
    }
  }

 private:
  TensorPlace take(const std::string& name, const std::vector<Index>& shape) {
    const auto entry = found_.find(name);
    if (entry == found_.end()) {
      refuse(folder_, fmt::format("tensor '{}' is missing", name));
    }
    const TensorPlace place = entry->second;
    if (place.tensor->shape != shape) {
      refuse(place.file->path(),
             fmt::format("tensor '{}' has the shape {}, where {} is needed", name,
                         shape_text(place.tensor->shape), shape_text(shape)));
    }
    found_.erase(entry);
    return place;
  }
  TensorPlace take(const SafetensorsSpec& spec) {
    const TensorPlace place = take(spec.name, spec.shape);
    if (place.tensor->type != spec.type) {
      refuse(place.file->path(),
             fmt::format("tensor '{}' is of type {}, where {} is needed", spec.name,
                         type_name(place.tensor->type), type_name(spec.type)));
    }
    return place;
  }
  const SafetensorsTensor* take_beside(const SafetensorsFile& file, const SafetensorsSpec& spec) {
    const TensorPlace place = take(spec);
    if (place.file != &file) {
      refuse(place.file->path(), fmt::format("tensor '{}' is not in the file of its codes, {}",
                                             spec.name, file.path().string()));
    }
    return place.tensor;
  }
  const SafetensorsTensor* take_state(const SafetensorsFile& file, const Nf4Tensor& tensor) {
    const std::string name = with(tensor.name, kState);
    const auto entry = found_.find(name);
    const Index bytes = entry == found_.end() ? 0 : entry->second.tensor->count;
    if (bytes > kLargestStateBytes) {
      refuse(file.path(), fmt::format("tensor '{}' has {} bytes, more than {}", name, bytes,
                                      kLargestStateBytes));
    }
    return take_beside(file, {name, SafetensorsType::u8, {bytes}});
  }

  // Another machine's PyTorch may round a number of the map to its neighbour.
  static void compare_map(const SafetensorsFile& file, const SafetensorsTensor& tensor,
                          std::span<const float> ours) {
    constexpr float kRounding = 1e-6F;
    std::vector<float> theirs(ours.size());
    file.read(tensor, 0, theirs);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      if (!(std::abs(theirs[i] - ours[i]) <= kRounding * std::abs(ours[i]))) {
        refuse(file.path(), fmt::format("tensor '{}' has {} for code {}, where {} is needed",
                                        tensor.name, theirs[i], i, ours[i]));
      }
    }
  }

  static void require_finite(const SafetensorsFile& file, const SafetensorsTensor& scales) {
    std::vector<float> values(static_cast<std::size_t>(scales.count));
    file.read(scales, 0, values);
    const auto bad = std::ranges::find_if(values, [](float x) { return !std::isfinite(x); });
    if (bad != values.end()) {
      refuse(file.path(), fmt::format("number {} of tensor '{}' is not finite",
                                      bad - values.begin(), scales.name));
    }
  }

  // Returns the mean.
  static float read_state(const Nf4Tensor& tensor, const SafetensorsFile& file,
                          const SafetensorsTensor& state) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(state.count));
    file.read(state, 0, bytes);
    const std::string name = fmt::format("{}: tensor '{}'", file.path().string(), state.name);
    const Json json = parse_json(std::string(bytes.begin(), bytes.end()), name);
    const auto require = [&](const char* field, const Json& wanted) {
      const Json value = json.is_object() ? json.value(field, Json()) : Json();
      if (value != wanted) {
        throw FormatError(fmt::format("{} has {} {}, where {} is needed", name, field,
                                      shown_json(value), wanted.dump()),
                          TESSERA_HERE);
      }
    };
    require("quant_type", "nf4");
    require("blocksize", kNf4Block);
    require("nested_blocksize", kNf4ScaleBlock);
    require("shape", tensor.shape);
    const Json mean = json.value("nested_offset", Json());
    const auto number = mean.is_number() ? mean.get<float>() : std::nanf("");
    if (!std::isfinite(number)) {
      throw FormatError(
          fmt::format("{} has nested_offset {}, where a number is needed", name, shown_json(mean)),
          TESSERA_HERE);
    }
    return number;
  }

  const std::filesystem::path& folder_;
  std::map<std::string, TensorPlace, std::less<>> found_;
};

Nf4Reader::Nf4Reader(const std::filesystem::path& folder)
    : config_(read_nf4_config(folder)),
      layout_(config_),
      origin_(read_origin(read_config(folder), folder / kConfigFile)),
      files_(open_weight_files(folder)),
      units_(static_cast<std::size_t>(layout_.unit_count())) {
  Opening opening(folder, files_);
  for (const Nf4Tensor& tensor : nf4_tensors(config_, layout_)) {
    units_[static_cast<std::size_t>(tensor.unit)].push_back(opening.take(tensor));
  }
  opening.refuse_others(config_);
  for (const std::vector<Source>& unit : units_) {
    for (const Source& source : unit) {
      tensor_bytes_ +=
          source.values->count * static_cast<std::int64_t>(size_in_bytes(source.values->type));
      if (source.tensor.is_packed) {
        tensor_bytes_ += source.scale_codes->count + source.scales->count * Index{sizeof(float)};
        by_name_.emplace(source.tensor.name, &source);
      }
    }
  }
}

void Nf4Reader::read(std::string_view name, std::span<std::byte> packed) const {
  const auto found = by_name_.find(name);
  TESSERA_REQUIRE(found != by_name_.end(), "a matrix of a block");
  const Source& source = *found->second;
  const Nf4Parts parts = nf4_parts(source.tensor.count);
  TESSERA_REQUIRE(std::ssize(packed) == parts.bytes, "room for the packed matrix, and no more");
  std::ranges::fill(packed, std::byte{0});
  const auto bytes_at = [&packed](Index offset, Index count) {
    return std::span(reinterpret_cast<std::uint8_t*>(packed.data()) + offset,
                     static_cast<std::size_t>(count));
  };
  source.file->read(*source.values, 0, bytes_at(parts.codes, source.values->count));
  source.file->read(*source.scale_codes, 0, bytes_at(parts.scale_codes, source.scale_codes->count));
  std::vector<float> scales(static_cast<std::size_t>(source.scales->count));
  source.file->read(*source.scales, 0, scales);
  std::memcpy(packed.data() + parts.scale_scales, scales.data(), scales.size() * sizeof(float));
  std::memcpy(packed.data() + parts.mean, &source.mean, sizeof source.mean);
}

void Nf4Reader::widen(const Source& source, Index begin, std::span<float> values) const {
  const Index end = begin + std::ssize(values);
  const Index first_block = begin / kNf4Block;
  const Index last_block = nf4_blocks(end);
  const Index first_scale = first_block / kNf4ScaleBlock;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(divide_up(end, 2) - begin / 2));
  std::vector<std::uint8_t> scale_codes(static_cast<std::size_t>(last_block - first_block));
  std::vector<float> scales(
      static_cast<std::size_t>(divide_up(last_block, kNf4ScaleBlock) - first_scale));
  source.file->read(*source.values, begin / 2, codes);
  source.file->read(*source.scale_codes, first_block, scale_codes);
  source.file->read(*source.scales, first_scale, scales);
  constexpr unsigned kCodeBits = 4;
  constexpr unsigned kCodeMask = 15;
  for (Index at = begin; at < end; ++at) {
    const Index block = at / kNf4Block;
    const float absmax =
        kNf4ScaleMap[scale_codes[static_cast<std::size_t>(block - first_block)]] *
            scales[static_cast<std::size_t>(block / kNf4ScaleBlock - first_scale)] +
        source.mean;
    const unsigned both = codes[static_cast<std::size_t>(at / 2 - begin / 2)];
    const unsigned code = at % 2 == 0 ? both >> kCodeBits : both & kCodeMask;
    values[static_cast<std::size_t>(at - begin)] = kNf4Values[code] * absmax;
  }
}

void Nf4Reader::read_unit(UnitId unit, Index begin, std::span<float> values) const {
  const Index end = begin + std::ssize(values);
  for (const Source& source : units_.at(static_cast<std::size_t>(unit))) {
    const Index first = std::max(begin, source.tensor.first);
    const Index last = std::min(end, source.tensor.first + source.tensor.count);
    if (first >= last) {
      continue;
    }
    const std::span<float> here = values.subspan(static_cast<std::size_t>(first - begin),
                                                 static_cast<std::size_t>(last - first));
    if (source.tensor.is_packed) {
      widen(source, first - source.tensor.first, here);
    } else {
      source.file->read(*source.values, first - source.tensor.first, here);
    }
  }
  const Index padding = std::clamp<Index>(end - layout_.unit(unit).count, 0, end - begin);
  std::ranges::fill(values.last(static_cast<std::size_t>(padding)), 0.0F);
}

std::uint64_t Nf4Reader::hash_of(const Nf4Tensor& tensor) const {
  if (tensor.is_packed) {
    std::vector<std::byte> packed(static_cast<std::size_t>(nf4_parts(tensor.count).bytes));
    read(tensor.name, packed);
    return xxh3_64(packed, xxh3_64(bytes_of(tensor.name)));
  }
  constexpr Index kPiece = Index{1} << 19U;  // elements that are read at a time
  const ParamUnit& unit = layout_.unit(tensor.unit);
  const Index end = std::min(unit.count, round_up(tensor.first + tensor.count, kHashedElements));
  std::uint64_t sum = 0;
  std::vector<float> values;
  for (Index begin = round_up(tensor.first, kHashedElements); begin < end; begin += kPiece) {
    values.resize(static_cast<std::size_t>(std::min(kPiece, end - begin)));
    read_unit(tensor.unit, begin, values);
    sum += hash_of_blocks(unit, tensor.unit, begin, values);
  }
  return sum;
}

std::uint64_t Nf4Reader::content_hash(int threads) const {
  const std::vector<Nf4Tensor> tensors = nf4_tensors(config_, layout_);
  std::atomic<std::uint64_t> sum = 0;
  share_among_threads(std::ssize(tensors), threads, [&] {
    return [&](Index i) { sum += hash_of(tensors[static_cast<std::size_t>(i)]); };
  });
  return sum;
}

std::uint64_t Nf4Reader::hash_of_base(std::uint64_t content) const noexcept {
  return origin_ && origin_->content_hash == content ? origin_->base_hash : content;
}

void add_nf4_origin(const std::filesystem::path& folder, const Nf4Origin& origin) {
  const std::filesystem::path file = folder / kConfigFile;
  OrderedJson json = OrderedJson::parse(read_config(folder).dump());
  json[kBaseHash] = hash_text(origin.base_hash);
  json[kContentHash] = hash_text(origin.content_hash);
  std::filesystem::remove(file);
  write_whole_file(file, bytes_of(json.dump(2) + "\n"));
}

}  // namespace tessera
