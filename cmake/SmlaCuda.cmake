# The CUDA engine: machine code for each architecture, no PTX, so that a GPU this build was not made for is
# refused by name instead of run through the driver's compiler. A GPU of the same major version takes the
# lower minor's code: 86 runs 80's, 103 runs 100's, 121 runs 120's. "80-virtual" is PTX instead: the driver of
# any later GPU compiles it, and the engine then takes the branches of sm_80 (scripts/gpu_check --as sm_80).
set(SMLA_CUDA_ARCHITECTURES "80;89;90;100;120" CACHE STRING
    "Compute capabilities to compile for; 80-virtual: PTX of sm_80")
set(architectures ${SMLA_CUDA_ARCHITECTURES})
set(SMLA_CUDA_PTX ${architectures})
list(FILTER SMLA_CUDA_PTX INCLUDE REGEX "^[0-9]+-virtual$")
list(TRANSFORM SMLA_CUDA_PTX REPLACE "-virtual$" "")
list(TRANSFORM architectures APPEND "-real" REGEX "^[0-9]+$" OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
list(TRANSFORM architectures REPLACE "-virtual$" "" OUTPUT_VARIABLE SMLA_CUDA_ARCHITECTURES)
set(CMAKE_CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/cmake/nvcc_report)
if(SMLA_CCACHE)
    list(APPEND CMAKE_CUDA_COMPILER_LAUNCHER ${SMLA_CCACHE})
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 12 and later have it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

option(SMLA_CUDA_BOUNDED_WAITS "Kernels stop, and say where, instead of waiting for ever" OFF)
if(SMLA_CUDA_BOUNDED_WAITS)
    target_compile_definitions(smla_flags INTERFACE SMLA_CUDA_BOUNDED_WAITS)
endif()

# --expt-relaxed-constexpr: layouts and number formats are constexpr functions that host and device share.
# -Xptxas=-v: the report that cmake/nvcc_report keeps.
target_compile_options(smla_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --compress-mode=size -Xptxas=-v
                               -Xcompiler=-Wall,-Wextra>)
