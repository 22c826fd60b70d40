/* A CUDA runtime without a GPU, for rehearsals: loaded before libcudart, it shows PyTorch one device whose memory is the
   host's. No kernel runs. FAKE_GPUS, FAKE_MEMORY_MB, FAKE_CAPABILITY (90 for 9.0) and FAKE_PROCESSORS describe it. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#define DONE return cudaSuccess
#define MOST_PINNED 8192

static int setting(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

static size_t memory_bytes(void) { return (size_t)setting("FAKE_MEMORY_MB", 143000) << 20; }

/* ---- the device */
static __thread int current = 0;
cudaError_t cudaGetDeviceCount(int *count) { *count = setting("FAKE_GPUS", 1); DONE; }
cudaError_t cudaGetDevice(int *device) { *device = current; DONE; }
cudaError_t cudaSetDevice(int device) { current = device; DONE; }
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; DONE; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; DONE; }
cudaError_t cudaDeviceSynchronize(void) { DONE; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most) { *least = 0; *most = -5; DONE; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int one, int other) { *can = 0; DONE; }
cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) { strncpy(id, "0000:00:00.0", length); DONE; }
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) { *total = memory_bytes(); *free_bytes = *total; DONE; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
    int capability = setting("FAKE_CAPABILITY", 90);
    memset(found, 0, sizeof *found);
    strcpy(found->name, "Rehearsal");
    found->major = capability / 10;
    found->minor = capability % 10;
    found->multiProcessorCount = setting("FAKE_PROCESSORS", 132);
    found->totalGlobalMem = memory_bytes();
    found->warpSize = 32;
    found->maxThreadsPerBlock = 1024;
    found->maxThreadsPerMultiProcessor = 2048;
    found->sharedMemPerBlock = 49152;
    found->sharedMemPerBlockOptin = found->sharedMemPerMultiprocessor = 232448;
    found->regsPerBlock = found->regsPerMultiprocessor = 65536;
    found->l2CacheSize = 60 << 20;
    found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024;
    found->maxThreadsDim[2] = 64;
    found->maxGridSize[0] = 2147483647;
    found->maxGridSize[1] = found->maxGridSize[2] = 65535;
    DONE;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp found;
    cudaGetDeviceProperties(&found, device);
    *value = attribute == cudaDevAttrComputeCapabilityMajor       ? found.major
             : attribute == cudaDevAttrComputeCapabilityMinor     ? found.minor
             : attribute == cudaDevAttrMultiProcessorCount        ? found.multiProcessorCount
             : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? (int)found.sharedMemPerBlockOptin
                                                                  : 0;
    DONE;
}

/* ---- memory: that of the host; what was pinned is remembered, since PyTorch asks for it */
static struct { char *start; size_t length; } pinned[MOST_PINNED];
static int num_pinned = 0;

cudaError_t cudaMalloc(void **start, size_t length) {
    *start = aligned_alloc(4096, (length + 4095) & ~(size_t)4095);
    return *start ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *start) { free(start); DONE; }
cudaError_t cudaHostAlloc(void **start, size_t length, unsigned flags) {
    cudaError_t error = cudaMalloc(start, length);
    if (!error && num_pinned < MOST_PINNED) {
        pinned[num_pinned].start = *start;
        pinned[num_pinned++].length = length;
    }
    return error;
}
cudaError_t cudaMallocHost(void **start, size_t length) { return cudaHostAlloc(start, length, 0); }
cudaError_t cudaFreeHost(void *start) { free(start); DONE; }
cudaError_t cudaHostRegister(void *start, size_t length, unsigned flags) { DONE; }
cudaError_t cudaHostUnregister(void *start) { DONE; }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *pointer) {
    const char *at = pointer;
    memset(found, 0, sizeof *found);
    for (int i = 0; i < num_pinned; i++)
        if (at >= pinned[i].start && at < pinned[i].start + pinned[i].length) {
            found->type = cudaMemoryTypeHost;
            found->hostPointer = (void *)pointer;
        }
    DONE;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t length, enum cudaMemcpyKind kind) { memcpy(to, from, length); DONE; }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t length, enum cudaMemcpyKind kind, cudaStream_t stream) {
    memcpy(to, from, length);
    DONE;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t length, cudaStream_t stream) { memset(to, value, length); DONE; }

/* ---- streams, events and kernels: made, and never waited for */
static size_t next_handle = 4096;
#define HANDLE(type) (type)(next_handle += 64)

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) { *stream = HANDLE(cudaStream_t); DONE; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { *stream = HANDLE(cudaStream_t); DONE; }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { DONE; }
cudaError_t cudaStreamQuery(cudaStream_t stream) { DONE; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { DONE; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) { DONE; }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { *priority = 0; DONE; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = cudaStreamCaptureStatusNone;
    DONE;
}
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
    const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *num_nodes) {
    return cudaStreamIsCapturing(stream, status);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { DONE; }
cudaError_t cudaEventCreate(cudaEvent_t *event) { *event = HANDLE(cudaEvent_t); DONE; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { DONE; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { DONE; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) { DONE; }
cudaError_t cudaEventQuery(cudaEvent_t event) { DONE; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { DONE; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) { *ms = 1.0f; DONE; }
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) { DONE; }
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *kernel) {
    memset(found, 0, sizeof *found);
    found->maxThreadsPerBlock = 1024;
    DONE;
}
cudaError_t cudaGetLastError(void) { DONE; }
cudaError_t cudaPeekAtLastError(void) { DONE; }
const char *cudaGetErrorString(cudaError_t error) { return "rehearsal"; }

/* ---- the driver, which PyTorch opens by name; in a rehearsal nearly nothing is asked of it */
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}
CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { *version = CUDART_VERSION; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = (CUcontext)(size_t)4096; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return CUDA_SUCCESS; }
static CUresult nothing(void) { return CUDA_SUCCESS; }
cudaError_t cudaGetDriverEntryPointByVersion(
    const char *name, void **found, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    *found = strcmp(name, "cuDevicePrimaryCtxGetState") ? (void *)nothing : (void *)cuDevicePrimaryCtxGetState;
    if (result) *result = cudaDriverEntryPointSuccess;
    DONE;
}
