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

PO_KERNEL void __launch_bounds__(64) heat3d_1(float *u, int64_t t)
{
    const int i = (int)blockIdx.y;
    const int j_block_2 = (int)blockIdx.x * 8;  // j block
    const int k_block_2 = 0;  // k block
    const int j = j_block_2 + (int)threadIdx.y;
    const int k = k_block_2 + (int)threadIdx.x * 4;
    if ((i >= 1 && i < 31) && ((j >= 1 && j < 31) && (k >= 4 && k < 28))) {
        float u_row[6];
        u_row[0] = u[(t - t / 2 * 2) * 32768 + i * 1024 + j * 32 + k - 1];
        po_unpack(&u_row[1], po_load<4>(&u[(t - t / 2 * 2) * 32768 + i * 1024 + j * 32 + k]));
        u_row[5] = u[(t - t / 2 * 2) * 32768 + i * 1024 + j * 32 + k + 4];
        const po_vec<float, 4> u_v4 = po_load<4>(&u[(t - t / 2 * 2) * 32768 + (i + 1) * 1024 + j * 32 + k]);
        const po_vec<float, 4> u_v4_2 = po_load<4>(&u[(t - t / 2 * 2) * 32768 + (i - 1) * 1024 + j * 32 + k]);
        const po_vec<float, 4> u_v4_3 = po_load<4>(&u[(t - t / 2 * 2) * 32768 + i * 1024 + (j + 1) * 32 + k]);
        const po_vec<float, 4> u_v4_4 = po_load<4>(&u[(t - t / 2 * 2) * 32768 + i * 1024 + (j - 1) * 32 + k]);
        po_vec<float, 4> u_v4_5;
#pragma unroll
        for (int k_lane = 0; k_lane < 4; ++k_lane) {
            u_v4_5.v[k_lane] = u_row[k_lane + 1] + 0.125f * (u_v4.v[k_lane] - 2.0f * u_row[k_lane + 1] + u_v4_2.v[k_lane]) + 0.125f * (u_v4_3.v[k_lane] - 2.0f * u_row[k_lane + 1] + u_v4_4.v[k_lane]) + 0.125f * (u_row[k_lane + 2] - 2.0f * u_row[k_lane + 1] + u_row[k_lane]);
        }
        po_store<4>(&u[(t - (t + 1) / 2 * 2 + 1) * 32768 + i * 1024 + j * 32 + k], u_v4_5);
    } else {
        for (int k_lane = 0; k_lane < 4; ++k_lane) {
            u[(t - (t + 1) / 2 * 2 + 1) * 32768 + i * 1024 + j * 32 + k + k_lane] = ((((i > 0 && i < 31) && j > 0) && j < 31) && k + k_lane > 0) && k + k_lane < 31 ? u[(t - t / 2 * 2) * 32768 + i * 1024 + j * 32 + k + k_lane] + 0.125f * (u[(t - t / 2 * 2) * 32768 + (i + 1) * 1024 + j * 32 + k + k_lane] - 2.0f * u[(t - t / 2 * 2) * 32768 + i * 1024 + j * 32 + k + k_lane] + u[(t - t / 2 * 2) * 32768 + (i - 1) * 1024 + j * 32 + k + k_lane]) + 0.125f * (u[(t - t / 2 * 2) * 32768 + i * 1024 + (j + 1) * 32 + k + k_lane] - 2.0f * u[(t - t / 2 * 2) * 32768 + i * 1024 + j * 32 + k + k_lane] + u[(t - t / 2 * 2) * 32768 + i * 1024 + (j - 1) * 32 + k + k_lane]) + 0.125f * (u[(t - t / 2 * 2) * 32768 + i * 1024 + j * 32 + k + k_lane + 1] - 2.0f * u[(t - t / 2 * 2) * 32768 + i * 1024 + j * 32 + k + k_lane] + u[(t - t / 2 * 2) * 32768 + i * 1024 + j * 32 + k + k_lane - 1]) : u[(t - t / 2 * 2) * 32768 + i * 1024 + j * 32 + k + k_lane];
        }
    }
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
