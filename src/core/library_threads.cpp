#include "core/library_threads.h"

#include "core/status.h"

#include <pthread.h>

#include <exception>
#include <initializer_list>
#include <optional>
#include <system_error>
#include <thread>

namespace smla {

LibraryThreads::LibraryThreads() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int open : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGPROF})
        sigdelset(&blocked, open);
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
}

LibraryThreads::~LibraryThreads() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

void name_thread(const char* name) { pthread_setname_np(pthread_self(), name); }

void run_on_library_thread(const char* name, const std::function<void()>& body) {
    std::exception_ptr error;
    std::optional<LibraryThreads> starting(std::in_place);
    try {
        std::thread thread([&] {
            name_thread(name);
            try {
                body();
            } catch (...) {
                error = std::current_exception();
            }
        });
        starting.reset();  // the calling thread gets signals while it waits
        thread.join();
    } catch (const std::system_error& failure) {
        fail(SMLA_OUT_OF_MEMORY, name, failure.code().message(), "a new thread");
    }
    if (error) std::rethrow_exception(error);
}

}  // namespace smla
