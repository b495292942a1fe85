tessera_add_test(NAME jobs.inspect SOURCES inspect_test.cpp
                 USES tessera_checkpoint nlohmann_json::nlohmann_json)
add_dependencies(test_jobs_inspect_cpu inspect)
