/* Calls that hang while a file exists: writes to the disk (HANGING_DISK), lookups of *.hangs.test (HANGING_NAMES). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void wait_while_exists(const char *variable)
{
    const char *path = getenv(variable);
    while (path != NULL && access(path, F_OK) == 0)
        usleep(10000);
}

int fsync(int descriptor)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_while_exists("HANGING_DISK");
    return real(descriptor);
}

int fdatasync(int descriptor)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_while_exists("HANGING_DISK");
    return real(descriptor);
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    static const char hanging[] = ".hangs.test";
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
        (int (*)(const char *, const char *, const struct addrinfo *, struct addrinfo **))dlsym(RTLD_NEXT, "getaddrinfo");
    size_t length = node == NULL ? 0 : strlen(node);
    if (length > strlen(hanging) && strcmp(node + length - strlen(hanging), hanging) == 0) {
        wait_while_exists("HANGING_NAMES");
        return EAI_NONAME;
    }
    return real(node, service, hints, found);
}
