/* What TVM's code calls, so that its functions can be called where nothing of TVM is installed. */

#include <stdint.h>
#include <stdio.h>

static __thread char message[512];

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  size_t used = (size_t)snprintf(message, sizeof message, "%s: ", kind);
  for (int32_t i = 0; i < count && used < sizeof message; i++)
    used += (size_t)snprintf(message + used, sizeof message - used, "%s", parts[i]);
}

__attribute__((visibility("default"))) const char *edgeinfer_fault(void) { return message; }
