#include "model/tokenizer/end_tokens.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "model/json_text.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 4> kDocumentEnds = {"<|endoftext|>", "<|end_of_text|>",
                                                           "<｜end▁of▁sentence｜>", "</s>"};
constexpr std::array<std::string_view, 7> kTurnEnds = {
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>", "<|end|>", "<|end_of_turn|>"};

class CompanionReader {
 public:
  CompanionReader(const TokenizerFiles& files, std::string_view source)
      : files_(files), source_(source) {}

  // Null where there is no such file.
  [[nodiscard]] Json object(std::string_view name) const {
    for (const TokenizerFile& file : files_.companions) {
      if (file.name == name) {
        Json json = parse_json(file.content, where(name));
        if (!json.is_object()) {
          throw FormatError(fmt::format("{} is not a JSON object", where(name)), TESSERA_HERE);
        }
        return json;
      }
    }
    return nullptr;
  }

  [[noreturn]] void refuse(std::string_view name, std::string_view key, const Json& value) const {
    constexpr std::size_t kMostShown = 80;
    throw FormatError(fmt::format("{}: {} is {}, which is not a token of {}", where(name), key,
                                  shown_json(value).substr(0, kMostShown), files_.name),
                      TESSERA_HERE);
  }

 private:
  [[nodiscard]] std::string where(std::string_view name) const {
    return fmt::format("{} beside {}", name, source_);
  }
  const TokenizerFiles& files_;
  std::string_view source_;
};

// "</s>" or {"content": "</s>", ...}; empty where the key is missing or null.
std::string content_of(const CompanionReader& reader, const Json& config, const char* key) {
  constexpr const char* kConfig = "tokenizer_config.json";
  const auto value = config.is_null() ? config.end() : config.find(key);
  if (config.is_null() || value == config.end() || value->is_null()) {
    return {};
  }
  const Json& text =
      value->is_object() && value->contains("content") ? value->at("content") : *value;
  if (!text.is_string()) {
    reader.refuse(kConfig, key, *value);
  }
  return text.get<std::string>();
}

void add(std::vector<Index>& ids, std::optional<Index> id) {
  if (id && std::find(ids.begin(), ids.end(), *id) == ids.end()) {
    ids.push_back(*id);
  }
}

void add_generation_ends(const CompanionReader& reader, Index vocab_size,
                         std::vector<Index>& stop) {
  constexpr const char* kGeneration = "generation_config.json";
  constexpr const char* kKey = "eos_token_id";
  const Json generation = reader.object(kGeneration);
  if (generation.is_null() || !generation.contains(kKey) || generation.at(kKey).is_null()) {
    return;
  }
  const Json& value = generation.at(kKey);
  const Json all = value.is_array() ? value : Json::array({value});
  for (const Json& id : all) {
    if (!id.is_number_unsigned() ||
        id.get<std::uint64_t>() >= static_cast<std::uint64_t>(vocab_size)) {
      reader.refuse(kGeneration, kKey, value);
    }
    add(stop, id.get<Index>());
  }
}

}  // namespace

EndTokens find_end_tokens(const TokenizerFiles& files,
                          const std::function<std::optional<Index>(std::string_view)>& id_of,
                          Index vocab_size, std::string_view source) {
  const CompanionReader reader(files, source);
  const Json config = reader.object("tokenizer_config.json");
  const auto named = [&](const char* key) -> std::optional<Index> {
    const std::string content = content_of(reader, config, key);
    if (content.empty()) {
      return std::nullopt;
    }
    const std::optional<Index> id = id_of(content);
    if (!id) {
      reader.refuse("tokenizer_config.json", key, content);
    }
    return id;
  };
  std::optional<Index> known;
  for (const std::string_view content : kDocumentEnds) {
    known = known ? known : id_of(content);
  }
  const std::optional<Index> eos = named("eos_token");
  const bool ends_turns = std::find(kTurnEnds.begin(), kTurnEnds.end(),
                                    content_of(reader, config, "eos_token")) != kTurnEnds.end();
  EndTokens ends;
  ends.document = (eos && !(ends_turns && known) ? eos : known).value_or(-1);
  if (ends.document >= 0) {
    add(ends.stop, ends.document);
  }
  add(ends.stop, eos);
  add_generation_ends(reader, vocab_size, ends.stop);
  for (const std::string_view content : kTurnEnds) {
    add(ends.stop, id_of(content));
  }
  if (!config.is_null() && config.value("add_bos_token", Json()) == Json(true)) {
    ends.begin = named("bos_token");
  }
  return ends;
}

}  // namespace tessera
