// What templates tell a model of its tools, word by word.
#pragma once

#include <string_view>

namespace tessera {

// Qwen's, around the list of tools and around <tool_call></tool_call>.
inline constexpr std::string_view kQwenToolsBefore =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
    "provided with function signatures within <tools></tools> XML tags:\n";
inline constexpr std::string_view kQwenToolsBehind =
    "\n\nFor each function call, return a json object with function name and arguments within ";
inline constexpr std::string_view kQwenToolsExample =
    "\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n";
inline constexpr std::string_view kQwen25System =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

// Llama 3.1's.
inline constexpr std::string_view kLlamaToolsSystem = "Environment: ipython\n";
inline constexpr std::string_view kLlamaDates =
    "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
inline constexpr std::string_view kLlamaToolsBefore =
    "Given the following functions, please respond with a JSON for a function call with its "
    "proper arguments that best answers the given prompt.\n\nRespond in the format {\"name\": "
    "function name, \"parameters\": dictionary of argument name and its value}.Do not use "
    "variables.\n\n";

}  // namespace tessera
