// Pages of the system. Apart, for the names of Windows' headers are those of the interface, too.

#include "guard.h"

#include <stdio.h>
#include <stdlib.h>

#if defined(_WIN32)
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace guard {

[[noreturn]] static void give_up(const char *what) {
  fprintf(stderr, "%s\n", what);
  exit(2);
}

#if defined(_WIN32)

size_t page_size() {
  static const size_t size = [] {
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return (size_t)info.dwPageSize;
  }();
  return size;
}

char *map_pages(size_t bytes) {
  void *pages = VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
  if (!pages) give_up("no memory is left");
  return (char *)pages;
}

void allow(char *pages, size_t bytes, Access access) {
  DWORD before;
  if (!VirtualProtect(pages, bytes, access == READ ? PAGE_READONLY : PAGE_NOACCESS, &before))
    give_up("pages cannot be protected");
}

void unmap_pages(char *pages, size_t) { VirtualFree(pages, 0, MEM_RELEASE); }

#else

size_t page_size() {
  static const size_t size = (size_t)sysconf(_SC_PAGESIZE);
  return size;
}

char *map_pages(size_t bytes) {
  void *pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) give_up("no memory is left");
  return (char *)pages;
}

void allow(char *pages, size_t bytes, Access access) {
  if (mprotect(pages, bytes, access == READ ? PROT_READ : PROT_NONE)) give_up("pages cannot be protected");
}

void unmap_pages(char *pages, size_t bytes) { munmap(pages, bytes); }

#endif

}  // namespace guard
