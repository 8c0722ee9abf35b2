// layernorm

#include "po_device.h"

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

PO_KERNEL void __launch_bounds__(1024) layernorm_0(const float *__restrict__ x, const float *__restrict__ gain, const float *__restrict__ bias, float *y)
{
    PO_SHARED float mean_sum_sum_1_parts[32];
    PO_SHARED float variance_sum_sum_2_parts[32];
    const int i = (int)blockIdx.x;
    float variance_sum;
    float mean_sum;
    float variance;
    float mean;
    mean_sum = 0.0f;
    float mean_sum_sum_1 = -0.0f;
    const int j = (int)threadIdx.x;
    if (j < 768) {
        mean_sum_sum_1 += x[i * 768 + j];
    }
    mean_sum_sum_1 = sum_of_1024_f32(mean_sum_sum_1, mean_sum_sum_1_parts, (int)threadIdx.x);
    mean_sum += mean_sum_sum_1;
    mean = mean_sum / 768.0f;
    variance_sum = 0.0f;
    float variance_sum_sum_2 = -0.0f;
    {
        const int j = (int)threadIdx.x;
        if (j < 768) {
            variance_sum_sum_2 += (x[i * 768 + j] - mean) * (x[i * 768 + j] - mean);
        }
    }
    variance_sum_sum_2 = sum_of_1024_f32(variance_sum_sum_2, variance_sum_sum_2_parts, (int)threadIdx.x);
    variance_sum += variance_sum_sum_2;
    variance = variance_sum / 768.0f;
    {
        const int j = (int)threadIdx.x;
        if (j < 768) {
            y[i * 768 + j] = (x[i * 768 + j] - mean) * (1.0f / sqrtf(variance + 0x1.4f8b580000000p-17f)) * gain[j] + bias[j];
        }
    }
}
PO_ENTRY(layernorm_0)
