// heat3d

#include "po_device.h"

PO_KERNEL void __launch_bounds__(64) heat3d_0(const float *__restrict__ start, float *u)
{
    const int i = (int)blockIdx.y;
    const int j_block = (int)blockIdx.x * 8;  // j block
    const int k_block = 0;  // k block
    const int j = j_block + (int)threadIdx.y;
    const int k = k_block + (int)threadIdx.x * 4;
    po_store<4>(&u[i * 1024 + j * 32 + k], po_load<4>(&start[i * 1024 + j * 32 + k]));
}
PO_ENTRY(heat3d_0)

PO_KERNEL void __launch_bounds__(256) heat3d_1(float *u, int64_t t)
{
    const int i = (int)blockIdx.y;
    const int j_block_2 = (int)blockIdx.x * 8;  // j block
    const int k_block_2 = 0;  // k block
    const int j = j_block_2 + (int)threadIdx.y;
    const int k = k_block_2 + (int)threadIdx.x;
    u[(t - (t + 1) / 2 * 2 + 1) * 32768 + i * 1024 + j * 32 + k] = ((((i > 0 && i < 31) && j > 0) && j < 31) && k > 0) && k < 31 ? (((((i > 0 && i < 31) && j > 0) && j < 31) && k > 0) && k < 31 ? u[(t - t / 2 * 2) * 32768 + i * 1024 + j * 32 + k] : 0.0f) + 0.125f * ((((((i > 0 && i < 31) && j > 0) && j < 31) && k > 0) && k < 31 ? u[(t - t / 2 * 2) * 32768 + (i + 1) * 1024 + j * 32 + k] : 0.0f) - 2.0f * (((((i > 0 && i < 31) && j > 0) && j < 31) && k > 0) && k < 31 ? u[(t - t / 2 * 2) * 32768 + i * 1024 + j * 32 + k] : 0.0f) + (((((i > 0 && i < 31) && j > 0) && j < 31) && k > 0) && k < 31 ? u[(t - t / 2 * 2) * 32768 + (i - 1) * 1024 + j * 32 + k] : 0.0f)) + 0.125f * ((((((i > 0 && i < 31) && j > 0) && j < 31) && k > 0) && k < 31 ? u[(t - t / 2 * 2) * 32768 + i * 1024 + (j + 1) * 32 + k] : 0.0f) - 2.0f * (((((i > 0 && i < 31) && j > 0) && j < 31) && k > 0) && k < 31 ? u[(t - t / 2 * 2) * 32768 + i * 1024 + j * 32 + k] : 0.0f) + (((((i > 0 && i < 31) && j > 0) && j < 31) && k > 0) && k < 31 ? u[(t - t / 2 * 2) * 32768 + i * 1024 + (j - 1) * 32 + k] : 0.0f)) + 0.125f * ((((((i > 0 && i < 31) && j > 0) && j < 31) && k > 0) && k < 31 ? u[(t - t / 2 * 2) * 32768 + i * 1024 + j * 32 + k + 1] : 0.0f) - 2.0f * (((((i > 0 && i < 31) && j > 0) && j < 31) && k > 0) && k < 31 ? u[(t - t / 2 * 2) * 32768 + i * 1024 + j * 32 + k] : 0.0f) + (((((i > 0 && i < 31) && j > 0) && j < 31) && k > 0) && k < 31 ? u[(t - t / 2 * 2) * 32768 + i * 1024 + j * 32 + k - 1] : 0.0f)) : (!(((((i > 0 && i < 31) && j > 0) && j < 31) && k > 0) && k < 31) ? u[(t - t / 2 * 2) * 32768 + i * 1024 + j * 32 + k] : 0.0f);
}
PO_ENTRY(heat3d_1)

PO_KERNEL void __launch_bounds__(64) heat3d_2(float *u_slice, const float *__restrict__ u)
{
    const int i = (int)blockIdx.y;
    const int j_block_3 = (int)blockIdx.x * 8;  // j block
    const int k_block_3 = 0;  // k block
    const int j = j_block_3 + (int)threadIdx.y;
    const int k = k_block_3 + (int)threadIdx.x * 4;
    po_store<4>(&u_slice[i * 1024 + j * 32 + k], po_load<4>(&u[32768 + i * 1024 + j * 32 + k]));
}
PO_ENTRY(heat3d_2)
