// Hugging Face's tokenizer.json with byte-level BPE: Qwen's, Llama 3's, DeepSeek's, GPT-2's and their
// like. What a field means is what tokenizers 0.23 does with it; a field or value that is not known to
// mean that is refused by its path, since other ids would train a model silently wrong.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "kernels/base/error.h"
#include "model/json_text.h"
#include "model/tokenizer/byte_level_tokenizer.h"
#include "model/tokenizer/end_tokens.h"
#include "model/tokenizer/kinds.h"
#include "model/tokenizer/known_patterns.h"
#include "model/tokenizer/pattern_syntax.h"
#include "model/tokenizer/utf8.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr std::uint32_t kMostIds = std::uint32_t{1} << 24U;
constexpr int kMostDepth = 8;  // of Sequences in Sequences

// GPT-2's alphabet: a printable character for each byte. nullopt: none of its characters.
std::optional<char> byte_of(std::uint32_t code) {
  const auto is_printable = [](std::uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
  };
  static const std::array<std::uint32_t, 68> unprintable = [&] {
    std::array<std::uint32_t, 68> others = {};  // from U+0100 on, in the order of the bytes
    std::size_t count = 0;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      if (!is_printable(byte)) {
        others.at(count++) = byte;
      }
    }
    return others;
  }();
  if (code < 256) {
    return is_printable(code) ? std::make_optional(static_cast<char>(code)) : std::nullopt;
  }
  return code - 256 < unprintable.size()
             ? std::make_optional(static_cast<char>(unprintable.at(code - 256)))
             : std::nullopt;
}

// The bytes that a token of the vocabulary stands for; nullopt: it is not in the alphabet.
std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const Utf8Character character = first_character(token);
    const std::optional<char> byte = byte_of(character.code);
    if (character.bytes == 0 || !byte) {
      return std::nullopt;
    }
    bytes.push_back(*byte);
    token.remove_prefix(character.bytes);
  }
  return bytes;
}

class Reader {
 public:
  Reader(const TokenizerFiles& files, std::string_view source) : files_(files), source_(source) {
    facts_.kind = files.kind;
    facts_.hash = files.hash();
  }

  ByteLevelFacts read() {
    const Json json = parse_json(files_.content, source_);
    require_members(json, "$",
                    {"version", "truncation", "padding", "added_tokens", "normalizer",
                     "pre_tokenizer", "post_processor", "decoder", "model"});
    require_one_of(json, "$", "version", {Json(), "1.0"});
    require_one_of(json, "$", "truncation", {Json()});
    require_one_of(json, "$", "padding", {Json()});
    read_model(required(json, "$", "model"), "$.model");
    read_added(member(json, "added_tokens"), "$.added_tokens");
    read_normalizer(member(json, "normalizer"), "$.normalizer", 0);
    read_pre_tokenizer(member(json, "pre_tokenizer"), "$.pre_tokenizer", 0);
    if (!has_byte_level_) {
      refuse("$.pre_tokenizer", member(json, "pre_tokenizer"),
             "a ByteLevel step at its end is needed");
    }
    read_post_processor(member(json, "post_processor"), "$.post_processor", 0);
    read_decoder(member(json, "decoder"), "$.decoder", 0);
    check_config();
    read_ends();
    facts_.text_cut = may_cut() ? TextCut::at_spaces : TextCut::nowhere;
    return std::move(facts_);
  }

 private:
  [[noreturn]] void refuse(const std::string& path, const Json& value, std::string_view why) const {
    constexpr std::size_t kMostShown = 120;
    std::string shown = value.is_structured() && value.size() > 3
                            ? fmt::format("{} of {}", value.type_name(), value.size())
                            : shown_json(value);
    if (shown.size() > kMostShown) {
      shown = shown_text(shown.substr(0, kMostShown)) + "...";
    }
    throw FormatError(fmt::format("{}: {} is {}: {}", source_, path, shown, why), TESSERA_HERE);
  }

  static const Json& member(const Json& object, const char* key) {
    static const Json null;
    const auto found = object.find(key);
    return found == object.end() ? null : *found;
  }
  const Json& required(const Json& object, const std::string& path, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end()) {
      throw FormatError(fmt::format("{}: {} has no {}", source_, path == "$" ? "it" : path, key),
                        TESSERA_HERE);
    }
    return *found;
  }
  void require_members(const Json& json, const std::string& path,
                       std::initializer_list<std::string_view> known) const {
    if (!json.is_object()) {
      refuse(path, json, "an object is needed");
    }
    for (const auto& [key, value] : json.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        refuse(path + "." + shown_text(key), value, "this field is not known");
      }
    }
  }
  void require_one_of(const Json& object, const std::string& path, const char* key,
                      std::initializer_list<Json> values) const {
    const Json& value = member(object, key);
    if (std::find(values.begin(), values.end(), value) == values.end()) {
      std::string allowed;
      for (const Json& one : values) {
        allowed += (allowed.empty() ? "" : " or ") + shown_json(one);
      }
      refuse(path + "." + key, value, fmt::format("only {} is supported", allowed));
    }
  }
  std::string text(const Json& object, const std::string& path, const char* key) const {
    const Json& value = required(object, path, key);
    if (!value.is_string()) {
      refuse(path + "." + key, value, "a text is needed");
    }
    return value.get<std::string>();
  }
  bool flag(const Json& object, const std::string& path, const char* key, bool otherwise) const {
    const Json& value = member(object, key);
    if (!value.is_boolean() && !(value.is_null() && !object.contains(key))) {
      refuse(path + "." + key, value, "true or false is needed");
    }
    return value.is_boolean() ? value.get<bool>() : otherwise;
  }
  std::uint32_t id_at(const Json& value, const std::string& path) const {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= kMostIds) {
      refuse(path, value, fmt::format("an id from 0 to {} is needed", kMostIds - 1));
    }
    return value.get<std::uint32_t>();
  }
  std::string type_of(const Json& json, const std::string& path) const {
    if (!json.is_object()) {
      refuse(path, json, "an object is needed");
    }
    return text(json, path, "type");
  }
  // Calls `read` with each part of a Sequence.
  template <typename Read>
  void read_sequence(const Json& json, const std::string& path, const char* key, int depth,
                     const Read& read) const {
    require_members(json, path, {"type", key});
    const Json& parts = required(json, path, key);
    if (!parts.is_array()) {
      refuse(path + "." + key, parts, "an array is needed");
    }
    if (depth == kMostDepth) {
      refuse(path, json, "it is nested too deeply");
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      read(parts[i], fmt::format("{}.{}[{}]", path, key, i));
    }
  }

  void read_model(const Json& model, const std::string& path) {
    if (model.is_object()) {
      require_one_of(model, path, "type", {"BPE", Json()});
    }
    require_members(
        model, path,
        {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
         "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    require_one_of(model, path, "dropout", {Json(), 0.0});
    require_one_of(model, path, "continuing_subword_prefix", {Json(), ""});
    require_one_of(model, path, "end_of_word_suffix", {Json(), ""});
    require_one_of(model, path, "byte_fallback", {Json(), false});
    // What is unknown cannot occur, as every byte has a token (below).
    require_one_of(model, path, "fuse_unk", {Json(), false, true});
    if (!member(model, "unk_token").is_null()) {
      static_cast<void>(text(model, path, "unk_token"));
    }
    facts_.takes_whole_words = flag(model, path, "ignore_merges", false);
    read_vocabulary(required(model, path, "vocab"), path + ".vocab");
    read_merges(required(model, path, "merges"), path + ".merges");
  }

  void set_token(std::uint32_t id, std::string bytes) {
    if (id >= facts_.tokens.size()) {
      facts_.tokens.resize(id + 1);
      is_taken_.resize(id + 1);
    }
    facts_.tokens[id] = std::move(bytes);
    is_taken_[id] = true;
  }
  [[nodiscard]] bool is_taken(std::uint32_t id) const {
    return id < is_taken_.size() && is_taken_[id];
  }

  void read_vocabulary(const Json& vocab, const std::string& path) {
    if (!vocab.is_object()) {
      refuse(path, vocab, "an object of tokens and their ids is needed");
    }
    for (const auto& [token, value] : vocab.items()) {
      const std::string where = fmt::format("{}[{}]", path, shown_json(Json(token)));
      const std::uint32_t id_of_token = id_at(value, where);
      if (is_taken(id_of_token)) {
        refuse(where, value, "another token has this id too");
      }
      std::optional<std::string> bytes = bytes_of_token(token);
      if (bytes && !bytes->empty()) {
        facts_.words.emplace(*bytes, id_of_token);
      }
      set_token(id_of_token, std::move(bytes).value_or(token));
      vocabulary_.emplace(token, id_of_token);
    }
    if (const std::string missing = missing_bytes(facts_.words); !missing.empty()) {
      throw FormatError(fmt::format("{}: {} has no token for the bytes {}: it is not a byte-level "
                                    "vocabulary",
                                    source_, path, missing),
                        TESSERA_HERE);
    }
  }

  void read_merges(const Json& merges, const std::string& path) {
    if (!merges.is_array()) {
      refuse(path, merges, "an array of pairs is needed");
    }
    for (std::size_t i = 0; i < merges.size(); ++i) {
      const auto [left, right] = pair_of(merges[i], fmt::format("{}[{}]", path, i));
      const auto id_of = [&](const std::string& token) {
        const auto found = vocabulary_.find(token);
        if (found == vocabulary_.end()) {
          refuse(fmt::format("{}[{}]", path, i), merges[i],
                 fmt::format("{} is not in the vocabulary", shown_json(Json(token))));
        }
        return found->second;
      };
      facts_.pairs.push_back({.left = id_of(left),
                              .right = id_of(right),
                              .merged = id_of(left + right),
                              .rank = static_cast<std::uint32_t>(i)});
    }
  }

  // "a b" or ["a", "b"].
  std::pair<std::string, std::string> pair_of(const Json& json, const std::string& path) const {
    if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string()) {
      return {json[0].get<std::string>(), json[1].get<std::string>()};
    }
    if (json.is_string()) {
      const auto& both = json.get_ref<const std::string&>();
      const std::size_t blank = both.find(' ');
      if (blank != std::string::npos && both.find(' ', blank + 1) == std::string::npos) {
        return {both.substr(0, blank), both.substr(blank + 1)};
      }
    }
    refuse(path, json, R"(a pair is "left right" or ["left", "right"])");
  }

  void read_added(const Json& added, const std::string& path) {
    if (added.is_null()) {
      return;
    }
    if (!added.is_array()) {
      refuse(path, added, "an array is needed");
    }
    for (std::size_t i = 0; i < added.size(); ++i) {
      read_added_token(added[i], fmt::format("{}[{}]", path, i));
    }
  }

  void read_added_token(const Json& json, const std::string& path) {
    require_members(json, path,
                    {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token{.content = text(json, path, "content"),
                     .id = id_at(required(json, path, "id"), path + ".id"),
                     .single_word = flag(json, path, "single_word", false),
                     .lstrip = flag(json, path, "lstrip", false),
                     .rstrip = flag(json, path, "rstrip", false),
                     .normalized = flag(json, path, "normalized", true),
                     .special = flag(json, path, "special", false)};
    if (token.content.empty() || token.content.size() > kMostAddedBytes) {
      refuse(path + ".content", json.at("content"),
             fmt::format("1 to {} bytes are needed", kMostAddedBytes));
    }
    if (find_added(token.content) != nullptr) {
      refuse(path + ".content", json.at("content"), "it is listed twice");
    }
    // tokenizers gives an added token its id of the vocabulary, else the next one that is free,
    // whatever the file says.
    const auto known = vocabulary_.find(token.content);
    const std::uint32_t expected = known != vocabulary_.end() ? known->second : next_added_id();
    if (token.id != expected) {
      refuse(
          path + ".id", json.at("id"),
          fmt::format("tokenizers gives {} the id {}", shown_json(Json(token.content)), expected));
    }
    highest_added_ = std::max<Index>(highest_added_, token.id);
    set_token(token.id, token.content);
    added_places_.emplace(token.content, facts_.added.size());
    facts_.added.push_back(std::move(token));
  }

  [[nodiscard]] std::uint32_t next_added_id() const {
    return static_cast<std::uint32_t>(
        std::max(highest_added_ + 1, static_cast<Index>(vocabulary_.size())));
  }
  [[nodiscard]] const AddedToken* find_added(std::string_view content) const {
    const auto place = added_places_.find(std::string(content));
    return place == added_places_.end() ? nullptr : &facts_.added[place->second];
  }

  void read_normalizer(const Json& json, const std::string& path, int depth) {
    if (json.is_null()) {
      return;
    }
    const std::string type = type_of(json, path);
    if (type == "NFC") {
      require_members(json, path, {"type"});
      facts_.nfc = NfcTables::unicode9;
    } else if (type == "Sequence") {
      read_sequence(json, path, "normalizers", depth,
                    [&](const Json& part, const std::string& where) {
                      read_normalizer(part, where, depth + 1);
                    });
    } else {
      refuse(path, json, "NFC and Sequence are supported");
    }
  }

  void read_pre_tokenizer(const Json& json, const std::string& path, int depth) {
    if (json.is_null()) {
      return;
    }
    const std::string type = type_of(json, path);
    if (has_byte_level_) {
      refuse(path, json, "nothing can follow ByteLevel, which has left bytes of the text");
    }
    if (type == "Sequence") {
      read_sequence(json, path, "pretokenizers", depth,
                    [&](const Json& part, const std::string& where) {
                      read_pre_tokenizer(part, where, depth + 1);
                    });
    } else if (type == "Split") {
      read_split(json, path);
    } else if (type == "Digits") {
      require_members(json, path, {"type", "individual_digits"});
      add_split(flag(json, path, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)", path,
                json);
    } else if (type == "ByteLevel") {
      require_members(json, path, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
      has_byte_level_ = true;
      if (flag(json, path, "add_prefix_space", true)) {
        facts_.steps.push_back({SplitStep::Action::begin_with_space, std::nullopt});
      }
      if (flag(json, path, "use_regex", true)) {
        add_split(kGpt2Pattern, path, json);
      }
    } else {
      refuse(path, json, "Split, Digits, ByteLevel and Sequence are supported");
    }
  }

  void add_split(std::string_view pattern, const std::string& path, const Json& json) {
    patterns_.emplace_back(pattern);
    add_step(SplitStep::Action::isolate, path, json, [&] { return pcre2_from_oniguruma(pattern); });
  }

  template <typename Pattern>
  void add_step(SplitStep::Action action, const std::string& path, const Json& json,
                const Pattern& pattern) {
    try {
      facts_.steps.push_back({action, SplitPattern(pattern())});
    } catch (const FormatError& error) {
      refuse(path, json, fmt::format("its pattern is not supported: {}", error.message()));
    }
  }

  void read_split(const Json& json, const std::string& path) {
    require_members(json, path, {"type", "pattern", "behavior", "invert"});
    const Json& pattern = required(json, path, "pattern");
    const std::string pattern_path = path + ".pattern";
    require_members(pattern, pattern_path, {"Regex", "String"});
    if (pattern.size() != 1) {
      refuse(pattern_path, pattern, "either Regex or String is needed");
    }
    const bool is_regex = pattern.contains("Regex");
    const std::string expression = text(pattern, pattern_path, is_regex ? "Regex" : "String");
    if (expression.empty()) {
      refuse(pattern_path, pattern, "it is empty");
    }
    const std::string behavior = text(json, path, "behavior");
    const bool is_inverted = flag(json, path, "invert", false);
    SplitStep::Action action = SplitStep::Action::isolate;
    if (behavior == "Removed" && is_inverted) {
      action = SplitStep::Action::keep_matches;
    } else if (behavior != "Isolated") {
      refuse(path, json, "Isolated is supported, and Removed with invert");
    }
    patterns_.push_back(action == SplitStep::Action::isolate && is_regex ? expression
                                                                         : std::string());
    add_step(action, pattern_path, pattern, [&] {
      return is_regex ? pcre2_from_oniguruma(expression) : pcre2_of_literal(expression);
    });
  }

  // Of what is added to a text, tokens before it are used, and one behind it as the end token.
  void read_post_processor(const Json& json, const std::string& path, int depth) {
    if (json.is_null()) {
      return;
    }
    const std::string type = type_of(json, path);
    if (type == "ByteLevel") {  // changes offsets alone
      require_members(json, path, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    } else if (type == "TemplateProcessing") {
      read_template(json, path);
    } else if (type == "Sequence") {
      read_sequence(json, path, "processors", depth,
                    [&](const Json& part, const std::string& where) {
                      read_post_processor(part, where, depth + 1);
                    });
    } else {
      refuse(path, json, "ByteLevel, TemplateProcessing and Sequence are supported");
    }
  }

  void read_template(const Json& json, const std::string& path) {
    require_members(json, path, {"type", "single", "pair", "special_tokens"});
    const Json& single = required(json, path, "single");
    const std::string single_path = path + ".single";
    if (!single.is_array()) {
      refuse(single_path, single, "an array is needed");
    }
    bool is_behind = false;
    for (std::size_t i = 0; i < single.size(); ++i) {
      const std::string where = fmt::format("{}[{}]", single_path, i);
      const Json& piece = single[i];
      require_members(piece, where, {"SpecialToken", "Sequence"});
      if (piece.contains("Sequence")) {
        if (is_behind) {
          refuse(where, piece, "the text stands in the template twice");
        }
        is_behind = true;
        continue;
      }
      const Json& special = required(piece, where, "SpecialToken");
      require_members(special, where + ".SpecialToken", {"id", "type_id"});
      add_template_token(text(special, where + ".SpecialToken", "id"), is_behind, json, path);
    }
    if (!is_behind) {
      refuse(single_path, single, "the text does not stand in the template");
    }
  }

  void add_template_token(const std::string& name, bool is_behind, const Json& json,
                          const std::string& path) {
    const std::string where = fmt::format("{}.special_tokens[{}]", path, shown_json(Json(name)));
    const Json& all = required(json, path, "special_tokens");
    const Json& entry = all.is_object() ? member(all, name.c_str()) : all;
    require_members(entry, where, {"id", "ids", "tokens"});
    const Json& ids = required(entry, where, "ids");
    if (!ids.is_array() || ids.empty() || (is_behind && (ids.size() != 1 || template_end_))) {
      refuse(where + ".ids", ids, "an array of ids is needed, and of one behind the text");
    }
    for (const Json& value : ids) {
      const std::uint32_t token = id_at(value, where + ".ids");
      if (!is_taken(token)) {
        refuse(where + ".ids", ids, "no token has this id");
      }
      if (is_behind) {
        template_end_ = token;
      } else {
        facts_.begin_tokens.push_back(token);
      }
    }
  }

  void read_decoder(const Json& json, const std::string& path, int depth) const {
    if (json.is_null()) {
      return;
    }
    const std::string type = type_of(json, path);
    if (type == "ByteLevel") {
      require_members(json, path, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    } else if (type == "Sequence") {
      read_sequence(json, path, "decoders", depth, [&](const Json& part, const std::string& where) {
        read_decoder(part, where, depth + 1);
      });
    } else {
      refuse(path, json, "ByteLevel and Sequence are supported");
    }
  }

  // transformers changes the tokenizer by these fields of tokenizer_config.json.
  void check_config() const {
    for (const TokenizerFile& file : files_.companions) {
      if (file.name != "tokenizer_config.json") {
        continue;
      }
      const std::string where = fmt::format("{} beside {}", file.name, source_);
      const Json json = parse_json(file.content, where);
      const Json& tokens = json.is_object() ? member(json, "added_tokens_decoder") : json;
      if (!tokens.is_object()) {
        continue;
      }
      for (const auto& [key, token] : tokens.items()) {
        const Json& content = token.is_object() ? member(token, "content") : token;
        const AddedToken* const known =
            content.is_string() ? find_added(content.get_ref<const std::string&>()) : nullptr;
        if (known == nullptr || std::to_string(known->id) != key) {
          throw FormatError(fmt::format("{}: added_tokens_decoder has {} as {}, which {} does not "
                                        "have: they belong to different tokenizers",
                                        where, shown_json(content), shown_text(key), source_),
                            TESSERA_HERE);
        }
      }
    }
  }

  void read_ends() {
    const auto id_of = [this](std::string_view content) -> std::optional<Index> {
      if (const AddedToken* const token = find_added(content)) {
        return token->id;
      }
      const auto known = vocabulary_.find(std::string(content));
      return known == vocabulary_.end() ? std::nullopt : std::make_optional<Index>(known->second);
    };
    EndTokens ends = find_end_tokens(files_, id_of, std::ssize(facts_.tokens), source_);
    facts_.end_token = template_end_ ? static_cast<Index>(*template_end_) : ends.document;
    facts_.stop_tokens = std::move(ends.stop);
    if (facts_.end_token >= 0 && std::find(facts_.stop_tokens.begin(), facts_.stop_tokens.end(),
                                           facts_.end_token) == facts_.stop_tokens.end()) {
      facts_.stop_tokens.push_back(facts_.end_token);
    }
    if (ends.begin && facts_.begin_tokens.empty()) {
      facts_.begin_tokens.push_back(static_cast<std::uint32_t>(*ends.begin));
    }
  }

  // No added token takes a space beside a letter, and the patterns are known to separate there.
  [[nodiscard]] bool may_cut() const {
    const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
    const bool added_may =
        std::all_of(facts_.added.begin(), facts_.added.end(), [&](const AddedToken& token) {
          return token.content.find(' ') == std::string::npos &&
                 !(token.lstrip && is_letter(token.content.front())) &&
                 !(token.rstrip && is_letter(token.content.back()));
        });
    const std::vector<std::string_view> patterns(patterns_.begin(), patterns_.end());
    return added_may && splits_before_spaces(patterns);
  }

  const TokenizerFiles& files_;
  std::string_view source_;
  ByteLevelFacts facts_;
  std::vector<bool> is_taken_;
  std::unordered_map<std::string, std::uint32_t> vocabulary_;  // as the file writes tokens
  std::unordered_map<std::string, std::size_t> added_places_;  // in facts_.added
  Index highest_added_ = -1;
  std::vector<std::string> patterns_;  // of the steps; empty: not an isolated expression
  std::optional<std::uint32_t> template_end_;
  bool has_byte_level_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> make_json_tokenizer(const TokenizerFiles& files,
                                               std::string_view source) {
  return std::make_unique<ByteLevelTokenizer>(Reader(files, source).read());
}

}  // namespace tessera
