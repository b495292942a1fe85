// Hugging Face's names and shapes against files that transformers wrote (tests/golden), folders
// that are not what they should be, and writing against reading.
#include "model/huggingface.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <boost/test/unit_test.hpp>
#include <unistd.h>

#include "kernels/base/error.h"
#include "kernels/device/tensor_view.h"
#include "model/huggingface_writer.h"
#include "tests/support/temp_folder.h"

namespace tessera {
namespace {

std::filesystem::path golden_folder(const std::string& variant) {
  const char* golden = std::getenv("TESSERA_GOLDEN");
  BOOST_REQUIRE_MESSAGE(golden != nullptr, "TESSERA_GOLDEN names the folder of golden files");
  return std::filesystem::path(golden) / variant;
}

ModelConfig small_config(const std::string& model_type, bool tied) {
  ModelConfig c;
  c.model_type = model_type;
  c.vocab_size = 11;
  c.hidden_size = 6;
  c.intermediate_size = 5;
  c.num_layers = 2;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 2;
  c.qk_norm = model_type == "qwen3";
  c.attention_bias = model_type == "qwen2";
  c.tie_embeddings = tied;
  return c;
}

std::vector<SafetensorsSpec> all_specs(const ModelConfig& config) {
  std::vector<SafetensorsSpec> specs;
  for (const HuggingFaceTensor& tensor : huggingface_tensors(config, ParamLayout(config))) {
    for (const HuggingFacePart& part : tensor.parts) {
      specs.push_back({part.name, SafetensorsType::f32, part.shape});
    }
  }
  return specs;
}

SafetensorsSpec& spec_of(std::vector<SafetensorsSpec>& specs, const std::string& name) {
  for (SafetensorsSpec& spec : specs) {
    if (spec.name == name) {
      return spec;
    }
  }
  throw std::runtime_error("no tensor " + name);
}

// A file of these tensors, elements counted from 0 in each.
void write_tensors(const std::filesystem::path& file, const std::vector<SafetensorsSpec>& specs) {
  SafetensorsWriter writer(file, specs, {});
  std::int64_t offset = 0;
  for (const SafetensorsSpec& spec : specs) {
    Index count = 1;
    for (const Index extent : spec.shape) {
      count *= extent;
    }
    if (spec.type == SafetensorsType::f32) {
      std::vector<float> values(static_cast<std::size_t>(count));
      std::iota(values.begin(), values.end(), 0.0F);
      writer.write(offset, std::as_bytes(std::span(values)));
    } else {
      const std::vector<std::byte> zeros(static_cast<std::size_t>(count) *
                                         size_in_bytes(spec.type));
      writer.write(offset, zeros);
    }
    offset += count * static_cast<Index>(size_in_bytes(spec.type));
  }
  writer.close();
}

void write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  BOOST_REQUIRE(out.good());
}

// What HuggingFaceFolder says of a folder of this config whose tensors have been changed.
std::string complaint_about(const ModelConfig& config,
                            const std::function<void(std::vector<SafetensorsSpec>&)>& change) {
  const test::TempFolder folder;
  write_text(folder / "config.json", to_config_json(config));
  std::vector<SafetensorsSpec> specs = all_specs(config);
  change(specs);
  write_tensors(folder / "model.safetensors", specs);
  try {
    const HuggingFaceFolder model(folder.path());
  } catch (const FormatError& error) {
    BOOST_TEST(error.message().starts_with(folder.path().string()), error.message());
    return error.message();
  }
  return "nothing";
}

void expect_in(const std::string& message, const std::string& part) {
  BOOST_TEST(message.find(part) != std::string::npos,
             "expected '" << part << "' in '" << message << "'");
}

std::vector<float> read_all(const HuggingFaceFolder& model, const ParamTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.count()));
  model.read(tensor.name, 0, values);
  return values;
}

bool same_bits(const std::vector<float>& left, const std::vector<float>& right) {
  return left.size() == right.size() &&
         std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(huggingface)

BOOST_AUTO_TEST_CASE(folders_of_transformers_are_read_and_every_tensor_is_accounted_for) {
  for (const std::string variant : {"tied", "untied"}) {
    const HuggingFaceFolder model(golden_folder(variant));
    BOOST_TEST(model.layout().is_tied() == (variant == "tied"));
    const SafetensorsFile file(golden_folder(variant) / "model.safetensors");
    Index elements = 0;
    for (const SafetensorsTensor& tensor : file.tensors()) {
      elements += tensor.count;
    }
    BOOST_TEST(model.layout().total_count() == elements);
    BOOST_TEST(model.tensor_bytes() == elements * 4);
  }
}

BOOST_AUTO_TEST_CASE(fused_tensors_hold_q_k_v_and_gate_up_in_this_order) {
  const HuggingFaceFolder model(golden_folder("tied"));
  const SafetensorsFile file(golden_folder("tied") / "model.safetensors");
  const auto behind = [&file](std::initializer_list<const char*> names) {
    std::vector<float> all;
    for (const char* name : names) {
      const SafetensorsTensor& tensor = *file.find(name);
      std::vector<float> part(static_cast<std::size_t>(tensor.count));
      file.read(tensor, 0, part);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  };
  BOOST_TEST(same_bits(
      read_all(model, model.layout().find("block.1.attention.qkv")),
      behind({"model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight",
              "model.layers.1.self_attn.v_proj.weight"})));
  BOOST_TEST(same_bits(
      read_all(model, model.layout().find("block.0.mlp.gate_up")),
      behind({"model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"})));
  BOOST_TEST(
      same_bits(read_all(model, model.layout().find("head.norm")), behind({"model.norm.weight"})));
}

BOOST_AUTO_TEST_CASE(any_range_of_a_tensor_or_unit_reads_the_same_elements) {
  const HuggingFaceFolder model(golden_folder("untied"));
  for (UnitId id = 0; id < model.layout().unit_count(); ++id) {
    const ParamUnit& unit = model.layout().unit(id);
    std::vector<float> whole;
    for (const ParamTensor& tensor : unit.tensors) {
      const std::vector<float> values = read_all(model, tensor);
      whole.insert(whole.end(), values.begin(), values.end());
    }
    // Ranges that begin and end anywhere, the last one in the padding.
    constexpr Index kStep = 997;
    for (Index begin = 0; begin < unit.count + kStep; begin += kStep) {
      std::vector<float> part(static_cast<std::size_t>(kStep), -1);
      model.read_unit(id, begin, part);
      for (Index i = 0; i < kStep; ++i) {
        const Index at = begin + i;
        const float expected = at < unit.count ? whole[static_cast<std::size_t>(at)] : 0;
        BOOST_TEST_REQUIRE(part[static_cast<std::size_t>(i)] == expected,
                           unit.name << " element " << at);
      }
    }
    std::vector<float> values(2);
    BOOST_CHECK_THROW(model.read(unit.tensors[0].name, unit.tensors[0].count() - 1, values),
                      ContractError);
  }
}

BOOST_AUTO_TEST_CASE(each_model_type_has_its_own_tensors) {
  const auto names = [](const std::string& model_type, bool tied) {
    std::set<std::string> all;
    for (const SafetensorsSpec& spec : all_specs(small_config(model_type, tied))) {
      all.insert(spec.name);
    }
    return all;
  };
  const std::string attention = "model.layers.1.self_attn.";
  BOOST_TEST(names("qwen3", true).count(attention + "q_norm.weight") == 1U);
  BOOST_TEST(names("qwen3", true).count(attention + "q_proj.bias") == 0U);
  BOOST_TEST(names("qwen3", true).count("lm_head.weight") == 0U);
  BOOST_TEST(names("qwen2", false).count(attention + "v_proj.bias") == 1U);
  BOOST_TEST(names("qwen2", false).count(attention + "o_proj.bias") == 0U);
  BOOST_TEST(names("qwen2", false).count("lm_head.weight") == 1U);
  BOOST_TEST(names("llama", false).count(attention + "q_norm.weight") == 0U);
  BOOST_TEST(names("mistral", false) == names("llama", false), boost::test_tools::per_element());
  BOOST_TEST(names("qwen2", true).size() == 2U + 2U * 12U);
}

BOOST_AUTO_TEST_CASE(a_tensor_that_is_not_as_config_json_says_is_named) {
  const ModelConfig config = small_config("qwen3", true);
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  expect_in(complaint_about(config, [](auto&) {}), "nothing");
  expect_in(complaint_about(config,
                            [&](auto& specs) {
                              spec_of(specs, q).shape = {6, 8};
                            }),
            "tensor '" + q + "' has the shape [6, 8], where config.json gives [8, 6]");
  expect_in(complaint_about(config, [&](auto& specs) { spec_of(specs, q).shape = {48}; }),
            "has the shape [48]");
  expect_in(
      complaint_about(config, [&](auto& specs) { spec_of(specs, q).type = SafetensorsType::f64; }),
      "is of type F64, where F32, BF16 or F16 is needed");
  expect_in(complaint_about(config, [](auto& specs) { specs.pop_back(); }),
            "tensor 'model.norm.weight' is missing");
  expect_in(
      complaint_about(
          config,
          [](auto& specs) {
            specs.push_back({"model.layers.2.mlp.up_proj.weight", SafetensorsType::f32, {5, 6}});
          }),
      "tensor 'model.layers.2.mlp.up_proj.weight' belongs to no qwen3 model");
  expect_in(complaint_about(config,
                            [](auto& specs) {
                              specs.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq",
                                               SafetensorsType::f32,
                                               {1}});
                            }),
            "nothing");
}

BOOST_AUTO_TEST_CASE(a_second_copy_of_a_tied_head_must_be_the_embedding) {
  const ModelConfig config = small_config("llama", true);
  const auto with_head = [&](std::vector<Index> shape) {
    return complaint_about(config, [&](auto& specs) {
      specs.push_back({"lm_head.weight", SafetensorsType::f32, std::move(shape)});
    });
  };
  expect_in(with_head({11, 6}), "nothing");  // both count from 0
  expect_in(with_head({6, 11}), "lm_head.weight is not the embedding");
  expect_in(complaint_about(config,
                            [](auto& specs) {
                              specs.push_back({"lm_head.weight", SafetensorsType::bf16, {11, 6}});
                            }),
            "lm_head.weight is not the embedding");
}

BOOST_AUTO_TEST_CASE(an_index_that_lies_or_leads_elsewhere_is_refused) {
  const test::TempFolder folder;
  const ModelConfig config = small_config("qwen3", true);
  write_text(folder / "config.json", to_config_json(config));
  const std::vector<SafetensorsSpec> specs = all_specs(config);
  const std::size_t half = specs.size() / 2;
  write_tensors(folder / "a.safetensors",
                {specs.begin(), specs.begin() + static_cast<std::ptrdiff_t>(half)});
  write_tensors(folder / "b.safetensors",
                {specs.begin() + static_cast<std::ptrdiff_t>(half), specs.end()});

  const auto complaint = [&](const std::string& index) {
    write_text(folder / "model.safetensors.index.json", index);
    try {
      const HuggingFaceFolder model(folder.path());
    } catch (const FormatError& error) {
      return error.message();
    }
    return std::string("nothing");
  };
  const auto map_with = [&](const std::string& extra, std::size_t left_out) {
    std::string text = "{\"weight_map\":{" + extra;
    for (std::size_t i = 0; i < specs.size() - left_out; ++i) {
      text += (i > 0 || !extra.empty() ? ",\"" : "\"") + specs[i].name + "\":\"" +
              (i < half ? "a" : "b") + ".safetensors\"";
    }
    return text + "}}";
  };
  expect_in(complaint(map_with("", 0)), "nothing");
  expect_in(complaint("[]"), "it is not a JSON object");
  expect_in(complaint(R"({"weight_map":[]})"), "it has no \"weight_map\"");
  expect_in(complaint(map_with("", 1)),
            "it does not say that 'b.safetensors' holds tensor 'model.norm.weight'");
  expect_in(complaint(map_with(R"("x":"a.safetensors")", 0)),
            "'a.safetensors' does not hold tensor 'x'");
  expect_in(complaint(map_with("\"x\":7", 0)), "the file of tensor 'x' is not a string");
  for (const std::string name :
       {"../a.safetensors", "/etc/a.safetensors", "a.bin", "sub/a.safetensors"}) {
    expect_in(complaint(map_with(R"("x":")" + name + "\"", 0)),
              "'" + name + "' is not the name of a safetensors file");
  }
  expect_in(complaint(map_with(R"("x":"c.safetensors")", 0)),
            "it names 'c.safetensors', which is not in the folder: copy or download it too");

  // The same tensor in two files.
  std::vector<SafetensorsSpec> twice(specs.begin() + static_cast<std::ptrdiff_t>(half),
                                     specs.end());
  twice.push_back(specs.front());
  std::filesystem::remove(folder / "b.safetensors");
  write_tensors(folder / "b.safetensors", twice);
  expect_in(complaint(map_with("", 0)),
            "it does not say that 'b.safetensors' holds tensor '" + specs.front().name);
}

BOOST_AUTO_TEST_CASE(a_folder_without_files_is_refused) {
  const test::TempFolder folder;
  BOOST_CHECK_THROW(HuggingFaceFolder(folder.path()), FormatError);
  write_text(folder / "config.json", to_config_json(small_config("qwen3", true)));
  BOOST_CHECK_EXCEPTION(
      HuggingFaceFolder(folder.path()), FormatError, [](const FormatError& error) {
        return error.message().find("it holds neither model.safetensors nor") != std::string::npos;
      });
}

// Every tensor of `model`, in pieces of `piece` elements, the last one first.
void copy_tensors(const HuggingFaceFolder& model, HuggingFaceWriter& writer, Index piece) {
  for (const ParamUnit& unit : model.layout().units()) {
    for (const ParamTensor& tensor : unit.tensors) {
      const std::vector<float> values = read_all(model, tensor);
      const auto count = static_cast<Index>(values.size());
      for (Index begin = (count - 1) / piece * piece; begin >= 0; begin -= piece) {
        writer.write(
            tensor.name, begin,
            std::span(values).subspan(static_cast<std::size_t>(begin),
                                      static_cast<std::size_t>(std::min(piece, count - begin))));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_written_in_f32_reads_back_in_the_same_bits) {
  for (const std::string variant : {"tied", "untied"}) {
    const HuggingFaceFolder model(golden_folder(variant));
    for (const std::int64_t max_bytes :
         {std::int64_t{1} << 40, std::int64_t{40'000}, std::int64_t{1}}) {
      const test::TempFolder folder;
      HuggingFaceOptions options;
      options.type = SafetensorsType::f32;
      options.max_shard_bytes = max_bytes;
      HuggingFaceWriter writer(folder / "out/", model.config(), options);
      BOOST_TEST(writer.tensor_bytes() == model.tensor_bytes());
      copy_tensors(model, writer, 1009);  // a prime: pieces cross the parts of q, k and v
      BOOST_TEST(!std::filesystem::exists(folder / "out"));
      writer.finish();
      const HuggingFaceFolder copy(folder / "out");
      BOOST_TEST((copy.config() == model.config()));
      BOOST_TEST((copy.file_count() == 1) == (max_bytes > 1'000'000));
      for (const ParamUnit& unit : model.layout().units()) {
        for (const ParamTensor& tensor : unit.tensors) {
          BOOST_TEST(same_bits(read_all(copy, tensor), read_all(model, tensor)), tensor.name);
        }
      }
      BOOST_TEST(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
    }
  }
}

std::string content_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Slices of units as ranks hold them, which end anywhere in a tensor.
BOOST_AUTO_TEST_CASE(parts_of_several_processes_make_the_files_that_one_makes) {
  const HuggingFaceFolder model(golden_folder("untied"));
  for (const std::int64_t max_bytes : {std::int64_t{1} << 40, std::int64_t{40'000}}) {
    const test::TempFolder folder;
    const HuggingFaceOptions options = {.max_shard_bytes = max_bytes};
    HuggingFaceWriter whole(folder / "whole", model.config(), options);
    copy_tensors(model, whole, Index{1} << 30);
    whole.finish();
    std::filesystem::create_directory(folder / "parts");
    create_huggingface_files(folder / "parts", model.config(), options);
    constexpr Index kRanks = 3;
    std::int64_t written = 0;
    for (Index rank = 0; rank < kRanks; ++rank) {
      HuggingFaceFiles files(folder / "parts", model.config(), options, SafetensorsShare::part);
      for (UnitId id = 0; id < model.layout().unit_count(); ++id) {
        const Index count = model.layout().unit(id).count;
        const Index begin = count * rank / kRanks;
        std::vector<float> values(static_cast<std::size_t>(count * (rank + 1) / kRanks - begin));
        model.read_unit(id, begin, values);
        files.write_unit(id, begin, values);
      }
      files.close();
      written += files.written_bytes();
      BOOST_TEST(files.tensor_bytes() == whole.tensor_bytes());
      if (rank == 0) {
        files.write_config();
      }
    }
    BOOST_TEST(written == whole.tensor_bytes());
    std::size_t compared = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "whole")) {
      const std::string name = entry.path().filename().string();
      BOOST_TEST((content_of(entry.path()) == content_of(folder / "parts" / name)), name);
      ++compared;
    }
    BOOST_TEST((compared == 3U) == (max_bytes > 1'000'000));
  }
}

BOOST_AUTO_TEST_CASE(bf16_is_rounded_to_nearest_even) {
  const HuggingFaceFolder model(golden_folder("tied"));
  const test::TempFolder folder;
  HuggingFaceWriter writer(folder / "out", model.config(), {});
  constexpr Index kMoreThanATensor = Index{1} << 30;
  copy_tensors(model, writer, kMoreThanATensor);
  writer.finish();
  const HuggingFaceFolder copy(folder / "out");
  for (const ParamUnit& unit : model.layout().units()) {
    for (const ParamTensor& tensor : unit.tensors) {
      std::vector<float> expected = read_all(model, tensor);
      for (float& value : expected) {
        value = to_float(to_bfloat16(value));
      }
      BOOST_TEST(same_bits(read_all(copy, tensor), expected), tensor.name);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_write_that_fails_leaves_nothing_and_harms_nothing) {
  const ModelConfig config = small_config("qwen2", false);
  const test::TempFolder folder;
  {
    HuggingFaceWriter writer(folder / "out", config, {});
    BOOST_TEST(!std::filesystem::is_empty(folder.path()));
    BOOST_CHECK_THROW(writer.finish(), ContractError);  // nothing has been written
  }
  BOOST_TEST(std::filesystem::is_empty(folder.path()));
  std::filesystem::create_directory(folder / "out");
  write_text(folder / "out/precious", "x");
  BOOST_CHECK_THROW(HuggingFaceWriter(folder / "out", config, {}), ConfigError);
  BOOST_TEST(std::filesystem::exists(folder / "out/precious"));
}

// As a volume of a container is: nothing can be made or renamed beside it.
BOOST_AUTO_TEST_CASE(a_folder_that_is_there_is_filled_although_its_parent_is_not_writable) {
  const HuggingFaceFolder model(golden_folder("tied"));
  const test::TempFolder folder;
  const std::filesystem::path out = folder / "out";
  std::filesystem::create_directory(out);
  std::filesystem::permissions(out, std::filesystem::perms::all);
  using std::filesystem::perms;
  std::filesystem::permissions(folder.path(), perms::owner_read | perms::owner_exec |
                                                  perms::group_read | perms::group_exec |
                                                  perms::others_read | perms::others_exec);
  const bool is_root = ::geteuid() == 0;  // whom permissions do not stop
  BOOST_REQUIRE(!is_root || ::seteuid(65534) == 0);
  {
    HuggingFaceWriter writer(out, model.config(), {});
    copy_tensors(model, writer, Index{1} << 30);
    BOOST_TEST(!std::filesystem::exists(out / "config.json"));
    writer.finish();
  }
  BOOST_TEST(HuggingFaceFolder(out).tensor_bytes() * 2 == model.tensor_bytes());
  BOOST_TEST(!std::filesystem::exists(out / ".partial"));
  BOOST_REQUIRE(!is_root || ::seteuid(0) == 0);
  std::filesystem::permissions(folder.path(), perms::owner_all);
}

BOOST_AUTO_TEST_CASE(configs_of_models_with_another_attention_are_refused) {
  const auto parse = [](std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    BOOST_REQUIRE(at != std::string::npos);
    return parse_config_json(text.replace(at, from.size(), to), "config.json");
  };
  const std::string mistral = to_config_json(small_config("mistral", false));
  const std::string qwen3 = to_config_json(small_config("qwen3", false));
  BOOST_TEST((parse_config_json(mistral, "config.json") == small_config("mistral", false)));
  BOOST_CHECK_THROW(parse(mistral, "\"sliding_window\": null", "\"sliding_window\": 0"),
                    ConfigError);
  BOOST_CHECK_THROW(parse(qwen3, "\"use_cache\": true", "\"layer_types\": [\"sliding_attention\"]"),
                    ConfigError);
  BOOST_CHECK_NO_THROW(
      parse(qwen3, "\"use_cache\": true", "\"layer_types\": [\"full_attention\"]"));
  ModelConfig huge = small_config("qwen3", false);
  huge.hidden_size = huge.intermediate_size = 1'000'000'000;
  BOOST_CHECK_THROW((void)parse_config_json(to_config_json(huge), "config.json"), ConfigError);
}

// Found by tests/fuzz: a file without "factor" came back as another model.
BOOST_AUTO_TEST_CASE(rope_scaling_is_complete_or_refused) {
  ModelConfig scaled = small_config("llama", false);
  scaled.rope.type = RopeType::llama3;
  scaled.rope.factor = 8;
  scaled.rope.high_freq_factor = 4.2;
  const std::string text = to_config_json(scaled);
  BOOST_TEST((parse_config_json(text, "config.json") == scaled));
  for (const std::string key : {"\"factor\"", "\"low_freq_factor\"", "\"high_freq_factor\"",
                                "\"original_max_position_embeddings\""}) {
    std::string without = text;
    BOOST_CHECK_THROW(
        (void)parse_config_json(without.replace(without.find(key), key.size(), "\"other\""), "c"),
        FormatError);
  }
  scaled.rope.low_freq_factor = 5;
  BOOST_CHECK_THROW((void)parse_config_json(to_config_json(scaled), "c"), ConfigError);
  // A factor of 1 scales nothing.
  std::string one = text;
  one.replace(one.find("\"factor\": 8.0"), 13, "\"factor\": 1.0");
  BOOST_TEST((parse_config_json(one, "c") == small_config("llama", false)));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera
