/* What TVM's code calls, so that it runs where nothing of TVM is installed. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static __thread char message[512];

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  size_t used = (size_t)snprintf(message, sizeof message, "%s: ", kind);
  for (int32_t i = 0; i < count && used < sizeof message; i++)
    used += (size_t)snprintf(message + used, sizeof message - used, "%s", parts[i]);
}

static void *allocate(int device, int index, uint64_t bytes, int code, int bits) {
  (void)device, (void)index, (void)code, (void)bits;
  return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static int release(int device, int index, void *memory) {
  (void)device, (void)index;
  free(memory);
  return 0;
}

/* TVM's code calls them by way of these. */
void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = allocate;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = release;
