// softmax

#include "po_device.h"

static PO_DEVICE float max_of_warp_f32(float value)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const float other = po_shfl_xor(value, step);
        value = po_max_nan(value, other);
    }
    return value;
}

static PO_DEVICE float max_of_1024_f32(float value, float *parts, int thread)
{
    value = max_of_warp_f32(value);
    if (thread % 32 == 0) parts[thread / 32] = value;
    __syncthreads();
    return max_of_warp_f32(parts[thread % 32]);
}

static PO_DEVICE float sum_of_warp_f32(float value)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const float other = po_shfl_xor(value, step);
        value = value + other;
    }
    return value;
}

static PO_DEVICE float sum_of_1024_f32(float value, float *parts, int thread)
{
    value = sum_of_warp_f32(value);
    if (thread % 32 == 0) parts[thread / 32] = value;
    __syncthreads();
    return sum_of_warp_f32(parts[thread % 32]);
}

PO_KERNEL void __launch_bounds__(1024) softmax_0(const float *__restrict__ x, float *y)
{
    PO_SHARED float top_sum_1_parts[32];
    PO_SHARED float total_sum_2_parts[32];
    const int i = (int)blockIdx.x;
    float total;
    float top;
    top = -INFINITY;
    float top_sum_1 = -INFINITY;
    const int j = (int)threadIdx.x;
    if (j < 1000) {
        top_sum_1 = po_max_nan(top_sum_1, x[i * 1000 + j]);
    }
    top_sum_1 = max_of_1024_f32(top_sum_1, top_sum_1_parts, (int)threadIdx.x);
    top = po_max_nan(top, top_sum_1);
    total = 0.0f;
    float total_sum_2 = -0.0f;
    {
        const int j = (int)threadIdx.x;
        if (j < 1000) {
            total_sum_2 += expf(x[i * 1000 + j] - top);
        }
    }
    total_sum_2 = sum_of_1024_f32(total_sum_2, total_sum_2_parts, (int)threadIdx.x);
    total += total_sum_2;
    {
        const int j = (int)threadIdx.x;
        if (j < 1000) {
            y[i * 1000 + j] = expf(x[i * 1000 + j] - top) / total;
        }
    }
}
PO_ENTRY(softmax_0)
