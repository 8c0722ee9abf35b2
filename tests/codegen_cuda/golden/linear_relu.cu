// linear_relu

#include "po_device.h"

PO_KERNEL void __launch_bounds__(256) linear_relu_0(const float *__restrict__ x, const float *__restrict__ w, const float *__restrict__ b, float *__restrict__ out)
{
    PO_SHARED float w_tile[512];
    PO_SHARED float x_tile[512];
    const int i_block = (int)blockIdx.y * 32;  // i block
    const int j_block = (int)blockIdx.x * 32;  // j block
    const int row = (int)threadIdx.y;  // i in tile
    const int column = (int)threadIdx.x;  // j in tile
    float y_tile[4];
#pragma unroll
    for (int i_own = 0; i_own < 2; ++i_own) {  // i
#pragma unroll
        for (int j_own = 0; j_own < 2; ++j_own) {  // j
            y_tile[i_own * 2 + j_own] = 0.0f;
        }
    }
    for (int k_block = 0; k_block < 64; k_block += 16) {  // k block
        __syncthreads();
        for (int i_place_all = ((int)threadIdx.y) * 16 + (int)threadIdx.x; i_place_all < 512; i_place_all += 256) {
            const int i_place = i_place_all / 16;
            const int k_place = i_place_all % 16;
            x_tile[i_place * 16 + k_place] = i_block + i_place < 100 ? x[(i_block + i_place) * 64 + (k_block + k_place)] : 0.0f;
        }
        for (int k_place_2_all = ((int)threadIdx.y) * 16 + (int)threadIdx.x; k_place_2_all < 512; k_place_2_all += 256) {
            const int k_place_2 = k_place_2_all / 32;
            const int j_place = k_place_2_all % 32;
            w_tile[k_place_2 * 32 + j_place] = w[(k_block + k_place_2) * 96 + (j_block + j_place)];
        }
        __syncthreads();
#pragma unroll
        for (int k_own = 0; k_own < 16; ++k_own) {  // k
#pragma unroll
            for (int i_own = 0; i_own < 2; ++i_own) {  // i
#pragma unroll
                for (int j_own = 0; j_own < 2; ++j_own) {  // j
                    y_tile[i_own * 2 + j_own] += x_tile[(row + i_own * 16) * 16 + k_own] * w_tile[k_own * 32 + (column + j_own * 16)];
                }
            }
        }
    }
#pragma unroll
    for (int i_own = 0; i_own < 2; ++i_own) {  // i
#pragma unroll
        for (int j_own = 0; j_own < 2; ++j_own) {  // j
            if (i_block + (row + i_own * 16) < 100) {
                out[(i_block + (row + i_own * 16)) * 96 + (j_block + (column + j_own * 16))] = po_max_nan(y_tile[i_own * 2 + j_own] + b[j_block + (column + j_own * 16)], 0.0f);
            }
        }
    }
}
PO_ENTRY(linear_relu_0)
