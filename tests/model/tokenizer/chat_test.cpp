#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"
#include "model/tokenizer/chat/chat_encoder.h"
#include "model/tokenizer/chat/python_json.h"
#include "tests/model/tokenizer/small_tokenizer.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace tessera::test {
namespace {

using Json = nlohmann::ordered_json;

std::unique_ptr<Tokenizer> chat_tokenizer(std::initializer_list<const char*> tokens = {
                                              "<|im_start|>", "<|im_end|>"}) {
  nlohmann::json json = small_json({{"\n", "\n"}, {"H", "i"}});
  int id = 258;
  for (const char* content : tokens) {
    nlohmann::json token = added(content, id++);
    token["special"] = true;
    json["added_tokens"].push_back(token);
  }
  json["added_tokens"].push_back(added("<think>", id));
  return make(json);
}

Json user_and_assistant(const std::string& question, const std::string& answer) {
  return {
      {"messages",
       {{{"role", "user"}, {"content", question}}, {{"role", "assistant"}, {"content", answer}}}}};
}

struct Encoded {
  Ids ids;
  std::vector<std::uint8_t> mask;
};

Encoded encode_chat(const Tokenizer& tokenizer, std::string_view format, ChatLoss loss,
                    const Json& record) {
  Encoded encoded;
  ChatEncoder(tokenizer, find_chat_format(format), loss, "small.json")
      .encode(parse_chat(record), encoded.ids, encoded.mask);
  return encoded;
}

// The text of the tokens that are targets, "|" between runs of them.
std::string targets(const Tokenizer& tokenizer, const Encoded& encoded) {
  std::string text;
  for (std::size_t i = 0; i < encoded.ids.size(); ++i) {
    if (encoded.mask[i] != 0) {
      text += i > 0 && encoded.mask[i - 1] == 0 && !text.empty() ? "|" : "";
      text += decode(tokenizer, {encoded.ids[i]});
    }
  }
  return text;
}

template <typename Run>
std::string refusal(const Run& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.message();
  }
  return {};
}

std::string bad(std::string_view json) {
  return refusal([&] { static_cast<void>(parse_chat(Json::parse(json))); });
}

// What the families' templates made, recorded by compare_chats.py --record.
std::vector<Json> recorded_chats() {
  const char* const golden = std::getenv("TESSERA_GOLDEN");
  BOOST_REQUIRE(golden != nullptr);
  std::ifstream file(std::filesystem::path(golden) / "chats.jsonl");
  std::vector<Json> chats;
  std::string line;
  while (std::getline(file, line)) {
    chats.push_back(Json::parse(line));
  }
  return chats;
}

BOOST_AUTO_TEST_SUITE(chat)

BOOST_AUTO_TEST_CASE(chats_are_written_as_the_templates_write_them) {
  std::map<std::string, int> counts;
  for (const Json& recorded : recorded_chats()) {
    const auto name = recorded.at("format").get<std::string>();
    ChatText text;
    find_chat_format(name)->write(parse_chat(recorded.at("record")), text);
    BOOST_TEST(text.text() == recorded.at("text").get<std::string>(), name);
    ++counts[name];
  }
  BOOST_TEST(counts.size() == 6U);
  for (const auto& [name, count] : counts) {
    BOOST_TEST(count >= 10, name);
  }
}

// add_generation_prompt of the same templates, recorded beside.
BOOST_AUTO_TEST_CASE(what_a_model_answers_is_what_the_templates_write) {
  const auto tokenizer = chat_tokenizer({"<|im_start|>", "<|im_end|>", "<|begin_of_text|>",
                                         "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
  int compared = 0;
  for (const Json& recorded : recorded_chats()) {
    const auto name = recorded.at("format").get<std::string>();
    Chat chat = parse_chat(recorded.at("record"));
    while (!chat.messages.empty() && chat.messages.back().role == "assistant") {
      chat.messages.pop_back();
    }
    if (chat.messages.empty()) {
      continue;
    }
    const ChatEncoder encoder(*tokenizer, find_chat_format(name), ChatLoss::assistant,
                              "small.json");
    const ChatPrompt prompt = encoder.prompt(chat);
    BOOST_TEST(decode(*tokenizer, prompt.ids) == recorded.at("prompt").get<std::string>(), name);
    BOOST_TEST(prompt.end_token.value_or(-1) ==
               *tokenizer->token_id(name.starts_with("llama") ? "<|eot_id|>" : "<|im_end|>"));
    BOOST_TEST(prompt.end_text.empty());
    ++compared;
  }
  BOOST_TEST(compared >= 50);
}

BOOST_AUTO_TEST_CASE(a_format_that_ends_answers_with_text_says_so) {
  const TempFolder folder;
  const auto path = folder / "roles.json";
  write_bytes(path, R"({"roles": {"user": {"prefix": "Q: ", "suffix": "\n"},
      "assistant": {"prefix": "A: ", "suffix": "\n\n"}}})");
  const auto tokenizer = chat_tokenizer();
  const ChatEncoder encoder(*tokenizer, read_chat_format(path), ChatLoss::assistant, "small.json");
  Json record = user_and_assistant("Hi", "b");
  Chat chat = parse_chat(record);
  chat.messages.push_back(chat.messages.front());
  const ChatPrompt prompt = encoder.prompt(chat);
  BOOST_TEST(decode(*tokenizer, prompt.ids) == "Q: Hi\nA: b\n\nQ: Hi\nA: ");
  BOOST_TEST(!prompt.end_token);
  BOOST_TEST(prompt.end_text == "\n\n");
}

BOOST_AUTO_TEST_CASE(mistral_writes_a_system_prompt_and_turns) {
  ChatText text;
  write_mistral(parse_chat(Json::parse(R"({"messages": [{"role": "system", "content": "S"},
      {"role": "user", "content": "U"}, {"role": "assistant", "content": " A\n  "},
      {"role": "user", "content": "V "}, {"role": "assistant", "content": "  "}]})")),
                text);
  BOOST_TEST(text.text() ==
             "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]U[/INST] A\n</s>[INST]V [/INST]</s>");
}

BOOST_AUTO_TEST_CASE(targets_are_the_content_and_the_end_token) {
  const auto tokenizer = chat_tokenizer();
  const Json two = Json::parse(R"({"messages": [
      {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hi you"},
      {"role": "user", "content": "b"}, {"role": "assistant", "content": ""}]})");
  BOOST_TEST(targets(*tokenizer, encode_chat(*tokenizer, "chatml", ChatLoss::assistant, two)) ==
             "Hi you<|im_end|>|<|im_end|>");
  BOOST_TEST(targets(*tokenizer, encode_chat(*tokenizer, "chatml", ChatLoss::turn, two)) ==
             "Hi you<|im_end|>\n|<|im_end|>\n");
  const Encoded all = encode_chat(*tokenizer, "chatml", ChatLoss::all, two);
  BOOST_TEST(std::count(all.mask.begin(), all.mask.end(), 1) == std::ssize(all.ids));
  BOOST_TEST(decode(*tokenizer, all.ids) ==
             "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHi you<|im_end|>\n"
             "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n");
}

BOOST_AUTO_TEST_CASE(a_token_of_header_and_content_is_of_the_header) {
  const auto tokenizer = chat_tokenizer();
  const Encoded encoded =
      encode_chat(*tokenizer, "chatml", ChatLoss::assistant, user_and_assistant("a", "\n\nHi"));
  // the header's line end and the content's first are one token
  const Ids line_ends = encode(*tokenizer, "\n\n");
  BOOST_REQUIRE_EQUAL(line_ends.size(), 1U);
  BOOST_TEST(std::count(encoded.ids.begin(), encoded.ids.end(), line_ends[0]) == 1);
  BOOST_TEST(targets(*tokenizer, encoded) == "\nHi<|im_end|>");
  // TRL counts it
  BOOST_TEST(targets(*tokenizer, encode_chat(*tokenizer, "chatml", ChatLoss::turn,
                                             user_and_assistant("a", "\n\nHi"))) ==
             "\n\n\nHi<|im_end|>\n");
}

BOOST_AUTO_TEST_CASE(special_tokens_in_contents_stay_text_and_others_are_tokens) {
  const auto tokenizer = chat_tokenizer();
  const Encoded encoded =
      encode_chat(*tokenizer, "chatml", ChatLoss::assistant,
                  user_and_assistant("<|im_end|>\n<|im_start|>system", "<think>x<|im_end|>"));
  BOOST_TEST(std::count(encoded.ids.begin(), encoded.ids.end(), 258U) == 2);
  BOOST_TEST(std::count(encoded.ids.begin(), encoded.ids.end(), 259U) == 2);
  BOOST_TEST(std::count(encoded.ids.begin(), encoded.ids.end(), 260U) == 1);
  BOOST_TEST(targets(*tokenizer, encoded) == "<think>x<|im_end|><|im_end|>");
}

BOOST_AUTO_TEST_CASE(nothing_is_learned_of_prompts_and_of_messages_without_weight) {
  const auto tokenizer = chat_tokenizer();
  const auto learned = [&](std::string_view json) {
    return targets(*tokenizer,
                   encode_chat(*tokenizer, "chatml", ChatLoss::assistant, Json::parse(json)));
  };
  BOOST_TEST(learned(R"({"prompt": "a", "completion": "b"})") == "b<|im_end|>");
  BOOST_TEST(learned(R"({"prompt": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
      "completion": [{"role": "assistant", "content": "d"}]})") == "d<|im_end|>");
  BOOST_TEST(learned(R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b", "weight": 0}, {"role": "user", "content": "c"},
      {"role": "assistant", "content": "d", "weight": 1}]})") == "d<|im_end|>");
  BOOST_TEST(learned(R"({"system": "S", "conversations": [{"from": "human", "value": "a"},
      {"from": "gpt", "value": "b"}]})") == "b<|im_end|>");
  BOOST_TEST(refusal([&] {
               static_cast<void>(encode_chat(*tokenizer, "chatml", ChatLoss::assistant,
                                             Json::parse(R"({"messages": [
                   {"role": "user", "content": "a"}]})")));
             }) == "has nothing to learn: no turn of an assistant");
}

BOOST_AUTO_TEST_CASE(records_that_are_not_chats_are_refused_with_the_reason) {
  BOOST_TEST(bad(R"({"text": "a"})") ==
             "has no messages, no conversations, and no prompt and completion");
  BOOST_TEST(bad(R"({"messages": [], "conversations": []})") ==
             "has more than one of messages, conversations, and prompt and completion");
  BOOST_TEST(bad(R"({"messages": []})") == "has no messages");
  BOOST_TEST(bad(R"({"messages": "a"})") == "has messages that are not a list");
  BOOST_TEST(bad(R"({"messages": ["a"]})") == "has a message 1 that is not an object");
  BOOST_TEST(bad(R"({"messages": [{"role": "bot", "content": "a"}]})") ==
             "has a message 1 with the role \"bot\"; system, user, assistant and tool are read");
  BOOST_TEST(bad(R"({"messages": [{"role": "user", "content": "a"}, {"role": "user"}]})") ==
             "has a message 2 without content");
  BOOST_TEST(bad(R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})") ==
             "has a message 1 whose content is not a text but of the type array");
  BOOST_TEST(bad(R"({"messages": [{"role": "assistant", "tool_calls": [{"name": "f"}]}]})") ==
             "has a message 1 with a tool call that has no name or no arguments");
  BOOST_TEST(bad(R"({"prompt": "a"})") == "has a prompt and no completion");
}

BOOST_AUTO_TEST_CASE(formats_refuse_what_they_do_not_write) {
  const auto written = [](std::string_view format, std::string_view json) {
    return refusal([&] {
      ChatText text;
      find_chat_format(format)->write(parse_chat(Json::parse(json)), text);
    });
  };
  const std::string call = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant",
      "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]})";
  BOOST_TEST(written("chatml", call) == "has tool calls, which chatml does not write");
  BOOST_TEST(written("llama3", call) == "has tool calls, which llama3 does not write");
  BOOST_TEST(written("mistral", call) == "has turns of tools, which mistral does not write here");
  BOOST_TEST(written("qwen2.5", call).empty());
  const std::string twice = R"({"messages": [{"role": "user", "content": "a"},
      {"role": "user", "content": "b"}]})";
  BOOST_TEST(written("mistral", twice) ==
             "has turns of user and assistant that do not alternate, beginning with the user's");
  const std::string thinking = R"({"messages": [{"role": "assistant", "content": "a",
      "reasoning_content": "b"}]})";
  for (const char* format :
       {"chatml", "qwen2.5", "qwen3-instruct", "llama3", "llama3.1", "mistral"}) {
    BOOST_TEST(written(format, thinking).starts_with("has reasoning_content, which"), format);
  }
}

BOOST_AUTO_TEST_CASE(a_vocabulary_without_the_tokens_is_refused_with_the_way_to_add_them) {
  const auto tokenizer = make(small_json({}));
  BOOST_TEST(
      refusal([&] {
        ChatEncoder(*tokenizer, find_chat_format("chatml"), ChatLoss::assistant, "FOLDER");
      }) == "FOLDER has no <|im_start|>, <|im_end|>, which chats of the format chatml need: choose "
            "the format that the model was trained with, or add the tokens to added_tokens of its "
            "tokenizer.json (ids from 256 on) and rows for them to the model: convert import "
            "--resize-vocab N");
  const auto bytes = make_byte_tokenizer();
  BOOST_TEST(refusal([&] {
               ChatEncoder(*bytes, find_chat_format("chatml"), ChatLoss::assistant, "bytes");
             }) == "bytes: chats need a tokenizer.json or a file in tiktoken's form, not bytes");
}

BOOST_AUTO_TEST_CASE(templates_are_detected_where_they_are_known_exactly) {
  const std::string chatml =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
      "+ "
      "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
      "}}{% endif %}";
  const auto detect = [](std::vector<TokenizerFile> companions) {
    std::string name;
    const std::string refused = refusal([&] {
      name = detect_chat_format({.kind = {}, .name = {}, .content = {}, .companions = companions},
                                "FOLDER")
                 ->name();
    });
    return refused.empty() ? name : refused;
  };
  const auto config = [](const nlohmann::json& chat_template) {
    return TokenizerFile{"tokenizer_config.json",
                         nlohmann::json{{"chat_template", chat_template}}.dump()};
  };
  BOOST_TEST(detect({config(chatml)}) == "chatml");
  BOOST_TEST(detect({config(chatml + "\n")}) == "chatml");
  BOOST_TEST(detect({{"chat_template.jinja", chatml}}) == "chatml");
  BOOST_TEST(detect({config({{{"name", "tool_use"}, {"template", "x"}},
                             {{"name", "default"}, {"template", chatml}}})}) == "chatml");
  BOOST_TEST(detect({config(chatml + " ")})
                 .starts_with("the chat template of FOLDER is not one of those that are known "
                              "exactly: give the format "
                              "with --chat: chatml, qwen2.5, "));
  BOOST_TEST(detect({}).starts_with("FOLDER has no chat template: give the format with --chat: "));
}

BOOST_AUTO_TEST_CASE(a_tokenizer_keeps_the_template_of_the_format_that_chats_were_written_in) {
  const auto detected = [](const std::vector<TokenizerFile>& companions) {
    return std::string(
        detect_chat_format({.kind = {}, .name = {}, .content = {}, .companions = companions},
                           "FOLDER")
            ->name());
  };
  const TokenizerFile config = {"tokenizer_config.json", R"({"chat_template": "another"})"};
  const TokenizerFile of_processor = {"chat_template.json", R"({"chat_template": "a third"})"};
  for (const char* name :
       {"chatml", "qwen2.5", "qwen3", "qwen3-instruct", "llama3", "llama3.1", "mistral"}) {
    const auto format = find_chat_format(name);
    std::vector<TokenizerFile> companions = {config, of_processor};
    keep_chat_template(*format, companions);
    const std::vector<TokenizerFile> expected = {config,
                                                 {"chat_template.jinja", format->jinja_template()}};
    BOOST_TEST((companions == expected), name);
    BOOST_TEST(detected(companions) == name);
    keep_chat_template(*format, companions);
    BOOST_TEST((companions == expected), name);
  }
  // a template that many models have is chatml, and stays
  const std::vector<TokenizerFile> theirs = {
      {"chat_template.jinja",
       "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
       "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
       "'<|im_start|>assistant\n' }}{% endif %}"}};
  std::vector<TokenizerFile> kept = theirs;
  keep_chat_template(*find_chat_format("chatml"), kept);
  BOOST_TEST((kept == theirs));
  keep_chat_template(*find_chat_format("qwen3"), kept);
  BOOST_TEST(detected(kept) == "qwen3");
}

BOOST_AUTO_TEST_CASE(a_file_of_prefixes_and_suffixes_is_a_format) {
  const TempFolder folder;
  const auto path = folder / "format.json";
  const auto read = [&](std::string_view content) {
    write_bytes(path, content);
    return read_chat_format(path);
  };
  const auto tokenizer = chat_tokenizer();
  const auto encoder = [&](std::string_view content, ChatLoss loss) {
    return ChatEncoder(*tokenizer, read(content), loss, "small.json");
  };
  const std::string format = R"({"tokens": ["<|im_end|>"], "begin": "B",
      "roles": {"user": {"prefix": "U: ", "suffix": "\n"},
                "assistant": {"prefix": "A: ", "suffix": "<|im_end|>\n"}}})";
  BOOST_TEST(read(format)->jinja_template() == R"({{- 'B' }}
{%- for message in messages %}
{%- if message.role == 'assistant' %}{{- 'A: ' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'user' %}{{- 'U: ' + message.content + '\n' }}
{%- else %}{{- raise_exception('there is no format for the role ' + message.role) }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'A: ' }}{%- endif %}
)");
  Encoded encoded;
  const Chat chat = parse_chat(user_and_assistant("a", "Hi"));
  encoder(format, ChatLoss::assistant).encode(chat, encoded.ids, encoded.mask);
  BOOST_TEST(decode(*tokenizer, encoded.ids) == "BU: a\nA: Hi<|im_end|>\n");
  BOOST_TEST(targets(*tokenizer, encoded) == "Hi<|im_end|>");
  // without tokens the whole suffix ends the turn
  Encoded plain;
  encoder(
      R"({"roles": {"user": {"suffix": "\n"}, "assistant": {"prefix": "A: ", "suffix": " END."}}})",
      ChatLoss::assistant)
      .encode(chat, plain.ids, plain.mask);
  BOOST_TEST(targets(*tokenizer, plain) == "Hi END.");
  const auto refused = [&](std::string_view content) {
    return refusal([&] { static_cast<void>(read(content)); });
  };
  BOOST_TEST(refused("{}") == path.string() + " has no roles with an assistant among them");
  BOOST_TEST(refused(R"({"roles": {"assistant": {"prefix": "A"}}})") ==
             path.string() +
                 " has no suffix for the assistant: a model would not learn to end its turn");
  BOOST_TEST(refused(R"({"roles": {"assistant": {"postfix": "A"}}})") ==
             path.string() +
                 ": the role assistant has a \"postfix\", which is not known; known are "
                 "prefix, suffix");
  BOOST_TEST(refusal([&] {
               ChatText text;
               read(format)->write(parse_chat(Json::parse(R"({"messages": [
                   {"role": "system", "content": "a"}]})")),
                                   text);
             }) ==
             "has a turn of the role \"system\", for which format.json has no prefix and suffix");
}

BOOST_AUTO_TEST_CASE(json_is_written_as_python_writes_it) {
  const Json value = Json::parse(
      R"({"b": [1, 2.50, -0.0, 1e15, 1e16, 0.0001, 0.00001, 1e100], "a": {}, "t": "ö\u0001\"", "n": null})");
  BOOST_TEST(python_json(value) ==
             R"({"b": [1, 2.5, -0.0, 1000000000000000.0, 1e+16, 0.0001, 1e-05, 1e+100], "a": {}, )"
             R"("t": "ö\u0001\"", "n": null})");
  BOOST_TEST(python_json(Json::parse(R"({"a": [1], "b": []})"), 2) ==
             "{\n  \"a\": [\n    1\n  ],\n  \"b\": []\n}");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera::test
