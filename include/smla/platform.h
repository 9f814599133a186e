/* smla/platform.h: requirements of the other headers on the compiler and the platform. */
#ifndef SMLA_PLATFORM_H
#define SMLA_PLATFORM_H

#if !defined(__linux__) || !defined(__LP64__)
#error "smla supports only 64-bit Linux."
#endif
#if !defined(__GNUC__)
#error "smla requires GCC, Clang or another compiler that defines __GNUC__."
#endif

/* Marks exported functions. Define SMLA_STATIC if you link the static library. */
#if defined(SMLA_STATIC)
#define SMLA_API
#else
#define SMLA_API __attribute__((visibility("default")))
#endif

#endif /* SMLA_PLATFORM_H */
