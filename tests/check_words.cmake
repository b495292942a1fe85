# Fails on a word of our own where the field has one. One row below is one row of the list of words: what to
# write instead, and an extended regular expression (of grep) that finds the old word; EXCEPT names lines in
# which the word means something else.
#
#   cmake -DROOT=repository [-DFOLDERS=kernels;model] -P tests/check_words.cmake
#
# Prints `file:line:text` and the word to use for each hit. Fields of metrics.jsonl keep their names. Dated records
# of measurements (jobs/bench/results/20*) stay as they were written.
cmake_minimum_required(VERSION 3.25)
if(NOT ROOT)
  message(FATAL_ERROR "give the repository: cmake -DROOT=folder -P check_words.cmake")
endif()
if(NOT FOLDERS)
  set(FOLDERS kernels collectives model optim runtime jobs tests README.md CONTRIBUTING.md)
endif()
find_program(GREP grep REQUIRED)

set(hits 0)
set(rows 0)
function(word instead)
  cmake_parse_arguments(PARSE_ARGV 1 ROW "" "INSTEAD_OF;EXCEPT" "")
  if(NOT ROW_INSTEAD_OF OR ROW_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "a row of words reads: word(\"new\" INSTEAD_OF regex [EXCEPT regex])")
  endif()
  math(EXPR rows "${rows} + 1")
  set(rows ${rows} PARENT_SCOPE)
  if(NOT ROW_EXCEPT)
    set(ROW_EXCEPT "^$")
  endif()
  execute_process(
    COMMAND ${GREP} -rnE --include=*.h --include=*.cpp --include=*.cu --include=*.cuh --include=*.cmake
            --include=CMakeLists.txt --include=*.md --include=*.py --include=*.sh
            --include=*.js --include=*.html --include=*.sbatch --include=*.pbs -e "${ROW_INSTEAD_OF}" ${FOLDERS}
    COMMAND ${GREP} -vE -e "${ROW_EXCEPT}" -e "^(tests/check_words|CHANGELOG|jobs/bench/results/20)"
    WORKING_DIRECTORY "${ROOT}" OUTPUT_VARIABLE found ERROR_VARIABLE error RESULTS_VARIABLE codes)
  foreach(code IN LISTS codes)
    if(code GREATER 1)
      message(FATAL_ERROR "grep for '${instead}' failed: ${error}")
    endif()
  endforeach()
  if(found)
    message(NOTICE "${found}  write: ${instead}\n")
    math(EXPR hits "${hits} + 1")
    set(hits ${hits} PARENT_SCOPE)
  endif()
endfunction()

word("local shard" INSTEAD_OF "\\b[Oo]wn[ _]slices?\\b")
word("micro-step" INSTEAD_OF "\\b[Ss]ub-?rounds?\\b")
# Old names of options are taken until 0.3.
set(old_name "^runtime/run/option_table.cpp:[0-9]+:.*\\{\"[a-z]+-[a-z]+\", \"[a-z]+-[a-z]+\"\\}|old_name")
word("batched forward" INSTEAD_OF "[Bb]readth[- _]?[Ff]irst" EXCEPT "${old_name}")
word("all-gather; consumed" INSTEAD_OF "\\bpublish|\\bawaited\\b" EXCEPT "published models")
word("all-to-all of shards; hierarchical" INSTEAD_OF "[Ee]xchanges? of slices|in two levels|\\btwo-level\\b")
word("reduce group" INSTEAD_OF "\\b[Ss]um[-_ ]groups?\\b" EXCEPT "[\"`]sum_group[\"`]|${old_name}")
word("optimizer pass, in messages (page_sweep stays in code)" INSTEAD_OF "\"[^\"]*\\b[Ss]weeps?\\b"
     EXCEPT "\"sweep\\.(begun|ended)\"|#include")
word("sequence (of data); staging tile (of sums on the host)" INSTEAD_OF "\\b[Ww]indows?(_[a-z]+)?\\b|_windows?\\b"
     EXCEPT "[Ss]liding.window|a window of|windows change|^(kernels/(cpu/|cuda/)?attention|model/|tests/(model/|kernels/attention|support/run/reference|runtime/run/finite|runtime/launch/startup_check|interop))|window\\.matchMedia|^(runtime|jobs|tests)/.*windows_taken|${old_name}")
word("embedding and LM-head gradient" INSTEAD_OF "[Vv]ocabulary (gradient )?buffer|[Vv]ocabulary gradients?\\b")
word("process exit, park, on exit, timeout"
     INSTEAD_OF "\\b(is_)?ending\\b|stay_if_|\\blast[ _]act\\b|[Pp]atience|\\bend_process\\b"
     EXCEPT "kEndings|extension\\(\\)")
word("null, profiled, instrumented" INSTEAD_OF "[Mm]ute[ds]?([A-Z_]|\\b)|[Ww]atched|\\b[Oo]bserved"
     EXCEPT "permuted\\(")
word("opaque, recompute" INSTEAD_OF "\\bkeep_packed\\b|\\bunpack_again\\b")
word("trigger, wait (programmatic dependent launch)" INSTEAD_OF "\\blet_next_kernel_come\\b|\\bawait_kernel_before\\b")
word("the kernel's name with _forward or _backward; gradient"
     INSTEAD_OF "\\b([Tt]urn|[Rr]otate)(s|ed|d)?[ _]back|\\b[Nn]ormalise(s|_[a-z]+)?\\b|[Dd]ifferentiate|\\bslopes?(_[a-z]+)?\\b")
word("GEMM" INSTEAD_OF "[Mm]atrix products?\\b|\\bproducts? (that|which) (is|are) tuned")
word("header checksum; metadata, note, last traffic"
     INSTEAD_OF "\\b([a-z]+_)*[Ss]eal(s|ed|ing)?(_[a-z]+)*\\b|\\b[Rr]emarks?\\b|\\btold traffic\\b"
     EXCEPT "\"seal \"|`seal HASH`")
word("is not a" INSTEAD_OF "\\b(is|are|was|were|be) no "
     EXCEPT "\\b[Tt]here (is|are|was|were|would be) no |\\bno (longer|more|less|room)\\b")
word("continues" INSTEAD_OF "\\b(go|goes|going|went|gone) on( |[.,;:)]|$)")
word("internal error" INSTEAD_OF "\\b[Ff]aults? (of ours|(in|of) tessera)\\b")
word("run the same command to continue" INSTEAD_OF "\\bstarted again\\b")
word("fix" INSTEAD_OF "\\b[Mm]end(s|ed|ing)?\\b")
word("reported" INSTEAD_OF "\\b([Ss]aid|[Tt]old)\\b")
word("bit-identical" INSTEAD_OF "\\b(the )?same bits\\b")
word("per element" INSTEAD_OF "\\b(bytes?|bits?|flops?|multiplications?) an element\\b")
word("is stored in" INSTEAD_OF "\\b(lie|lies|lay|lain) (still )?(in|at|on|one|within|beyond|behind|together)\\b")
word("permanently" INSTEAD_OF "\\bfor ever\\b")
word("options that change results bit for bit" INSTEAD_OF "[Ww]hat changes the bits")
word("prints memory per rank and node; needs no GPU or data" INSTEAD_OF "without (a )?GPU and data")
word("overlaps these transfers with N forward passes" INSTEAD_OF "way there and back")
word("memory saved by" INSTEAD_OF "against doing without")
word("continue even if the data or its order changed" INSTEAD_OF "although the data order")
word("is killed or stopped; reported by the surviving rank" INSTEAD_OF "\\bis hit\\b|the other's watchdog")
word("waits up to; is needed" INSTEAD_OF "\\b(is|are|was|were) (waited for|wanted)\\b|\\bnot wanted\\b")
word("changes results bit for bit, in messages" INSTEAD_OF "\"[^\"]*(fixes the bits|have other bits)")
word("needs, in messages" INSTEAD_OF "\"[^\"]*\\bwants (a number|adapters|to be)\\b")
word("does no harm" INSTEAD_OF "\\bin nobody's way\\b")
word("has no loss" INSTEAD_OF "\\b(will tell|it tells) nothing\\b")
word("is not one" INSTEAD_OF "\"[^\"]*\\b(and|which) is none\\b|\" is none\"")

if(hits GREATER 0)
  message(FATAL_ERROR "${hits} of ${rows} rows of words have hits above")
endif()
message(STATUS "${rows} rows of words have no hit")
