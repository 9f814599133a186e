/* smla/platform.h: what the other headers require of the compiler and the platform. */
#ifndef SMLA_PLATFORM_H
#define SMLA_PLATFORM_H

#if !defined(__linux__) || !defined(__LP64__)
#error "smla supports only 64-bit Linux."
#endif
#if !defined(__GNUC__)
#error "smla supports only GCC, Clang and compilers that define __GNUC__."
#endif

/* Marks exported functions. Define SMLA_STATIC if you link the static library. */
#if defined(SMLA_STATIC)
#define SMLA_API
#else
#define SMLA_API __attribute__((visibility("default")))
#endif

/* Follows each struct member: from C++20 on the initializer `= {}`, so that designated initializers may leave
 * members out without -Wmissing-field-initializers. Layouts do not depend on it. With -DSMLA_DEFAULT= the
 * structs are trivial types, as in C and C++17. */
#if !defined(SMLA_DEFAULT)
#if defined(__cplusplus) && __cplusplus >= 202002L
#define SMLA_DEFAULT = {}
#else
#define SMLA_DEFAULT
#endif
#endif

#endif /* SMLA_PLATFORM_H */
