#include "kernels/write_params.h"

#include <array>

#include "kernels/device/master_code.h"
#include "tests/support/kernel_test.h"

namespace tessera::test {

BOOST_AUTO_TEST_SUITE(write_params)

BOOST_AUTO_TEST_CASE(parameters_are_master_weights_rounded_half_away_from_zero) {
  TestBench bench(test_device());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Index count : {1, 7, 8, 1025, 40003}) {
      TestTensor master = bench.normal(DType::f32, {count}, 0.02);
      master.values[0] = 1.00390625;  // a tie, which to-even rounding takes down
      master = bench.of(master.values, DType::f32, {count});
      for (const Index begin : {Index{0}, std::min<Index>(count, 3)}) {
        TestTensor param = bench.poisoned(dtype, {count});
        bench.kernels().write_params({.master = master.view().slice(begin, count),
                                      .param = param.view().slice(begin, count)},
                                     bench.stream());
        check_equal(bench.read(param.view().slice(begin, count)),
                    params_of({master.values.begin() + begin, master.values.end()}, dtype),
                    "param");
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
