# Adapters in whole runs, and their files; beside PEFT itself where it is installed.
if(TARGET train AND TARGET tokenize AND TARGET convert AND TARGET generate AND TARGET inspect AND Python3_FOUND)
  foreach(case Bits Nf4 Disk Files Refusals)
    add_test(NAME jobs.adapters.${case}
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/adapters_test.py ${case})
    tessera_test_properties(jobs.adapters.${case} cpu 2 300 "")
    set_property(TEST jobs.adapters.${case} APPEND PROPERTY ENVIRONMENT
                 PYTHONDONTWRITEBYTECODE=1 MPIEXEC=${MPIEXEC_EXECUTABLE} BAD_DISK=$<TARGET_FILE:bad_disk>
                 STOPPED_RANK_LIBRARY=$<TARGET_FILE:stopped_rank> PRELOAD_FIRST=${preload_first})
  endforeach()
  add_test(NAME jobs.adapters_in_peft
           COMMAND Python3::Interpreter ${CMAKE_SOURCE_DIR}/tests/interop/check_peft.py --bin ${CMAKE_BINARY_DIR}/bin)
  tessera_test_properties(jobs.adapters_in_peft cpu 2 600 "")
  set_property(TEST jobs.adapters_in_peft APPEND PROPERTY ENVIRONMENT PYTHONDONTWRITEBYTECODE=1
               TESSERA_INTEROP_VENV=${TESSERA_INTEROP_VENV})
endif()
