// dlclose() with a context that lives on: its threads and the library's handlers must find their code.
#include <smla/smla.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    alarm(60);
    for (int i = 0; i < 20; ++i) {
        void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        smla_status (*create)(const smla_context_args*, smla_context**);
        void (*destroy)(smla_context*);
        *(void**)&create = dlsym(library, "smla_context_create");
        *(void**)&destroy = dlsym(library, "smla_context_destroy");
        smla_context_args args;
        memset(&args, 0, sizeof args);
        args.struct_size = sizeof args;
        args.version = SMLA_VERSION;
        args.threads = 4;
        smla_context *kept, *gone;
        if (!create || !destroy || create(&args, &kept) != SMLA_OK || create(&args, &gone) != SMLA_OK)
            return 1;
        destroy(gone);
        dlclose(library);
        usleep(2000);
        if (i % 2) destroy(kept);
    }
    return 0;
}
