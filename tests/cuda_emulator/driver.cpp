// CUDA's driver and its runtime, as far as TVM and edgeinfer call them, on the CPU.
//
// Memory of the device is memory of the host, full of NaN until something writes it. An image is a
// shared library; its kernels' blocks run one after the other, and a block's threads in turns.
// Streams do at once what they are given; one that is recorded keeps it for its graph.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

// Saves what a call keeps, goes on where another stack stopped. (glibc's own asks the kernel each time.)
extern "C" void emulated_switch(void **from, void *to);
#if defined(__x86_64__)
asm(R"(
.globl emulated_switch
emulated_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");
enum { KEPT = 6 };
#else
#error "the emulated GPU knows x86-64 only"
#endif

struct Place { unsigned x, y, z; };
enum State { RUNS, AT_BLOCK, AT_WARP, ENDED };

namespace {

typedef void (*Kernel)(void **);
const size_t STACK = 1 << 16;

struct Block;
Block *current = nullptr;

struct Thread {
  void *stack;
  Place place;
  State state;
  unsigned long long word, took;
};

// Threads of one block. Those that wait for their warp go on when no thread of it can run; those
// that wait for the block, when no thread of the block can.
struct Block {
  std::vector<Thread> threads;
  void *whole;
  unsigned now = 0;
  Kernel kernel = nullptr;
  void **given = nullptr;
  Place *own = nullptr;  // Where the kernel reads which thread it is.

  // Of all blocks, one after the other: new ones for each launch would be the kernel's work.
  static char *stack(unsigned thread) {
    static std::vector<std::unique_ptr<char[]>> made;
    while (made.size() <= thread) made.emplace_back(new char[STACK]);
    return made[thread].get();
  }

  static void enter() {
    Block *block = current;
    block->kernel(block->given);
    block->threads[block->now].state = ENDED;
    emulated_switch(&block->threads[block->now].stack, block->whole);
  }

  void wait(State state) {
    Thread &own = threads[now];
    own.state = state;
    emulated_switch(&own.stack, whole);
  }

  bool turn() {
    bool ran = false;
    for (now = 0; now < threads.size(); now++)
      if (threads[now].state == RUNS) {
        ran = true;
        *own = threads[now].place;
        emulated_switch(&whole, threads[now].stack);
      }
    return ran;
  }

  bool release(State state) {
    bool any = false;
    for (Thread &thread : threads)
      if (thread.state == state) { thread.state = RUNS; any = true; }
    return any;
  }

  void run() {
    for (unsigned t = 0; t < threads.size(); t++) {
      Thread &thread = threads[t];
      // As a call of `enter` would find it: the place to return to lies at a multiple of 16.
      void **top = (void **)((uintptr_t)(stack(t) + STACK - 64) / 16 * 16);
      *top = (void *)enter;
      thread.stack = top - KEPT;
      thread.state = RUNS;
    }
    do {
      while (turn()) {}
    } while (release(AT_WARP) || release(AT_BLOCK));
  }
};

}  // namespace

// What kernels use of it.
API void emulated_wait() { current->wait(AT_BLOCK); }
API void emulated_warp_wait() { current->wait(AT_WARP); }
// A thread of the same warp gives its word; beyond the warp's end a thread gets its own.
API unsigned long long emulated_exchange(unsigned long long word, int move, int width, int mode) {
  Block &block = *current;
  unsigned own = block.now, lane = own % width, first = own - lane;
  block.threads[own].word = word;
  block.wait(AT_WARP);
  int from = mode == 0 ? move : mode == 1 ? int(lane) + move : mode == 2 ? int(lane) - move : int(lane) ^ move;
  unsigned at = first + from;
  bool there = from >= 0 && from < width && at < block.threads.size();
  unsigned long long got = there ? block.threads[at].word : word;
  block.wait(AT_WARP);
  return got;
}
// Threads of a warp that are in the same place.
API unsigned emulated_active() {
  Block &block = *current;
  unsigned own = block.now, first = own - own % 32, found = 0;
  block.threads[own].took = 1;
  block.wait(AT_WARP);
  for (unsigned t = first; t < first + 32 && t < block.threads.size(); t++)
    if (block.threads[t].took) found |= 1u << (t - first);
  block.wait(AT_WARP);
  block.threads[own].took = 0;
  return found;
}
// Threads of a warp that say yes.
API unsigned emulated_ballot(int yes) {
  Block &block = *current;
  unsigned own = block.now, first = own - own % 32, found = 0;
  block.threads[own].word = yes != 0;
  block.wait(AT_WARP);
  for (unsigned t = first; t < first + 32 && t < block.threads.size(); t++)
    if (block.threads[t].word) found |= 1u << (t - first);
  block.wait(AT_WARP);
  return found;
}

namespace {

struct Image { void *library; bool alive; };
struct Function { Image *image; Kernel kernel; bool meets; unsigned most; std::string name; };
struct Launch { Function *function; Place grid, dim; std::vector<std::vector<char>> arguments; };

std::map<void *, std::pair<char *, size_t>> memory, pinned;
const size_t PAGE = 4096;
std::set<Image *> images;
bool recording = false;
std::vector<std::function<int()>> recorded;

const int OK = 0, BAD_VALUE = 1, BAD_IMAGE = 200, BAD_CONTEXT = 201, FAULT = 700, TOO_MUCH = 701, NOT_IN_CAPTURE = 900;
int failed = 0;  // What runs after a fault fails too.

// The host cannot read memory of the device.
struct Open {
  Open() { all(PROT_READ | PROT_WRITE); }
  ~Open() { all(PROT_NONE); }
  void all(int how) {
    for (auto &[at, place] : memory) mprotect(place.first, place.second - PAGE, how);
  }
};

int run(Function *function, Place grid, Place dim, void **arguments) {
  if (failed) return failed;
  if (!images.count(function->image) || !function->image->alive) return failed = FAULT;
  unsigned count = dim.x * dim.y * dim.z;
  if (!count || count > function->most || !grid.x || !grid.y || !grid.z) return BAD_VALUE;
  if (grid.y > 65535 || grid.z > 65535) return BAD_VALUE;
  Open open;
  Place *block = (Place *)dlsym(function->image->library, "blockIdx");
  *(Place *)dlsym(function->image->library, "blockDim") = dim;
  *(Place *)dlsym(function->image->library, "gridDim") = grid;
  Place *own = (Place *)dlsym(function->image->library, "threadIdx");
  Block all;
  if (function->meets) {
    all.threads.resize(count);
    all.kernel = function->kernel; all.given = arguments; all.own = own;
    for (unsigned t = 0; t < count; t++) {
      all.threads[t].place = {t % dim.x, t / dim.x % dim.y, t / dim.x / dim.y};
      all.threads[t].took = 0;
    }
    current = &all;
  }
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        *block = {x, y, z};
        if (function->meets) { all.run(); continue; }
        for (unsigned t = 0; t < count; t++) {
          *own = {t % dim.x, t / dim.x % dim.y, t / dim.x / dim.y};
          function->kernel(arguments);
        }
      }
  current = nullptr;
  return OK;
}

int done(std::function<int()> work) {
  if (!recording) return work();
  recorded.push_back(work);
  return OK;
}

int copy(void *to, const void *from, size_t count) {
  return done([=] { 
    if (failed) return failed;
    Open open;
    memmove(to, from, count);
    return OK;
  });
}

// Each allocation ends where memory ends, so what reads beyond it ends the process.
int allocate(void **made, size_t count, bool host = false) {
  if (recording) return NOT_IN_CAPTURE;
  size_t inside = (count + PAGE - 1) / PAGE * PAGE;
  char *start = (char *)mmap(nullptr, inside + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return 2;
  mprotect(start + inside, PAGE, PROT_NONE);
  // Kernels read sixteen bytes at once.
  char *at = start + (inside - count) / 16 * 16;
  memset(start, 0xff, inside);
  if (!host) mprotect(start, inside, PROT_NONE);
  (host ? pinned : memory)[at] = {start, inside + PAGE};
  *made = at;
  return OK;
}

int release(void *at, bool host = false) {
  auto &all = host ? pinned : memory;
  if (!at) return OK;
  auto found = all.find(at);
  if (found == all.end()) return BAD_VALUE;
  munmap(found->second.first, found->second.second);
  all.erase(found);
  return OK;
}

const char *told(int code) {
  return code == FAULT ? "an illegal memory access" : code == NOT_IN_CAPTURE ? "not while recording" : "emulated error";
}

}  // namespace

// ---- the driver

API int cuInit(unsigned) { return OK; }
API int cuDriverGetVersion(int *v) { *v = 13000; return OK; }
API int cuDeviceGetCount(int *n) { *n = 1; return OK; }
API int cuDeviceGet(int *d, int) { *d = 0; return OK; }
API int cuDeviceGetName(char *name, int size, int) { snprintf(name, size, "emulated"); return OK; }
API int cuDeviceGetAttribute(int *v, int which, int) { *v = which == 75 ? 9 : which == 76 ? 0 : 0; return OK; }
API int cuDevicePrimaryCtxRetain(void **c, int) { *c = (void *)1; return OK; }
API int cuDevicePrimaryCtxRelease_v2(int) { return OK; }
API int cuCtxSetCurrent(void *) { return OK; }
API int cuGetErrorString(int code, const char **text) { *text = told(code); return OK; }
API int cuGetErrorName(int code, const char **text) { *text = told(code); return OK; }
API int cuFuncSetAttribute(void *, int, int) { return OK; }
API int cuTensorMapEncodeTiled() { return BAD_VALUE; }
API int cuMemHostRegister_v2(void *, size_t, unsigned) { return OK; }
API int cuMemHostUnregister(void *) { return OK; }
API int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) { return copy((void *)to, from, n); }
API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n) { return copy(to, (void *)from, n); }
API int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *) { return copy((void *)to, from, n); }
API int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *) { return copy(to, (void *)from, n); }
API int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *) { return copy((void *)to, (void *)from, n); }
API int cuMemAlloc_v2(uint64_t *made, size_t count) { return allocate((void **)made, count); }
API int cuMemFree_v2(uint64_t at) { return release((void *)at); }
API int cuMemGetInfo_v2(size_t *free_, size_t *all) { *free_ = *all = size_t(1) << 34; return OK; }
API int cuStreamCreate(void **s, unsigned) { *s = malloc(1); return OK; }
API int cuStreamDestroy_v2(void *s) { free(s); return OK; }
API int cuStreamSynchronize(void *) { return recording ? NOT_IN_CAPTURE : failed; }
API int cuStreamBeginCapture_v2(void *, int) { recording = true; recorded.clear(); return OK; }
typedef std::vector<std::function<int()>> Graph;
API int cuStreamEndCapture(void *, void **graph) { recording = false; *graph = new Graph(recorded); return OK; }
API int cuGraphInstantiateWithFlags(void **made, void *graph, uint64_t) { *made = new Graph(*(Graph *)graph); return OK; }
API int cuGraphDestroy(void *graph) { delete (Graph *)graph; return OK; }
API int cuGraphExecDestroy(void *graph) { delete (Graph *)graph; return OK; }
API int cuGraphLaunch(void *graph, void *) {
  for (auto &work : *(Graph *)graph)
    if (int code = work()) return code;
  return OK;
}

API int cuModuleLoadData(void **made, const void *data) {
  const char *image = (const char *)data;
  if (memcmp(image, "\x50\xed\x55\xba", 4)) return BAD_IMAGE;
  uint64_t size;
  memcpy(&size, image + 8, 8);
  int file = memfd_create("kernels", 0);
  if (file < 0 || write(file, image + 16, size) != (ssize_t)size) return BAD_IMAGE;
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    close(file);
    return BAD_IMAGE;
  }
  // The file stays open: under a name that is used again, the loader gives what it had before.
  Image *own = new Image{library, true};
  images.insert(own);
  *made = own;
  return OK;
}
API int cuModuleUnload(void *module) { ((Image *)module)->alive = false; return OK; }
API int cuModuleGetFunction(void **made, void *module, const char *name) {
  Image *image = (Image *)module;
  std::string at = std::string("emulated_") + name;
  Kernel kernel = (Kernel)dlsym(image->library, at.c_str());
  if (!kernel) return 500;
  bool meets = *(bool *)dlsym(image->library, (at + "_meets").c_str());
  int most = *(int *)dlsym(image->library, (at + "_most").c_str());
  *made = new Function{image, kernel, meets, (unsigned)most, name};
  return OK;
}
struct Config { unsigned grid_x, grid_y, grid_z, x, y, z, shared; void *stream, *attributes; unsigned count; };
struct alignas(8) Attribute { int name; alignas(8) int value[16]; };
const int ITS_OWN_WAIT = 6;
API int emulated_early = 0;  // launches of kernels that may start before others have ended
API int cuLaunchKernelEx(const Config *c, void *f, void **arguments, void **) {
  Function *function = (Function *)f;
  for (unsigned i = 0; i < c->count; i++) {
    const Attribute &a = ((const Attribute *)c->attributes)[i];
    emulated_early += a.name == ITS_OWN_WAIT && a.value[0];
  }
  int *number = (int *)dlsym(function->image->library, ("emulated_" + function->name + "_takes").c_str());
  // An argument has at most eight bytes; a graph keeps their values.
  std::vector<uint64_t> kept(*number);
  for (int i = 0; i < *number; i++) memcpy(&kept[i], arguments[i], 8);
  Place grid{c->grid_x, c->grid_y, c->grid_z}, dim{c->x, c->y, c->z};
  if (c->shared > 227 * 1024) return TOO_MUCH;
  return done([=]() mutable {
    std::vector<void *> at;
    for (auto &k : kept) at.push_back(&k);
    return run(function, grid, dim, at.data());
  });
}

// ---- the runtime

API int cudaGetDeviceCount(int *n) { *n = 1; return OK; }
API int cudaGetDevice(int *d) { *d = 0; return OK; }
API int cudaSetDevice(int) { return OK; }
API int cudaDeviceGetAttribute(int *v, int which, int) {
  switch (which) {
    case 1: *v = 1024; break;
    case 2: case 3: *v = 1024; break;
    case 4: *v = 64; break;
    case 8: *v = 49152; break;
    case 10: *v = 32; break;
    case 12: *v = 65536; break;
    case 16: *v = 132; break;
    case 39: *v = 2048; break;
    case 75: *v = 9; break;
    case 97: *v = 232448; break;
    default: *v = 0;
  }
  return OK;
}
API int cudaGetDeviceProperties(void *p, int) { memset(p, 0, 512); strcpy((char *)p, "emulated"); return OK; }
API int cudaMemGetInfo(size_t *free_, size_t *all) { *free_ = *all = size_t(1) << 34; return OK; }
API int cudaMalloc(void **p, size_t n) { return allocate(p, n); }
API int cudaMallocHost(void **p, size_t n) { return allocate(p, n, true); }
API int cudaFree(void *p) { return release(p); }
API int cudaFreeHost(void *p) { return release(p, true); }
API int cudaMemcpyAsync(void *to, const void *from, size_t n, int, void *) { return copy(to, from, n); }
API int cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t n, void *) { return copy(to, from, n); }
API int cudaGetLastError() { return OK; }
API int cudaPeekAtLastError() { return OK; }
API const char *cudaGetErrorString(int code) { return told(code); }
API const char *cudaGetErrorName(int code) { return told(code); }
API int cudaStreamCreate(void **s) { *s = malloc(1); return OK; }
API int cudaStreamCreateWithFlags(void **s, unsigned) { *s = malloc(1); return OK; }
API int cudaStreamDestroy(void *s) { free(s); return OK; }
API int cudaStreamSynchronize(void *) { return recording ? NOT_IN_CAPTURE : failed; }
API int cudaStreamWaitEvent(void *, void *, unsigned) { return OK; }
API int cudaStreamBeginCapture(void *s, int mode) { return cuStreamBeginCapture_v2(s, mode); }
API int cudaStreamEndCapture(void *s, void **graph) { return cuStreamEndCapture(s, graph); }
API int cudaGraphInstantiate(void **made, void *graph, unsigned long long) { return cuGraphInstantiateWithFlags(made, graph, 0); }
API int cudaGraphLaunch(void *graph, void *s) { return cuGraphLaunch(graph, s); }
API int cudaGraphDestroy(void *graph) { return cuGraphDestroy(graph); }
API int cudaGraphExecDestroy(void *graph) { return cuGraphExecDestroy(graph); }
API int cudaEventCreate(void **e) { *e = malloc(1); return OK; }
API int cudaEventDestroy(void *e) { free(e); return OK; }
API int cudaEventRecord(void *, void *) { return OK; }
API int cudaEventSynchronize(void *) { return OK; }
API int cudaEventElapsedTime(float *ms, void *, void *) { *ms = 0; return OK; }
