#include "model/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/input_file.h"
#include "kernels/device/tensor_view.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

using Json = nlohmann::json;

constexpr std::int64_t kLengthBytes = 8;            // the header's length, in front of it
constexpr std::int64_t kHeaderAlignment = 8;        // so that the tensors' bytes start aligned
constexpr std::int64_t kWritebackBytes = 32 << 20;  // between hints to begin writing to the device
constexpr std::size_t kPieceBytes = 1U << 17U;  // converted at a time: stays in the nearest caches
constexpr std::size_t kShownBytes = 80;

struct TypeRow {
  SafetensorsType type;
  std::string_view name;
  std::size_t bytes;
};

constexpr std::array kTypes = {TypeRow{SafetensorsType::boolean, "BOOL", 1},
                               TypeRow{SafetensorsType::u8, "U8", 1},
                               TypeRow{SafetensorsType::i8, "I8", 1},
                               TypeRow{SafetensorsType::f8_e5m2, "F8_E5M2", 1},
                               TypeRow{SafetensorsType::f8_e4m3, "F8_E4M3", 1},
                               TypeRow{SafetensorsType::u16, "U16", 2},
                               TypeRow{SafetensorsType::i16, "I16", 2},
                               TypeRow{SafetensorsType::f16, "F16", 2},
                               TypeRow{SafetensorsType::bf16, "BF16", 2},
                               TypeRow{SafetensorsType::u32, "U32", 4},
                               TypeRow{SafetensorsType::i32, "I32", 4},
                               TypeRow{SafetensorsType::f32, "F32", 4},
                               TypeRow{SafetensorsType::u64, "U64", 8},
                               TypeRow{SafetensorsType::i64, "I64", 8},
                               TypeRow{SafetensorsType::f64, "F64", 8}};

const TypeRow& row_of(SafetensorsType type) {
  const auto* const row = std::find_if(kTypes.begin(), kTypes.end(),
                                       [type](const TypeRow& each) { return each.type == type; });
  TESSERA_REQUIRE(row != kTypes.end(), "an element type of the list");
  return *row;
}

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& message) {
  throw FormatError(fmt::format("{} is not a sound safetensors file: {}; copy or download it again",
                                file.string(), message),
                    TESSERA_HERE);
}

// What the header says of one tensor, before any of it is believed.
struct Entry {
  std::string name;
  std::string type;
  std::vector<Index> shape;
  std::vector<Index> offsets;  // begin and end within the tensors' bytes
};

// Receives the header's JSON piece by piece, so that nothing but the expected nesting is ever
// stored.
class HeaderHandler final : public nlohmann::json_sax<Json> {
 public:
  [[nodiscard]] const std::string& complaint() const noexcept { return complaint_; }
  [[nodiscard]] std::vector<Entry>& entries() noexcept { return entries_; }
  [[nodiscard]] std::map<std::string, std::string>& metadata() noexcept { return metadata_; }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::before:
        return enter(Place::file);
      case Place::tensor_open:
        return enter(Place::tensor);
      case Place::metadata_open:
        return enter(Place::metadata);
      default:
        return unexpected("an object");
    }
  }

  bool key(std::string& name) override {
    if (place_ == Place::file) {
      if (name == "__metadata__") {
        if (std::exchange(has_metadata_, true)) {
          return complain("__metadata__ stands twice in the header");
        }
        return enter(Place::metadata_open);
      }
      entries_.push_back({std::move(name), {}, {}, {}});
      has_type_ = has_shape_ = has_offsets_ = false;
      return enter(Place::tensor_open);
    }
    if (place_ == Place::metadata) {
      metadata_key_ = std::move(name);
      return enter(Place::metadata_value);
    }
    if (name == "dtype" && !std::exchange(has_type_, true)) {
      return enter(Place::type);
    }
    if (name == "shape" && !std::exchange(has_shape_, true)) {
      return enter(Place::shape_open);
    }
    if (name == "data_offsets" && !std::exchange(has_offsets_, true)) {
      return enter(Place::offsets_open);
    }
    return complain(fmt::format("tensor {} has an unknown or second key {}",
                                printable(entries_.back().name), printable(name)));
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      if (!has_type_ || !has_shape_ || !has_offsets_) {
        return complain(fmt::format("tensor {} lacks one of dtype, shape and data_offsets",
                                    printable(entries_.back().name)));
      }
      return enter(Place::file);
    }
    return enter(place_ == Place::metadata ? Place::file : Place::after);
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::shape_open) {
      return enter(Place::shape);
    }
    return place_ == Place::offsets_open ? enter(Place::offsets) : unexpected("an array");
  }

  bool end_array() override {
    if (place_ == Place::offsets && entries_.back().offsets.size() != 2) {
      return complain(fmt::format("data_offsets of tensor {} are not two numbers",
                                  printable(entries_.back().name)));
    }
    return enter(Place::tensor);
  }

  bool number_unsigned(std::uint64_t value) override {
    const bool is_shape = place_ == Place::shape;
    if (!is_shape && place_ != Place::offsets) {
      return unexpected("a number");
    }
    std::vector<Index>& list = is_shape ? entries_.back().shape : entries_.back().offsets;
    if (value > static_cast<std::uint64_t>(std::numeric_limits<Index>::max())) {
      return complain(fmt::format("{} in the {} of tensor {} is beyond any file", value,
                                  is_shape ? "shape" : "data_offsets",
                                  printable(entries_.back().name)));
    }
    if (list.size() == (is_shape ? SafetensorsFile::kLargestRank : 2)) {
      return complain(fmt::format("the {} of tensor {} has more than {} numbers",
                                  is_shape ? "shape" : "data_offsets",
                                  printable(entries_.back().name), list.size()));
    }
    list.push_back(static_cast<Index>(value));
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::type) {
      entries_.back().type = std::move(value);
      return enter(Place::tensor);
    }
    if (place_ == Place::metadata_value) {
      if (!metadata_.emplace(std::move(metadata_key_), std::move(value)).second) {
        return complain("a key of __metadata__ stands twice");
      }
      return enter(Place::metadata);
    }
    return unexpected("a string");
  }

  bool number_integer(std::int64_t) override { return unexpected("a negative number"); }
  bool number_float(double, const std::string&) override {
    return unexpected("a number that is not an integer below 2^64");
  }
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool binary(Json::binary_t&) override { return unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return complain(fmt::format("its header is not JSON (byte {} of it)", position));
  }

 private:
  enum class Place : std::uint8_t {
    before,
    file,
    tensor_open,
    tensor,
    type,
    shape_open,
    shape,
    offsets_open,
    offsets,
    metadata_open,
    metadata,
    metadata_value,
    after
  };

  bool enter(Place place) {
    place_ = place;
    return true;
  }
  bool complain(std::string message) {
    complaint_ = std::move(message);
    return false;
  }
  bool unexpected(std::string_view what) {
    if (place_ == Place::before) {
      return complain("its header is not a JSON object");
    }
    return complain(fmt::format(
        "{} stands in the header where none belongs{}", what,
        entries_.empty() ? std::string()
                         : fmt::format(" (at tensor {})", printable(entries_.back().name))));
  }

  Place place_ = Place::before;
  bool has_metadata_ = false;
  bool has_type_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::string metadata_key_;
  std::string complaint_;
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

SafetensorsType find_type(const std::filesystem::path& file, const Entry& entry) {
  const auto* const row = std::find_if(kTypes.begin(), kTypes.end(), [&entry](const TypeRow& each) {
    return each.name == entry.type;
  });
  if (row == kTypes.end()) {
    refuse(file, fmt::format("dtype {} of tensor {} is unknown", printable(entry.type),
                             printable(entry.name)));
  }
  return row->type;
}

// Checks type, shape and range of one entry against each other and against the bytes there are.
SafetensorsTensor check_entry(const std::filesystem::path& file, Entry entry,
                              std::int64_t data_begin, std::int64_t data_bytes) {
  const SafetensorsType type = find_type(file, entry);
  Index count = 1;
  std::int64_t bytes = 0;
  bool too_large = false;
  for (const Index extent : entry.shape) {
    too_large = too_large || __builtin_mul_overflow(count, extent, &count);
  }
  too_large =
      too_large || __builtin_mul_overflow(count, static_cast<Index>(size_in_bytes(type)), &bytes);
  if (too_large) {
    refuse(file, fmt::format("the shape {} of tensor {} is beyond any file",
                             shape_text(entry.shape), printable(entry.name)));
  }
  const Index begin = entry.offsets[0];
  const Index end = entry.offsets[1];
  if (begin > end || end > data_bytes) {
    refuse(file, fmt::format("tensor {} is at bytes {} to {} of {}", printable(entry.name), begin,
                             end, data_bytes));
  }
  if (end - begin != bytes) {
    refuse(file,
           fmt::format("tensor {} has {} bytes, but {} of shape {} takes {}", printable(entry.name),
                       end - begin, type_name(type), shape_text(entry.shape), bytes));
  }
  SafetensorsTensor tensor;
  tensor.name = std::move(entry.name);
  tensor.type = type;
  tensor.shape = std::move(entry.shape);
  tensor.count = count;
  tensor.offset = data_begin + begin;
  return tensor;
}

std::int64_t end_of(const SafetensorsTensor& tensor) {
  return tensor.offset + tensor.count * static_cast<Index>(size_in_bytes(tensor.type));
}

// Half precision to f32 without branches on the value, exact for every one of the 65536: the
// exponent is moved by a multiplication, and subnormal numbers by a subtraction.
float half_to_float(std::uint16_t half) noexcept {
  constexpr std::uint32_t kSign = 0x80000000U;
  const std::uint32_t word = static_cast<std::uint32_t>(half) << 16U;
  const std::uint32_t twice = word + word;  // the sign shifted out
  const float normal =
      std::bit_cast<float>((twice >> 4U) + (std::uint32_t{0xE0} << 23U)) * 0x1.0p-112F;
  const float subnormal = std::bit_cast<float>((twice >> 17U) | (std::uint32_t{126} << 23U)) - 0.5F;
  const auto magnitude =
      std::bit_cast<std::uint32_t>(twice < (std::uint32_t{1} << 27U) ? subnormal : normal);
  return std::bit_cast<float>((word & kSign) | magnitude);
}

template <typename T>
T load(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace

std::size_t size_in_bytes(SafetensorsType type) {
  return row_of(type).bytes;
}
std::string_view type_name(SafetensorsType type) {
  return row_of(type).name;
}

std::string shape_text(std::span<const Index> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string printable(std::string_view name) {
  constexpr unsigned char kFirstPrintable = 0x20;
  constexpr unsigned char kDelete = 0x7F;
  std::string shown = "'";
  for (const char each : name.substr(0, kShownBytes)) {
    const auto code = static_cast<unsigned char>(each);
    if (code < kFirstPrintable || code == kDelete) {
      shown += fmt::format("\\x{:02x}", code);
    } else {
      shown += each;
    }
  }
  return shown + (name.size() > kShownBytes ? "...'" : "'");
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& file) : file_(File::open_read(file)) {
  try {
    read_header();
  } catch (const FormatError&) {
    const std::string_view foreign = foreign_content(file_);
    if (!foreign.empty() && foreign != kSafetensorsContent) {
      throw FormatError(
          fmt::format("{} is not a safetensors file: it is {}", file.string(), foreign),
          TESSERA_HERE);
    }
    throw;
  }
}

void SafetensorsFile::read_header() {
  const std::filesystem::path& file = file_.path();
  const auto size = static_cast<std::int64_t>(file_.size());
  if (size < kLengthBytes) {
    refuse(file, fmt::format("it has {} bytes, and its header's length alone takes {}", size,
                             kLengthBytes));
  }
  std::uint64_t length = 0;
  file_.read_at(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > static_cast<std::uint64_t>(kLargestHeaderBytes)) {
    refuse(file, fmt::format("its header would have {} bytes, more than {}", length,
                             kLargestHeaderBytes));
  }
  const auto header_bytes = static_cast<std::int64_t>(length);
  if (header_bytes > size - kLengthBytes) {
    refuse(file,
           fmt::format("its header would have {} bytes, and the file has {}", header_bytes, size));
  }
  std::string text(static_cast<std::size_t>(header_bytes), '\0');
  file_.read_at(kLengthBytes, std::as_writable_bytes(std::span(text)));

  if (const std::size_t nul = text.find('\0'); nul != std::string::npos) {
    refuse(file, fmt::format("its header is not JSON (byte {} of it)", nul));
  }
  HeaderHandler handler;
  if (!Json::sax_parse(text, &handler)) {
    refuse(file, handler.complaint());
  }
  metadata_ = std::move(handler.metadata());

  const std::int64_t data_begin = kLengthBytes + header_bytes;
  tensors_.reserve(handler.entries().size());
  for (Entry& entry : handler.entries()) {
    tensors_.push_back(check_entry(file, std::move(entry), data_begin, size - data_begin));
  }
  // Empty tensors come before the one that starts at the same byte.
  std::sort(tensors_.begin(), tensors_.end(),
            [](const SafetensorsTensor& left, const SafetensorsTensor& right) {
              return std::pair(left.offset, left.count) < std::pair(right.offset, right.count);
            });
  std::int64_t end = data_begin;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const SafetensorsTensor& tensor = tensors_[i];
    if (!positions_.emplace(tensor.name, i).second) {
      refuse(file, fmt::format("tensor {} stands in it twice", printable(tensor.name)));
    }
    if (tensor.offset < end) {
      refuse(file, fmt::format("tensors {} and {} overlap", printable(tensors_[i - 1].name),
                               printable(tensor.name)));
    }
    if (tensor.offset > end) {
      refuse(file, fmt::format("the {} bytes before tensor {} belong to no tensor",
                               tensor.offset - end, printable(tensor.name)));
    }
    end = end_of(tensor);
  }
  if (end != size) {
    refuse(file, fmt::format("{} bytes follow the last tensor", size - end));
  }
}

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = positions_.find(name);
  return found == positions_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsFile::read_bytes(const SafetensorsTensor& tensor, Index begin, Index count,
                                 std::span<std::byte> bytes) const {
  TESSERA_REQUIRE(begin >= 0 && count >= 0 && begin <= tensor.count - count,
                  fmt::format("elements {} to {} of {} of {}", begin, begin + count, tensor.count,
                              printable(tensor.name)));
  const Index offset = tensor.offset + begin * static_cast<Index>(size_in_bytes(tensor.type));
  file_.read_at(static_cast<std::uint64_t>(offset), bytes);
}

void SafetensorsFile::read(const SafetensorsTensor& tensor, Index begin,
                           std::span<float> values) const {
  if (tensor.type == SafetensorsType::f32) {
    read_bytes(tensor, begin, static_cast<Index>(values.size()), std::as_writable_bytes(values));
    return;
  }
  const bool is_bf16 = tensor.type == SafetensorsType::bf16;
  if (!is_bf16 && tensor.type != SafetensorsType::f16) {
    refuse(path(), fmt::format("tensor {} is of type {}, where F32, BF16 or F16 is needed",
                               printable(tensor.name), type_name(tensor.type)));
  }
  const std::size_t piece_elements = std::min(values.size(), kPieceBytes / sizeof(std::uint16_t));
  const auto piece = std::make_unique_for_overwrite<std::uint16_t[]>(piece_elements);
  while (!values.empty()) {
    const std::span<std::uint16_t> part(piece.get(), std::min(values.size(), piece_elements));
    read_bytes(tensor, begin, static_cast<Index>(part.size()), std::as_writable_bytes(part));
    if (is_bf16) {
      std::transform(part.begin(), part.end(), values.begin(),
                     [](std::uint16_t bits) { return to_float(BFloat16{bits}); });
    } else {
      std::transform(part.begin(), part.end(), values.begin(), half_to_float);
    }
    begin += static_cast<Index>(part.size());
    values = values.subspan(part.size());
  }
}

void SafetensorsFile::read(const SafetensorsTensor& tensor, Index begin,
                           std::span<std::int64_t> values) const {
  if (tensor.type != SafetensorsType::i64 && tensor.type != SafetensorsType::i32 &&
      tensor.type != SafetensorsType::u8) {
    refuse(path(), fmt::format("tensor {} is of type {}, where I64, I32 or U8 is needed",
                               printable(tensor.name), type_name(tensor.type)));
  }
  const std::size_t width = size_in_bytes(tensor.type);
  std::vector<std::byte> piece(std::min(values.size() * width, kPieceBytes));
  while (!values.empty()) {
    const std::size_t count = std::min(values.size(), piece.size() / width);
    read_bytes(tensor, begin, static_cast<Index>(count), std::span(piece.data(), count * width));
    for (std::size_t i = 0; i < count; ++i) {
      const std::byte* const from = piece.data() + i * width;
      values[i] = width == sizeof(std::int64_t)   ? load<std::int64_t>(from)
                  : width == sizeof(std::int32_t) ? load<std::int32_t>(from)
                                                  : load<std::uint8_t>(from);
    }
    begin += static_cast<Index>(count);
    values = values.subspan(count);
  }
}

void SafetensorsFile::read(const SafetensorsTensor& tensor, Index begin,
                           std::span<std::uint8_t> values) const {
  if (tensor.type != SafetensorsType::u8) {
    refuse(path(), fmt::format("tensor {} is of type {}, where U8 is needed",
                               printable(tensor.name), type_name(tensor.type)));
  }
  read_bytes(tensor, begin, std::ssize(values), std::as_writable_bytes(values));
}

namespace {

struct NewHeader {
  std::string bytes;            // with the length in front of it
  std::int64_t data_bytes = 0;  // of all tensors
};

NewHeader new_header(std::span<const SafetensorsSpec> tensors,
                     const std::map<std::string, std::string>& metadata) {
  // The header keeps the order given, for which nlohmann::json has a type of its own.
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    header["__metadata__"] = metadata;
  }
  std::int64_t data_bytes = 0;
  for (const SafetensorsSpec& tensor : tensors) {
    auto bytes = static_cast<Index>(size_in_bytes(tensor.type));
    for (const Index extent : tensor.shape) {
      bytes *= extent;
    }
    header[tensor.name] = {{"dtype", type_name(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {data_bytes, data_bytes + bytes}}};
    data_bytes += bytes;
  }
  std::string text = header.dump();
  while (static_cast<std::int64_t>(text.size()) % kHeaderAlignment != 0) {
    text += ' ';
  }
  const std::uint64_t length = text.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return {bytes + text, data_bytes};
}

}  // namespace

void create_safetensors(const std::filesystem::path& file, std::span<const SafetensorsSpec> tensors,
                        const std::map<std::string, std::string>& metadata) {
  const NewHeader header = new_header(tensors, metadata);
  File made = File::create(file);
  made.allocate(header.bytes.size() + static_cast<std::uint64_t>(header.data_bytes));
  made.write_at(0, std::as_bytes(std::span(header.bytes)));
  made.sync();
  made.close();
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& file,
                                     std::span<const SafetensorsSpec> tensors,
                                     const std::map<std::string, std::string>& metadata,
                                     SafetensorsShare share)
    : share_(share),
      file_(share == SafetensorsShare::whole ? File::create(file) : File::open_write_only(file)) {
  const NewHeader header = new_header(tensors, metadata);
  data_begin_ = static_cast<std::int64_t>(header.bytes.size());
  data_bytes_ = header.data_bytes;
  if (share == SafetensorsShare::whole) {
    file_.write_at(0, std::as_bytes(std::span(header.bytes)));
  }
}

void SafetensorsWriter::write(std::int64_t offset, std::span<const std::byte> bytes) {
  const auto count = static_cast<std::int64_t>(bytes.size());
  TESSERA_REQUIRE(offset >= 0 && offset <= data_bytes_ - count,
                  "no bytes beyond what the header announced");
  file_.write_at(static_cast<std::uint64_t>(data_begin_ + offset), bytes);
  const std::int64_t before = written_bytes_.fetch_add(count);
  if (before / kWritebackBytes != (before + count) / kWritebackBytes) {
    file_.start_writeback(0, 0);  // all of it
  }
}

void SafetensorsWriter::close() {
  TESSERA_REQUIRE(share_ == SafetensorsShare::part || written_bytes_ == data_bytes_,
                  fmt::format("{} bytes are missing", data_bytes_ - written_bytes_));
  file_.sync();
  file_.close();
}

}  // namespace tessera
