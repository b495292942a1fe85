if(TARGET train AND TARGET tokenize AND TARGET convert AND Python3_FOUND)
  foreach(case Equality Resume Kills Edges Options Unequal)
    add_test(NAME jobs.train.${case}
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/train_test.py ${case})
    tessera_test_properties(jobs.train.${case} cpu 2 300 "")
    set_property(TEST jobs.train.${case} APPEND PROPERTY ENVIRONMENT
                 PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
  endforeach()
  add_test(NAME jobs.fp8 COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/fp8_test.py Fp8)
  tessera_test_properties(jobs.fp8 cpu 3 120 "")
  set_property(TEST jobs.fp8 APPEND PROPERTY ENVIRONMENT
               PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
  add_test(NAME jobs.plan COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/plan_test.py Plan)
  tessera_test_properties(jobs.plan cpu 2 200 "")
  set_property(TEST jobs.plan APPEND PROPERTY ENVIRONMENT
               PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
  add_test(NAME jobs.length COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/length_test.py Length)
  tessera_test_properties(jobs.length cpu 2 300 "")
  set_property(TEST jobs.length APPEND PROPERTY ENVIRONMENT
               PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
  # Sets looks at a report too.
  set(cases Best)
  if(TARGET report AND TARGET inspect)
    list(APPEND cases Sets)
  endif()
  foreach(case ${cases})
    add_test(NAME jobs.evaluation.${case}
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/evaluation_test.py ${case})
    tessera_test_properties(jobs.evaluation.${case} cpu 2 300 "")
    set_property(TEST jobs.evaluation.${case} APPEND PROPERTY ENVIRONMENT
                 PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
  endforeach()
  foreach(case Evaluations Targets DataSets Documents Tokenizers Changes)
    add_test(NAME jobs.data.${case}
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/data_test.py ${case})
    tessera_test_properties(jobs.data.${case} cpu 2 300 "")
    set_property(TEST jobs.data.${case} APPEND PROPERTY ENVIRONMENT
                 PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
  endforeach()
endif()
# Losses, norms and weights as recorded at 839538f, in every mode and on 1 to 8 ranks: bits of the
# optimised build, whose sums a sanitizer's build adds in another order.
if(TARGET train AND TARGET tokenize AND TARGET inspect AND Python3_FOUND
   AND NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")
  add_test(NAME jobs.recorded
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/recorded_test.py)
  tessera_test_properties(jobs.recorded cpu 2 300 "")
  set_property(TEST jobs.recorded APPEND PROPERTY ENVIRONMENT
               PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
  set_tests_properties(jobs.recorded PROPERTIES SKIP_REGULAR_EXPRESSION "skipped: recorded with")
endif()
