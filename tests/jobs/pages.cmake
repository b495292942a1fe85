# The commands of README.md and jobs/guide, at small size.
if(TARGET train AND TARGET tokenize AND TARGET generate AND TARGET convert AND TARGET inspect AND TARGET report
   AND TARGET bench AND Python3_FOUND)
  add_test(NAME jobs.pages COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/pages_test.py)
  tessera_test_properties(jobs.pages cpu 2 400 "")
  set_property(TEST jobs.pages APPEND PROPERTY ENVIRONMENT
               PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
endif()
