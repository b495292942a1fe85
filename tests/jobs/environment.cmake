# What lies outside the programs: who reads their output, signals, names, permissions, earlier runs' files.
if(TARGET train AND TARGET tokenize AND TARGET inspect AND TARGET generate AND TARGET convert AND TARGET report
   AND TARGET bench AND Python3_FOUND)
  add_test(NAME jobs.install COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/install_test.py)
  tessera_test_properties(jobs.install cpu 1 120 "")
  set_property(TEST jobs.install APPEND PROPERTY ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
  foreach(case Output Signals Names Permissions Earlier)
    add_test(NAME jobs.environment.${case}
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/environment_test.py ${case})
    tessera_test_properties(jobs.environment.${case} cpu 2 200 "")
    set_property(TEST jobs.environment.${case} APPEND PROPERTY ENVIRONMENT
                 PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
  endforeach()
endif()
