if(TARGET convert AND Python3_FOUND)
  add_test(NAME jobs.convert
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/convert_test.py)
  tessera_test_properties(jobs.convert cpu 1 300 "")
  set_property(TEST jobs.convert APPEND PROPERTY ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
  if(TARGET train)
    add_test(NAME jobs.quantise
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/quantise_test.py)
    tessera_test_properties(jobs.quantise cpu 2 300 "")
    set_property(TEST jobs.quantise APPEND PROPERTY ENVIRONMENT
                 PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE})
  endif()
  add_test(NAME jobs.nf4_in_bitsandbytes
           COMMAND Python3::Interpreter ${CMAKE_SOURCE_DIR}/tests/interop/check_nf4.py --bin ${CMAKE_BINARY_DIR}/bin)
  tessera_test_properties(jobs.nf4_in_bitsandbytes cpu 2 600 "")
  set_property(TEST jobs.nf4_in_bitsandbytes APPEND PROPERTY ENVIRONMENT PYTHONDONTWRITEBYTECODE=1
               TESSERA_INTEROP_VENV=${TESSERA_INTEROP_VENV})
endif()
