# The prepared measurements of a machine with eight GPUs, a part of them on CPU ranks.
if(TARGET bench AND TARGET train AND TARGET tokenize AND TARGET inspect)
  add_test(NAME jobs.eight_gpus COMMAND ${CMAKE_SOURCE_DIR}/jobs/bench/eight-gpus.sh bits)
  tessera_test_properties(jobs.eight_gpus cpu 2 300 "")
  set_property(TEST jobs.eight_gpus APPEND PROPERTY ENVIRONMENT
               DRY=1 "RANKS=1 2" MPIEXEC=${MPIEXEC_EXECUTABLE} BIN=${CMAKE_BINARY_DIR}/bin
               RESULT=${CMAKE_CURRENT_BINARY_DIR}/eight-gpus.md)
endif()
# Those of models larger than a card, at tiny sizes.
if(TARGET bench AND TARGET train AND TARGET tokenize AND TARGET inspect)
  add_test(NAME jobs.large_models COMMAND ${CMAKE_SOURCE_DIR}/jobs/bench/large-models.sh)
  tessera_test_properties(jobs.large_models cpu 1 200 "")
  set_property(TEST jobs.large_models APPEND PROPERTY ENVIRONMENT
               DRY=1 STEPS=2 BIN=${CMAKE_BINARY_DIR}/bin)
endif()
# Those of a base in 4 bits.
if(TARGET bench AND TARGET train AND TARGET tokenize)
  add_test(NAME jobs.qlora COMMAND ${CMAKE_SOURCE_DIR}/jobs/bench/qlora.sh)
  tessera_test_properties(jobs.qlora cpu 1 200 "")
  set_property(TEST jobs.qlora APPEND PROPERTY ENVIRONMENT DRY=1 BIN=${CMAKE_BINARY_DIR}/bin
               "PEER=echo 1000 tok/s, of")
endif()
# What is measured of a step: counts that can be known, times that must fit.
if(TARGET bench AND Python3_FOUND)
  set(cases Budget Loss Refusals Tokenizing Watching)
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
