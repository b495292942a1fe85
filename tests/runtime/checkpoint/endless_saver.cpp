// Saves steps 1, 2, 3, ... and prints each number once it is committed: for power_loss.sh.
//
//   endless_saver RUN          into RUN
//   endless_saver RUN LOCAL    on a node's disk, whose folder is LOCAL, and from there into RUN
#include <iostream>
#include <optional>

#include "tests/runtime/checkpoint/saves.h"

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::cerr << "endless_saver RUN [LOCAL]\n";
    return 2;
  }
  const std::filesystem::path run = argv[1];
  tessera::test::SaveOptions options;
  options.retention = {2, 0};
  tessera::make_run_folder(run);
  for (options.step = 1;; ++options.step) {
    if (argc == 2) {
      static_cast<void>(tessera::test::save(run, options));
    } else {
      const tessera::CommitRequest local = tessera::test::written(argv[2], options);
      static_cast<void>(tessera::place_checkpoint(local));
      tessera::keep_two_steps(argv[2], options.step);
      static_cast<void>(tessera::test::promote(local, run));
    }
    std::cout << options.step << std::endl;
  }
}
