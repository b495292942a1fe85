#include "model/tokenizer/chat/chat_templates.h"

#include <fmt/format.h>

#include "model/tokenizer/chat/tool_texts.h"

namespace tessera {
namespace {

constexpr std::string_view kAnswerOfIm = R"(
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %})";
constexpr std::string_view kImTurn =
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}";

// Of Qwen's three: tools_text(), calls(message, behind_text, takes_text_as_json), and
// tool_answer(messages, i), which makes one turn of answers that stand beside each other.
std::string qwen_macros() {
  return fmt::format(
             R"({{%- macro tools_text() %}}
{{{{- {} }}}}
{{%- for tool in tools %}}{{{{- '\n' + tool | tojson }}}}{{%- endfor %}}
{{{{- {} }}}}
{{%- endmacro %}})",
             jinja_literal(fmt::format("{}<tools>", kQwenToolsBefore)),
             jinja_literal(fmt::format("\n</tools>{}<tool_call></tool_call> XML tags:\n<tool_call>"
                                       "{}</tool_call>",
                                       kQwenToolsBehind, kQwenToolsExample))) +
         R"(
{%- macro calls(message, behind_text, takes_text_as_json) %}
{%- for call in message.tool_calls %}
{%- set f = call.function if call.function else call %}
{%- if behind_text or not loop.first %}{{- '\n' }}{%- endif %}
{{- '<tool_call>\n{"name": "' + f.name + '", "arguments": ' }}
{%- if takes_text_as_json and f.arguments is string %}{{- f.arguments }}{%- else %}{{- f.arguments | tojson }}{%- endif %}
{{- '}\n</tool_call>' }}
{%- endfor %}
{%- endmacro %}
{%- macro tool_answer(messages, i) %}
{%- if i == 0 or messages[i - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + (messages[i].content or '') + '\n</tool_response>' }}
{%- if i + 1 == messages | length or messages[i + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
{%- endmacro %})";
}

constexpr std::string_view kQwen3System = R"(
{%- set system = messages[0].content if messages[0].role == 'system' else none %}
{%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if system is not none %}{{- system + '\n\n' }}{%- endif %}
{{- tools_text() + '<|im_end|>\n' }}
{%- elif system is not none %}
{{- '<|im_start|>system\n' + system + '<|im_end|>\n' }}
{%- endif %})";

// `before`: of the loop over turns; `answer`: what is written of an assistant's.
std::string qwen_turns(std::string_view answer) {
  return fmt::format(R"(
{{%- for message in messages %}}
{{%- if message.role == 'tool' %}}{{{{- tool_answer(messages, loop.index0) }}}}
{{%- elif message.role == 'assistant' %}}{}
{{%- elif message.role == 'user' or not loop.first %}}{}
{{%- endif %}}
{{%- endfor %}})",
                     answer, kImTurn);
}

constexpr std::string_view kLlamaHeader =
    "{%- macro header(role) %}{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}"
    "{%- endmacro %}";
constexpr std::string_view kLlamaTurn =
    "{{- header(message.role) + message.content | trim + '<|eot_id|>' }}";
constexpr std::string_view kLlamaAnswer =
    "\n{%- if add_generation_prompt %}{{- header('assistant') }}{%- endif %}";

}  // namespace

std::string jinja_literal(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    switch (c) {
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\'':
      case '\\':
        out += '\\';
        [[fallthrough]];
      default:
        out += c;
    }
  }
  return out + "'";
}

std::string chatml_template() {
  return fmt::format("{{%- for message in messages %}}{}{{%- endfor %}}{}\n", kImTurn, kAnswerOfIm);
}

std::string qwen25_template() {
  const std::string system = fmt::format(
      R"(
{{{{- '<|im_start|>system\n' + (messages[0].content if messages[0].role == 'system' else {}) }}}}
{{%- if tools %}}{{{{- '\n\n' + tools_text() }}}}{{%- endif %}}
{{{{- '<|im_end|>\n' }}}})",
      jinja_literal(kQwen25System));
  return qwen_macros() + system + qwen_turns(R"(
{{- '<|im_start|>assistant\n' + (message.content or '') + calls(message, message.content, false) + '<|im_end|>\n' }})") +
         std::string(kAnswerOfIm) + "\n";
}

std::string qwen3_instruct_template() {
  return qwen_macros() + std::string(kQwen3System) + qwen_turns(R"(
{{- '<|im_start|>assistant\n' + (message.content or '') + calls(message, message.content, true) + '<|im_end|>\n' }})") +
         std::string(kAnswerOfIm) + "\n";
}

std::string qwen3_template() {
  // Reasoning is written behind the last turn of the user that is not an answer of a tool.
  constexpr std::string_view kLastQuery = R"(
{%- set last = namespace(query=messages | length - 1, is_found=false) %}
{%- for message in messages[::-1] %}
{%- if not last.is_found and message.role == 'user' and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
{%- set last.is_found = true %}
{%- set last.query = messages | length - 1 - loop.index0 %}
{%- endif %}
{%- endfor %})";
  constexpr std::string_view kThinking = R"(
{%- if add_generation_prompt and enable_thinking is defined and not enable_thinking %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
)";
  return qwen_macros() + std::string(kQwen3System) + std::string(kLastQuery) + qwen_turns(R"(
{%- set content = message.content or '' %}
{%- set thinking = '' %}
{%- if message.reasoning_content is string %}
{%- set thinking = message.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thinking = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > last.query and (loop.last or thinking) %}
{{- '<think>\n' + thinking.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
{%- else %}{{- content }}
{%- endif %}
{{- calls(message, content, true) + '<|im_end|>\n' }})") +
         std::string(kAnswerOfIm) + std::string(kThinking);
}

std::string llama3_template() {
  return fmt::format(
      "{}\n{{{{- '<|begin_of_text|>' }}}}\n{{%- for message in messages %}}{}{{%- endfor %}}{}\n",
      kLlamaHeader, kLlamaTurn, kLlamaAnswer);
}

std::string llama31_template() {
  return fmt::format(
      R"({}
{{%- set has_system = messages[0].role == 'system' %}}
{{%- set turns = messages[1:] if has_system else messages %}}
{{{{- '<|begin_of_text|>' + header('system') }}}}
{{%- if tools %}}{{{{- {} }}}}{{%- endif %}}
{{{{- {} }}}}
{{%- if has_system %}}{{{{- messages[0].content | trim }}}}{{%- endif %}}
{{{{- '<|eot_id|>' }}}}
{{%- if tools %}}
{{{{- header('user') + {} }}}}
{{%- for tool in tools %}}{{{{- tool | tojson(indent=4) + '\n\n' }}}}{{%- endfor %}}
{{{{- turns[0].content | trim + '<|eot_id|>' }}}}
{{%- set turns = turns[1:] %}}
{{%- endif %}}
{{%- for message in turns %}}
{{%- if message.role == 'tool' %}}{{{{- header('ipython') + message.content | tojson + '<|eot_id|>' }}}}
{{%- elif 'tool_calls' in message %}}
{{%- set call = message.tool_calls[0] %}}
{{%- set f = call.function if call.function else call %}}
{{{{- header('assistant') + '{{"name": "' + f.name + '", "parameters": ' + f.arguments | tojson + '}}<|eot_id|>' }}}}
{{%- else %}}{}
{{%- endif %}}
{{%- endfor %}}{}
)",
      kLlamaHeader, jinja_literal(kLlamaToolsSystem), jinja_literal(kLlamaDates),
      jinja_literal(kLlamaToolsBefore), kLlamaTurn, kLlamaAnswer);
}

std::string mistral_template() {
  return R"({{- '<s>' }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{- '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
{%- elif message.role == 'user' %}{{- '[INST]' + message.content + '[/INST]' }}
{%- else %}{{- message.content.rstrip(' ') + '</s>' }}
{%- endif %}
{%- endfor %}
)";
}

}  // namespace tessera
