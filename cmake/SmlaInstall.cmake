# Headers, the shared library, the tool, a CMake package (find_package(smla) gives smla::smla), a pkg-config
# file. Everything is relative to the prefix, so an installed tree can be moved.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/smla)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/smla DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(TARGETS smla EXPORT smlaTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT smlaTargets NAMESPACE smla:: DESTINATION ${package_dir})
if(TARGET smla_tool)
    install(TARGETS smla_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/smlaConfig.cmake.in smlaConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the ABI.
write_basic_package_version_file(smlaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/smlaConfig.cmake ${PROJECT_BINARY_DIR}/smlaConfigVersion.cmake
        DESTINATION ${package_dir})

file(RELATIVE_PATH SMLA_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${PROJECT_SOURCE_DIR}/cmake/smla.pc.in smla.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/smla.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# A wheel holds one file of each, without links: the library is loaded by path.
if(SMLA_PYTHON)
    install(FILES $<TARGET_FILE:smla_python> DESTINATION smla/lib COMPONENT python)
    install(PROGRAMS $<TARGET_FILE:smla_python_tool> DESTINATION smla/bin COMPONENT python)
endif()
