#include "runtime/checkpoint/evaluations.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include <nlohmann/json.hpp>

#include "model/json_text.h"

namespace tessera {

std::string evaluations_text(std::span<const SavedEvaluation> evaluations) {
  nlohmann::json json = nlohmann::json::object();
  for (const SavedEvaluation& evaluation : evaluations) {
    json[evaluation.name] = {{"loss", evaluation.loss}, {"over", evaluation.over}};
  }
  return json.empty() ? std::string() : json_text(json);
}

std::vector<SavedEvaluation> parse_evaluations(const std::string& text) {
  std::vector<SavedEvaluation> evaluations;
  const nlohmann::json json = parse_json_line(text);
  if (!json.is_object()) {
    return evaluations;
  }
  for (const auto& [name, value] : json.items()) {
    if (value.is_object() && value.contains("loss") && value["loss"].is_number() &&
        value.contains("over") && value["over"].is_string()) {
      evaluations.push_back({name, value["loss"].get<double>(), value["over"].get<std::string>()});
    }
  }
  return evaluations;
}

std::vector<EvaluatedStep> by_loss(std::vector<EvaluatedStep> steps) {
  if (steps.empty()) {
    return steps;
  }
  const std::string newest =
      std::max_element(steps.begin(), steps.end(), [](const auto& a, const auto& b) {
        return a.step < b.step;
      })->evaluation.over;
  std::erase_if(steps, [&](const EvaluatedStep& each) {
    return each.evaluation.over != newest || !std::isfinite(each.evaluation.loss);
  });
  std::sort(steps.begin(), steps.end(), [](const EvaluatedStep& a, const EvaluatedStep& b) {
    return std::tie(a.evaluation.loss, a.step) < std::tie(b.evaluation.loss, b.step);
  });
  return steps;
}

}  // namespace tessera
