// Loads functions of a library at run time, so that neither build nor start needs the library.
#pragma once

#include "core/status.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace smla {

class Symbols {
public:
    explicit Symbols(void* library) : library_(library) {}
    template <class Function>
    void operator()(Function& function, const char* name) {
        function = reinterpret_cast<Function>(dlsym(library_, name));
        all_ = all_ && function;
    }
    bool all() const { return all_; }  // whether all look-ups so far succeeded

private:
    void* library_;
    bool all_ = true;
};

// Returns whether dlopen() cannot hang on this name. A name with '/' is a file's path, and opening a FIFO
// waits for a writer.
inline bool may_be_opened(const char* name) {
    struct stat found {};
    return !std::strchr(name, '/') || stat(name, &found) != 0 || S_ISREG(found.st_mode);
}

// Loads a table of functions, which find(symbols, table) looks up. The library is the one that the
// environment variable names (empty: none), else the first of `usual` that has all functions. Throws if the
// named library lacks one. Returns Table{} if all of `usual` do; otherwise `library` is its name.
template <class Table, class Find>
Table load_library(const char* variable, std::initializer_list<const char*> usual, const Find& find) {
    constexpr const char* kWanted = "a library that has all functions used by smla, or an empty value";
    const auto attempt = [&](const char* name, Table& out) {
        void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (!library) return false;
        Symbols symbols(library);
        find(symbols, out);
        if (symbols.all()) out.library = name;
        else out = {};
        return symbols.all();
    };
    Table out{};
    if (const char* const named = std::getenv(variable)) {
        if (!may_be_opened(named))
            fail(SMLA_INVALID_ARGUMENT, variable, text(named, " (not a regular file)"), kWanted);
        if (*named && !attempt(named, out)) {
            const char* const why = dlerror();  // null: the library was loaded but lacks a function
            fail(SMLA_INVALID_ARGUMENT, variable, text(named, " (", why ? why : "a function is missing", ")"),
                 kWanted);
        }
        return out;
    }
    for (const char* name : usual)
        if (attempt(name, out)) break;
    return out;
}

}  // namespace smla
