# What every program makes of numbers, switches and names of options.
if(TARGET train AND TARGET bench AND TARGET tokenize AND TARGET inspect AND TARGET report AND TARGET generate
   AND TARGET convert AND Python3_FOUND)
  foreach(case Programs Runs)
    add_test(NAME jobs.options.${case}
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/options_test.py ${case})
    tessera_test_properties(jobs.options.${case} cpu 1 200 "")
    set_property(TEST jobs.options.${case} APPEND PROPERTY ENVIRONMENT
                 PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
  endforeach()
endif()
