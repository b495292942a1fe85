# check_words.cmake must find planted words, one for each of its rows, and name each with its line; what the
# exceptions let pass must pass.
#
#   cmake -DCHECK=check_words.cmake -DSCRATCH=folder -P tests/check_words_test.cmake
cmake_minimum_required(VERSION 3.25)

# Runs the check on a small tree whose one file has these lines, from line 2 on.
function(run_check status_variable output_variable)
  file(REMOVE_RECURSE "${SCRATCH}")
  foreach(folder collectives model optim runtime jobs tests)
    file(MAKE_DIRECTORY "${SCRATCH}/${folder}")
  endforeach()
  list(JOIN ARGN "\n" text)
  file(WRITE "${SCRATCH}/README.md" "planted\n")
  file(WRITE "${SCRATCH}/CONTRIBUTING.md" "planted\n")
  file(WRITE "${SCRATCH}/kernels/planted.h" "// planted\n${text}\n")
  execute_process(COMMAND ${CMAKE_COMMAND} "-DROOT=${SCRATCH}" -P "${CHECK}"
                  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  file(REMOVE_RECURSE "${SCRATCH}")
  set(${status_variable} "${status}" PARENT_SCOPE)
  set(${output_variable} "${output}" PARENT_SCOPE)
endfunction()

# One line a row of words, in their order.
set(planted
    "/// Each rank updates its own slice." "// sub-round 3" "bool breadth_first = false" "void publish(UnitId unit)"
    "/// The exchange of slices." "Index sum_group" "require(\"the sweep is over\")" "Index windows_begun"
    "// the vocabulary buffer" "void stay_if_ending()" "bool muted_ = false" "keep_packed(raw)"
    "await_kernel_before()" "float slope(float z)" "// a matrix product" "void write_seal(File& file)"
    "// that is no number" "// the step goes on" "// this is a fault of ours" "// wants to be started again"
    "// to mend a table" "// has said so before" "// gives the same bits" "// 12 bytes an element"
    "// where it lies in memory" "// waits for ever" "// What changes the bits" "// without GPU and data"
    "// hides its way there and back" "// Saved against doing without" "// although the data order is another one"
    "// the other's watchdog" "// is waited for" "say(\"part of what fixes the bits\")"
    "say(\"merge wants adapters\")" "// it is in nobody's way" "say(\"it tells nothing\")" "say(name + \" is none\")")
run_check(status output ${planted})
set(number 1)
foreach(line IN LISTS planted)
  math(EXPR number "${number} + 1")
  string(FIND "${output}" "kernels/planted.h:${number}:${line}" at)
  if(at EQUAL -1)
    message(SEND_ERROR "'${line}' was not refused")
  endif()
endforeach()
list(LENGTH planted count)
string(FIND "${output}" "${count} of ${count} rows of words have hits" at)
if(status EQUAL 0 OR at EQUAL -1)
  message(SEND_ERROR "every row has one planted line here, and each must have a hit:\n${output}")
endif()

run_check(status output "// there is no such file" "// no longer than before" "// a window of 4096 unless the file says null"
             "visit(\"sum_group\", info.reduce_group)" "// models, published models" "// line `seal HASH`"
             "// rounds to nearest even" "// grows from step to step, and on any number of ranks")
if(NOT status EQUAL 0)
  message(SEND_ERROR "what the exceptions let pass was refused:\n${output}")
endif()
