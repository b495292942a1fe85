#include "kernels/precision.h"

#include <boost/test/unit_test.hpp>

#include "kernels/base/error.h"

namespace tessera::test {

BOOST_AUTO_TEST_SUITE(precision)

BOOST_AUTO_TEST_CASE(one_type_for_everything_is_supported) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    BOOST_CHECK_NO_THROW(require_supported(precision_of(dtype)));
  }
}

BOOST_AUTO_TEST_CASE(a_type_of_which_no_kernel_computes_is_refused) {
  for (const DType dtype : {DType::f64, DType::u8, DType::i32}) {
    BOOST_CHECK_THROW(require_supported(precision_of(dtype)), ConfigError);
  }
}

// Each field counts: a policy that differs in it alone is refused.
BOOST_AUTO_TEST_CASE(every_field_that_differs_from_the_others_is_refused) {
  for (DType PrecisionPolicy::*field :
       {&PrecisionPolicy::params, &PrecisionPolicy::activations, &PrecisionPolicy::gemm_inputs,
        &PrecisionPolicy::grads, &PrecisionPolicy::grad_travel}) {
    PrecisionPolicy mixed = precision_of(DType::bf16);
    mixed.*field = DType::f32;
    BOOST_CHECK_THROW(require_supported(mixed), ConfigError);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera::test
