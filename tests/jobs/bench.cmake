# What is measured of a step: counts that can be known, times that must fit.
if(TARGET bench AND Python3_FOUND)
  set(cases Budget Watching)
  if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")  # which takes memory of its own
    list(APPEND cases Memory)
  endif()
  foreach(case IN LISTS cases)
    add_test(NAME jobs.bench.${case}
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/bench_test.py ${case})
    tessera_test_properties(jobs.bench.${case} cpu 2 200 "")
    set_property(TEST jobs.bench.${case} APPEND PROPERTY ENVIRONMENT
                 PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
  endforeach()
endif()
