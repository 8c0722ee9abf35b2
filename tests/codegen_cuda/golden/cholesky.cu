// cholesky

#include "po_device.h"

static PO_DEVICE double sum_of_warp_f64(double value)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const double other = po_shfl_xor(value, step);
        value = value + other;
    }
    return value;
}

static PO_DEVICE double sum_of_64_f64(double value, double *parts, int thread)
{
    value = sum_of_warp_f64(value);
    if (thread % 32 == 0) parts[thread / 32] = value;
    __syncthreads();
    return sum_of_warp_f64(thread % 32 < 2 ? parts[thread % 32] : -0.0);
}

PO_KERNEL void __launch_bounds__(64) cholesky_0(const double *__restrict__ A, double *L)
{
    PO_SHARED double L_sum_2_sum_1_parts[2];
    for (int j = 0; j < 48; ++j) {
        double L_sum_2;
        L_sum_2 = 0.0;
        double L_sum_2_sum_1 = -0.0;
        const int k = (int)threadIdx.x;
        if (k < j) {
            L_sum_2_sum_1 += L[j * 48 + k] * L[j * 48 + k];
        }
        L_sum_2_sum_1 = sum_of_64_f64(L_sum_2_sum_1, L_sum_2_sum_1_parts, (int)threadIdx.x);
        __syncthreads();
        L_sum_2 += L_sum_2_sum_1;
        if ((int)threadIdx.x == 0) {
            L[j * 48 + j] = sqrt(A[j * 48 + j] - L_sum_2);
        }
        __syncthreads();
        const int i = j + 1 + (int)threadIdx.x;
        if (i < 48) {
            double L_sum;
            L_sum = 0.0;
            for (int k = 0; k < j; ++k) {
                L_sum += L[i * 48 + k] * L[j * 48 + k];
            }
            L[i * 48 + j] = (A[i * 48 + j] - L_sum) / L[j * 48 + j];
        }
        __syncthreads();
    }
}
PO_ENTRY(cholesky_0)

PO_KERNEL void __launch_bounds__(64) cholesky_1(double *L)
{
    const int i = (int)blockIdx.x;
    const int j_block = i + 1;  // j block
    if (j_block >= 48) return;
    const int j = j_block + (int)threadIdx.x;
    if (j < 48) {
        L[i * 48 + j] = 0.0;
    }
}
PO_ENTRY(cholesky_1)
