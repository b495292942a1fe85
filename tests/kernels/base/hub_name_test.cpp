// Which paths are taken for names of the Hugging Face hub.
#include "kernels/base/hub_name.h"

#include <boost/test/unit_test.hpp>

namespace tessera {
namespace {

BOOST_AUTO_TEST_SUITE(hub_name)

BOOST_AUTO_TEST_CASE(the_command_that_downloads_is_given) {
  for (const char* path : {"Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B/", "Qwen/Qwen3-0.6B/config.json"}) {
    const std::string hint = hub_hint(path);
    BOOST_TEST(hint.find("`hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B`") !=
               std::string::npos);
  }
  for (const char* path : {"meta-llama/Llama-3.1-8B", "qwen/qwen3-0.6b", "Qwen/qwen3",
                           "mistralai/mistral", "someone/Fine-Tuned-7B"}) {
    BOOST_TEST(!hub_hint(path).empty(), path);
  }
}

BOOST_AUTO_TEST_CASE(paths_are_left_alone) {
  for (const char* path :
       {"", "Qwen3-0.6B", "/data/Qwen3-0.6B", "./Qwen/Qwen3-0.6B", "../Qwen3-0.6B", "runs/8b",
        "runs/chat", "a b/Qwen3-0.6B", "Qwen/Qwen3-0.6B/step-00000010", "a/b/Qwen3-0.6B"}) {
    BOOST_TEST(hub_hint(path).empty(), path);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace tessera
