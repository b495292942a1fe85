// The learning rate is a pure function of the step: warm-up, then constant, cosine or wsd.
#include "optim/lr_schedule.h"

#include <boost/test/unit_test.hpp>

#include "optim/clip.h"

namespace tessera {

BOOST_AUTO_TEST_SUITE(lr_schedule)

BOOST_AUTO_TEST_CASE(warm_up_is_linear_and_reaches_the_peak) {
  const LrSchedule schedule{ScheduleKind::constant, 1.0, 4, 10, 0, 0.1};
  BOOST_CHECK_EQUAL(schedule.at(1), 0.25);
  BOOST_CHECK_EQUAL(schedule.at(2), 0.5);
  BOOST_CHECK_EQUAL(schedule.at(4), 1.0);
  BOOST_CHECK_EQUAL(schedule.at(10), 1.0);
}

BOOST_AUTO_TEST_CASE(cosine_ends_at_the_ratio_and_stays_there) {
  const LrSchedule schedule{ScheduleKind::cosine, 1.0, 2, 12, 0, 0.1};
  BOOST_CHECK_CLOSE(schedule.at(7), 0.55, 1e-10);  // half way: the mean of peak and floor
  BOOST_CHECK_CLOSE(schedule.at(12), 0.1, 1e-10);
  BOOST_CHECK_CLOSE(schedule.at(100), 0.1, 1e-10);
  for (std::int64_t step = 2; step < 12; ++step) {
    BOOST_CHECK_LT(schedule.at(step + 1), schedule.at(step));
  }
}

BOOST_AUTO_TEST_CASE(wsd_stays_at_the_peak_and_falls_in_its_last_steps) {
  const LrSchedule schedule{ScheduleKind::wsd, 1.0, 0, 20, 5, 0.0};
  BOOST_CHECK_EQUAL(schedule.at(1), 1.0);
  BOOST_CHECK_EQUAL(schedule.at(15), 1.0);
  BOOST_CHECK_CLOSE(schedule.at(16), 0.8, 1e-10);
  BOOST_CHECK_EQUAL(schedule.at(20), 0.0);
}

BOOST_AUTO_TEST_CASE(clipping_scales_long_gradients_alone) {
  BOOST_CHECK_EQUAL(clip_factor(0.5, 1.0), 1.0);
  BOOST_CHECK_CLOSE(clip_factor(4.0, 1.0), 0.25, 1e-4);
  BOOST_CHECK_EQUAL(clip_factor(1e9, 0.0), 1.0);
}

BOOST_AUTO_TEST_CASE(matrices_have_a_rate_of_their_own_on_the_same_schedule) {
  const LrSchedule schedule = {.kind = ScheduleKind::cosine,
                               .lr = 1e-3,
                               .warmup = 4,
                               .total = 20,
                               .min_ratio = 0.1,
                               .matrix_lr = 2e-2};
  for (const std::int64_t step : {1, 4, 9, 20, 30}) {
    BOOST_CHECK_CLOSE(schedule.matrices_at(step), 20 * schedule.at(step), 1e-9);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tessera
