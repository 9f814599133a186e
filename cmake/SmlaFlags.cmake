# Warnings, sanitizers and instruction sets for everything of this project.
add_library(smla_flags INTERFACE)
# -Wno-restrict: g++ 12 reports string concatenation by mistake (GCC bug 105651)
target_compile_options(smla_flags INTERFACE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
    $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wno-missing-field-initializers>
    $<$<AND:$<BOOL:${SMLA_WERROR}>,$<COMPILE_LANGUAGE:C,CXX>>:-Werror>)
# Fused multiply-adds only where a kernel asks for them: every build of the reference gives the same bits.
target_compile_options(smla_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
set(SMLA_SANITIZE "" CACHE STRING "Sanitizers: address,undefined or thread")
if(SMLA_SANITIZE)
    target_compile_options(smla_flags INTERFACE -fsanitize=${SMLA_SANITIZE} -fno-sanitize-recover=all
                                                -fno-omit-frame-pointer)
    target_link_options(smla_flags INTERFACE -fsanitize=${SMLA_SANITIZE})
endif()

if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
    find_program(SMLA_CCACHE ccache)
    if(SMLA_CCACHE)
        set(CMAKE_C_COMPILER_LAUNCHER ${SMLA_CCACHE})
        set(CMAKE_CXX_COMPILER_LAUNCHER ${SMLA_CCACHE})
    endif()
endif()

# Files named *_<isa>.cpp are compiled for that instruction set; dispatch happens at run time.
set(SMLA_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(SMLA_ISA_FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # gcc 12's own AVX-512 header trips them: https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105593
    list(APPEND SMLA_ISA_FLAGS_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()
set(SMLA_ISA_FLAGS_avx512_bf16 ${SMLA_ISA_FLAGS_avx512} -mavx512bf16 -mavx512vbmi)
set(SMLA_ISA_FLAGS_amx ${SMLA_ISA_FLAGS_avx512_bf16} -mgfni -mamx-tile -mamx-bf16)
