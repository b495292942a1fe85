// Models in nf4 as Hugging Face's folders: what is written is read back, and what is not such a folder
// is refused by name.
#include "model/nf4_files.h"

#include <cmath>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/file.h"
#include "kernels/base/hash.h"
#include "kernels/nf4.h"
#include "model/huggingface.h"
#include "model/param_values.h"
#include "tests/support/temp_folder.h"

namespace tessera {
namespace {

constexpr std::uint64_t kHash = 0x0123456789ABCDEFU;
constexpr std::string_view kMatrix = "model.layers.1.self_attn.k_proj.weight";

// Matrices of no whole blocks, and one with more than one block of scales.
ModelConfig small_config(bool tied) {
  ModelConfig c;
  c.model_type = "qwen2";
  c.vocab_size = 11;
  c.hidden_size = 70;
  c.intermediate_size = 401;
  c.num_layers = 2;
  c.num_heads = 5;
  c.num_kv_heads = 1;
  c.head_dim = 14;
  c.qk_norm = false;
  c.attention_bias = true;
  c.tie_embeddings = tied;
  return c;
}

float element(const Nf4Tensor& tensor, Index at) {
  return std::sin(static_cast<float>(tensor.first + 37 * tensor.unit) + static_cast<float>(at));
}

std::vector<float> values_of(const Nf4Tensor& tensor) {
  std::vector<float> values;
  for (Index i = 0; i < tensor.count; ++i) {
    values.push_back(element(tensor, i));
  }
  return values;
}

std::vector<std::byte> packed_of(const Nf4Tensor& tensor) {
  std::vector<std::byte> packed(static_cast<std::size_t>(nf4_parts(tensor.count).bytes));
  quantize_nf4(tensor.name, values_of(tensor), packed, 1);
  return packed;
}

struct WriteOptions {
  HuggingFaceOptions files = {.type = SafetensorsType::f32};
  bool in_parts = false;  // by two objects, as two processes
  std::optional<std::uint64_t> hash = kHash;
};

void write_folder(const std::filesystem::path& folder, bool tied, const WriteOptions& options) {
  std::filesystem::create_directories(folder);
  const ModelConfig config = small_config(tied);
  std::vector<std::unique_ptr<Nf4Writer>> writers;
  if (options.in_parts) {
    create_nf4_files(folder, config, options.files);
  }
  const auto share = options.in_parts ? SafetensorsShare::part : SafetensorsShare::whole;
  for (int i = 0; i < (options.in_parts ? 2 : 1); ++i) {
    writers.push_back(std::make_unique<Nf4Writer>(folder, config, options.files, share));
  }
  std::size_t next = 0;
  std::int64_t written = 0;
  for (const Nf4Tensor& tensor : writers.front()->tensors()) {
    Nf4Writer& writer = *writers[next++ % writers.size()];
    if (tensor.is_packed) {
      writer.write(tensor, packed_of(tensor));
      continue;
    }
    const std::vector<float> values = values_of(tensor);
    const std::size_t half = values.size() / 2;
    writer.write(tensor, static_cast<Index>(half), std::span(values).subspan(half));
    writer.write(tensor, 0, std::span(values).first(half));
  }
  for (const auto& writer : writers) {
    written += writer->written_bytes();
    writer->close();
  }
  BOOST_TEST(written == writers.front()->tensor_bytes());
  writers.front()->write_config();
  if (options.hash) {
    add_nf4_origin(folder, {*options.hash, Nf4Reader(folder).content_hash(2)});
  }
}

std::vector<float> widened(const Nf4Tensor& tensor) {
  const std::vector<std::byte> packed = packed_of(tensor);
  std::vector<float> values(static_cast<std::size_t>(tensor.count));
  std::vector<float> room((packed.size() + 3) / 4 + 4);  // aligned as the kernel needs it
  auto* begin = reinterpret_cast<std::byte*>(room.data());
  begin += (16 - reinterpret_cast<std::uintptr_t>(begin) % 16) % 16;
  std::ranges::copy(packed, begin);
  Stream stream(Device{}, StreamPriority::normal, "test");
  cpu::widen_nf4({.packed = {begin, DType::u8, {std::ssize(packed)}, Device{}},
                  .out = {values.data(), DType::f32, {tensor.count}, Device{}}},
                 stream);
  return values;
}

void check_reader(const std::filesystem::path& folder, bool tied, SafetensorsType type) {
  const Nf4Reader reader(folder);
  BOOST_TEST((to_config_json(reader.config()) == to_config_json(small_config(tied))));
  for (const Nf4Tensor& tensor : nf4_tensors(reader.config(), reader.layout())) {
    std::vector<float> wanted = values_of(tensor);
    if (tensor.is_packed) {
      std::vector<std::byte> packed(static_cast<std::size_t>(nf4_parts(tensor.count).bytes),
                                    std::byte{0xEE});
      reader.read(tensor.name, packed);
      BOOST_TEST((packed == packed_of(tensor)), tensor.name);
      wanted = widened(tensor);
    } else if (type == SafetensorsType::bf16) {
      std::ranges::transform(wanted, wanted.begin(),
                             [](float value) { return to_float(to_bfloat16(value)); });
    }
    for (const Index skipped : {Index{0}, tensor.count / 3, tensor.count - 1}) {
      std::vector<float> values(wanted.size() - static_cast<std::size_t>(skipped));
      reader.read_unit(tensor.unit, tensor.first + skipped, values);
      BOOST_TEST((values == std::vector<float>(wanted.begin() + skipped, wanted.end())),
                 tensor.name << " from " << skipped);
    }
  }
  const ParamUnit& unit = reader.layout().unit(1);
  std::vector<float> over_the_end(9, 1.0F);
  reader.read_unit(1, unit.count - 2, over_the_end);
  BOOST_TEST(std::count(over_the_end.begin() + 2, over_the_end.end(), 0.0F) == 7);
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const FormatError& error) {
    return error.message();
  } catch (const ConfigError& error) {
    return error.message();
  }
  return "nothing was refused";
}

nlohmann::json read_json(const std::filesystem::path& file) {
  return nlohmann::json::parse(std::ifstream(file));
}

// A tensor's type, shape and bytes, which a case may change.
struct Content {
  SafetensorsType type;
  std::vector<Index> shape;
  std::vector<std::uint8_t> bytes;
};
using Contents = std::map<std::string, Content>;

// The folder again with other tensors.
void rewrite(const std::filesystem::path& folder, const std::function<void(Contents&)>& change) {
  Contents contents;
  const std::filesystem::path file = folder / kSingleFile;
  {
    const SafetensorsFile old(file);
    std::ifstream stream(file, std::ios::binary);
    for (const SafetensorsTensor& tensor : old.tensors()) {
      std::vector<std::uint8_t> bytes(static_cast<std::size_t>(tensor.count) *
                                      size_in_bytes(tensor.type));
      stream.seekg(tensor.offset);
      stream.read(reinterpret_cast<char*>(bytes.data()), std::ssize(bytes));
      contents.emplace(tensor.name, Content{tensor.type, tensor.shape, std::move(bytes)});
    }
  }
  change(contents);
  std::filesystem::remove(file);
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, content] : contents) {
    specs.push_back({name, content.type, content.shape});
  }
  SafetensorsWriter writer(file, specs, {});
  std::int64_t offset = 0;
  for (const auto& [name, content] : contents) {
    writer.write(offset, std::as_bytes(std::span(content.bytes)));
    offset += std::ssize(content.bytes);
  }
  writer.close();
}

void replace_text(Content& state, const std::string& from, const std::string& to) {
  std::string text(state.bytes.begin(), state.bytes.end());
  const std::size_t at = text.find(from);
  BOOST_REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  state.bytes.assign(text.begin(), text.end());
  state.shape = {std::ssize(text)};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(nf4_files)

BOOST_AUTO_TEST_CASE(what_is_written_is_read_back) {
  const test::TempFolder scratch;
  int number = 0;
  for (const bool tied : {true, false}) {
    for (const SafetensorsType type : {SafetensorsType::f32, SafetensorsType::bf16}) {
      for (const bool in_parts : {false, true}) {
        const std::filesystem::path folder = scratch / std::to_string(number++);
        write_folder(folder, tied, {.files = {.type = type}, .in_parts = in_parts});
        BOOST_TEST(is_nf4_folder(folder));
        check_reader(folder, tied, type);
        const Nf4Reader reader(folder);
        const std::uint64_t content = reader.content_hash(1);
        BOOST_TEST(reader.hash_of_base(content) == kHash);
        BOOST_TEST(reader.hash_of_base(content + 1) == content + 1);  // of other weights
        BOOST_TEST(reader.content_hash(3) == content);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_matrix_is_in_one_of_several_files_and_numbers_are_aligned) {
  const test::TempFolder scratch;
  const std::filesystem::path folder = scratch / "several";
  write_folder(folder, false,
               {.files = {.type = SafetensorsType::bf16, .max_shard_bytes = 20'000}, .hash = {}});
  check_reader(folder, false, SafetensorsType::bf16);
  BOOST_TEST(!Nf4Reader(folder).origin().has_value());
  const std::vector<SafetensorsFile> files = open_weight_files(folder);
  BOOST_TEST(files.size() > 2U);
  for (const SafetensorsFile& file : files) {
    for (const SafetensorsTensor& tensor : file.tensors()) {
      BOOST_TEST(tensor.offset % static_cast<Index>(size_in_bytes(tensor.type)) == 0);
      const std::string matrix = tensor.name.substr(0, tensor.name.find(".weight") + 7);
      BOOST_TEST((file.find(matrix) != nullptr || !tensor.name.starts_with(matrix + ".")));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_folder_without_the_hash_of_its_model_has_one_of_its_own) {
  const test::TempFolder scratch;
  const std::filesystem::path folder = scratch / "model";
  write_folder(folder, true, {.hash = {}});
  const Nf4Reader reader(folder);
  const ParamLayout& layout = reader.layout();
  std::uint64_t wanted = 0;
  for (UnitId id = 0; id < layout.unit_count(); ++id) {
    const ParamUnit& unit = layout.unit(id);
    std::vector<float> values(static_cast<std::size_t>(unit.count));
    reader.read_unit(id, 0, values);
    for (Index begin = 0; begin < unit.count; begin += kHashedElements) {
      const auto tensors = nf4_tensors(reader.config(), layout);
      const auto first = std::ranges::find_if(tensors, [&](const Nf4Tensor& tensor) {
        return tensor.unit == id && begin < tensor.first + tensor.count;
      });
      if (!first->is_packed) {
        const auto count = static_cast<std::size_t>(std::min(kHashedElements, unit.count - begin));
        wanted += hash_of_blocks(
            unit, id, begin,
            std::span<const float>(values).subspan(static_cast<std::size_t>(begin), count));
      }
    }
  }
  for (const Nf4Tensor& tensor : nf4_tensors(reader.config(), layout)) {
    if (tensor.is_packed) {
      wanted += xxh3_64(packed_of(tensor), xxh3_64(bytes_of(tensor.name)));
    }
  }
  BOOST_TEST(reader.content_hash(1) == wanted);
  BOOST_TEST(reader.content_hash(3) == wanted);
  write_folder(scratch / "with", true, {});
  const Nf4Reader with(scratch / "with");
  BOOST_TEST(with.hash_of_base(with.content_hash(2)) == kHash);
}

BOOST_AUTO_TEST_CASE(other_kinds_of_quantisation_are_refused_by_name) {
  const test::TempFolder scratch;
  const std::filesystem::path folder = scratch / "model";
  write_folder(folder, true, {});
  const nlohmann::json config = read_json(folder / kConfigFile);
  const auto message_with = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json other = config;
    change(other);
    std::ofstream(folder / kConfigFile) << other;
    return message_of([&] { (void)Nf4Reader(folder); });
  };
  const std::string file = (folder / kConfigFile).string();
  BOOST_TEST(message_with([](nlohmann::json& c) { c.erase("quantization_config"); }) ==
             file + ": it has no quantization_config of bitsandbytes' 4 bits");
  BOOST_TEST(!is_nf4_folder(folder));
  BOOST_TEST(message_with([](nlohmann::json& c) {
               c["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}};
             }) == file + ": it has no quantization_config of bitsandbytes' 4 bits");
  BOOST_TEST(message_with([](nlohmann::json& c) {
               c["quantization_config"]["bnb_4bit_quant_type"] = "fp4";
             }) == file + ": quantization_config has bnb_4bit_quant_type \"fp4\", where \"nf4\" is "
                          "needed: `convert quantise` the model itself");
  BOOST_TEST(message_with([](nlohmann::json& c) {
               c["quantization_config"].erase("bnb_4bit_use_double_quant");
             }) == file +
                       ": quantization_config has codes of fp4 or scales that are not quantised: "
                       "`convert quantise` the model itself");
  BOOST_TEST(message_with([](nlohmann::json& c) { c["tessera_base_hash"] = "12"; }) ==
             file + ": \"tessera_base_hash\" is not 16 hexadecimal digits");
  BOOST_TEST(message_with([](nlohmann::json& c) { c["hidden_size"] = 72; }).find("has the shape") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(what_a_file_has_else_is_refused_by_name) {
  const test::TempFolder scratch;
  int number = 0;
  const std::string matrix(kMatrix);
  const auto message_with = [&](const std::function<void(Contents&)>& change) {
    const std::filesystem::path folder = scratch / std::to_string(number++);
    write_folder(folder, false, {});
    rewrite(folder, change);
    const std::string message = message_of([&] { (void)Nf4Reader(folder); });
    BOOST_TEST(message.starts_with(folder.string()), message);
    return message.substr(message.find(": ") + 2);
  };
  const std::string state = matrix + ".quant_state.bitsandbytes__nf4";
  BOOST_TEST(message_with([&](Contents& c) { c.erase(state); }) ==
             "tensor '" + matrix +
                 "' is not in nf4, where all matrices of blocks are needed so: `convert quantise` "
                 "the model itself");
  BOOST_TEST(message_with([&](Contents& c) { c.erase(matrix); }) ==
             "tensor '" + matrix + "' is missing");
  BOOST_TEST(message_with([&](Contents& c) { c.erase(matrix + ".nested_absmax"); }) ==
             "tensor '" + matrix + ".nested_absmax' is missing");
  BOOST_TEST(message_with([&](Contents& c) {
               Content& codes = c.at(matrix);
               codes.shape = {codes.shape[0] / 2, 1};
               codes.bytes.resize(codes.bytes.size() / 2);
             }) == "tensor '" + matrix + "' has the shape [245, 1], where [490, 1] is needed");
  BOOST_TEST(message_with([&](Contents& c) { c.at(matrix).type = SafetensorsType::i8; }) ==
             "tensor '" + matrix + "' is of type I8, where U8 is needed");
  BOOST_TEST(message_with([&](Contents& c) {
               c.at(matrix + ".quant_map").bytes[0] ^= 0x40U;
             }).find("for code 0, where -1 is needed") != std::string::npos);
  BOOST_TEST(message_with([&](Contents& c) {
               std::vector<std::uint8_t>& bytes = c.at(matrix + ".nested_absmax").bytes;
               std::fill(bytes.begin(), bytes.end(), std::uint8_t{0xFF});  // NaN
             }) == "number 0 of tensor '" + matrix + ".nested_absmax' is not finite");
  const auto state_message = [&](const std::string& from, const std::string& to) {
    return message_with([&](Contents& c) { replace_text(c.at(state), from, to); });
  };
  BOOST_TEST(state_message("\"blocksize\":64", "\"blocksize\":128") ==
             "tensor '" + state + "' has blocksize 128, where 64 is needed");
  BOOST_TEST(state_message("\"nested_blocksize\":256", "\"nested_blocksize\":128") ==
             "tensor '" + state + "' has nested_blocksize 128, where 256 is needed");
  BOOST_TEST(state_message("\"quant_type\":\"nf4\"", "\"quant_type\":\"fp4\"") ==
             "tensor '" + state + "' has quant_type \"fp4\", where \"nf4\" is needed");
  BOOST_TEST(state_message("nested_offset", "no offset") ==
             "tensor '" + state + "' has nested_offset null, where a number is needed");
  BOOST_TEST(state_message("{", "[").find("is not JSON") != std::string::npos);
  BOOST_TEST(message_with([&](Contents& c) {
               c.emplace("model.other", Content{SafetensorsType::u8, {1}, {0}});
             }) == "tensor 'model.other' belongs to no qwen2 model in nf4 of this config.json");
}

BOOST_AUTO_TEST_CASE(a_file_that_has_become_shorter_is_refused) {
  const test::TempFolder scratch;
  const std::filesystem::path folder = scratch / "model";
  write_folder(folder, false, {});
  const Nf4Reader reader(folder);
  std::filesystem::resize_file(folder / kSingleFile, 100);
  std::vector<std::byte> packed(static_cast<std::size_t>(nf4_parts(980).bytes));
  BOOST_CHECK_THROW(reader.read(kMatrix, packed), FormatError);
  std::vector<float> values(100);
  BOOST_CHECK_THROW(reader.read_unit(1, 0, values), FormatError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera
