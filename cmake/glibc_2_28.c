/* Linked into the files of a wheel, so that they run on glibc 2.28, whatever glibc they are linked with. Each
 * function below has a newer version that the linker would choose. The hidden definition here jumps to the
 * version that every glibc for x86-64 has. scripts/ci/glibc_versions reports symbols that this list lacks. */
#define _GNU_SOURCE
#include <sys/random.h>
#include <sys/stat.h>

#define SMLA_JUMP_TO(version, names)                       \
    __asm__(".pushsection .text\n.irp name, " names        \
            "\n"                                           \
            ".symver old_\\name, \\name\\()@" version      \
            "\n"                                           \
            ".globl \\name\n.hidden \\name\n"              \
            ".type \\name, @function\n"                    \
            "\\name\\(): jmp *old_\\name@GOTPCREL(%rip)\n" \
            ".size \\name, . - \\name\n"                   \
            ".endr\n.popsection\n")

/* glibc 2.29 has versions without the wrappers that set errno; they return the same values. */
SMLA_JUMP_TO("GLIBC_2.2.5", "exp, exp2, log, log2, pow");
/* Since glibc 2.34, these are in libc. CMake adds the libraries that contain them in older versions. */
SMLA_JUMP_TO("GLIBC_2.2.5",
             "dlerror, dlopen, dlsym, pthread_create, pthread_detach, pthread_join,"
             "pthread_key_create, __pthread_key_create, pthread_key_delete, pthread_getspecific,"
             "pthread_setspecific, pthread_once, pthread_sigmask, pthread_rwlock_rdlock,"
             "pthread_rwlock_unlock, pthread_rwlock_wrlock");
SMLA_JUMP_TO("GLIBC_2.12", "pthread_setname_np");
#ifdef SMLA_OLD_GLIBC_CUDA /* used by the CUDA runtime */
SMLA_JUMP_TO("GLIBC_2.3.4", "dlmopen");
SMLA_JUMP_TO("GLIBC_2.2.5",
             "dlclose, dlvsym, pthread_condattr_setpshared, pthread_kill,"
             "pthread_mutex_trylock, pthread_mutexattr_destroy, pthread_mutexattr_init,"
             "pthread_mutexattr_setpshared, pthread_mutexattr_settype, pthread_rwlock_destroy,"
             "pthread_rwlock_init, pthread_rwlock_timedrdlock,"
             "pthread_rwlock_timedwrlock, pthread_rwlock_tryrdlock, pthread_rwlock_trywrlock,"
             "pthread_rwlockattr_destroy, pthread_rwlockattr_init,"
             "pthread_rwlockattr_setpshared, pthread_spin_destroy,"
             "pthread_spin_init, pthread_spin_lock, pthread_spin_trylock, pthread_spin_unlock,"
             "sem_destroy, sem_init, sem_post, sem_timedwait, sem_trywait, sem_wait, shm_open, shm_unlink");
#endif

int __xstat(int version, const char* path, struct stat* out);
int __lxstat(int version, const char* path, struct stat* out);
int __fxstat(int version, int file, struct stat* out);
typedef void (*constructor)(int, char**, char**);
int old_start_main(int (*main)(int, char**, char**), int argc, char** argv, constructor init,
                   void (*fini)(void), void (*rtld_fini)(void), void* stack_end);
__asm__(".symver old_start_main, __libc_start_main@GLIBC_2.2.5");

#pragma GCC visibility push(hidden)

/* Since glibc 2.32. False is always correct: shared_ptr then counts with atomic operations. */
char __libc_single_threaded;

/* Since glibc 2.33; in older versions these are inline functions. */
int stat(const char* restrict path, struct stat* restrict out) { return __xstat(1, path, out); }
int lstat(const char* restrict path, struct stat* restrict out) { return __lxstat(1, path, out); }
int fstat(int file, struct stat* out) { return __fxstat(1, file, out); }
int fstat64(int file, struct stat64* out) { return __fxstat(1, file, (struct stat*)out); }

/* Since glibc 2.36; std::random_device refers to it. */
unsigned arc4random(void) {
    unsigned out;
    while (getrandom(&out, sizeof out, 0) != sizeof out) {
    }
    return out;
}

#if !defined(__PIC__) || defined(__PIE__) /* in an executable */
/* Since glibc 2.34, libc finds an executable's constructors; older versions call the function `init`. */
extern const constructor __init_array_start[], __init_array_end[];
void _init(void);
static void construct(int argc, char** argv, char** environment) {
    _init();
    for (const constructor* at = __init_array_start; at != __init_array_end; ++at)
        (*at)(argc, argv, environment);
}
int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, constructor init,
                      void (*fini)(void), void (*rtld_fini)(void), void* stack_end) {
    return old_start_main(main, argc, argv, init ? init : construct, fini, rtld_fini, stack_end);
}
#endif

#pragma GCC visibility pop
