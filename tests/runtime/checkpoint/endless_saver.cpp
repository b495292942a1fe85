// Saves steps 1, 2, 3, ... and prints each number once it is committed: for power_loss.sh.
#include <iostream>

#include "tests/runtime/checkpoint/saves.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "endless_saver FOLDER\n";
    return 2;
  }
  tessera::test::SaveOptions options;
  options.retention = {2, 0};
  for (options.step = 1;; ++options.step) {
    static_cast<void>(tessera::test::save(argv[1], options));
    std::cout << options.step << std::endl;
  }
}
